"""`matmul`: torch.matmul, with bias and activation, in the configuration that the runtime chooses."""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd import forward_ad

from wavetune.launch.checks import check_no_tangent
from wavetune.launch.gemm_launcher import multiply
from wavetune.launch.operator import call_operator


def matmul(
    a: Any, b: Any, bias: Any = None, activation: str | None = None, out: Any = None, *, numerics: str = "any"
) -> Any:  # fmt: skip
    """Compute activation(a @ b + bias), accumulated in fp32.

    Parameters
    ----------
    a : Tensor of shape (..., k) or (k,)
        bf16 or fp16. Leading axes count as rows; whatever rows are evenly spaced is read where it is, anything else
        is copied first.
    b : Tensor of shape (k, n) or (k,)
        Of a's dtype. Row-major, or the transpose view ``weight.t()`` of a row-major [n, k], is read where it is.
    bias : Tensor of shape (n,), optional
        Added to every row. Of a's dtype.
    activation : {"relu", "gelu", "silu"}, optional
        Applied in fp32 after the bias; gelu is the exact one.
    out : Tensor of shape (..., n), optional
        Receives the result; never resized.
    numerics : {"any", "deterministic", "batch_invariant"}, default="any"
        Which configurations may be chosen, see `wavetune.choose_config`. With ``"batch_invariant"`` a row of the result
        has the same bits whatever the other rows are, and however many.

    Returns
    -------
    Tensor of shape (..., n)
        ``out`` if it was given; the shape is that of torch.matmul. With a size of zero it is what torch gives.

    Raises
    ------
    OperandError, OperandTypeError
        If an argument cannot be used; the message names it and what to do.
    CaptureError
        If a CUDA graph is being captured and no kernel that could run is loaded.
    NoModelError, MissError
        Under ``on_miss="error"``, where the runtime has no sure answer.

    Notes
    -----
    Differentiable in a, b and bias, except with ``out`` and in forward mode. Under ``torch.compile``, modes of torch
    and autocast it is the operator ``torch.ops.wavetune.matmul``; otherwise it launches without the dispatcher, so that
    a profiler shows the kernel alone.
    """
    if torch.compiler.is_compiling():
        return call_operator(a, b, bias, activation or "none", out, numerics)
    if needs_dispatcher(a, b, bias, out):
        check_no_tangent(a=a, b=b, bias=bias, out=out)
        return call_operator(a, b, bias, activation or "none", out, numerics)
    return multiply(a, b, bias, activation or "none", out, numerics)


_PLAIN = frozenset((torch.Tensor, torch.nn.Parameter))

_modes_of_functions = torch._C._len_torch_function_stack
_modes_of_dispatch = torch._C._len_torch_dispatch_stack
_transforms_are_active = torch._C._are_functorch_transforms_active
_autocasts = torch._C._is_any_autocast_enabled
_is_tracing = torch._C._is_tracing


def needs_dispatcher(*tensors: Any) -> bool:
    """Whether anything but a launch must happen: a gradient, a cast, a subclass, a mode, a transform, a trace."""
    if (
        _modes_of_functions()
        or _modes_of_dispatch()
        or _transforms_are_active()
        or _autocasts()
        or _is_tracing()
        or forward_ad._current_level >= 0
    ):
        return True
    records = torch.is_grad_enabled()
    for tensor in tensors:
        if tensor is not None and (type(tensor) not in _PLAIN or (records and tensor.requires_grad)):
            return True
    return False
