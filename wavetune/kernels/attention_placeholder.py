"""Stand-ins for the tensors of attention, so that kernels compile without torch and without a GPU."""

from __future__ import annotations

from wavetune.core.attention_problem import AttentionDecodeProblem, AttentionProblem
from wavetune.kernels.attention_operands import AttentionDecodeOperands, AttentionOperands
from wavetune.kernels.placeholder import AMPLE_WORKSPACE, Placeholder


class _Int32:
    """Looks like torch.int32 to Triton. One object for ever: Triton remembers a dtype by its address."""

    is_floating_point = False
    itemsize = 4

    def __str__(self) -> str:
        return "torch.int32"

    __repr__ = __str__


_INT32 = _Int32()


class IndexPlaceholder(Placeholder):
    """Looks like a contiguous, 16-byte aligned tensor of int32.

    Parameters
    ----------
    shape : tuple of int
        Sizes.
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__("fp32", shape)
        self.dtype = _INT32  # type: ignore[assignment]


def attention_placeholders(problem: AttentionProblem) -> AttentionOperands:
    """Return contiguous, aligned stand-ins for the operands of a prefill."""
    batch = 1 if problem.is_packed else len(problem.q_lengths)

    def tensor(lengths: tuple[int, ...], heads: int) -> Placeholder:
        return Placeholder(problem.dtype, (batch, heads, sum(lengths) // batch, problem.head_dim))

    q = tensor(problem.q_lengths, problem.heads)
    k = tensor(problem.kv_lengths, problem.kv_heads)
    starts = IndexPlaceholder((len(problem.q_lengths) + 1,)) if problem.is_packed else None
    return AttentionOperands(problem, q, k, k, q, starts, starts)


def decode_placeholders(problem: AttentionDecodeProblem) -> AttentionDecodeOperands:
    """Return contiguous, aligned stand-ins for the operands of a decode step, with workspace for any configuration."""
    batch = len(problem.kv_lengths)
    pages = -(-max(problem.kv_lengths) // problem.page_size)
    q = Placeholder(problem.dtype, (batch, problem.heads, problem.head_dim))
    cache = Placeholder(problem.dtype, (batch * pages, problem.page_size, problem.kv_heads, problem.head_dim))
    table, lengths = IndexPlaceholder((batch, pages)), IndexPlaceholder((batch,))
    return AttentionDecodeOperands(problem, q, cache, cache, table, lengths, q, partials=AMPLE_WORKSPACE)
