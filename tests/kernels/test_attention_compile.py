"""Compiling attention for sm_90 without a GPU: one kernel for all sizes, matrix instructions, no spills."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

from wavetune.core.arch import ARCHS, find_arch
from wavetune.core.attention_problem import HEAD_DIMS, AttentionDecodeProblem, AttentionProblem
from wavetune.core.config import ATTENTION, ATTENTION_DECODE
from wavetune.errors import ConfigError
from wavetune.kernels.attention import illegal_reason
from wavetune.kernels.attention_decode import decode_illegal_reason
from wavetune.kernels.attention_space import attention_decode_space, attention_space, occupancy_splits
from wavetune.kernels.registry import find_family

H200 = find_arch("h200")

PREFILL = [
    ATTENTION.config(
        {
            "block_m": 128, "block_n": 64, "order": "longest_first", "masking": masking, "num_warps": 8,
            "num_stages": 2, "max_registers": 128,
        }
    )
    for masking in ("edges", "separate")
]  # fmt: skip
DECODE = [
    ATTENTION_DECODE.config({"block_n": 64, "splits": splits, "num_warps": 4, "num_stages": 3}) for splits in (1, 6)
]

# Compiles for placeholders, prints what the kernels need, then compiles for real tensors of several sizes and strides
# and prints the number of cache files before and after.
PROGRAM = """
import sys
from pathlib import Path
import torch
from wavetune.core.arch import find_arch
from wavetune.core.attention_problem import AttentionDecodeProblem, AttentionProblem
from wavetune.kernels.attention import attention_calls
from wavetune.kernels.attention_decode import decode_calls
from wavetune.kernels.attention_operands import make_attention_operands, make_decode_operands
from wavetune.kernels.call import compile_call, compile_offline
from wavetune.kernels.registry import find_family
from wavetune.measure.compile import read_resources
sys.path.insert(0, sys.argv[2])
from test_attention_compile import DECODE, PREFILL
arch = find_arch("h200")
compile_offline(arch)
def files():
    return sum(path.is_file() for path in Path(sys.argv[1]).rglob("*"))
for kernel, configs in (("attention", PREFILL), ("attention_decode", DECODE)):
    for config in configs:
        for call in find_family(kernel).offline_calls(config, arch, "bf16", "d128"):
            compiled = compile_call(call)
            ptx = compiled.asm["ptx"]
            print(call.variant.kernel.__name__, *read_resources(compiled), ptx.count("wgmma.mma_async"),
                  ptx.count("mma.sync"), ptx.count("cp.async.bulk.tensor"), ptx.count("cp.async.cg"))
print("files", files())
for config in PREFILL:
    for lengths, heads, kv_heads, causal in (((1, 1), 1, 1, True), ((300,), 17, 17, False), ((64, 7), 6, 2, True)):
        problem = AttentionProblem(lengths, (), heads, kv_heads, 128, causal)
        for operands in make_attention_operands(problem, "cpu", 0):
            compile_call(attention_calls(operands, config, arch)[0])
for config in DECODE:
    for lengths, heads, kv_heads in (((5000,), 1, 1), ((400, 7), 12, 3)):
        operands = make_decode_operands(AttentionDecodeProblem(lengths, heads, kv_heads), "cpu", 0)[0]
        for call in decode_calls(operands.with_workspace(config), config, arch):
            compile_call(call)
print("files", files())
"""


@pytest.mark.slow
def test_one_kernel_serves_all_sizes_and_is_fast_code(tmp_path: Path) -> None:
    """What calibration compiles is what launches look up; wgmma and TMA in a prefill, 16-byte copies in a decode."""
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "cache"), str(Path(__file__).parent)]
    environment = {"TRITON_CACHE_DIR": str(tmp_path / "cache"), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=280)
    assert done.returncode == 0, done.stderr[-2000:]
    lines = [line.split() for line in done.stdout.splitlines()]
    files = [int(line[1]) for line in lines if line[0] == "files"]
    assert files[0] == files[1] > 0
    kernels = [(line[0], *map(int, line[1:])) for line in lines if line[0] != "files"]
    assert len(kernels) == 3 * len(PREFILL) + 1 + 2
    for name, registers, spills, wgmma, mma, tma, copies in kernels:
        # Packed sequences have a loop of their own for the last trip, which squeezes 128 registers.
        assert spills <= 16
        if name == "attention_kernel":
            # Two products of 64 x 64 x 128 in steps of 16, and their loads.
            assert wgmma >= 12
            assert tma >= 5
            assert registers <= 128
        elif name == "decode_kernel":
            assert mma > 0
            assert copies > 0


@pytest.mark.parametrize("kernel", ["attention", "attention_decode"])
def test_spaces_are_rich_and_legal(kernel: str) -> None:
    """40 to 120 configurations on an H200, every head dimension has many, every architecture has some."""
    family = find_family(kernel)
    space = family.configs(H200, "bf16")
    assert 40 <= len(space) <= 120
    assert len(set(space)) == len(space)
    for head_dim in HEAD_DIMS:
        problem = family.validation_problems("bf16", f"d{head_dim}")[0]
        legal = [config for config in space if family.legal(problem, config, H200) is None]
        assert len(legal) >= 20
    for arch in ARCHS.values():
        assert len(family.configs(arch, "fp16")) >= 20
    assert family.space_hash(H200, "bf16") == family.space_hash(H200, "bf16")
    assert family.source_hash() == family.source_hash()


def test_the_split_space_reaches_both_ends() -> None:
    """From no split to as many as fill the GPU for one head."""
    splits = {int(config["splits"]) for config in attention_decode_space(H200)}
    assert {1, 2, 64} <= splits
    assert {str(config["order"]) for config in attention_space(H200)} == {"in_order", "longest_first"}


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"block_m": 96}, "power of two"),
        ({"block_n": 8}, "at least 16"),
        ({"block_m": 64}, "8 warps need 128 rows"),
        ({"max_registers": 256}, "at most 255"),
        ({"max_registers": 80}, "96 registers a thread"),
        ({"num_stages": 9}, "shared memory"),
    ],
)
def test_illegal_prefill_configurations_are_explained(fields: dict[str, int], word: str) -> None:
    """Each rule has its reason."""
    reason = illegal_reason(AttentionProblem((4096,)), PREFILL[0].replace(**fields), H200)
    assert reason is not None
    assert word in reason


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"block_n": 24}, "power of two"),
        ({"splits": 129}, "at most 128"),
        ({"splits": 65}, "exceeds the 64 loop trips"),
        ({"block_n": 1024}, "shared memory"),
    ],
)
def test_illegal_decode_configurations_are_explained(fields: dict[str, int], word: str) -> None:
    """Each rule has its reason."""
    reason = decode_illegal_reason(AttentionDecodeProblem((4096,)), DECODE[0].replace(**fields), H200)
    assert reason is not None
    assert word in reason


def test_other_dtypes_are_refused() -> None:
    """The kernels do not take fp8, and no fixed rule pretends so."""
    for problem in (AttentionProblem((64,), dtype="fp8"), AttentionDecodeProblem((64,), dtype="fp8")):
        with pytest.raises(ConfigError, match="no configuration is legal"):
            find_family(problem.kernel).fallback_config(problem, H200)


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
@pytest.mark.parametrize("name", ARCHS)
def test_the_fixed_rule_answers_everywhere(name: str, head_dim: int) -> None:
    """Something legal for every GPU, head dimension and length."""
    arch = ARCHS[name]
    for length in (1, 64, 100, 9000):
        problem = AttentionProblem((length,) * 3, (), 8, 2, head_dim, True)
        assert illegal_reason(problem, find_family("attention").fallback_config(problem, arch), arch) is None
        step = AttentionDecodeProblem((length, 0), 8, 2, head_dim)
        assert decode_illegal_reason(step, find_family("attention_decode").fallback_config(step, arch), arch) is None


def test_splits_by_occupancy() -> None:
    """Full waves need no split; one head alone gets a wave of them, as far as there are trips."""
    assert occupancy_splits(300, 100, 132) == 1
    assert occupancy_splits(8, 1, 132) == 1
    assert occupancy_splits(8, 10**4, 132) == 29  # 232 of 264 slots, 88 %
    assert occupancy_splits(1, 20, 132) == 20
