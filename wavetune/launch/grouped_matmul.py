"""`grouped_matmul`: the experts of a mixture, in the configuration that the runtime chooses."""

from __future__ import annotations

from typing import Any

import torch

import wavetune.launch.grouped_operator  # noqa: F401 (registers the operator)
from wavetune.core.problem import check_dimension
from wavetune.errors import CaptureError, OperandError, OperandTypeError, ProblemError, ProblemTypeError
from wavetune.kernels.grouped_gemm_operands import device_groups
from wavetune.launch.checks import check_no_gradient, check_same_device
from wavetune.launch.grouped_checks import check_grouped_types, host_group_sizes
from wavetune.launch.grouped_scales import check_scale_types


def grouped_matmul(
    x: Any, w: Any, group_sizes: Any, *, activation: str | None = None, top_k: int | None = None, scale_x: Any = None,
    scale_w: Any = None, use_fast_accum: bool = False, out_dtype: Any = None, out: Any = None,
) -> Any:  # fmt: skip
    """Multiply the tokens of each expert by its weight: ``out[rows of e] = x[rows of e] @ w[e].T``, summed in fp32.

    Elements of float8_e4m3fn stand for themselves times their scales.

    Parameters
    ----------
    x : Tensor of shape (tokens, k)
        bf16, fp16 or float8_e4m3fn; rows sorted by expert. Evenly spaced rows are read where they are, anything else is
        copied.
    w : Tensor of shape (experts, n, k)
        Of x's dtype; rows of adjacent elements.
    group_sizes : sequence of int, or Tensor of shape (experts,) or (experts + 1,)
        Tokens of each expert; or, with one entry more, where each expert's rows begin and at last where they end. On
        the host (a sequence, a tensor on the CPU) they choose the configuration and the grid. On x's GPU they are read
        by the kernel alone: the choice is made for the number of tokens, over routings that are likely, and a captured
        graph follows what the tensor holds when it is replayed.
    activation : {None, "silu_and_mul"}, default=None
        With ``"silu_and_mul"`` w holds gate rows and then as many up rows, and the result is ``silu(gate) * up``.
    top_k : int, optional
        Experts that a token goes to: sharpens what is likely, where the sizes are on the GPU.
    scale_x : Tensor of float32, of shape (), (1,), (tokens,) or (tokens, 1), optional
        For e4m3: of all tokens, or of each.
    scale_w : Tensor of float32, of shape (), (1,), (experts,), (experts, 1), (experts, n) or (experts, n, 1), optional
        For e4m3: of all weights, of each expert, or of each row of each expert, gate and up rows included.
    use_fast_accum : bool, default=False
        For e4m3: leave the sum to the matrix unit, see `wavetune.scaled_matmul`.
    out_dtype : {torch.bfloat16, torch.float16}, optional
        For e4m3: of the result; that of ``out``, else bf16, if not given.
    out : Tensor of shape (tokens, n), or (tokens, n / 2) with an activation, optional
        Receives the result; never resized.

    Returns
    -------
    Tensor of shape (tokens, n), or (tokens, n / 2) with an activation
        ``out`` if it was given. Rows that no group on the GPU holds are not written.

    Raises
    ------
    OperandError, OperandTypeError
        If an argument cannot be used, or requires a gradient; the message names it and what to do.
    CaptureError
        If a CUDA graph is being captured, and the sizes are on the host or the kernel is not loaded.

    Notes
    -----
    This is the operator ``torch.ops.wavetune.grouped_matmul``. For e4m3 it computes what ``torch._scaled_grouped_mm(x,
    w.transpose(-2, -1), scale_x, scale_w, offs=group_sizes.cumsum(0))`` does.

    Examples
    --------
    >>> import torch, wavetune
    >>> x, w = torch.randn(300, 2048).bfloat16().cuda(), torch.randn(4, 1536, 2048).bfloat16().cuda()  # doctest: +SKIP
    >>> wavetune.grouped_matmul(x, w, [100, 0, 180, 20], activation="silu_and_mul").shape  # doctest: +SKIP
    torch.Size([300, 768])
    """
    name = "none" if activation is None else activation
    check_grouped_types(x, w, out, name)
    check_scale_types(scale_x, scale_w, use_fast_accum, out_dtype)
    experts_per_token = _check_top_k(top_k)
    check_no_gradient(
        {"x": x, "w": w, "scale_x": scale_x, "scale_w": scale_w, "out": out},
        "grouped_matmul has no backward pass; use torch.no_grad(), detach x and w, or take "
        "torch.nn.functional.grouped_mm",
    )
    groups, sizes = _groups(group_sizes, x, w)
    options = (groups, sizes, name, experts_per_token, scale_x, scale_w, use_fast_accum, out_dtype)
    if out is None:
        return torch.ops.wavetune.grouped_matmul(x, w, *options)
    torch.ops.wavetune.grouped_matmul_out(x, w, *options, out=out)
    return out


def _groups(group_sizes: Any, x: Any, w: Any) -> tuple[Any, tuple[int, ...] | None]:
    """Return group sizes as a tensor of int32 on x's device, and as integers if the host has them."""
    if isinstance(group_sizes, torch.Tensor) and (group_sizes.device == x.device != torch.device("cpu")):
        if group_sizes.is_floating_point() or group_sizes.is_complex() or group_sizes.dtype == torch.bool:
            raise OperandTypeError(f"group_sizes must hold integers, got {group_sizes.dtype}")
        return group_sizes.to(torch.int32).contiguous(), None
    if isinstance(group_sizes, torch.Tensor) and group_sizes.device.type != "cpu":
        check_same_device("x", x, {"group_sizes": group_sizes})
    if x.is_cuda and torch.cuda.is_current_stream_capturing():
        raise CaptureError(
            "a CUDA graph is being captured, which would keep these group sizes for ever; give group_sizes as a tensor "
            "of int32 on the GPU, whose contents it follows"
        )
    if x.dim() != 2 or w.dim() != 3:
        # The operator's own checks name it.
        return torch.zeros(0, dtype=torch.int32, device=x.device), None
    sizes = host_group_sizes(group_sizes, w.shape[0], x.shape[0])
    return device_groups(sizes, str(x.device)), sizes


def _check_top_k(top_k: object) -> int:
    if top_k is None:
        return 0
    try:
        return check_dimension("top_k", top_k)
    except ProblemTypeError as error:
        raise OperandTypeError(str(error)) from None
    except ProblemError as error:
        raise OperandError(str(error)) from None
