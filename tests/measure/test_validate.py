# ruff: noqa: E402 (what is imported below needs torch and triton)
"""Judging results, with a family that computes on the CPU."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from wavetune.core.arch import find_arch
from wavetune.core.config import GEMM
from wavetune.core.problem import GemmProblem
from wavetune.kernels.gemm_operands import make_gemm_operands
from wavetune.kernels.reference import gemm_reference, relative_error
from wavetune.measure import validate
from wavetune.measure.compile import Rejected
from wavetune.measure.validate import Checked
from wavetune.store.record import Status

CONFIG = GEMM.config({"block_m": 64, "block_n": 64, "block_k": 64, "group_m": 8, "num_warps": 4, "num_stages": 3})
PROBLEM = GemmProblem(70, 40, 96)


class TorchFamily:
    """Computes with torch, then spoils the result as told."""

    def __init__(self, spoil: str) -> None:
        self.spoil = spoil

    def max_error(self, dtype: str) -> float:
        """Return the limit for bf16."""
        return 8e-3

    def legal(self, problem: Any, config: Any, arch: Any) -> str | None:
        """Return a reason when told so."""
        return "not today" if self.spoil == "illegal" else None

    def launch(self, operands: Any, config: Any, arch: Any) -> None:
        """Compute and spoil."""
        operands.out.copy_(operands.a.float() @ operands.b.float().T)
        if self.spoil == "last row":
            operands.out[-1] = 0
        if self.spoil == "unwritten":
            operands.out[5, 7] = float("nan")


def judge(spoil: str, monkeypatch: pytest.MonkeyPatch) -> Checked | Rejected:
    """Validate one configuration in this process."""
    operands = make_gemm_operands(PROBLEM, "cpu", 0)[0]
    job = validate._Job(TorchFamily(spoil), find_arch("h200"), "bf16", [(operands, gemm_reference(operands))], "cpu")
    monkeypatch.setattr(validate, "_JOB", job)
    return validate._validate_one(CONFIG)


def test_a_right_result_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error of rounding alone is far below the limit."""
    result = judge("", monkeypatch)
    assert isinstance(result, Checked)
    assert 1e-4 < result.error < 4e-3


@pytest.mark.parametrize("spoil", ["last row", "unwritten"])
def test_a_wrong_result_is_rejected(spoil: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One missing row and one unwritten element are found; the figure is in the reason."""
    result = judge(spoil, monkeypatch)
    assert isinstance(result, Rejected)
    assert result.status is Status.WRONG_RESULT
    assert "relative error" in result.reason


def test_an_illegal_configuration_is_not_launched(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rules speak first."""
    result = judge("illegal", monkeypatch)
    assert isinstance(result, Rejected)
    assert (result.status, result.reason) == (Status.ILLEGAL, "not today")


def test_relative_error_of_zeros_and_nan() -> None:
    """A zero reference is compared absolutely; NaN passes no limit."""
    zeros = torch.zeros(3, dtype=torch.float64)
    assert relative_error(torch.zeros(3), zeros) == 0.0
    assert relative_error(torch.ones(3), zeros) > 1.0
    assert not relative_error(torch.full((3,), float("nan")), zeros) < 1.0
