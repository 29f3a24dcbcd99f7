"""``torch.ops.wavetune.matmul``: what the dispatcher, autograd, autocast and ``torch.compile`` know of the launcher.

The operator chooses when it runs, not when it is traced: a compiled graph with a symbolic m asks the runtime for every
m that it meets, and a CUDA graph keeps what was chosen while it was captured.

Autograd saves a and b, and of an activation what its slope needs: the result for relu; gelu and silu compute the
product once more. With G the gradient before the activation, the gradient of a is G @ b.T, a product with b stored the
other way round, which the kernels of this package take; that of b is a.T @ G, whose left factor has the wrong axis
adjacent for them, so `torch.mm` computes it. Forward mode is not implemented.
"""

from __future__ import annotations

from typing import Any

import torch

from wavetune.launch.checks import check_names, check_no_gradient, check_operands, check_tensors
from wavetune.launch.gemm_launcher import multiply
from wavetune.launch.library import NAMESPACE, define, library, torch_library

_INPUTS = 'Tensor a, Tensor b, Tensor? bias=None, str activation="none", str numerics="any"'


def call_operator(a: Any, b: Any, bias: Any, activation: str, out: Any, numerics: str) -> Any:
    """Run activation(a @ b + bias) through the dispatcher; torch.compile traces this function.

    Takes the arguments of `wavetune.launch.matmul.matmul` and raises its errors.
    """
    tensors = {"a": a, "b": b, "bias": bias, "out": out}
    check_tensors(tensors, optional=("bias", "out"))
    check_names(activation, numerics)
    if b.dim() == 1:
        column = None if out is None else out.unsqueeze(-1)
        result = call_operator(a, b.unsqueeze(-1), bias, activation, column, numerics)
        return result.squeeze(-1) if out is None else out
    if out is None:
        return torch.ops.wavetune.matmul(a, b, bias, activation, numerics)
    check_no_gradient(
        tensors, "{name} requires grad, and out= cannot be differentiated; drop out=, or use torch.no_grad()"
    )
    torch.ops.wavetune.matmul_out(a, b, bias, activation, numerics, out=out)
    return out


def _matmul(a: Any, b: Any, bias: Any = None, activation: str = "none", numerics: str = "any") -> Any:
    _check_rank(a, b)
    return multiply(a, b, bias, activation, None, numerics)


def _matmul_out(
    a: Any, b: Any, bias: Any = None, activation: str = "none", numerics: str = "any", *, out: Any
) -> None:  # fmt: skip
    _check_rank(a, b)
    multiply(a, b, bias, activation, out, numerics)


def _check_rank(a: Any, b: Any) -> None:
    # All else is checked where a launcher is made, once; vectors for b are `call_operator`'s affair.
    if b.dim() != 2:
        check_operands(a, b)


def _fake_matmul(a: Any, b: Any, bias: Any = None, activation: str = "none", numerics: str = "any") -> Any:
    check_names(activation, numerics)
    check_operands(a, b, bias)
    return a.new_empty((*a.shape[:-1], b.shape[1]))


def _fake_matmul_out(
    a: Any, b: Any, bias: Any = None, activation: str = "none", numerics: str = "any", *, out: Any
) -> None:  # fmt: skip
    check_names(activation, numerics)
    check_operands(a, b, bias, out)


def _save_for_backward(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    a, b, bias, ctx.activation, ctx.numerics = inputs
    needs_product = ctx.activation in ("gelu", "silu")
    ctx.save_for_backward(a, b, bias if needs_product else None, output if ctx.activation == "relu" else None)


def _backward(ctx: Any, grad: Any) -> tuple[Any, ...]:
    a, b, bias, output = ctx.saved_tensors
    # The dispatcher drops trailing arguments that equal their defaults, a missing bias among them.
    needs_a, needs_b, needs_bias = (*ctx.needs_input_grad, False)[:3]
    multiply_again = torch.ops.wavetune.matmul
    if ctx.activation == "relu":
        grad = torch.ops.aten.threshold_backward(grad, output, 0)
    elif ctx.activation != "none":
        before = multiply_again(a, b, bias, "none", ctx.numerics)
        slope = torch.ops.aten.gelu_backward if ctx.activation == "gelu" else torch.ops.aten.silu_backward
        grad = slope(grad, before)
    rows = grad.reshape(-1, b.shape[1])
    grad_a = multiply_again(grad, b.t(), None, "none", ctx.numerics) if needs_a else None
    grad_b = torch.mm(a.reshape(-1, a.shape[-1]).t(), rows) if needs_b else None
    return grad_a, grad_b, rows.sum(0) if needs_bias else None, None, None


def _autocast(device_type: str) -> Any:
    """Return the kernel that casts as torch.matmul does in an autocast region: floating point but float64."""

    def run(a: Any, b: Any, bias: Any = None, activation: str = "none", numerics: str = "any") -> Any:
        dtype = torch.get_autocast_dtype(device_type)

        def cast(tensor: Any) -> Any:
            is_castable = tensor is not None and tensor.is_floating_point() and tensor.dtype != torch.float64
            return tensor.to(dtype) if is_castable and tensor.device.type == device_type else tensor

        with torch.autocast(device_type, enabled=False):
            return torch.ops.wavetune.matmul(cast(a), cast(b), cast(bias), activation, numerics)

    return run


define(f"matmul({_INPUTS}) -> Tensor", _matmul, _fake_matmul)
define(f"matmul_out({_INPUTS}, *, Tensor(a!) out) -> ()", _matmul_out, _fake_matmul_out)
library.impl("matmul", _autocast("cuda"), "AutocastCUDA")
library.impl("matmul", _autocast("cpu"), "AutocastCPU")
torch_library.register_autograd(f"{NAMESPACE}::matmul", _backward, setup_context=_save_for_backward, lib=library)
