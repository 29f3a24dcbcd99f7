"""What the kernels must compute, in torch at a higher precision."""

from __future__ import annotations

from typing import Any

from wavetune.kernels.gemm_operands import GemmOperands

MAX_RELATIVE_ERROR = {"bf16": 8e-3, "fp16": 1e-3, "fp32": 2e-5}
"""Largest ``|out - reference| / |reference|`` (Frobenius norms) of a right result.

Rounding the output alone gives 2**-9 / sqrt(3) = 1.7e-3 in bf16 and 2e-4 in fp16 (fp32: 1e-6 of accumulation); the
margin of 4 to 5 covers activations and short k. A wrong tile or a lost trip is above 1e-2 on the validation shapes.
"""


def gemm_reference(operands: GemmOperands) -> Any:
    """Compute the GEMM in float64 from the inputs as stored.

    Returns
    -------
    Tensor of shape (m, n)
        Not rounded to the operands' dtype.
    """
    import torch

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
