"""fp8 kernels on the CPU against torch in float64 of what the operands stand for.

The interpreter computes e4m3 as fp16 with an fp32 sum, and writes bf16 wrongly, so results are stored as fp16.
"""

from dataclasses import replace

import pytest
import torch

from wavetune.core.arch import find_arch
from wavetune.core.config import GEMM, KernelConfig
from wavetune.core.problem import GemmProblem
from wavetune.kernels.gemm import illegal_reason, launch_gemm
from wavetune.kernels.gemm_operands import GemmOperands, make_gemm_operands
from wavetune.kernels.reference import MAX_RELATIVE_ERROR, gemm_reference, relative_error

H200 = find_arch("h200")
SCHEDULES = {
    "tile-pointer": {"schedule": "tile", "load": "pointer"},
    "tile-tma": {"schedule": "tile", "load": "tma"},
    "tile-tma-halves": {"schedule": "tile", "load": "tma", "epilogue_split": 2},
    "persistent-pointer": {"schedule": "persistent", "load": "pointer"},
    "persistent-tma": {"schedule": "persistent", "load": "tma"},
    "split-pointer": {"schedule": "split_k", "load": "pointer", "split_k": 3},
    "split-tma": {"schedule": "split_k", "load": "tma", "split_k": 3},
}


def make_config(**fields: object) -> KernelConfig:
    """Complete a configuration."""
    base = {"block_m": 32, "block_n": 32, "block_k": 128, "group_m": 2, "num_warps": 4, "num_stages": 2}
    return GEMM.config({**base, **fields})


def check(problem: GemmProblem, config: KernelConfig, **options: object) -> GemmOperands:
    """Launch on NaN-filled output and compare every element with the reference."""
    assert illegal_reason(problem, config, H200) is None
    operands = make_gemm_operands(problem, "cpu", seed=1, **options)[0].with_workspace(config)
    bias = None if operands.bias is None else operands.bias.half()
    padded = torch.full((problem.m, operands.out.stride(0)), float("nan"), dtype=torch.float16)
    operands = replace(operands, out=padded[:, : problem.n], bias=bias)
    launch_gemm(operands, config, H200)
    assert relative_error(operands.out, gemm_reference(operands)) < MAX_RELATIVE_ERROR["fp16"]
    return operands


@pytest.mark.parametrize("scales", ["tensor", "row"])
@pytest.mark.parametrize("dtype", ["fp8", "fp8_fast"])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_ragged_problems_match_the_reference(schedule: str, dtype: str, scales: str) -> None:
    """Every edge is ragged; the last of three splits gets 1 trip of 5, where even shares would be 2, 2, 1."""
    problem = GemmProblem(50, 72, 592, dtype=dtype)
    check(problem, make_config(**SCHEDULES[schedule]), scales=scales, has_bias=True, activation="silu")


PAIRS = {
    "tile": {"schedule": "tile"},
    "persistent": {"schedule": "persistent"},
    "split": {"schedule": "split_k", "split_k": 3},
}


@pytest.mark.parametrize("block_n", [80, 96])
@pytest.mark.parametrize(("dtype", "scales"), [("fp8", "row"), ("fp8", "tensor"), ("fp8_fast", "row")])
@pytest.mark.parametrize("schedule", PAIRS)
def test_tiles_of_two_parts(schedule: str, dtype: str, scales: str, block_n: int) -> None:
    """Two promotions and a rest; the last tile is moved inside, or sticks out where the matrix is narrower than one."""
    config = make_config(**PAIRS[schedule], load="tma", block_m=64, block_n=block_n)
    for m, n in ((90, 208), (50, 40), (1, 72)):
        problem = GemmProblem(m, n, 1424, dtype=dtype)
        check(problem, config, scales=scales, has_bias=True, activation="silu")


def test_parts_of_a_tile_have_the_same_bits() -> None:
    """Both parts are promoted at the same trips, so the width of a tile does not show in the result."""
    problem = GemmProblem(70, 240, 1616, dtype="fp8")
    outs = [
        check(problem, make_config(load="tma", block_m=64, block_n=block_n), has_bias=True).out
        for block_n in (64, 80, 96)
    ]
    assert torch.equal(outs[0], outs[1])
    assert torch.equal(outs[0], outs[2])


@pytest.mark.parametrize("tile", [(32, 32), (16, 64), (64, 128)])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_scales_in_blocks(schedule: str, tile: tuple[int, int]) -> None:
    """Tiles narrower than a block, as wide as one, and transposed ones; the last block of k and of n is cut off."""
    config = make_config(**SCHEDULES[schedule], block_m=tile[0], block_n=tile[1])
    check(GemmProblem(50, 200, 400, dtype="fp8_block128"), config, has_bias=True)


@pytest.mark.parametrize("dtype", ["fp8", "fp8_block128"])
def test_a_split_without_trips(dtype: str) -> None:
    """Six trips over four splits leave none for the last one: it adds zeros, and reads no scales beyond the last."""
    for fields in ({}, {"block_m": 64, "block_n": 80}):
        config = make_config(schedule="split_k", split_k=4, load="tma", **fields)
        problem = GemmProblem(20, 40, 768, dtype=dtype)
        if dtype == "fp8" or not fields:
            check(problem, config)


@pytest.mark.parametrize("block_k", [32, 64, 128, 256])
def test_sums_are_promoted_whatever_the_trip(block_k: int) -> None:
    """Several promotions and a rest, at every length of a trip; one row and many."""
    for m in (1, 40):
        check(GemmProblem(m, 40, 1616, dtype="fp8"), make_config(block_m=16, block_n=64, block_k=block_k, load="tma"))


@pytest.mark.parametrize("schedule", ["tile-pointer", "persistent-pointer", "split-pointer"])
@pytest.mark.parametrize("dtype", ["fp8", "fp8_block128"])
def test_unaligned_operands(dtype: str, schedule: str) -> None:
    """Odd sizes, which TMA cannot load."""
    check(GemmProblem(33, 35, 399, dtype=dtype, alignment=1), make_config(**SCHEDULES[schedule]))


@pytest.mark.parametrize("schedule", ["tile-tma", "split-pointer"])
def test_a_scale_for_rows_and_one_for_the_tensor(schedule: str) -> None:
    """A may have a scale for each row while B has one, and scales may be views with a stride of their own."""
    problem = GemmProblem(50, 72, 400, dtype="fp8")
    config = make_config(**SCHEDULES[schedule])
    operands = make_gemm_operands(problem, "cpu", seed=2)[0].with_workspace(config)
    strided = torch.rand(50, 4)[:, 1:2]
    operands = replace(
        operands, scale_a=strided, scale_b=operands.scale_b[:1], out=operands.out.half(), bias=operands.bias
    )
    for _ in range(2):
        operands.out.fill_(float("nan"))
        launch_gemm(operands, config, H200)
        assert relative_error(operands.out, gemm_reference(operands)) < MAX_RELATIVE_ERROR["fp16"]
