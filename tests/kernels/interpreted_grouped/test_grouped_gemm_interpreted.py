"""Grouped GEMM kernels on the CPU against torch in float64, expert by expert."""

from dataclasses import replace

import pytest
import torch

from wavetune.core.arch import find_arch
from wavetune.core.config import GROUPED_GEMM, KernelConfig
from wavetune.core.grouped_problem import GroupedGemmProblem
from wavetune.kernels.grouped_gemm import grouped_illegal_reason, launch_grouped
from wavetune.kernels.grouped_gemm_operands import GroupedGemmOperands, grouped_reference, make_grouped_operands
from wavetune.kernels.reference import MAX_RELATIVE_ERROR, relative_error

H200 = find_arch("h200")
SCHEDULES = {
    "tile-pointer": {"schedule": "tile", "load": "pointer"},
    "tile-tma": {"schedule": "tile", "load": "tma"},
    "persistent-pointer": {"schedule": "persistent", "load": "pointer"},
    "persistent-tma": {"schedule": "persistent", "load": "tma"},
}


def make_config(**fields: object) -> KernelConfig:
    """Complete a configuration."""
    base = {"block_m": 32, "block_n": 32, "block_k": 32, "group_m": 2, "num_warps": 4, "num_stages": 2}
    return GROUPED_GEMM.config({**base, **fields})


def check(problem: GroupedGemmProblem, config: KernelConfig, *, as_offsets: bool = False) -> GroupedGemmOperands:
    """Launch on NaN-filled output, knowing the histogram and not knowing it, and compare with the reference."""
    assert grouped_illegal_reason(problem, config, H200) is None
    operands = make_grouped_operands(problem, "cpu", seed=1, as_offsets=as_offsets)[0]
    reference = grouped_reference(operands)
    for launched in (operands, operands.for_any_histogram()):
        operands.out.fill_(float("nan"))
        launch_grouped(launched, config, H200)
        assert relative_error(operands.out, reference) < MAX_RELATIVE_ERROR[problem.dtype]
    return operands


@pytest.mark.parametrize("layout", ["nk", "gated"])
@pytest.mark.parametrize("dtype", ["fp16", "fp32"])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_ragged_groups_match_the_reference(schedule: str, dtype: str, layout: str) -> None:
    """Empty experts first, in the middle and in a row; every edge is ragged; sizes and offsets."""
    config = make_config(**SCHEDULES[schedule])
    check(GroupedGemmProblem((0, 33, 1, 0, 0, 40, 16), 56, 72, dtype, layout), config, as_offsets=dtype == "fp16")


@pytest.mark.parametrize("schedule", ["tile-tma", "persistent-tma", "tile-pointer"])
@pytest.mark.parametrize("layout", ["nk", "gated"])
def test_narrow_tiles_compute_the_transpose(layout: str, schedule: str) -> None:
    """16-row tiles swap their operands where the tile is at least 64 wide."""
    for block_n in (64, 128):
        config = make_config(**SCHEDULES[schedule], block_m=16, block_n=block_n)
        check(GroupedGemmProblem((0, 1, 20, 0, 3), 184, 72, "fp16", layout), config)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("sizes", [(1,), (0, 0, 1), (40, 0, 0), (0, 40), (1,) * 5, (32, 32, 64)], ids=str)
def test_extreme_histograms(sizes: tuple[int, ...], schedule: str) -> None:
    """One token, one expert with everything, one token each, whole tiles."""
    check(GroupedGemmProblem(sizes, 40, 40, "fp16"), make_config(**SCHEDULES[schedule]))


@pytest.mark.parametrize("experts", [255, 256, 257])
def test_as_many_experts_as_a_kernel_has_room_for(experts: int) -> None:
    """At 256 no place is left over, and at 257 the kernel has room for 512; most experts are empty."""
    sizes = [0] * experts
    sizes[1], sizes[200], sizes[-1] = 5, 35, 2
    for schedule in ("tile-tma", "persistent-tma"):
        check(GroupedGemmProblem(tuple(sizes), 32, 32, "fp16"), make_config(**SCHEDULES[schedule]), as_offsets=True)


def test_groups_of_tile_rows_cover_every_tile() -> None:
    """The order of an expert's tiles leaves none out, also where groups of tile rows do not divide its height."""
    for group_m in (1, 2, 3, 8):
        config = make_config(schedule="tile", load="tma", block_m=16, block_n=32, group_m=group_m)
        check(GroupedGemmProblem((70, 0, 33), 56, 32, "fp16"), config)


@pytest.mark.parametrize("schedule", ["tile-pointer", "persistent-pointer"])
def test_unaligned_operands(schedule: str) -> None:
    """Odd sizes, which TMA cannot load."""
    check(GroupedGemmProblem((7, 0, 33), 35, 99, "fp16"), make_config(**SCHEDULES[schedule]))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_views_with_strides_of_their_own(schedule: str) -> None:
    """Experts, rows and results cut from larger tensors: the outside is neither read into the result nor written."""
    generator = torch.Generator().manual_seed(0)
    problem = GroupedGemmProblem((9, 0, 24), 40, 48, "fp16")
    x = torch.randn(40, 128, generator=generator).half()[3:36, 16:64]
    w = torch.randn(3, 50, 96, generator=generator).half()[:, 8:48, 8:56]
    store = torch.randn(40, 96, generator=generator).half()
    before, out = store.clone(), store[3:36, 24:64]
    operands = GroupedGemmOperands(problem, x, w, out, torch.tensor(problem.group_sizes, dtype=torch.int32))
    launch_grouped(operands, make_config(**SCHEDULES[schedule]), H200)
    assert relative_error(out, grouped_reference(operands)) < MAX_RELATIVE_ERROR["fp16"]
    inside = torch.zeros_like(before, dtype=torch.bool)
    inside[3:36, 24:64] = True
    assert torch.equal(store[~inside], before[~inside])


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_launch_for_any_histogram_follows_the_device(schedule: str) -> None:
    """The same launch serves other sizes, written into the same tensor; rows that no group has are left alone."""
    config = make_config(**SCHEDULES[schedule])
    operands = make_grouped_operands(GroupedGemmProblem((12, 0, 50, 2), 40, 40, "fp16"), "cpu", seed=1)[0]
    launched = operands.for_any_histogram()
    for sizes in ((64, 0, 0, 0), (1, 1, 1, 61), (16, 16, 16, 16), (10, 0, 20, 0)):
        operands.groups.copy_(torch.tensor(sizes))
        operands.out.fill_(float("nan"))
        launch_grouped(launched, config, H200)
        rows = sum(sizes)
        known = replace(operands, problem=GroupedGemmProblem(sizes, 40, 40, "fp16"))
        reference = grouped_reference(known)[:rows]
        assert relative_error(operands.out[:rows], reference) < MAX_RELATIVE_ERROR["fp16"]
        assert operands.out[rows:].isnan().all()


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_wrong_sizes_on_the_device_write_nowhere_else(schedule: str) -> None:
    """Negative sizes count as none, and sizes beyond the tokens end with them: nothing behind the result is touched."""
    config = make_config(**SCHEDULES[schedule])
    problem = GroupedGemmProblem((20, 20), 40, 40, "fp16")
    operands = make_grouped_operands(problem, "cpu", seed=1)[0]
    store = torch.zeros(200, 40, dtype=torch.float16)
    wrong = replace(operands, out=store[:40], groups=torch.tensor([-5, 150], dtype=torch.int32))
    launch_grouped(wrong.for_any_histogram(), config, H200)
    assert torch.equal(store[40:], torch.zeros(160, 40, dtype=torch.float16))
    expected = operands.x.double() @ operands.w[1].double().T
    assert relative_error(store[:40], expected) < MAX_RELATIVE_ERROR["fp16"]


@pytest.mark.parametrize("layout", ["nk", "gated"])
def test_without_a_sum_the_result_is_zero(layout: str) -> None:
    """With k = 0 nothing is added up; without tokens there is nothing to write."""
    for problem in (GroupedGemmProblem((3, 2), 32, 0, "fp16", layout), GroupedGemmProblem((0, 0), 32, 32, "fp16")):
        operands = make_grouped_operands(problem, "cpu", seed=0)[0]
        launch_grouped(operands, make_config(**SCHEDULES["tile-tma"]), H200)
        assert torch.equal(operands.out, torch.zeros_like(operands.out))


def test_large_values_and_infinities_stay_with_their_expert() -> None:
    """What one expert's tokens hold, NaN and infinity, does not reach the tokens of its neighbours."""
    problem = GroupedGemmProblem((5, 20, 40), 40, 40, "fp16")
    operands = make_grouped_operands(problem, "cpu", seed=3)[0]
    operands.x[5:25] = float("nan")
    operands.w[1] = float("inf")
    for schedule in SCHEDULES.values():
        operands.out.fill_(0.0)
        launch_grouped(operands, make_config(**schedule), H200)
        reference = grouped_reference(operands)
        for rows in (slice(0, 5), slice(25, 65)):
            assert relative_error(operands.out[rows], reference[rows]) < MAX_RELATIVE_ERROR["fp16"]
        assert operands.out[5:25].isnan().all()
