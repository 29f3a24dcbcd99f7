"""fp8 grouped kernels on the CPU against torch in float64 of what the operands stand for.

The interpreter computes e4m3 as fp16 with an fp32 sum, and writes bf16 wrongly, so results are stored as fp16.
"""

from dataclasses import replace

import pytest
import torch

from wavetune.core.arch import find_arch
from wavetune.core.config import GROUPED_GEMM, KernelConfig
from wavetune.core.grouped_problem import GroupedGemmProblem
from wavetune.kernels.grouped_gemm_dispatch import illegal_reason, launch_operands
from wavetune.kernels.grouped_gemm_operands import GroupedGemmOperands, grouped_reference, make_grouped_operands
from wavetune.kernels.reference import MAX_RELATIVE_ERROR, relative_error

H200 = find_arch("h200")
SCHEDULES = {
    "tile-pointer": {"schedule": "tile", "load": "pointer"},
    "tile-tma": {"schedule": "tile", "load": "tma"},
    "persistent-pointer": {"schedule": "persistent", "load": "pointer"},
    "persistent-tma": {"schedule": "persistent", "load": "tma"},
}
RAGGED = (0, 33, 1, 0, 0, 40, 16)


def make_config(**fields: object) -> KernelConfig:
    """Complete a configuration."""
    base = {"block_m": 32, "block_n": 32, "block_k": 128, "group_m": 2, "num_warps": 4, "num_stages": 2}
    return GROUPED_GEMM.config({**base, **fields})


def check(problem: GroupedGemmProblem, config: KernelConfig, **options: object) -> GroupedGemmOperands:
    """Launch on NaN-filled output, knowing the histogram and not knowing it, and compare with the reference."""
    assert illegal_reason(problem, config, H200) is None
    operands = make_grouped_operands(problem, "cpu", seed=1, **options)[0]
    operands = replace(operands, out=operands.out.half())
    reference = grouped_reference(operands)
    for launched in (operands, operands.for_any_histogram()):
        operands.out.fill_(float("nan"))
        launch_operands(launched, config, H200)
        assert relative_error(operands.out, reference) < MAX_RELATIVE_ERROR["fp16"]
    return operands


@pytest.mark.parametrize("layout", ["nk", "gated"])
@pytest.mark.parametrize("scales", ["tensor", "expert", "row"])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_ragged_groups_match_the_reference(schedule: str, scales: str, layout: str) -> None:
    """Empty experts first, in the middle and in a row; every edge is ragged; every way to spread scales."""
    problem = GroupedGemmProblem(RAGGED, 56, 208, "fp8", layout)
    check(problem, make_config(**SCHEDULES[schedule]), scales=scales, as_offsets=scales == "row")


@pytest.mark.parametrize("layout", ["nk", "gated"])
@pytest.mark.parametrize("schedule", ["tile-tma", "persistent-tma", "tile-pointer"])
@pytest.mark.parametrize("block_n", [64, 128, 256])
def test_narrow_tiles_compute_the_transpose(block_n: int, schedule: str, layout: str) -> None:
    """16-row tiles swap their operands where the result's tile is at least 64 wide: gated ones then have two sums."""
    config = make_config(**SCHEDULES[schedule], block_m=16, block_n=block_n)
    check(GroupedGemmProblem((0, 1, 20, 0, 3), 184, 208, "fp8", layout), config)


@pytest.mark.parametrize("layout", ["nk", "gated"])
@pytest.mark.parametrize("block_k", [32, 64, 128, 256])
@pytest.mark.parametrize("tile", [(16, 128), (64, 64)], ids=str)
@pytest.mark.parametrize("dtype", ["fp8", "fp8_fast"])
def test_sums_are_promoted_whatever_the_trip(dtype: str, tile: tuple[int, int], block_k: int, layout: str) -> None:
    """Several promotions and a rest, at every length of a trip, and none at all; so with fewer trips than one needs."""
    config = make_config(load="tma", block_m=tile[0], block_n=tile[1], block_k=block_k)
    for k in (1616, 48):
        check(GroupedGemmProblem((3, 0, 40), 72, k, dtype, layout), config)


@pytest.mark.parametrize("schedule", ["tile-pointer", "persistent-pointer"])
@pytest.mark.parametrize("layout", ["nk", "gated"])
def test_unaligned_operands(layout: str, schedule: str) -> None:
    """Odd sizes, which TMA cannot load."""
    check(GroupedGemmProblem((7, 0, 33), 34, 399, "fp8", layout), make_config(**SCHEDULES[schedule]))


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("sizes", [(1,), (0, 0, 1), (40, 0, 0), (1,) * 5, (32, 32, 64)], ids=str)
def test_extreme_histograms(sizes: tuple[int, ...], schedule: str) -> None:
    """One token, one expert with everything, one token each, whole tiles."""
    check(GroupedGemmProblem(sizes, 40, 48, "fp8", "gated"), make_config(**SCHEDULES[schedule]))


@pytest.mark.parametrize("layout", ["nk", "gated"])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_views_with_strides_of_their_own(schedule: str, layout: str) -> None:
    """Operands, results and scales cut from larger tensors: the outside is neither read into the result nor written."""
    generator = torch.Generator().manual_seed(0)
    problem = GroupedGemmProblem((9, 0, 24), 40, 48, "fp8", layout)

    def e4m3(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator).to(torch.float8_e4m3fn)

    x, w = e4m3(40, 128)[3:36, 16:64], e4m3(3, 50, 96)[:, 8:48, 16:64]
    scale_x, scale_w = torch.rand(40, 3)[3:36, 1] + 0.5, (torch.rand(60, 4) + 0.5)[8:48, 1:].T
    store = torch.randn(40, 96, generator=generator).half()
    before, out = store.clone(), store[3:36, 24 : 24 + problem.out_columns]
    groups = torch.tensor(problem.group_sizes, dtype=torch.int32)
    operands = GroupedGemmOperands(problem, x, w, out, groups, scale_x, scale_w)
    launch_operands(operands, make_config(**SCHEDULES[schedule]), H200)
    assert relative_error(out, grouped_reference(operands)) < MAX_RELATIVE_ERROR["fp16"]
    inside = torch.zeros_like(before, dtype=torch.bool)
    inside[3:36, 24 : 24 + problem.out_columns] = True
    assert torch.equal(store[~inside], before[~inside])


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_launch_for_any_histogram_follows_the_device(schedule: str) -> None:
    """The same launch serves other sizes and other scales, written into the same tensors."""
    config = make_config(**SCHEDULES[schedule])
    operands = make_grouped_operands(GroupedGemmProblem((12, 0, 50, 2), 40, 48, "fp8"), "cpu", seed=1)[0]
    operands = replace(operands, out=operands.out.half())
    launched = operands.for_any_histogram()
    for sizes in ((64, 0, 0, 0), (1, 1, 1, 61), (10, 0, 20, 0)):
        operands.groups.copy_(torch.tensor(sizes))
        operands.scale_x.mul_(1.5)
        operands.out.fill_(float("nan"))
        launch_operands(launched, config, H200)
        rows = sum(sizes)
        known = replace(operands, problem=GroupedGemmProblem(sizes, 40, 48, "fp8"))
        reference = grouped_reference(known)[:rows]
        assert relative_error(operands.out[:rows], reference) < MAX_RELATIVE_ERROR["fp16"]
        assert operands.out[rows:].isnan().all()
