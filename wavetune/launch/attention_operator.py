"""``torch.ops.wavetune.attention`` and ``attention_decode``: what the dispatcher and ``torch.compile`` know of them.

The operators choose when they run, not when they are traced. They compute forward only.
"""

from __future__ import annotations

from typing import Any

import torch

from wavetune.launch.attention_checks import check_decode, check_prefill
from wavetune.launch.attention_launcher import run_attention, run_decode
from wavetune.launch.checks import check_device
from wavetune.launch.library import define

_ATTENTION = (
    "attention(Tensor q, Tensor k, Tensor v, Tensor? cu_seqlens=None, Tensor? cu_seqlens_k=None, *, "
    "bool causal=False, float scale=0.0, int window=0, SymInt max_seqlen=0, SymInt max_seqlen_k=0, "
    "bool return_lse=False) -> (Tensor, Tensor)"
)
_ATTENTION_DECODE = (
    "attention_decode(Tensor q, Tensor k_cache, Tensor v_cache, Tensor block_table, Tensor lengths, *, "
    "float scale=0.0, int window=0, SymInt max_length=0, bool return_lse=False) -> (Tensor, Tensor)"
)


def _attention(
    q: Any, k: Any, v: Any, cu_seqlens: Any = None, cu_seqlens_k: Any = None, *, causal: bool = False,
    scale: float = 0.0, window: int = 0, max_seqlen: int = 0, max_seqlen_k: int = 0, return_lse: bool = False,
) -> tuple[Any, Any]:  # fmt: skip
    check_prefill(q, k, v, cu_seqlens, cu_seqlens_k)
    check_device("q", q)
    return run_attention(
        q, k, v, cu_seqlens, cu_seqlens_k, causal=causal, scale=scale, window=window, max_seqlen=max_seqlen,
        max_seqlen_k=max_seqlen_k, return_lse=return_lse,
    )  # fmt: skip


def _fake_attention(
    q: Any, k: Any, v: Any, cu_seqlens: Any = None, cu_seqlens_k: Any = None, *, causal: bool = False,
    scale: float = 0.0, window: int = 0, max_seqlen: int = 0, max_seqlen_k: int = 0, return_lse: bool = False,
) -> tuple[Any, Any]:  # fmt: skip
    check_prefill(q, k, v, cu_seqlens, cu_seqlens_k)
    lse_shape = q.shape[:3] if cu_seqlens is None else (q.shape[1], q.shape[0])
    return torch.empty_like(q), q.new_empty(lse_shape if return_lse else (0,), dtype=torch.float32)


def _attention_decode(
    q: Any, k_cache: Any, v_cache: Any, block_table: Any, lengths: Any, *, scale: float = 0.0, window: int = 0,
    max_length: int = 0, return_lse: bool = False,
) -> tuple[Any, Any]:  # fmt: skip
    check_decode(q, k_cache, v_cache, block_table, lengths)
    check_device("q", q)
    return run_decode(
        q, k_cache, v_cache, block_table, lengths, scale=scale, window=window, max_length=max_length,
        return_lse=return_lse,
    )  # fmt: skip


def _fake_attention_decode(
    q: Any, k_cache: Any, v_cache: Any, block_table: Any, lengths: Any, *, scale: float = 0.0, window: int = 0,
    max_length: int = 0, return_lse: bool = False,
) -> tuple[Any, Any]:  # fmt: skip
    check_decode(q, k_cache, v_cache, block_table, lengths)
    return torch.empty_like(q), q.new_empty(q.shape[:2] if return_lse else (0,), dtype=torch.float32)


define(_ATTENTION, _attention, _fake_attention)
define(_ATTENTION_DECODE, _attention_decode, _fake_attention_decode)
