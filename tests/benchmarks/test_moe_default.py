"""vLLM's default for experts: the ladder of its rule, and the way into a space of configurations."""

from __future__ import annotations

import pytest
from moe_default import nearest_grouped_config, vllm_moe_config

from wavetune.core.arch import find_arch
from wavetune.core.config import GROUPED_GEMM
from wavetune.core.grouped_problem import GroupedGemmProblem
from wavetune.errors import ConfigError, ProblemError
from wavetune.kernels.grouped_gemm_space import grouped_space

FIELDS = ("block_m", "block_n", "block_k", "group_m", "num_warps", "num_stages")


def routed(tokens: int, experts: int, topk: int, dtype: str = "bf16") -> GroupedGemmProblem:
    """Return the first product of a layer with evenly loaded experts."""
    rows = tokens * topk
    sizes = [rows // experts + (index < rows % experts) for index in range(experts)]
    return GroupedGemmProblem(sizes, 4096, 2048, dtype=dtype)


@pytest.mark.parametrize(
    ("tokens", "experts", "topk", "expected"),
    [
        (1, 8, 2, (16, 64, 128, 1, 4, 4)),
        (32, 128, 8, (16, 64, 128, 1, 4, 4)),
        (33, 128, 8, (32, 64, 128, 1, 4, 3)),
        (64, 128, 8, (32, 64, 128, 1, 4, 3)),
        (65, 128, 8, (32, 128, 64, 1, 4, 3)),
        (97, 128, 8, (64, 128, 64, 1, 4, 3)),
        (129, 8, 2, (64, 128, 64, 1, 8, 3)),
        (513, 128, 8, (128, 128, 64, 1, 8, 3)),
        (1031, 8, 2, (128, 128, 64, 1, 8, 3)),
        (1032, 8, 2, (128, 128, 64, 16, 8, 3)),
    ],
)
def test_the_ladder(tokens: int, experts: int, topk: int, expected: tuple[int, ...]) -> None:
    """Both sides of every threshold, as vLLM's rule has them; tokens are counted before they are sent to experts."""
    found = vllm_moe_config(routed(tokens, experts, topk), topk)
    assert tuple(found[name] for name in FIELDS) == expected


def test_fp8_keeps_a_long_block_of_k() -> None:
    """Elements of half the width: twice the block of k also in large batches."""
    assert vllm_moe_config(routed(2048, 64, 4, "fp8"), 4)["block_k"] == 128
    assert vllm_moe_config(routed(2048, 64, 4), 4)["block_k"] == 64


def test_what_the_rule_does_not_cover_is_refused() -> None:
    """More experts a token than there are, none, or scales of blocks."""
    problem = routed(16, 8, 2)
    for topk in (0, 9, True):
        with pytest.raises(ProblemError, match="topk must be from 1 to the 8 experts"):
            vllm_moe_config(problem, topk)
    with pytest.raises(ProblemError, match="fp8_block128"):
        vllm_moe_config(routed(16, 8, 2, "fp8_block128"), 2)


def test_a_configuration_of_the_space_is_its_own_nearest() -> None:
    """Nothing is nearer than what is there."""
    space = grouped_space(find_arch("h200"))
    seen = set()
    for config in space:
        fields = {name: int(config[name]) for name in FIELDS}
        found = nearest_grouped_config(fields, space)
        assert {name: int(found[name]) for name in FIELDS} == fields
        seen.add(tuple(fields.values()))
    assert len(seen) > 40


@pytest.mark.parametrize("tokens", [1, 48, 100, 400, 4096])
def test_the_tile_survives_where_the_space_has_it(tokens: int) -> None:
    """What decides the grid is not traded for warps or stages; the grid is plain and operands come by TMA."""
    wanted = vllm_moe_config(routed(tokens, 8, 2), 2)
    space = grouped_space(find_arch("h200"))
    found = nearest_grouped_config(wanted, space)
    tiles = {tuple(int(config[name]) for name in FIELDS[:3]) for config in space}
    assert tuple(wanted[name] for name in FIELDS[:3]) in tiles
    assert all(int(found[name]) == wanted[name] for name in FIELDS[:3])
    assert (found["schedule"], found["load"]) == ("tile", "tma")


def test_an_unlisted_tile_goes_to_its_neighbour() -> None:
    """Fields are compared in octaves: 48 rows are nearer to 64 than to 16; an empty space is an error."""
    base = {"block_n": 128, "block_k": 64, "group_m": 8, "num_warps": 4, "num_stages": 3}
    pair = [GROUPED_GEMM.config({**base, "block_m": size}) for size in (16, 64)]
    assert nearest_grouped_config({**base, "block_m": 48}, pair)["block_m"] == 64
    with pytest.raises(ConfigError, match="empty"):
        nearest_grouped_config(base, [])
