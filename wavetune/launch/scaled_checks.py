"""What `scaled_matmul` accepts, and what it says about the rest.

The checks look at shapes, dtypes and devices only, so they hold for fake tensors with symbolic sizes as well.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from wavetune.core.dtype import find_dtype
from wavetune.errors import OperandError, OperandTypeError
from wavetune.launch.checks import check_name, check_product_shapes, check_same_device, check_strided
from wavetune.mapping.gemm import ceil_div
from wavetune.runtime.numerics import NUMERICS

RESULT_DTYPES = (torch.bfloat16, torch.float16)
"""What a result may be stored as."""

BLOCK_DTYPE = "fp8_block128"
"""Short name of fp8 with scales in blocks."""

_BLOCK = find_dtype(BLOCK_DTYPE).scale_block


def check_options(out_dtype: object, use_fast_accum: object, numerics: object) -> None:
    """Refuse unknown names and dtypes.

    Raises
    ------
    OperandTypeError
        Naming the argument.
    """
    check_fp8_options(out_dtype, use_fast_accum)
    check_name("numerics", numerics, NUMERICS)


def check_fp8_options(out_dtype: object, use_fast_accum: object) -> None:
    """Refuse what is no dtype of a result and no flag.

    Raises
    ------
    OperandTypeError
        Naming the argument.
    """
    if out_dtype is not None and out_dtype not in RESULT_DTYPES:
        raise OperandTypeError(f"out_dtype must be torch.bfloat16 or torch.float16, got {out_dtype!r}")
    if not isinstance(use_fast_accum, bool):
        raise OperandTypeError(f"use_fast_accum must be a bool, got {use_fast_accum!r}")


def result_dtype(out_dtype: Any, out: Any) -> Any:
    """Return the dtype of the result: the one asked for, else that of ``out``, else bf16.

    Raises
    ------
    OperandError
        If ``out`` has another dtype than the one asked for, or one that no result has.
    """
    if out is None:
        return torch.bfloat16 if out_dtype is None else out_dtype
    if out.dtype not in RESULT_DTYPES or out_dtype not in (None, out.dtype):
        wanted = "torch.bfloat16 or torch.float16" if out_dtype is None else f"{out_dtype}, as out_dtype says"
        raise OperandError(f"out is {out.dtype}; it must be {wanted}")
    return out.dtype


def check_operands(a: Any, b: Any, scale_a: Any, scale_b: Any, bias: Any, out: Any, dtype: Any) -> None:
    """Refuse tensors that cannot be multiplied; their scales are looked at by `scale_mode`.

    Parameters
    ----------
    a : Tensor of shape (..., k)
    b : Tensor of shape (k, n)
    scale_a, scale_b : Tensor
    bias : Tensor of shape (n,) or None
    out : Tensor of shape (..., n) or None
    dtype : torch.dtype
        Of the result.

    Raises
    ------
    OperandError
        Naming the argument and what to do.
    """
    check_strided(a=a, b=b, scale_a=scale_a, scale_b=scale_b, bias=bias, out=out)
    for name, tensor, wanted in (
        ("a", a, torch.float8_e4m3fn), ("b", b, torch.float8_e4m3fn), ("scale_a", scale_a, torch.float32),
        ("scale_b", scale_b, torch.float32), ("bias", bias, dtype),
    ):  # fmt: skip
        if tensor is not None and tensor.dtype != wanted:
            raise OperandError(f"{name} is {tensor.dtype}; it must be {wanted}")
    check_same_device("a", a, {"b": b, "scale_a": scale_a, "scale_b": scale_b, "bias": bias, "out": out})
    check_product_shapes(a, b, bias, out)


def scale_modes(a: Any, b: Any, scale_a: Any, scale_b: Any) -> tuple[str, str]:
    """Recognize how scales are spread: ``"tensor"`` or ``"row"`` each, or ``"block"`` for both.

    Raises
    ------
    OperandError
        If their shapes are none of these; names the argument.
    """
    lead, (k, n) = tuple(a.shape[:-1]), b.shape
    shape_a, shape_b = tuple(scale_a.shape), tuple(scale_b.shape)
    blocks_k, blocks_n = ceil_div(k, _BLOCK), ceil_div(n, _BLOCK)
    if shape_a == (*lead, blocks_k) and shape_b == (blocks_n, blocks_k) and blocks_n * blocks_k > 1:
        return "block", "block"
    modes = []
    for name, scale, rows in (("scale_a", scale_a, (lead, (*lead, 1))), ("scale_b", scale_b, ((n,), (1, n)))):
        if scale.numel() == 1 and scale.dim() <= 2:
            modes.append("tensor")
        elif tuple(scale.shape) in rows:
            modes.append("row")
        else:
            one, block = ("row of a", [*lead, blocks_k]) if name == "scale_a" else ("column of b", [blocks_n, blocks_k])
            raise OperandError(
                f"{name} has shape {list(scale.shape)}; it must be one value, "
                f"{' or '.join(str(list(shape)) for shape in rows)} for a scale for each {one}, or {block} "
                f"(and the other one alike) for {_BLOCK} x {_BLOCK} blocks"
            )
    return modes[0], modes[1]


def n_rows(a: Any) -> int:
    """Return m: the leading axes of ``a`` together."""
    return math.prod(a.shape[:-1])
