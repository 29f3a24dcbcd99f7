"""The tensors of attention, over whole sequences and against a paged cache: what they are and how to make them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate
from typing import Any

from wavetune.core.attention_problem import AttentionDecodeProblem, AttentionProblem
from wavetune.core.config import KernelConfig
from wavetune.kernels.gemm_operands import TORCH_DTYPES
from wavetune.kernels.windows import DataWindows
from wavetune.mapping.attention import decode_workspace_size


def default_scale(head_dim: int) -> float:
    """Return the factor of the scores unless another is given: 1 / sqrt(head_dim)."""
    return 1.0 / math.sqrt(head_dim)


@dataclass(frozen=True, slots=True)
class AttentionOperands:
    """The tensors of one prefill.

    Packed sequences lie one behind another along the token axis of a batch of one. The last axis has unit stride; every
    base address and every other stride is a multiple of 16 bytes.

    Parameters
    ----------
    problem : AttentionProblem
        Lengths, heads, mask and dtype.
    q, out : Tensor of shape (batch, heads, q_tokens, head_dim)
        ``out`` is written by the launch.
    k, v : Tensor of shape (batch, kv_heads, kv_tokens, head_dim)
        Keys and values.
    q_starts, kv_starts : Tensor of int32 and shape (n_sequences + 1,), optional
        Where each packed sequence begins, and where the last one ends.
    lse : Tensor of fp32 and shape (batch, heads, q_tokens), optional
        Receives the logsumexp of the scaled scores of each query; unit stride along the tokens.
    scale : float, default=0.0
        Factor of the scores, positive; 0 for `default_scale`.
    """

    problem: AttentionProblem
    q: Any
    k: Any
    v: Any
    out: Any
    q_starts: Any = None
    kv_starts: Any = None
    lse: Any = None
    scale: float = 0.0

    def with_workspace(self, config: KernelConfig) -> AttentionOperands:
        """Return the same operands: no configuration needs a workspace."""
        return self


@dataclass(frozen=True, slots=True)
class AttentionDecodeOperands:
    """The tensors of one decode step; alignment as for `AttentionOperands`.

    Parameters
    ----------
    problem : AttentionDecodeProblem
        Lengths, heads, page size and dtype.
    q, out : Tensor of shape (batch, heads, head_dim)
        ``out`` is written by the launch.
    k_cache, v_cache : Tensor of shape (n_pages, page_size, kv_heads, head_dim)
        All pages of all sequences.
    block_table : Tensor of int32 and shape (batch, max_pages)
        Pages of each sequence, in order; unit stride along a row.
    lengths : Tensor of int32 and shape (batch,)
        Keys of each sequence.
    lse : Tensor of fp32 and shape (batch, heads), optional
        Receives the logsumexp of the scaled scores; contiguous.
    scale : float, default=0.0
        Factor of the scores, positive; 0 for `default_scale`.
    partials : Tensor of fp32, optional
        Workspace of split keys, at least `wavetune.mapping.attention.decode_workspace_size` elements.
    """

    problem: AttentionDecodeProblem
    q: Any
    k_cache: Any
    v_cache: Any
    block_table: Any
    lengths: Any
    out: Any
    lse: Any = None
    scale: float = 0.0
    partials: Any = None

    def with_workspace(self, config: KernelConfig) -> AttentionDecodeOperands:
        """Return operands that have the workspace of ``config``, allocating what is missing."""
        import torch

        needed = decode_workspace_size(self.problem, int(config["splits"]))
        if not needed or (self.partials is not None and self.partials.numel() >= needed):
            return self
        return replace(self, partials=torch.empty(needed, dtype=torch.float32, device=self.q.device))


@lru_cache(maxsize=1024)
def sequence_starts(lengths: tuple[int, ...], device: str) -> Any:
    """Return where packed sequences begin, and where the last one ends: int32, kept for the next call."""
    import torch

    return torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device=device)


@lru_cache(maxsize=256)
def page_table(problem: AttentionDecodeProblem, device: str) -> tuple[Any, Any]:
    """Return (block_table, lengths): pages scattered over a cache that just holds them; kept for the next call."""
    import torch

    pages = [-(-length // problem.page_size) for length in problem.kv_lengths]
    order = torch.randperm(page_count(problem), generator=torch.Generator().manual_seed(0), dtype=torch.int32)
    table = torch.zeros((len(pages), max(*pages, 1)), dtype=torch.int32)
    first = 0
    for row, count in enumerate(pages):
        table[row, :count] = order[first : first + count]
        first += count
    return table.to(device), torch.tensor(problem.kv_lengths, dtype=torch.int32, device=device)


def page_count(problem: AttentionDecodeProblem) -> int:
    """Return the pages that hold all sequences, at least one."""
    return max(sum(-(-length // problem.page_size) for length in problem.kv_lengths), 1)


def make_attention_operands(
    problem: AttentionProblem, device: str, seed: int, n_copies: int = 1, *, has_lse: bool = False
) -> list[AttentionOperands]:
    """Allocate operands with random data, tokens outside of heads as a projection leaves them.

    Returns
    -------
    list of AttentionOperands of length n_copies
        ``out`` and ``lse`` are filled with NaN, so that an element which is not written shows.
    """
    import torch

    dtype = getattr(torch, TORCH_DTYPES[problem.dtype])
    generator = torch.Generator(device=device).manual_seed(seed)

    def rows(tokens: int, heads: int) -> Any:
        return torch.empty((tokens * heads, problem.head_dim), dtype=dtype, device=device)

    copies = []
    for _ in range(n_copies):
        operands = lay_out(problem, rows, device)
        for tensor in (operands.q, operands.k, operands.v):
            tensor.normal_(generator=generator)
        operands.out.fill_(math.nan)
        lse = torch.full(operands.q.shape[:3], math.nan, device=device) if has_lse else None
        copies.append(replace(operands, lse=lse))
    return copies


def lay_out(problem: AttentionProblem, rows: Any, device: str) -> AttentionOperands:
    """Arrange matrices of (tokens * heads, head_dim), as ``rows(tokens, heads)`` returns them, as operands.

    They are taken for q, k, v and out, in this order.
    """

    def view(lengths: tuple[int, ...], heads: int) -> Any:
        tokens = sum(lengths)
        batch = 1 if problem.is_packed else len(lengths)
        return rows(tokens, heads).view(batch, tokens // batch, heads, problem.head_dim).transpose(1, 2)

    sides = ((problem.q_lengths, problem.heads), *((problem.kv_lengths, problem.kv_heads),) * 2)
    q, k, v = (view(*side) for side in sides)
    out = view(problem.q_lengths, problem.heads)
    if not problem.is_packed:
        return AttentionOperands(problem, q, k, v, out)
    starts = (sequence_starts(lengths, device) for lengths in (problem.q_lengths, problem.kv_lengths))
    return AttentionOperands(problem, q, k, v, out, *starts)


def carve_attention_operands(problem: AttentionProblem, windows: DataWindows) -> AttentionOperands:
    """Take operands from a pool of random data; the last one is written."""
    taken: list[Any] = []

    def rows(tokens: int, heads: int) -> Any:
        taken.append(windows.take(problem.dtype, tokens * heads, problem.head_dim, is_output=len(taken) == 3))
        return taken[-1]

    return lay_out(problem, rows, str(windows.inputs.device))


def make_decode_operands(
    problem: AttentionDecodeProblem, device: str, seed: int, n_copies: int = 1, *, has_lse: bool = False
) -> list[AttentionDecodeOperands]:
    """Allocate operands with random data; the pages of a sequence are scattered.

    Returns
    -------
    list of AttentionDecodeOperands of length n_copies
        ``out`` and ``lse`` are filled with NaN, so that an element which is not written shows.
    """
    import torch

    dtype = getattr(torch, TORCH_DTYPES[problem.dtype])
    generator = torch.Generator(device=device).manual_seed(seed)
    table, lengths = page_table(problem, device)
    batch = len(problem.kv_lengths)
    cache = (page_count(problem), problem.page_size, problem.kv_heads, problem.head_dim)
    copies = []
    for _ in range(n_copies):
        q, k_cache, v_cache = (
            torch.empty(shape, dtype=dtype, device=device).normal_(generator=generator)
            for shape in ((batch, problem.heads, problem.head_dim), cache, cache)
        )
        out = torch.full_like(q, math.nan)
        lse = torch.full((batch, problem.heads), math.nan, device=device) if has_lse else None
        copies.append(AttentionDecodeOperands(problem, q, k_cache, v_cache, table, lengths, out, lse))
    return copies


def carve_decode_operands(
    problem: AttentionDecodeProblem, config: KernelConfig, windows: DataWindows
) -> AttentionDecodeOperands:  # fmt: skip
    """Take operands from a pool of random data; the table and the workspace are the same for every launch."""
    table, lengths = page_table(problem, str(windows.inputs.device))
    batch, dim = len(problem.kv_lengths), problem.head_dim
    slots = page_count(problem) * problem.page_size

    def take(rows: int, *shape: int, is_output: bool = False) -> Any:
        return windows.take(problem.dtype, rows, dim, is_output=is_output).view(*shape, dim)

    q = take(batch * problem.heads, batch, problem.heads)
    k_cache, v_cache = (take(slots * problem.kv_heads, -1, problem.page_size, problem.kv_heads) for _ in range(2))
    out = take(batch * problem.heads, batch, problem.heads, is_output=True)
    needed = decode_workspace_size(problem, int(config["splits"]))
    partials = windows.scratch(needed) if needed else None
    return AttentionDecodeOperands(problem, q, k_cache, v_cache, table, lengths, out, partials=partials)
