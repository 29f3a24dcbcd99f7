"""What the kernels must compute, in torch at a higher precision."""

from __future__ import annotations

from typing import Any

from wavetune.core.dtype import find_dtype
from wavetune.kernels.gemm_operands import GemmOperands
from wavetune.kernels.gemm_scales import dequantise

MAX_RELATIVE_ERROR = {"bf16": 8e-3, "fp16": 1e-3, "fp32": 2e-5, "fp8": 8e-3, "fp8_fast": 8e-3, "fp8_block128": 8e-3}
"""Largest ``|out - reference| / |reference|`` (Frobenius norms) of a right result.

Rounding the output alone gives 2**-9 / sqrt(3) = 1.7e-3 in bf16 and 2e-4 in fp16 (fp32: 1e-6 of accumulation); the
margin of 4 to 5 covers activations and short k. A wrong tile or a lost trip is above 1e-2 on the validation shapes.
fp8 is stored as bf16, and its sums are that exact where `wavetune.kernels.gemm_scaled` promotes them; fp8_fast stays
below up to about k = 16384, on inputs of mean zero.
"""


def gemm_reference(operands: GemmOperands) -> Any:
    """Compute the GEMM in float64 from the inputs as stored, times their scales if they have some.

    Returns
    -------
    Tensor of shape (m, n)
        Not rounded to the operands' dtype.
    """
    import torch

    element = find_dtype(operands.problem.dtype)
    if element.is_scaled:
        a = dequantise(operands.a, operands.scale_a, element.scale_block)
        b = dequantise(operands.b, operands.scale_b, element.scale_block)
    else:
        a, b = operands.a.double(), operands.b.double()
    result = a @ (b.T if operands.problem.layout == "nk" else b)
    if operands.bias is not None:
        result = result + operands.bias.double()
    if operands.activation == "relu":
        result = torch.relu(result)
    elif operands.activation == "gelu":
        result = torch.nn.functional.gelu(result)
    elif operands.activation == "silu":
        result = torch.nn.functional.silu(result)
    return result


def relative_error(out: Any, reference: Any) -> float:
    """Return ``|out - reference| / |reference|``; NaN anywhere gives NaN, which passes no limit."""
    difference = (out.to(reference.dtype) - reference).norm()
    scale = reference.norm()
    if float(scale) == 0.0:
        return float(difference)
    return float(difference / scale)
