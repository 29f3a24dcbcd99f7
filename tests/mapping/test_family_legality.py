"""What may be launched on a problem: the rules that files are read by are those of the kernels and of the runtime."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest

from wavetune.core.arch import find_arch
from wavetune.core.attention_problem import AttentionDecodeProblem, AttentionProblem
from wavetune.core.config import ATTENTION, ATTENTION_DECODE, GROUPED_GEMM, KernelConfig
from wavetune.core.grouped_problem import GroupedGemmProblem
from wavetune.core.problem import GemmProblem, Problem
from wavetune.mapping.family_legality import illegal_reason
from wavetune.mapping.kernel_mapping import KernelProblem
from wavetune.runtime.attention_choice import is_legal

H200, MI300X = find_arch("h200"), find_arch("mi300x")
PREFILL = ATTENTION.config(
    {"block_m": 64, "block_n": 64, "order": "in_order", "masking": "edges", "num_warps": 4, "num_stages": 2}
)


def decode(splits: int, block_n: int = 64) -> KernelConfig:
    """Return a configuration of decode."""
    return ATTENTION_DECODE.config({"block_n": block_n, "splits": splits, "num_warps": 4, "num_stages": 3})


def grouped(load: str, block_m: int = 64) -> KernelConfig:
    """Return a configuration of grouped GEMM."""
    fields = {"block_m": block_m, "block_n": 128, "block_k": 64, "num_warps": 4, "num_stages": 3}
    return GROUPED_GEMM.config({**fields, "load": load})


@pytest.mark.parametrize(
    ("problem", "config", "words"),
    [
        (AttentionDecodeProblem((100, 3), 8, 8), decode(2), None),
        (AttentionDecodeProblem((100, 3), 8, 8), decode(3), "splits=3 exceeds the 2 loop trips"),
        (AttentionDecodeProblem((4096,), window=64), decode(3), "splits=3 exceeds the 1 loop trips"),
        (AttentionDecodeProblem((0,)), decode(1), None),
        (AttentionDecodeProblem((10**6,) * 2**14, 2**13, 2**13), decode(16), "grid exceeds"),
        (AttentionProblem((2**20,), heads=2**16), PREFILL, None),
        (AttentionProblem((2**20,), heads=2**17), PREFILL, "grid exceeds"),
        (GroupedGemmProblem((5, 2), 512, 64), grouped("tma"), None),
        (GroupedGemmProblem((5, 2), 512, 65), grouped("tma"), "TMA needs 16-byte alignment, the operands have 2"),
        (GroupedGemmProblem((5, 2), 512, 65), grouped("pointer"), None),
        (GroupedGemmProblem((5, 2), 512, 72, dtype="fp8"), grouped("tma"), "the operands have 8"),
        (GroupedGemmProblem((2**30,), 2**15, 64), grouped("tma"), "grid exceeds"),
        (GroupedGemmProblem((2**30,), 2**15, 64), grouped("tma", 256), None),
        (KernelProblem("norm", (5,), "fp16"), KernelConfig(BLOCK=1), None),
    ],
)
def test_each_rule(problem: Problem, config: KernelConfig, words: str | None) -> None:
    """On both sides of its limit; of kernels without rules nothing is said."""
    reason = illegal_reason(problem, config, H200)
    assert (reason is None) == (words is None)
    assert words is None or words in reason


def test_a_gpu_without_tma() -> None:
    """Only pointers are left."""
    problem = GroupedGemmProblem((5, 2), 512, 64)
    assert "has no TMA" in illegal_reason(problem, grouped("tma"), MI300X)
    assert illegal_reason(problem, grouped("pointer"), MI300X) is None


def test_gemm_has_its_own_rules() -> None:
    """They are asked."""
    gemm = pytest.importorskip("wavetune.kernels.gemm_space").gemm_space(H200)
    loads = {config["load"] for config in gemm if illegal_reason(GemmProblem(5, 5, 7), config, H200) is None}
    assert loads == {"pointer"}


def prefills(draw: random.Random) -> AttentionProblem:
    """Return a prefill."""
    lengths = tuple(draw.choice((1, 70, 5000, 10**6)) for _ in range(draw.choice((1, 3))))
    return AttentionProblem(lengths, (), draw.choice((8, 2**18)), 8, is_causal=draw.random() < 0.5)


def steps(draw: random.Random) -> AttentionDecodeProblem:
    """Return a decode step."""
    lengths = tuple(draw.choice((0, 1, 31, 400, 10**5)) for _ in range(draw.choice((1, 3))))
    return AttentionDecodeProblem(lengths, draw.choice((8, 2**24)), 8, window=draw.choice((0, 0, 100)))


def layers(draw: random.Random) -> GroupedGemmProblem:
    """Return a grouped GEMM."""
    sizes = tuple(draw.choice((0, 1, 77, 2**20)) for _ in range(3))
    return GroupedGemmProblem((1, *sizes), draw.choice((64, 2**30)), draw.choice((64, 72, 65)))


@pytest.mark.parametrize(
    ("draw_problem", "space", "rule"),
    [
        (prefills, "attention_space.attention_space", "attention.illegal_reason"),
        (steps, "attention_space.attention_decode_space", "attention_decode.decode_illegal_reason"),
        (layers, "grouped_gemm_space.grouped_space", "grouped_gemm_dispatch.illegal_reason"),
    ],
)
def test_kernels_refuse_the_same(draw_problem: Callable[[random.Random], Problem], space: str, rule: str) -> None:
    """Of the configurations that there are, exactly what the kernels themselves refuse."""

    def find(name: str) -> Callable[..., object]:
        module, _, function = name.partition(".")
        return getattr(pytest.importorskip(f"wavetune.kernels.{module}"), function)

    draw, refused, n_pairs = random.Random(0), 0, 0
    configs: Sequence[KernelConfig] = find(space)(H200)
    for _ in range(60):
        problem = draw_problem(draw)
        for config in configs:
            ours, theirs = illegal_reason(problem, config, H200), find(rule)(problem, config, H200)
            assert (ours is None) == (theirs is None), (problem, config, ours, theirs)
            refused, n_pairs = refused + (ours is not None), n_pairs + 1
    assert 0 < refused < n_pairs


def test_the_runtime_answers_what_is_legal() -> None:
    """What a model's chooser may answer of splits is what a file may hold of them."""
    draw = random.Random(1)
    for _ in range(200):
        problem = steps(draw)
        config = decode(draw.choice((1, 2, 3, 16, 64)), draw.choice((32, 64, 128)))
        reason = illegal_reason(problem, config, H200)
        assert is_legal(problem, config) == (reason is None or "splits" not in reason)
