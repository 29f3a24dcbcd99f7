"""What `matmul` accepts, and what it says about the rest.

The checks look at shapes, dtypes and devices only, so they hold for fake tensors with symbolic sizes as well; strides
and addresses are the launch's own matter, since any of them can be served.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch.autograd import forward_ad

from wavetune.core.problem import MAX_DIMENSION
from wavetune.errors import OperandError, OperandTypeError
from wavetune.kernels.call import IS_INTERPRETED
from wavetune.kernels.gemm_operands import ACTIVATIONS
from wavetune.runtime.numerics import NUMERICS

# Neither torch nor its stubs give it a type.
_unpack_dual: Any = forward_ad.unpack_dual

SUPPORTED_DTYPES = {torch.bfloat16: "bf16", torch.float16: "fp16"}
"""Torch's dtypes that are launched, and the short names that models know them by."""


def check_tensors(tensors: Mapping[str, object], optional: Collection[str] = ()) -> None:
    """Refuse what is not a tensor, before torch stumbles over it.

    Parameters
    ----------
    tensors : mapping of str to object
        By argument.
    optional : collection of str
        Arguments that may be None.

    Raises
    ------
    OperandTypeError
        Naming the argument.
    """
    for name, value in tensors.items():
        if not isinstance(value, torch.Tensor) and not (value is None and name in optional):
            raise OperandTypeError(f"{name} must be a torch.Tensor, got {type(value).__name__}")


def check_strided(**tensors: Any) -> None:
    """Refuse tensors that are stored otherwise than by strides.

    Raises
    ------
    OperandError
        Naming the argument.
    """
    for name, tensor in tensors.items():
        if tensor is not None and tensor.layout is not torch.strided:
            raise OperandError(f"{name} is stored as {tensor.layout}; give a dense one: {name}.to_dense()")


def check_same_dtype(name: str, tensor: Any, others: Mapping[str, Any]) -> None:
    """Refuse tensors of another dtype than a first one's; None is passed over.

    Raises
    ------
    OperandError
        Naming both arguments.
    """
    for other, value in others.items():
        if value is not None and value.dtype != tensor.dtype:
            raise OperandError(f"{other} is {value.dtype} but {name} is {tensor.dtype}; cast one of them")


def check_same_device(name: str, tensor: Any, others: Mapping[str, Any]) -> None:
    """Refuse tensors on another device than a first one's; None is passed over.

    Raises
    ------
    OperandError
        Naming both arguments.
    """
    for other, value in others.items():
        if value is not None and value.device != tensor.device:
            raise OperandError(f"{other} is on {value.device} but {name} is on {tensor.device}; move one of them")


def check_int32(name: str, tensor: Any) -> None:
    """Refuse counts and positions of another dtype than kernels read.

    Raises
    ------
    OperandError
        Naming the argument.
    """
    if tensor.dtype != torch.int32:
        raise OperandError(f"{name} must be torch.int32, got {tensor.dtype}; cast it with .int()")


def check_product_shapes(a: Any, b: Any, bias: Any, out: Any, advice: str = "") -> None:
    """Refuse shapes that are not those of ``a [..., k] @ b [k, n] + bias [n]``.

    Parameters
    ----------
    a, b, bias, out : Tensor
        The last two may be None.
    advice : str
        What else to do about a ``b`` that is no matrix.

    Raises
    ------
    OperandError
        Naming the argument and what to do.
    """
    if a.dim() < 1:
        raise OperandError("a has no axis; it needs at least k: [k], [m, k] or [..., m, k]")
    if b.dim() != 2:
        raise OperandError(f"b has shape {list(b.shape)}; it must be [k, n]{advice}")
    k, n = a.shape[-1], b.shape[1]
    if b.shape[0] != k:
        raise OperandError(
            f"a of shape {list(a.shape)} has {k} columns, but b of shape {list(b.shape)} has {b.shape[0]} rows; "
            "for the weight [n, k] of a linear layer pass weight.t()"
        )
    if bias is not None and (bias.dim() != 1 or bias.shape[0] != n):
        raise OperandError(f"bias must have shape [{n}], one value for each column of b, got {list(bias.shape)}")
    check_output_shape(out, (*a.shape[:-1], n))


def check_output_shape(out: Any, shape: tuple[int, ...]) -> None:
    """Refuse an ``out`` of another shape than the result's.

    Raises
    ------
    OperandError
        Naming both shapes.
    """
    if out is not None and tuple(out.shape) != shape:
        raise OperandError(f"out must have shape {list(shape)}, got {list(out.shape)}; it is never resized")


def check_name(name: str, value: object, known: Collection[str]) -> None:
    """Refuse a value that is no known name.

    Raises
    ------
    OperandTypeError
        Naming the argument and what is known.
    """
    if value not in known:
        raise OperandTypeError(f"{name} must be one of {', '.join(map(repr, known))}, got {value!r}")


def check_names(activation: object, numerics: object) -> None:
    """Refuse unknown names.

    Raises
    ------
    OperandTypeError
        If activation or numerics is not a known name.
    """
    check_name("activation", activation, ACTIVATIONS)
    check_name("numerics", numerics, NUMERICS)


def check_operands(a: Any, b: Any, bias: Any = None, out: Any = None) -> None:
    """Refuse tensors that cannot be multiplied.

    Parameters
    ----------
    a : Tensor of shape (..., k)
        At least one axis.
    b : Tensor of shape (k, n)
        Of a's dtype, on its device.
    bias : Tensor of shape (n,), optional
        Of a's dtype, on its device.
    out : Tensor of shape (..., n), optional
        Of a's dtype, on its device.

    Raises
    ------
    OperandError
        Naming the argument and what to do.
    """
    check_strided(a=a, b=b, bias=bias, out=out)
    if a.dtype not in SUPPORTED_DTYPES:
        names = " or ".join(map(str, SUPPORTED_DTYPES))
        raise OperandError(f"a is {a.dtype}; cast it to {names}, or use torch.matmul")
    others = {"b": b, "bias": bias, "out": out}
    check_same_dtype("a", a, others)
    check_same_device("a", a, others)
    advice = " (or [k]). For batches of matrices use torch.bmm or torch.matmul"
    check_product_shapes(a, b, bias, out, advice)
    if out is None:
        return
    if any(size > 1 and stride == 0 for size, stride in zip(out.shape, out.stride(), strict=True)):
        raise OperandError("elements of out share memory (it is expanded); give one that has its own")


def check_device(name: str, tensor: Any) -> None:
    """Refuse a tensor that no kernel can be launched on; a fake one may be anywhere.

    Raises
    ------
    OperandError
        If it is not on a GPU that Triton's CUDA or ROCm backend serves, outside of Triton's interpreter.
    """
    if tensor.is_cuda or (tensor.device.type == "cpu" and IS_INTERPRETED):
        return
    hint = "move it with .cuda(), or set TRITON_INTERPRET=1 before triton is imported to run in its interpreter"
    raise OperandError(f"{name} is on {tensor.device}, and these are GPU kernels; {hint}")


def check_sizes(m: int, n: int, k: int) -> None:
    """Refuse sizes that the kernels cannot count.

    Raises
    ------
    OperandError
        If m (all leading axes of a together), n or k is beyond 2**31 - 1.
    """
    for name, size in (("m, the product of a's leading axes,", m), ("n", n), ("k", k)):
        if size > MAX_DIMENSION:
            raise OperandError(f"{name} is {size}; kernels count in 32 bits, so split the product")


def check_no_gradient(tensors: Mapping[str, Any], reason: str) -> None:
    """Refuse to compute what must be differentiated, where that is not possible.

    Parameters
    ----------
    tensors : mapping of str to Tensor or None
        By argument.
    reason : str
        The message; ``{name}`` in it is the argument.

    Raises
    ------
    OperandError
        If gradients are recorded and one of the tensors requires them.
    """
    if not torch.is_grad_enabled():
        return
    for name, tensor in tensors.items():
        if tensor is not None and tensor.requires_grad:
            raise OperandError(reason.format(name=name))


def check_no_tangent(**tensors: Any) -> None:
    """Refuse dual tensors: without a rule for forward mode, torch would drop their tangents silently.

    Raises
    ------
    OperandError
        If a tensor carries a tangent of forward-mode differentiation.
    """
    if forward_ad._current_level < 0:
        return
    for name, tensor in tensors.items():
        if isinstance(tensor, torch.Tensor) and _unpack_dual(tensor).tangent is not None:
            raise OperandError(f"{name} carries a forward-mode tangent, which is not implemented; use torch.matmul")


def check_output_memory(a: Any, b: Any, bias: Any, out: Any) -> bool:
    """Look for memory that ``out`` shares with an input.

    Returns
    -------
    bool
        Whether ``out`` may share memory with an input: views of one buffer whose elements may interleave.

    Raises
    ------
    OperandError
        If it surely does.
    """
    first, end = _extent(out)
    is_doubtful = False
    for name, tensor in (("a", a), ("b", b), ("bias", bias)):
        if tensor is None or tensor.numel() == 0 or out.numel() == 0:
            continue
        start, stop = _extent(tensor)
        if stop <= first or end <= start:
            continue
        if _is_dense(tensor) and _is_dense(out):
            raise OperandError(
                f"out shares memory with {name}, which is still read while out is written; give another out"
            )
        is_doubtful = True
    return is_doubtful


def _extent(tensor: Any) -> tuple[int, int]:
    """Return the first address of a tensor and the one after its last."""
    span = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + span * tensor.element_size()


def _is_dense(tensor: Any) -> bool:
    span = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return bool(span == tensor.numel())
