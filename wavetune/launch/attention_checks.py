"""What the attention launchers accept, and what they say about the rest.

As in `wavetune.launch.checks`, only shapes, dtypes and devices are looked at, so the checks hold for fake tensors with
symbolic sizes; strides and addresses are the launch's own matter.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from wavetune.core.attention_problem import HEAD_DIMS
from wavetune.errors import OperandError, OperandTypeError
from wavetune.launch.checks import (
    SUPPORTED_DTYPES,
    check_int32,
    check_no_gradient,
    check_same_device,
    check_same_dtype,
)


def check_options(causal: object, scale: object, window: object) -> tuple[float, int]:
    """Return (scale, window) as the kernels take them, 0 for what was not given.

    Raises
    ------
    OperandTypeError
        If one has the wrong type.
    OperandError
        If the scale is not positive and finite, or the window not positive.
    """
    if not isinstance(causal, bool):
        raise OperandTypeError(f"causal must be True or False, got {causal!r}")
    factor = 0.0
    if scale is not None:
        if isinstance(scale, bool) or not isinstance(scale, int | float):
            raise OperandTypeError(f"scale must be a number, got {scale!r}")
        factor = float(scale)
        if not 0.0 < factor < math.inf:
            raise OperandError(f"scale must be positive and finite, got {scale!r}; negate q for a negative one")
    return factor, check_count("window", window)


def check_count(name: str, value: object) -> int:
    """Return a positive integer, 0 for None.

    Raises
    ------
    OperandTypeError, OperandError
        If it is something else; names it.
    """
    if value is None:
        return 0
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise OperandTypeError(f"{name} must be an integer, got {value!r}") from None
    if isinstance(value, bool) or number < 1:
        raise OperandError(f"{name} must be a positive integer, got {value!r}; leave it out for none")
    return number


def check_longest(name: str, longest: object, starts_name: str, starts: object) -> int:
    """Return the longest length of packed sequences, 0 for None.

    Raises
    ------
    OperandTypeError, OperandError
        If it is no positive integer, or there are no starts that it could be of; names both.
    """
    number = check_count(name, longest)
    if number and starts is None:
        raise OperandError(f"{name} is of packed sequences: give {starts_name} as well, or leave {name} out")
    return number


def check_prefill(q: Any, k: Any, v: Any, cu_seqlens: Any, cu_seqlens_k: Any) -> None:
    """Refuse tensors that do not belong together.

    Parameters
    ----------
    q : Tensor of shape (batch, heads, q_len, head_dim), or (q_tokens, heads, head_dim) if packed
        bf16 or fp16.
    k, v : Tensor of shape (batch, kv_heads, kv_len, head_dim), or (kv_tokens, kv_heads, head_dim) if packed
        Of q's dtype, on its device.
    cu_seqlens, cu_seqlens_k : Tensor of shape (n_sequences + 1,), optional
        int32; packed if given.

    Raises
    ------
    OperandError
        Naming the argument and what to do.
    """
    is_packed = cu_seqlens is not None
    axes = "(tokens, heads, head_dim)" if is_packed else "(batch, heads, length, head_dim)"
    hint = "with cu_seqlens" if is_packed else "without cu_seqlens"
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if tensor.dim() != (3 if is_packed else 4):
            raise OperandError(f"{name} has shape {list(tensor.shape)}; {hint} it must be {axes}")
    _check_alike(q, {"k": k, "v": v})
    if tuple(k.shape) != tuple(v.shape):
        raise OperandError(f"k has shape {list(k.shape)} but v has {list(v.shape)}; they must be the same")
    if k.shape[-1] != q.shape[-1]:
        raise OperandError(f"q has head dimension {q.shape[-1]} but k has {k.shape[-1]}")
    if not is_packed and k.shape[0] != q.shape[0]:
        raise OperandError(f"q has {q.shape[0]} sequences but k has {k.shape[0]}")
    _check_heads(q.shape[1], k.shape[1], q.shape[-1])
    if cu_seqlens_k is not None and not is_packed:
        raise OperandError("cu_seqlens_k needs cu_seqlens as well")
    for name, starts in (("cu_seqlens", cu_seqlens), ("cu_seqlens_k", cu_seqlens_k)):
        if starts is None:
            continue
        if starts.dim() != 1 or starts.shape[0] < 2:
            raise OperandError(f"{name} must have shape (n_sequences + 1,), got {list(starts.shape)}")
        check_int32(name, starts)
        if starts.device.type != "cpu":
            check_same_device("q", q, {name: starts})
    if is_packed and cu_seqlens_k is None and k.shape[0] != q.shape[0]:
        raise OperandError(f"q has {q.shape[0]} tokens but k has {k.shape[0]}; give cu_seqlens_k as well")
    if cu_seqlens_k is not None and cu_seqlens_k.shape[0] != cu_seqlens.shape[0]:
        raise OperandError(
            f"cu_seqlens is for {cu_seqlens.shape[0] - 1} sequences but cu_seqlens_k for {cu_seqlens_k.shape[0] - 1}"
        )


def check_decode(q: Any, k_cache: Any, v_cache: Any, block_table: Any, lengths: Any) -> None:
    """Refuse tensors that do not belong together.

    Parameters
    ----------
    q : Tensor of shape (batch, heads, head_dim)
        bf16 or fp16.
    k_cache, v_cache : Tensor of shape (n_pages, page_size, kv_heads, head_dim)
        Of q's dtype, on its device.
    block_table : Tensor of shape (batch, max_pages)
        int32, on q's device.
    lengths : Tensor of shape (batch,)
        int32, on q's device.

    Raises
    ------
    OperandError
        Naming the argument and what to do.
    """
    if q.dim() != 3:
        raise OperandError(f"q has shape {list(q.shape)}; it must be (batch, heads, head_dim): one query a sequence")
    for name, cache in (("k_cache", k_cache), ("v_cache", v_cache)):
        if cache.dim() != 4:
            raise OperandError(
                f"{name} has shape {list(cache.shape)}; it must be (n_pages, page_size, kv_heads, head_dim)"
            )
    _check_alike(q, {"k_cache": k_cache, "v_cache": v_cache})
    if tuple(k_cache.shape) != tuple(v_cache.shape):
        raise OperandError(f"k_cache has shape {list(k_cache.shape)} but v_cache has {list(v_cache.shape)}")
    if k_cache.shape[-1] != q.shape[-1]:
        raise OperandError(f"q has head dimension {q.shape[-1]} but k_cache has {k_cache.shape[-1]}")
    if k_cache.shape[1] == 0:
        raise OperandError("k_cache has pages of 0 tokens")
    _check_heads(q.shape[1], k_cache.shape[2], q.shape[-1])
    if block_table.dim() != 2 or block_table.shape[0] != q.shape[0]:
        raise OperandError(f"block_table must have shape ({q.shape[0]}, max_pages), got {list(block_table.shape)}")
    if tuple(lengths.shape) != (q.shape[0],):
        raise OperandError(f"lengths must have shape ({q.shape[0]},), got {list(lengths.shape)}")
    for name, tensor in (("block_table", block_table), ("lengths", lengths)):
        check_int32(name, tensor)
        check_same_device("q", q, {name: tensor})


def check_starts(name: str, starts: list[int], tokens: int) -> tuple[int, ...]:
    """Return the lengths between consecutive starts.

    Raises
    ------
    OperandError
        If they do not begin with 0, fall, or do not end with the tokens that there are.
    """
    if starts[0] != 0:
        raise OperandError(f"{name} must begin with 0, got {starts[0]}")
    lengths = tuple(end - start for start, end in pairwise(starts))
    if min(lengths) < 0:
        index = next(i for i, length in enumerate(lengths) if length < 0)
        raise OperandError(f"{name} must not fall, but goes from {starts[index]} to {starts[index + 1]}")
    if starts[-1] != tokens:
        raise OperandError(f"{name} must end with the {tokens} tokens that there are, got {starts[-1]}")
    return lengths


def check_forward_only(tensors: Mapping[str, Any]) -> None:
    """Refuse tensors that must be differentiated.

    Raises
    ------
    OperandError
        If gradients are recorded and one of them requires them.
    """
    check_no_gradient(tensors, "attention has no backward pass; use torch.no_grad(), or detach q, k and v")


def _check_alike(q: Any, others: Mapping[str, Any]) -> None:
    if q.dtype not in SUPPORTED_DTYPES:
        raise OperandError(f"q is {q.dtype}; cast it to {' or '.join(map(str, SUPPORTED_DTYPES))}")
    check_same_dtype("q", q, others)
    check_same_device("q", q, others)


def _check_heads(heads: int, kv_heads: int, head_dim: int) -> None:
    if head_dim not in HEAD_DIMS:
        raise OperandError(
            f"the head dimension must be one of {', '.join(map(str, HEAD_DIMS))}, got {head_dim}; pad it"
        )
    if heads == 0 or kv_heads == 0:
        raise OperandError(f"there must be heads, got {heads} of q and {kv_heads} of k")
    if heads % kv_heads:
        raise OperandError(f"the {heads} heads of q must be a multiple of the {kv_heads} heads of k and v")
