"""Attention over whole sequences (prefill), and of one new token against a paged cache (decode)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from wavetune.core.dtype import find_dtype
from wavetune.core.floor_sum import floor_sum
from wavetune.core.problem import check_dimension, check_positive
from wavetune.errors import ProblemError, ProblemTypeError

HEAD_DIMS = (64, 96, 128, 256)
"""Elements of a head that kernels are written for."""

MAX_SEQUENCES = 1 << 20
"""Of one launch. A problem holds a length for each, so a slip of the finger would fill the memory."""

MAX_SPREAD = 100
"""Largest spread of lengths, percent: the shortest sequence is as good as empty."""


class _SharedHeads:
    """What prefill and decode derive alike from their heads."""

    __slots__ = ()

    heads: int
    kv_heads: int
    head_dim: int

    @property
    def layout(self) -> str:
        """Which model answers: one for each head dimension, ``d128``."""
        return f"d{self.head_dim}"

    @property
    def alignment(self) -> int:
        """Bytes that pointers and strides divide by; the kernels take nothing less."""
        return 16

    @property
    def group(self) -> int:
        """Query heads that share a key and value head."""
        return self.heads // self.kv_heads


@dataclass(frozen=True, slots=True)
class AttentionProblem(_SharedHeads):
    """softmax(Q K^T / sqrt(head_dim), masked) V for every head of every sequence.

    Parameters
    ----------
    q_lengths : tuple of int
        Queries of each sequence; may be 0.
    kv_lengths : tuple of int, optional
        Keys of each sequence; as many as queries by default. Queries are aligned with the last keys.
    heads, kv_heads : int
        Query heads, and the key and value heads that they share; ``kv_heads`` divides ``heads``.
    head_dim : {64, 96, 128, 256}
        Elements of a head.
    is_causal : bool, default=False
        Whether query i sees key j only if ``j <= i + kv_length - q_length``.
    window : int, default=0
        Keys and queries at this distance or more do not see each other; 0 for no window.
    dtype : str, default="bf16"
        Element type of Q, K, V and the result.
    is_packed : bool, default=False
        Whether sequences lie one behind another instead of along an axis of their own; always, if lengths differ.

    Raises
    ------
    ProblemTypeError, ProblemError
        If a field has the wrong type or an impossible value; names the field.
    """

    kernel: ClassVar[str] = "attention"

    q_lengths: tuple[int, ...]
    kv_lengths: tuple[int, ...] = ()
    heads: int = 1
    kv_heads: int = 1
    head_dim: int = 128
    is_causal: bool = False
    window: int = 0
    dtype: str = "bf16"
    is_packed: bool = False

    def __post_init__(self) -> None:
        put = object.__setattr__
        put(self, "q_lengths", _check_lengths("q_lengths", self.q_lengths))
        if not self.q_lengths:
            raise ProblemError("q_lengths is empty: there is no sequence")
        put(self, "kv_lengths", _check_lengths("kv_lengths", self.kv_lengths) or self.q_lengths)
        if len(self.kv_lengths) != len(self.q_lengths):
            raise ProblemError(
                f"kv_lengths must have {len(self.q_lengths)} lengths, one a sequence, got {len(self.kv_lengths)}"
            )
        put(self, "dtype", find_dtype(self.dtype).name)
        heads, kv_heads = check_heads(self.heads, self.kv_heads)
        put(self, "heads", heads)
        put(self, "kv_heads", kv_heads)
        put(self, "head_dim", check_head_dim(self.head_dim))
        put(self, "window", check_dimension("window", self.window))
        for name in ("is_causal", "is_packed"):
            if not isinstance(getattr(self, name), bool):
                raise ProblemTypeError(f"{name} must be True or False, got {getattr(self, name)!r}")
        if len(set(self.q_lengths)) > 1 or len(set(self.kv_lengths)) > 1:
            put(self, "is_packed", True)

    @classmethod
    def from_dims(cls, dims: Sequence[int], dtype: str = "bf16", layout: str = "d128") -> AttentionProblem:
        """Return the problem that a table key stands for: lengths are evenly spaced, see `spaced_lengths`.

        Raises
        ------
        ProblemError
            If there is not one value for each name of `dims`, or a value is impossible.
        """
        if len(dims) != 8:
            raise ProblemError(f"a key of attention has 8 sizes, got {tuple(dims)}")
        batch, q_len, kv_len, spread, heads, kv_heads, is_causal, window = dims
        batch = check_sequences("batch", batch)
        q_len, kv_len = check_dimension("q_len", q_len), check_dimension("kv_len", kv_len)
        return cls(
            spaced_lengths(batch, q_len, spread), spaced_lengths(batch, kv_len, spread), heads, kv_heads,
            head_dim_of(layout), bool(is_causal), window, dtype,
        )  # fmt: skip

    @property
    def dims(self) -> tuple[int, int, int, int, int, int, int, int]:
        """``(batch, q_len, kv_len, spread, heads, kv_heads, is_causal, window)``.

        Lengths are those of the longest sequence. ``spread`` says how much shorter the others are, see `spread_of`; for
        lengths that are not evenly spaced the key is a summary.
        """
        batch = len(self.q_lengths)
        q_len, kv_len = max(self.q_lengths), max(self.kv_lengths)
        spread = spread_of(self.kv_lengths)
        return (batch, q_len, kv_len, spread, self.heads, self.kv_heads, int(self.is_causal), self.window)

    @property
    def is_empty(self) -> bool:
        """True without queries; where there are queries but no keys, the result is zero."""
        return not any(self.q_lengths)


@dataclass(frozen=True, slots=True)
class AttentionDecodeProblem(_SharedHeads):
    """Attention of one new query of each sequence against a paged cache of keys and values.

    Parameters
    ----------
    kv_lengths : tuple of int
        Keys of each sequence; may be 0.
    heads, kv_heads : int
        Query heads, and the key and value heads that they share; ``kv_heads`` divides ``heads``.
    head_dim : {64, 96, 128, 256}
        Elements of a head.
    page_size : int, default=16
        Tokens of one page of the cache, positive.
    window : int, default=0
        Only this many of the last keys are seen; 0 for all.
    dtype : str, default="bf16"
        Element type of Q, the cache and the result.

    Raises
    ------
    ProblemTypeError, ProblemError
        If a field has the wrong type or an impossible value; names the field.
    """

    kernel: ClassVar[str] = "attention_decode"

    kv_lengths: tuple[int, ...]
    heads: int = 1
    kv_heads: int = 1
    head_dim: int = 128
    page_size: int = 16
    window: int = 0
    dtype: str = "bf16"

    def __post_init__(self) -> None:
        put = object.__setattr__
        put(self, "kv_lengths", _check_lengths("kv_lengths", self.kv_lengths))
        if not self.kv_lengths:
            raise ProblemError("kv_lengths is empty: there is no sequence")
        put(self, "dtype", find_dtype(self.dtype).name)
        heads, kv_heads = check_heads(self.heads, self.kv_heads)
        put(self, "heads", heads)
        put(self, "kv_heads", kv_heads)
        put(self, "head_dim", check_head_dim(self.head_dim))
        put(self, "page_size", check_positive("page_size", self.page_size))
        put(self, "window", check_dimension("window", self.window))

    @classmethod
    def from_dims(cls, dims: Sequence[int], dtype: str = "bf16", layout: str = "d128") -> AttentionDecodeProblem:
        """Return the problem that a table key stands for: lengths are evenly spaced, see `spaced_lengths`.

        Raises
        ------
        ProblemError
            If there is not one value for each name of `dims`, or a value is impossible.
        """
        if len(dims) != 7:
            raise ProblemError(f"a key of attention_decode has 7 sizes, got {tuple(dims)}")
        batch, kv_len, spread, heads, kv_heads, page_size, window = dims
        batch, kv_len = check_sequences("batch", batch), check_dimension("kv_len", kv_len)
        return cls(
            spaced_lengths(batch, kv_len, spread), heads, kv_heads, head_dim_of(layout), page_size, window, dtype
        )  # fmt: skip

    @property
    def dims(self) -> tuple[int, int, int, int, int, int, int]:
        """``(batch, kv_len, spread, heads, kv_heads, page_size, window)``, as in `AttentionProblem.dims`."""
        spread = spread_of(self.kv_lengths)
        return (
            len(self.kv_lengths), max(self.kv_lengths), spread, self.heads, self.kv_heads, self.page_size, self.window,
        )  # fmt: skip

    @property
    def is_empty(self) -> bool:
        """False: even a sequence without keys has a result, zero."""
        return False


def spaced_lengths(batch: int, longest: int, spread: int) -> tuple[int, ...]:
    """Return lengths evenly spaced from ``longest`` down to ``100 - spread`` percent of it, neither sorted nor random.

    Parameters
    ----------
    batch : int
        Sequences, positive.
    longest : int
        Longest length.
    spread : int
        Percent that the shortest is shorter, in [0, 100].

    Raises
    ------
    ProblemError, ProblemTypeError
        If a value is impossible.
    """
    batch, longest = check_positive("batch", batch), check_dimension("longest", longest)
    if not 0 <= check_dimension("spread", spread) <= MAX_SPREAD:
        raise ProblemError(f"spread must be in [0, {MAX_SPREAD}] percent, got {spread}")
    if batch == 1:
        return (longest,)
    # A step that shares no factor with the batch visits every rank once, and neighbours get distant ranks.
    step = next(step for step in range(max(int(0.618 * batch), 1), 0, -1) if _coprime(step, batch))
    ranks = (index * step % batch for index in range(batch))
    return tuple(longest - longest * spread * rank // (100 * (batch - 1)) for rank in ranks)


def spread_of(lengths: Sequence[int]) -> int:
    """Return the spread of the evenly spaced lengths that are nearest in sum, in percent; the smallest of equals.

    ``spread_of(spaced_lengths(len(lengths), max(lengths), spread_of(lengths))) == spread_of(lengths)``.
    """
    batch, longest, total = len(lengths), max(lengths), sum(lengths)
    if total == batch * longest:
        return 0

    def fall(spread: int) -> int:
        return floor_sum(batch, 100 * (batch - 1), longest * spread, 0)

    wanted = batch * longest - total
    above = min(bisect_left(range(MAX_SPREAD + 1), wanted, key=fall), MAX_SPREAD)
    below = bisect_left(range(MAX_SPREAD + 1), fall(max(above - 1, 0)), key=fall)
    return min((below, above), key=lambda spread: (abs(fall(spread) - wanted), spread))


def head_dim_of(layout: str) -> int:
    """Return the head dimension that a layout such as ``d128`` names.

    Raises
    ------
    ProblemError
        If it names none.
    """
    for head_dim in HEAD_DIMS:
        if layout == f"d{head_dim}":
            return head_dim
    raise ProblemError(f"unknown layout {layout!r} of attention; known: {', '.join(f'd{dim}' for dim in HEAD_DIMS)}")


def check_heads(heads: object, kv_heads: object) -> tuple[int, int]:
    """Return both as integers.

    Raises
    ------
    ProblemError, ProblemTypeError
        If one is not a positive integer, or ``kv_heads`` does not divide ``heads``.
    """
    n_heads, n_kv_heads = check_positive("heads", heads), check_positive("kv_heads", kv_heads)
    if n_heads % n_kv_heads:
        raise ProblemError(f"kv_heads must divide heads, got {n_heads} heads and {n_kv_heads} kv_heads")
    return n_heads, n_kv_heads


def check_head_dim(value: object) -> int:
    """Return a supported head dimension.

    Raises
    ------
    ProblemError, ProblemTypeError
        If it is none of `HEAD_DIMS`.
    """
    number = check_dimension("head_dim", value)
    if number not in HEAD_DIMS:
        raise ProblemError(f"head_dim must be one of {', '.join(map(str, HEAD_DIMS))}, got {number}")
    return number


def check_sequences(name: str, value: object) -> int:
    """Return a number of sequences, from 1 to `MAX_SEQUENCES`; raises as `check_positive`."""
    number = check_positive(name, value)
    if number > MAX_SEQUENCES:
        raise ProblemError(f"{name} must be at most {MAX_SEQUENCES:,}: each sequence has a length, got {number}")
    return number


def _check_lengths(name: str, value: object) -> tuple[int, ...]:
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise ProblemTypeError(f"{name} must be a sequence of integers, got {value!r}")
    return tuple(check_dimension(f"{name}[{index}]", length) for index, length in enumerate(value))


def _coprime(a: int, b: int) -> bool:
    while b:
        a, b = b, a % b
    return a == 1
