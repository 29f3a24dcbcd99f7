"""What the attention kernels must compute, in torch at a higher precision."""

from __future__ import annotations

from typing import Any

from wavetune.kernels.attention_operands import AttentionDecodeOperands, AttentionOperands, default_scale

MAX_RELATIVE_ERROR = {"bf16": 8e-3, "fp16": 1e-3, "fp32": 2e-5}
"""Largest ``|out - reference| / |reference|`` (Frobenius norms) of a right result.

The weights are rounded to the inputs' type before they meet the values, and the result once more: each is 2**-9 /
sqrt(3) = 1.1e-3 in bf16 and 2.8e-4 in fp16. With random values, one key too many among the 1000 of the validation
problems is 1 / sqrt(1000) = 3e-2.
"""


def attention_reference(operands: AttentionOperands) -> Any:
    """Compute a prefill in float64 from the inputs as stored.

    Returns
    -------
    Tensor of the shape of ``operands.out``
        Not rounded to the operands' dtype.
    """
    return attention_and_lse(operands)[0]


def attention_and_lse(operands: AttentionOperands) -> tuple[Any, Any]:
    """Compute a prefill and the logsumexp of each query, of shape (batch, heads, q_tokens), in float64."""
    import torch

    problem, scale = operands.problem, operands.scale or default_scale(operands.problem.head_dim)
    out = torch.zeros(operands.out.shape, dtype=torch.float64, device=operands.q.device)
    lse = torch.full(operands.out.shape[:3], -torch.inf, dtype=torch.float64, device=operands.q.device)
    q_start = kv_start = 0
    for index, (q_len, kv_len) in enumerate(zip(problem.q_lengths, problem.kv_lengths, strict=True)):
        batch = 0 if problem.is_packed else index
        if not problem.is_packed:
            q_start = kv_start = 0
        q_rows, kv_rows = slice(q_start, q_start + q_len), slice(kv_start, kv_start + kv_len)
        seen = visible_keys(q_len, kv_len, problem.is_causal, problem.window, operands.q.device)
        for head in range(problem.heads):
            kv_head = head // problem.group
            one = _attend(
                operands.q[batch, head, q_rows], operands.k[batch, kv_head, kv_rows],
                operands.v[batch, kv_head, kv_rows], seen, scale,
            )  # fmt: skip
            out[batch, head, q_rows], lse[batch, head, q_rows] = one
        q_start, kv_start = q_start + q_len, kv_start + kv_len
    return out, lse


def decode_reference(operands: AttentionDecodeOperands) -> Any:
    """Compute a decode step in float64 from the inputs as stored, page by page; see `attention_reference`."""
    return decode_and_lse(operands)[0]


def decode_and_lse(operands: AttentionDecodeOperands) -> tuple[Any, Any]:
    """Compute a decode step and the logsumexp of each query head, of shape (batch, heads), in float64."""
    import torch

    problem, scale = operands.problem, operands.scale or default_scale(operands.problem.head_dim)
    out = torch.zeros(operands.out.shape, dtype=torch.float64, device=operands.q.device)
    lse = torch.full(operands.out.shape[:2], -torch.inf, dtype=torch.float64, device=operands.q.device)
    for batch, kv_len in enumerate(problem.kv_lengths):
        n_pages = -(-kv_len // problem.page_size)
        pages = operands.block_table[batch, :n_pages].long()
        first = max(kv_len - problem.window, 0) if problem.window else 0
        k, v = (cache[pages].flatten(0, 1)[first:kv_len] for cache in (operands.k_cache, operands.v_cache))
        for kv_head in range(problem.kv_heads):
            heads = slice(kv_head * problem.group, (kv_head + 1) * problem.group)
            out[batch, heads], lse[batch, heads] = _attend(
                operands.q[batch, heads], k[:, kv_head], v[:, kv_head], None, scale
            )
    return out, lse


def visible_keys(q_len: int, kv_len: int, is_causal: bool, window: int, device: Any = "cpu") -> Any:
    """Return which keys each query sees, bool of shape (q_len, kv_len): the definition of the masks."""
    import torch

    positions = torch.arange(q_len, device=device)[:, None] + (kv_len - q_len)
    keys = torch.arange(kv_len, device=device)[None, :]
    seen = torch.ones((q_len, kv_len), dtype=torch.bool, device=device)
    if is_causal:
        seen &= keys <= positions
    if window:
        seen &= (positions - keys).abs() < window
    return seen


def _attend(q: Any, k: Any, v: Any, seen: Any, scale: float) -> tuple[Any, Any]:
    import torch

    scores = q.double() @ k.double().T * scale
    if seen is not None:
        scores = scores.masked_fill(~seen, -torch.inf)
    lse = torch.logsumexp(scores, dim=-1)
    # Rows that see nothing are 0, where softmax would give NaN.
    weights = torch.exp(scores - lse[:, None]).masked_fill((lse == -torch.inf)[:, None], 0.0)
    return weights @ v.double(), lse
