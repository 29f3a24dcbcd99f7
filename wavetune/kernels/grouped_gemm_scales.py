"""Scales of fp8 grouped GEMM: their shapes, random ones, and what a stored operand means with them.

A stored element times its scale is the number that it stands for. Scales are fp32: of x ``(tokens,)``, or ``(1,)`` for
all tokens together; of w ``(experts, n)`` for each row of each expert, ``(experts, 1)`` for each expert, or ``(1, 1)``
for all of them. All are one kernel.
"""

from __future__ import annotations

from typing import Any

from wavetune.core.grouped_problem import GroupedGemmProblem
from wavetune.kernels.gemm_scales import uniform_scales

GROUPED_SCALE_MODES = ("tensor", "expert", "row")
"""How scales of w may be spread; those of x are for each token, but for ``tensor``."""


def grouped_scale_shapes(problem: GroupedGemmProblem, mode: str = "row") -> tuple[tuple[int], tuple[int, int]]:
    """Return the shapes of x's and w's scales.

    Parameters
    ----------
    problem : GroupedGemmProblem
        Of a scaled dtype.
    mode : {"tensor", "expert", "row"}, default="row"
        See `GROUPED_SCALE_MODES`.
    """
    if mode == "tensor":
        return (1,), (1, 1)
    return (problem.tokens,), (problem.experts, problem.n if mode == "row" else 1)


def grouped_scale_strides(scale_x: Any, scale_w: Any) -> tuple[int, int, int]:
    """Return the elements from one token's scale to the next, one expert's, and one row's; 0 where they share one."""
    return (
        scale_x.stride(0) if scale_x.shape[0] > 1 else 0,
        scale_w.stride(0) if scale_w.shape[0] > 1 else 0,
        scale_w.stride(1) if scale_w.shape[1] > 1 else 0,
    )


def random_grouped_scales(problem: GroupedGemmProblem, mode: str, generator: Any) -> tuple[Any, Any]:
    """Return scales of random operands, see `wavetune.kernels.gemm_scales.uniform_scales`."""
    return uniform_scales(grouped_scale_shapes(problem, mode), problem.k, generator)


def expert_operands(operands: Any, expert: int, rows: slice) -> tuple[Any, Any]:
    """Return what the tokens of an expert and its weight stand for, in float64.

    Parameters
    ----------
    operands : GroupedGemmOperands
        With or without scales.
    expert : int
        Which one.
    rows : slice
        Its rows of x.
    """
    x, w = operands.x[rows].double(), operands.w[expert].double()
    if operands.scale_x is None:
        return x, w
    scale_x = operands.scale_x.double().expand(operands.x.shape[0])[rows]
    scale_w = operands.scale_w.double().expand(operands.w.shape[:2])[expert]
    return x * scale_x[:, None], w * scale_w[:, None]
