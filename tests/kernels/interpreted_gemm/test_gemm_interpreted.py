"""GEMM kernels on the CPU against torch in float64."""

import pytest
import torch

from wavetune.core.arch import find_arch
from wavetune.core.config import GEMM, KernelConfig
from wavetune.core.problem import GemmProblem
from wavetune.errors import ConfigError
from wavetune.kernels.gemm import illegal_reason, launch_gemm
from wavetune.kernels.gemm_operands import GemmOperands, make_gemm_operands, operand_problem
from wavetune.kernels.reference import MAX_RELATIVE_ERROR, gemm_reference, relative_error

H200 = find_arch("h200")
SCHEDULES = {
    "tile-pointer": {"schedule": "tile", "load": "pointer"},
    "tile-tma": {"schedule": "tile", "load": "tma"},
    "tile-tma-halves": {"schedule": "tile", "load": "tma", "epilogue_split": 2},
    "persistent-pointer": {"schedule": "persistent", "load": "pointer"},
    "persistent-tma": {"schedule": "persistent", "load": "tma"},
    "persistent-tma-halves": {"schedule": "persistent", "load": "tma", "epilogue_split": 2},
    "split-pointer": {"schedule": "split_k", "load": "pointer", "split_k": 3},
    "split-tma": {"schedule": "split_k", "load": "tma", "split_k": 3},
}


def make_config(**fields: object) -> KernelConfig:
    """Complete a configuration."""
    base = {"block_m": 32, "block_n": 32, "block_k": 32, "group_m": 2, "num_warps": 4, "num_stages": 2}
    return GEMM.config({**base, **fields})


def check(problem: GemmProblem, config: KernelConfig, **options: object) -> GemmOperands:
    """Launch on NaN-filled output and compare every element with the reference."""
    assert illegal_reason(problem, config, H200) is None
    operands = make_gemm_operands(problem, "cpu", seed=1, **options)[0].with_workspace(config)
    launch_gemm(operands, config, H200)
    assert relative_error(operands.out, gemm_reference(operands)) < MAX_RELATIVE_ERROR[problem.dtype]
    return operands


@pytest.mark.parametrize("dtype", ["fp16", "fp32"])
@pytest.mark.parametrize("layout", ["nk", "kn"])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_ragged_problems_match_the_reference(schedule: str, layout: str, dtype: str) -> None:
    """Every edge is ragged; the last of three splits gets 1 trip of 4, where even shares would be 2, 1, 1."""
    check(GemmProblem(50, 72, 104, dtype=dtype, layout=layout), make_config(**SCHEDULES[schedule]))


@pytest.mark.parametrize("layout", ["nk", "kn"])
@pytest.mark.parametrize("schedule", ["tile-pointer", "tile-tma", "split-tma"])
def test_narrow_tiles_compute_the_transpose(schedule: str, layout: str) -> None:
    """16-row tiles swap their operands; one row must be right as well."""
    config = make_config(**SCHEDULES[schedule], block_m=16, block_n=64)
    for m in (1, 20):
        check(GemmProblem(m, 72, 104, dtype="fp16", layout=layout), config)


@pytest.mark.parametrize("block_n", [80, 96, 160, 192])
@pytest.mark.parametrize("schedule", ["tile-tma", "persistent-tma", "split-tma"])
def test_tiles_of_two_parts(schedule: str, block_n: int) -> None:
    """Widths that are no power of two, with a ragged second tile."""
    layout = "nk" if block_n in (96, 160) else "kn"
    config = make_config(**SCHEDULES[schedule], block_m=64, block_n=block_n)
    check(GemmProblem(70, 200, 72, dtype="fp16", layout=layout), config, has_bias=True, activation="silu")


@pytest.mark.parametrize("activation", ["none", "relu", "gelu", "silu"])
@pytest.mark.parametrize("schedule", ["tile-pointer", "persistent-tma-halves", "split-pointer"])
def test_bias_and_activation(schedule: str, activation: str) -> None:
    """The epilogue of every kind of store."""
    config = make_config(**SCHEDULES[schedule])
    check(GemmProblem(40, 40, 88, dtype="fp16"), config, has_bias=True, activation=activation)


@pytest.mark.parametrize("schedule", ["tile-pointer", "persistent-pointer", "split-pointer"])
def test_unaligned_operands(schedule: str) -> None:
    """Odd sizes and 2-byte alignment, which TMA cannot load."""
    check(GemmProblem(33, 35, 99, dtype="fp16", alignment=2), make_config(**SCHEDULES[schedule]))


@pytest.mark.parametrize("schedule", ["tile-pointer", "tile-tma", "split-tma"])
def test_views_with_a_leading_stride(schedule: str) -> None:
    """Operands cut from larger tensors: the outside is neither read into the result nor written."""
    config = make_config(**SCHEDULES[schedule])
    generator = torch.Generator().manual_seed(0)
    stores = [torch.randn(rows, 128, generator=generator).half() for rows in (50, 40, 50)]
    a, b, out = stores[0][3:, 16:112], stores[1][:, 8:104], stores[2][3:, 24:64]
    before = stores[2].clone()
    operands = GemmOperands(operand_problem(a, b, out, "nk"), a, b, out).with_workspace(config)
    assert operands.problem == GemmProblem(47, 40, 96, dtype="fp16", alignment=16)
    launch_gemm(operands, config, H200)
    assert relative_error(out, gemm_reference(operands)) < MAX_RELATIVE_ERROR["fp16"]
    inside = torch.zeros_like(before, dtype=torch.bool)
    inside[3:, 24:64] = True
    assert torch.equal(stores[2][~inside], before[~inside])


@pytest.mark.parametrize("dims", [(0, 8, 8), (8, 0, 8), (8, 8, 0), (0, 0, 0)])
@pytest.mark.parametrize("schedule", ["tile-tma", "persistent-tma", "split-tma"])
def test_empty_problems_give_what_torch_gives(schedule: str, dims: tuple[int, int, int]) -> None:
    """With k = 0 the product is zero and the bias remains."""
    for has_bias in (False, True):
        problem = GemmProblem(*dims, dtype="fp32")
        operands = make_gemm_operands(problem, "cpu", 0, has_bias=has_bias, activation="silu")[0]
        launch_gemm(operands, make_config(**SCHEDULES[schedule]), H200)
        torch.testing.assert_close(operands.out.double(), gemm_reference(operands))


def test_more_splits_than_trips_leave_some_empty() -> None:
    """Five trips over four splits are 2, 2, 1, 0."""
    check(GemmProblem(20, 40, 152, dtype="fp16"), make_config(**SCHEDULES["split-pointer"]).replace(split_k=4))


def test_split_k_is_deterministic() -> None:
    """Two launches give the same bits."""
    config = make_config(**SCHEDULES["split-tma"])
    operands = check(GemmProblem(20, 40, 152, dtype="fp16"), config)
    first = operands.out.clone()
    launch_gemm(operands, config, H200)
    assert torch.equal(first, operands.out)


def test_split_k_without_workspace_is_refused() -> None:
    """A launch never allocates."""
    operands = make_gemm_operands(GemmProblem(16, 16, 128, dtype="fp16"), "cpu", 0)[0]
    with pytest.raises(ConfigError, match="workspace of 768 fp32"):
        launch_gemm(operands, make_config(**SCHEDULES["split-tma"]), H200)
