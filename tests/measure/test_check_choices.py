# ruff: noqa: E402 (what is imported below needs torch and triton)
"""Checking choices on their own problems, with a family that computes on the CPU."""

import math
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from wavetune.core.arch import find_arch
from wavetune.core.config import GEMM
from wavetune.core.problem import GemmProblem
from wavetune.kernels import registry
from wavetune.kernels.gemm_operands import make_gemm_operands
from wavetune.kernels.reference import gemm_reference
from wavetune.measure import check_choices
from wavetune.measure.check_choices import check_one

CONFIG = GEMM.config({"block_m": 64, "block_n": 64, "block_k": 64, "group_m": 8, "num_warps": 4, "num_stages": 3})


class SpoiltFamily:
    """Computes with torch, right on some problems only."""

    def make_operands(self, problem: Any, device: str, seed: int) -> Any:
        """Allocate."""
        return make_gemm_operands(problem, device, seed)

    def reference(self, operands: Any) -> Any:
        """Compute in float64."""
        return gemm_reference(operands)

    def max_error(self, dtype: str) -> float:
        """Return the limit for bf16."""
        return 8e-3

    def legal(self, problem: Any, config: Any, arch: Any) -> str | None:
        """Return a reason for odd k."""
        return "k is odd" if problem.k % 2 else None

    def launch(self, operands: Any, config: Any, arch: Any) -> None:
        """Compute; of 33 rows the last is not written, of 34 the first is zero."""
        m = operands.problem.m
        result = operands.a.float() @ operands.b.float().T
        operands.out[: m - (m == 33)] = result[: m - (m == 33)].to(operands.out.dtype)
        if m == 34:
            operands.out[0] = 0


@pytest.fixture(autouse=True)
def spoilt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the family in the place of the GEMM, and set the worker up."""
    monkeypatch.setattr(registry, "find_family", lambda kernel: SpoiltFamily())
    monkeypatch.setattr(check_choices, "_WHERE", None)
    check_choices.set_up(find_arch("h200"), 0)


def test_the_problem_itself_is_computed() -> None:
    """Right on 32 rows; wrong on 33, where an element keeps its NaN, and on 34."""
    right = check_one((GemmProblem(32, 40, 96), CONFIG))
    assert right.reason == ""
    assert 1e-4 < right.error < 4e-3
    unwritten = check_one((GemmProblem(33, 40, 96), CONFIG))
    assert math.isnan(unwritten.error)
    assert "relative error" in unwritten.reason
    assert check_one((GemmProblem(34, 40, 96), CONFIG)).error > 0.05


def test_an_illegal_choice_is_not_launched() -> None:
    """Its reason is the rules'."""
    assert check_one((GemmProblem(32, 40, 97), CONFIG)).reason == "k is odd"
