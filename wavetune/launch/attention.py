"""`attention` and `attention_decode`: attention in the configuration that the runtime chooses."""

from __future__ import annotations

from typing import Any

import torch

import wavetune.launch.attention_operator  # noqa: F401 (registers the operators)
from wavetune.launch.attention_checks import check_count, check_forward_only, check_longest, check_options
from wavetune.launch.checks import check_tensors


def attention(
    q: Any, k: Any, v: Any, *, causal: bool = False, scale: float | None = None, window: int | None = None,
    cu_seqlens: Any = None, cu_seqlens_k: Any = None, max_seqlen: int | None = None, max_seqlen_k: int | None = None,
    return_lse: bool = False,
) -> Any:  # fmt: skip
    """Compute softmax(scale q k^T, masked) v for every head, accumulated in fp32.

    Parameters
    ----------
    q : Tensor of shape (batch, heads, q_len, head_dim), or (q_tokens, heads, head_dim) with ``cu_seqlens``
        bf16 or fp16; head dimension 64, 96, 128 or 256. Any strides whose last is 1 and whose others are multiples of
        16 bytes are read where they are, such as the transpose of (batch, q_len, heads, head_dim); else it is copied.
    k, v : Tensor of shape (batch, kv_heads, kv_len, head_dim), or (kv_tokens, kv_heads, head_dim) with ``cu_seqlens``
        Of q's dtype. ``kv_heads`` divides ``heads``; consecutive heads of q share one of k and v.
    causal : bool, default=False
        Whether query i sees key j only if ``j <= i + kv_len - q_len``: queries are aligned with the last keys.
    scale : float, optional
        Factor of the scores, positive; ``head_dim ** -0.5`` if not given.
    window : int, optional
        A query sees keys at a distance of less than this: with ``causal`` so many, its own included.
    cu_seqlens, cu_seqlens_k : Tensor of shape (n_sequences + 1,), optional
        int32. Where each packed sequence begins in q, and in k and v, and where the last one ends; for k and v the same
        if not given. Lengths may be 0.
    max_seqlen, max_seqlen_k : int, optional
        The longest length, given with the starts that it is of. Without it they are read, and if they are on the GPU
        this waits for it; a smaller one than the longest leaves queries without a result.
    return_lse : bool, default=False
        Whether to return the logsumexp of the scaled scores as well.

    Returns
    -------
    out : Tensor of q's shape
        Queries that see no key get 0.
    lse : Tensor of shape (batch, heads, q_len), or (heads, q_tokens) with ``cu_seqlens``
        Only with ``return_lse``: fp32, natural logarithms; -inf for queries that see no key.

    Raises
    ------
    OperandError, OperandTypeError
        If an argument cannot be used, or requires a gradient; the message names it and what to do.
    CaptureError
        If a CUDA graph is being captured and the kernel is not loaded, or starts would have to be read.

    Notes
    -----
    This is the operator ``torch.ops.wavetune.attention``.
    """
    tensors = {"q": q, "k": k, "v": v}
    starts = {"cu_seqlens": cu_seqlens, "cu_seqlens_k": cu_seqlens_k}
    check_tensors({**tensors, **starts}, optional=starts)
    factor, reach = check_options(causal, scale, window)
    longest = check_longest("max_seqlen", max_seqlen, "cu_seqlens", cu_seqlens)
    longest_k = check_longest("max_seqlen_k", max_seqlen_k, "cu_seqlens_k", cu_seqlens_k)
    check_forward_only(tensors)
    out, lse = torch.ops.wavetune.attention(
        q, k, v, cu_seqlens, cu_seqlens_k, causal=causal, scale=factor, window=reach, max_seqlen=longest,
        max_seqlen_k=longest_k, return_lse=return_lse,
    )  # fmt: skip
    return (out, lse) if return_lse else out


def attention_decode(
    q: Any, k_cache: Any, v_cache: Any, block_table: Any, lengths: Any, *, scale: float | None = None,
    window: int | None = None, max_length: int | None = None, return_lse: bool = False,
) -> Any:  # fmt: skip
    """Compute attention of one query a sequence against a paged cache.

    Parameters
    ----------
    q : Tensor of shape (batch, heads, head_dim)
        bf16 or fp16; head dimension 64, 96, 128 or 256.
    k_cache, v_cache : Tensor of shape (n_pages, page_size, kv_heads, head_dim)
        Of q's dtype; read where it is, like q of `attention`.
    block_table : Tensor of shape (batch, max_pages)
        int32. Pages of each sequence, in order; entries beyond a sequence's length are never read.
    lengths : Tensor of shape (batch,)
        int32. Keys of each sequence, the query's own included; may be 0. Read by the GPU alone, so a captured graph
        follows them.
    scale : float, optional
        Factor of the scores, positive; ``head_dim ** -0.5`` if not given.
    window : int, optional
        Only this many of the last keys are seen.
    max_length : int, optional
        The longest length that is to be expected, for the choice of a configuration; all lengths are computed rightly.
        What the table can hold, if not given.
    return_lse : bool, default=False
        Whether to return the logsumexp of the scaled scores as well.

    Returns
    -------
    out : Tensor of shape (batch, heads, head_dim)
        0 for a sequence without keys.
    lse : Tensor of shape (batch, heads)
        Only with ``return_lse``: fp32, natural logarithms; -inf for a sequence without keys.

    Raises
    ------
    OperandError, OperandTypeError
        If an argument cannot be used, or requires a gradient; the message names it and what to do.
    CaptureError
        If a CUDA graph is being captured and the kernel is not loaded.

    Notes
    -----
    Where the chosen configuration splits the keys, a row is summed in another order than without a split; for given
    sizes the result is deterministic. This is the operator ``torch.ops.wavetune.attention_decode``.
    """
    tensors = {"q": q, "k_cache": k_cache, "v_cache": v_cache}
    check_tensors({**tensors, "block_table": block_table, "lengths": lengths})
    factor, reach = check_options(False, scale, window)
    longest = check_count("max_length", max_length)
    check_forward_only(tensors)
    out, lse = torch.ops.wavetune.attention_decode(
        q, k_cache, v_cache, block_table, lengths, scale=factor, window=reach, max_length=longest,
        return_lse=return_lse,
    )  # fmt: skip
    return (out, lse) if return_lse else out
