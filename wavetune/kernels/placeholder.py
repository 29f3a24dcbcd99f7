"""Stand-ins for tensors, so that kernels compile without torch and without a GPU."""

from __future__ import annotations

from functools import cache
from typing import Any

from wavetune.core.dtype import find_dtype
from wavetune.core.problem import GemmProblem
from wavetune.kernels.gemm_operands import TORCH_DTYPES, GemmOperands, result_dtype
from wavetune.kernels.gemm_scales import scale_shapes


class PlaceholderDType:
    """Looks like a torch dtype to Triton, which reads its printed name.

    Parameters
    ----------
    name : str
        Short dtype name.
    """

    is_floating_point = True

    def __init__(self, name: str) -> None:
        self._name = TORCH_DTYPES[name]
        self.itemsize = find_dtype(name).input_bytes

    def __str__(self) -> str:
        return f"torch.{self._name}"

    __repr__ = __str__


@cache
def _placeholder_dtype(name: str) -> PlaceholderDType:
    # Triton remembers a dtype by its address, as if all were immortal like torch's: one that was freed gave its name
    # to the next at the same place.
    return PlaceholderDType(name)


class Placeholder:
    """Looks like a contiguous, 16-byte aligned tensor.

    Parameters
    ----------
    dtype : str
        Short dtype name.
    shape : tuple of int
        Sizes.
    """

    def __init__(self, dtype: str, shape: tuple[int, ...]) -> None:
        self.dtype = _placeholder_dtype(dtype)
        self.shape = shape

    def data_ptr(self) -> int:
        """Return an aligned address that is never read."""
        return 1 << 20

    def stride(self, axis: int) -> int:
        """Return the elements from one index of ``axis`` to the next."""
        stride = 1
        for size in self.shape[axis + 1 :]:
            stride *= size
        return stride

    def numel(self) -> int:
        """Return the number of elements."""
        count = 1
        for size in self.shape:
            count *= size
        return count


AMPLE_WORKSPACE = Placeholder("fp32", (2**40,))
"""Stands for the workspace of any split-k launch."""


def placeholder_operands(problem: GemmProblem, *, has_bias: bool = False, activation: str = "none") -> GemmOperands:
    """Return contiguous, aligned stand-ins for the operands of a GEMM, with a workspace for any configuration."""
    m, n, k = problem.dims
    result = result_dtype(problem.dtype)
    factors: tuple[Any, ...] = ()
    if find_dtype(problem.dtype).is_scaled:
        factors = tuple(Placeholder("fp32", shape) for shape in scale_shapes(problem))
    return GemmOperands(
        problem,
        Placeholder(problem.dtype, (m, k)),
        Placeholder(problem.dtype, (n, k) if problem.layout == "nk" else (k, n)),
        Placeholder(result, (m, n)),
        Placeholder(result, (n,)) if has_bias else None,
        activation,
        AMPLE_WORKSPACE,
        *factors,
    )
