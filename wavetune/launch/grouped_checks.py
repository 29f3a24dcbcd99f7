"""What `grouped_matmul` accepts, and what it says about the rest.

As in `wavetune.launch.checks`, only shapes, dtypes and devices are looked at, so the checks hold for fake tensors with
symbolic sizes; strides and addresses are the launch's own matter. Group sizes are looked at where the host has them.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import torch

from wavetune.core.problem import check_dimension
from wavetune.errors import OperandError, OperandTypeError, ProblemError, ProblemTypeError
from wavetune.launch.checks import (
    SUPPORTED_DTYPES,
    check_int32,
    check_output_shape,
    check_same_device,
    check_same_dtype,
    check_tensors,
)
from wavetune.launch.grouped_scales import SCALED_DTYPE, check_scales, grouped_result_dtype

GROUPED_ACTIVATIONS = ("none", "silu_and_mul")
"""``silu_and_mul``: the weight holds gate rows, then as many up rows; the result is ``silu(gate) * up``."""


def check_grouped_types(x: object, w: object, out: object, activation: object) -> None:
    """Refuse what is not a tensor, and activations that there are not.

    Raises
    ------
    OperandTypeError
        Naming the argument.
    """
    check_tensors({"x": x, "w": w, "out": out}, optional=("out",))
    if activation not in GROUPED_ACTIVATIONS:
        raise OperandTypeError(f"activation must be None or 'silu_and_mul', got {activation!r}")


def check_grouped_operands(
    x: Any, w: Any, groups: Any, activation: str, out: Any = None, *, scale_x: Any = None, scale_w: Any = None,
    use_fast_accum: bool = False, out_dtype: Any = None,
) -> Any:  # fmt: skip
    """Refuse tensors that do not belong together; return the dtype of the result.

    Parameters
    ----------
    x : Tensor of shape (tokens, k)
        bf16, fp16 or e4m3.
    w : Tensor of shape (experts, n, k)
        Of x's dtype, on its device.
    groups : Tensor of shape (experts,) or (experts + 1,)
        int32, on x's device.
    activation : str
        One of `GROUPED_ACTIVATIONS`.
    out : Tensor of shape (tokens, n), or (tokens, n / 2) with an activation, optional
        Of x's dtype (bf16 or fp16 for e4m3), on its device.
    scale_x, scale_w : Tensor, optional
        For e4m3 and nothing else, see `wavetune.launch.grouped_scales`.
    use_fast_accum : bool, default=False
        For e4m3.
    out_dtype : torch.dtype, optional
        Of the result.

    Raises
    ------
    OperandError
        Naming the argument and what to do.
    """
    if x.dim() != 2:
        raise OperandError(f"x has shape {list(x.shape)}; it must be (tokens, k), rows sorted by expert")
    if w.dim() != 3:
        raise OperandError(f"w has shape {list(w.shape)}; it must be (experts, n, k)")
    if x.dtype != SCALED_DTYPE and x.dtype not in SUPPORTED_DTYPES:
        names = " or ".join(map(str, SUPPORTED_DTYPES))
        raise OperandError(f"x is {x.dtype}; cast it to {names}, or quantise it to {SCALED_DTYPE}")
    check_same_dtype("x", x, {"w": w})
    dtype = grouped_result_dtype(x, out_dtype, out)
    check_same_device("x", x, {"w": w, "group_sizes": groups, "out": out})
    tokens, k = x.shape
    experts, n, w_k = w.shape
    if w_k != k:
        raise OperandError(
            f"x of shape {list(x.shape)} has {k} columns, but w of shape {list(w.shape)} has {w_k}; w must be "
            "(experts, n, k)"
        )
    if groups.dim() != 1 or groups.shape[0] not in (experts, experts + 1):
        raise OperandError(
            f"group_sizes has shape {list(groups.shape)}, but w has {experts} experts; give {experts} sizes, or "
            f"{experts + 1} offsets that begin with 0"
        )
    check_int32("group_sizes", groups)
    if activation != "none" and n % 2:
        raise OperandError(f"with {activation} w holds gate and up rows, so n must be even, got {n}")
    check_scales(x, w, scale_x, scale_w, use_fast_accum)
    check_output_shape(out, (tokens, n if activation == "none" else n // 2))
    return dtype


def host_group_sizes(group_sizes: object, experts: int, tokens: int) -> tuple[int, ...]:
    """Return group sizes that the host has, from sizes or offsets.

    Parameters
    ----------
    group_sizes : iterable of int, or Tensor on the CPU
        One size for each expert, or where each expert's rows begin and at last where they end.
    experts, tokens : int
        What they must fit.

    Raises
    ------
    OperandTypeError
        If it is no sequence of integers.
    OperandError
        If there is a wrong number of them, one is negative or falls, or they do not hold all tokens.
    """
    if isinstance(group_sizes, torch.Tensor):
        if group_sizes.dim() != 1 or group_sizes.is_floating_point() or group_sizes.is_complex():
            raise OperandTypeError(
                f"group_sizes must hold integers along one axis, got shape {list(group_sizes.shape)} of "
                f"{group_sizes.dtype}"
            )
        group_sizes = group_sizes.tolist()
    if isinstance(group_sizes, str) or not isinstance(group_sizes, Iterable):
        raise OperandTypeError(f"group_sizes must be integers or a torch.Tensor, got {type(group_sizes).__name__}")
    try:
        values = tuple(check_dimension(f"group_sizes[{index}]", value) for index, value in enumerate(group_sizes))
    except ProblemTypeError as error:
        raise OperandTypeError(str(error)) from None
    except ProblemError as error:
        raise OperandError(str(error)) from None
    if len(values) == experts + 1:
        return _sizes_between(values, tokens)
    if len(values) != experts:
        raise OperandError(
            f"group_sizes has {len(values)} entries, but w has {experts} experts; give {experts} sizes, or "
            f"{experts + 1} offsets that begin with 0"
        )
    if sum(values) != tokens:
        raise OperandError(f"group_sizes must sum to the {tokens} rows of x, got {sum(values)}")
    return values


def _sizes_between(offsets: tuple[int, ...], tokens: int) -> tuple[int, ...]:
    if offsets[0] != 0:
        raise OperandError(f"offsets in group_sizes must begin with 0, got {offsets[0]}")
    for index, (start, end) in enumerate(pairwise(offsets)):
        if end < start:
            raise OperandError(f"offsets in group_sizes must not fall, but [{index}] is {start} and the next {end}")
    if offsets[-1] != tokens:
        raise OperandError(f"offsets in group_sizes must end with the {tokens} rows of x, got {offsets[-1]}")
    return tuple(end - start for start, end in pairwise(offsets))
