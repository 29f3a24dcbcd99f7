"""Scales of fp8 grouped products: what `grouped_matmul` accepts, and how a launch reads them.

The checks look at shapes, dtypes and devices only, so they hold for fake tensors with symbolic sizes as well.
"""

from __future__ import annotations

from typing import Any

import torch

from wavetune.errors import OperandError
from wavetune.launch.checks import check_same_device, check_same_dtype, check_tensors
from wavetune.launch.scaled_checks import check_fp8_options, result_dtype

SCALED_DTYPE = torch.float8_e4m3fn
"""Torch's dtype whose products carry scales."""


def check_scale_types(scale_x: object, scale_w: object, use_fast_accum: object, out_dtype: object) -> None:
    """Refuse what is no tensor, no flag and no dtype, before torch stumbles over it.

    Raises
    ------
    OperandTypeError
        Naming the argument.
    """
    scales = {"scale_x": scale_x, "scale_w": scale_w}
    check_tensors(scales, optional=scales)
    check_fp8_options(out_dtype, use_fast_accum)


def grouped_result_dtype(x: Any, out_dtype: Any, out: Any) -> Any:
    """Return the dtype of the result: x's own; of fp8 the one asked for, else that of ``out``, else bf16.

    Raises
    ------
    OperandError
        If ``out`` or ``out_dtype`` is another one than the result can have.
    """
    if x.dtype == SCALED_DTYPE:
        return result_dtype(out_dtype, out)
    if out_dtype not in (None, x.dtype):
        raise OperandError(f"out_dtype is {out_dtype}, but products of {x.dtype} are stored as {x.dtype}")
    check_same_dtype("x", x, {"out": out})
    return x.dtype


def check_scales(x: Any, w: Any, scale_x: Any, scale_w: Any, use_fast_accum: bool) -> None:
    """Refuse scales that do not belong to x and w, whose own shapes and dtypes were looked at before.

    Parameters
    ----------
    x : Tensor of shape (tokens, k)
    w : Tensor of shape (experts, n, k)
    scale_x, scale_w : Tensor or None
    use_fast_accum : bool

    Raises
    ------
    OperandError
        Naming the argument and what to do.
    """
    if x.dtype != SCALED_DTYPE:
        for name, scale in (("scale_x", scale_x), ("scale_w", scale_w)):
            if scale is not None:
                raise OperandError(f"{name} is for {SCALED_DTYPE}, but x is {x.dtype}; multiply it into the result")
        if use_fast_accum:
            raise OperandError(f"use_fast_accum is for {SCALED_DTYPE}, but x is {x.dtype}, which is summed in fp32")
        return
    (tokens, _), (experts, n, _) = x.shape, w.shape
    shapes = (
        ("scale_x", scale_x, ((tokens,), (tokens, 1)), "token"),
        ("scale_w", scale_w, ((experts,), (experts, 1), (experts, 1, 1), (experts, n), (experts, n, 1)),
         "expert, or for each row of each expert"),
    )  # fmt: skip
    for name, scale, known, meaning in shapes:
        if scale is None:
            raise OperandError(
                f"{name} is missing, which {SCALED_DTYPE} needs: float32, one value or one for each {meaning}"
            )
        if scale.dtype != torch.float32:
            raise OperandError(f"{name} is {scale.dtype}; it must be torch.float32")
        check_same_device("x", x, {name: scale})
        if tuple(scale.shape) not in ((), (1,), (1, 1), *known):
            forms = " or ".join(str(list(shape)) for shape in known)
            raise OperandError(
                f"{name} has shape {list(scale.shape)}; it must be one value, or {forms}, a scale for each {meaning}"
            )


def view_scales(scale_x: Any, scale_w: Any) -> tuple[Any, Any]:
    """Return checked scales as `wavetune.kernels.grouped_gemm_scales` wants them, where they are.

    Returns
    -------
    tuple of Tensor
        Of shape (tokens,) or (1,); and (experts, n), (experts, 1) or (1, 1).
    """
    of_x = scale_x.reshape(1) if scale_x.dim() == 0 else scale_x[:, 0] if scale_x.dim() == 2 else scale_x
    if scale_w.dim() == 3:
        scale_w = scale_w[:, :, 0]
    if scale_w.dim() < 2:
        scale_w = scale_w.reshape(1, 1) if scale_w.numel() == 1 else scale_w[:, None]
    return of_x, scale_w
