"""`scaled_matmul`: fp8 products with scales, as ``torch._scaled_mm``, in the configuration that the runtime chooses.

``torch.ops.wavetune.scaled_matmul`` is what the dispatcher and ``torch.compile`` know of it. As with `matmul`, the
choice is made when it runs.
"""

from __future__ import annotations

from typing import Any

import torch

from wavetune.launch.checks import check_no_gradient, check_tensors
from wavetune.launch.library import define
from wavetune.launch.matmul import needs_dispatcher
from wavetune.launch.scaled_checks import check_operands, check_options, result_dtype
from wavetune.launch.scaled_launcher import multiply_scaled

_INPUTS = (
    "Tensor a, Tensor b, Tensor scale_a, Tensor scale_b, Tensor? bias=None, ScalarType? out_dtype=None, "
    'bool use_fast_accum=False, str numerics="any"'
)


def scaled_matmul(
    a: Any,
    b: Any,
    scale_a: Any,
    scale_b: Any,
    bias: Any = None,
    out: Any = None,
    out_dtype: Any = None,
    *,
    use_fast_accum: bool = False,
    numerics: str = "any",
) -> Any:
    """Compute (scale_a * a) @ (scale_b * b) + bias of e4m3 tensors, accumulated in fp32.

    Parameters
    ----------
    a : Tensor of shape (..., k), float8_e4m3fn
        Leading axes count as rows.
    b : Tensor of shape (k, n), float8_e4m3fn
        The transpose view of a row-major [n, k]: ``weight.t()``. Nothing else is taken.
    scale_a : Tensor of float32
        One value; or shape (...) or (..., 1), one for each row of a; or (..., ceil(k / 128)), one for each 128 elements
        of a row.
    scale_b : Tensor of float32
        One value; or shape (n,) or (1, n), one for each column of b; or (ceil(n / 128), ceil(k / 128)), one for each
        128 x 128 block of the weight as stored, if a's scales are in blocks as well.
    bias : Tensor of shape (n,), optional
        Added after scaling. Of the result's dtype.
    out : Tensor of shape (..., n), optional
        Receives the result; never resized.
    out_dtype : {torch.bfloat16, torch.float16}, optional
        Of the result; that of ``out``, else bf16, if not given.
    use_fast_accum : bool, default=False
        Leave the sum to the matrix unit, which keeps about 14 bits on Hopper: faster, and less exact the longer k is.
        Without it, sums move to fp32 every 512 elements of k, see `wavetune.kernels.gemm_scaled`. With scales in blocks
        they move every 128 either way.
    numerics : {"any", "deterministic", "batch_invariant"}, default="any"
        Which configurations may be chosen, see `wavetune.choose_config`.

    Returns
    -------
    Tensor of shape (..., n)
        ``out`` if it was given. With k = 0 it is the bias, zero without one.

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
    Not differentiable, like ``torch._scaled_mm``.
    """
    if torch.compiler.is_compiling() or needs_dispatcher(a, b, scale_a, scale_b, bias, out):
        return _call_operator(a, b, scale_a, scale_b, bias, out, out_dtype, use_fast_accum, numerics)
    return multiply_scaled(a, b, scale_a, scale_b, bias, out, out_dtype, use_fast_accum, numerics)


def _call_operator(
    a: Any, b: Any, scale_a: Any, scale_b: Any, bias: Any, out: Any, out_dtype: Any, use_fast_accum: bool, numerics: str
) -> Any:  # fmt: skip
    """Multiply through the dispatcher; torch.compile traces this function."""
    tensors = {"a": a, "b": b, "scale_a": scale_a, "scale_b": scale_b, "bias": bias, "out": out}
    check_tensors(tensors, optional=("bias", "out"))
    check_options(out_dtype, use_fast_accum, numerics)
    check_no_gradient(tensors, "{name} requires grad, which fp8 products do not give; use torch.no_grad()")
    options = (scale_a, scale_b, bias, out_dtype, use_fast_accum, numerics)
    if out is None:
        return torch.ops.wavetune.scaled_matmul(a, b, *options)
    torch.ops.wavetune.scaled_matmul_out(a, b, *options, out=out)
    return out


def _scaled_matmul(
    a: Any, b: Any, scale_a: Any, scale_b: Any, bias: Any = None, out_dtype: Any = None, use_fast_accum: bool = False,
    numerics: str = "any",
) -> Any:  # fmt: skip
    return multiply_scaled(a, b, scale_a, scale_b, bias, None, out_dtype, use_fast_accum, numerics)


def _scaled_matmul_out(
    a: Any, b: Any, scale_a: Any, scale_b: Any, bias: Any = None, out_dtype: Any = None, use_fast_accum: bool = False,
    numerics: str = "any", *, out: Any,
) -> None:  # fmt: skip
    multiply_scaled(a, b, scale_a, scale_b, bias, out, out_dtype, use_fast_accum, numerics)


def _fake_scaled_matmul(
    a: Any, b: Any, scale_a: Any, scale_b: Any, bias: Any = None, out_dtype: Any = None, use_fast_accum: bool = False,
    numerics: str = "any",
) -> Any:  # fmt: skip
    dtype = result_dtype(out_dtype, None)
    check_operands(a, b, scale_a, scale_b, bias, None, dtype)
    return a.new_empty((*a.shape[:-1], b.shape[1]), dtype=dtype)


def _fake_scaled_matmul_out(
    a: Any, b: Any, scale_a: Any, scale_b: Any, bias: Any = None, out_dtype: Any = None, use_fast_accum: bool = False,
    numerics: str = "any", *, out: Any,
) -> None:  # fmt: skip
    check_operands(a, b, scale_a, scale_b, bias, out, result_dtype(out_dtype, out))


define(f"scaled_matmul({_INPUTS}) -> Tensor", _scaled_matmul, _fake_scaled_matmul)
define(f"scaled_matmul_out({_INPUTS}, *, Tensor(a!) out) -> ()", _scaled_matmul_out, _fake_scaled_matmul_out)
