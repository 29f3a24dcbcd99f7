"""Grouped GEMM: the tokens of each expert times the weight of that expert, as in a mixture of experts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar

from wavetune.core.dtype import find_dtype
from wavetune.core.problem import ALIGNMENTS, CONTIGUOUS, MAX_DIMENSION, check_dimension, check_positive
from wavetune.errors import ProblemError, ProblemTypeError

MAX_EXPERTS = 1 << 20
"""Of one layer. A problem holds a size for each, so a slip of the finger would fill the memory."""

GROUPED_LAYOUTS = ("nk", "gated")
"""What the weight [experts, n, k] holds: ``nk`` one projection, ``gated`` n / 2 rows of a gate projection before n / 2
rows of an up projection, whose products become ``silu(gate) * up`` with n / 2 columns."""


@dataclass(frozen=True, slots=True)
class GroupedGemmProblem:
    """out[rows of e] = x[rows of e] w[e]^T for every expert e, accumulated in fp32; rows are sorted by expert.

    Parameters
    ----------
    group_sizes : tuple of int
        Tokens of each expert, in the order of the rows of x; 0 for an expert that none was routed to.
    n : int
        Rows of each expert's weight, in ``[0, 2**31)``; even if gated.
    k : int
        Columns of each expert's weight and of x, in ``[0, 2**31)``.
    dtype : str, default="bf16"
        Element type of x and w.
    layout : {"nk", "gated"}, default="nk"
        What the weight holds, see `GROUPED_LAYOUTS`.
    alignment : {0, 16, 8, 4, 2, 1}, default=0
        Alignment class of x and w in bytes, see `wavetune.core.problem.ALIGNMENTS`; with 0, that of contiguous
        operands whose base pointers are aligned to 16.

    Raises
    ------
    ProblemTypeError, ProblemError
        If a size is not an integer in range, there is no expert, or an option is unknown; names the argument.
    """

    kernel: ClassVar[str] = "grouped_gemm"

    group_sizes: tuple[int, ...]
    n: int
    k: int
    dtype: str = "bf16"
    layout: str = "nk"
    alignment: int = CONTIGUOUS

    def __post_init__(self) -> None:
        put = object.__setattr__
        put(self, "group_sizes", check_group_sizes(self.group_sizes))
        for name in ("n", "k"):
            put(self, name, check_dimension(name, getattr(self, name)))
        put(self, "dtype", find_dtype(self.dtype).name)
        if self.layout not in GROUPED_LAYOUTS:
            raise ProblemError(f"unknown layout {self.layout!r} of grouped_gemm; known: {', '.join(GROUPED_LAYOUTS)}")
        if self.is_gated and self.n % 2:
            raise ProblemError(f"n must be even: half gate and half up projection, got {self.n}")
        if type(self.alignment) is not int or self.alignment not in (CONTIGUOUS, *ALIGNMENTS):
            raise ProblemError(f"alignment must be one of {ALIGNMENTS} bytes, or 0, got {self.alignment!r}")
        if self.alignment == CONTIGUOUS:
            row_bytes = self.k * find_dtype(self.dtype).input_bytes
            put(self, "alignment", next(bytes_ for bytes_ in ALIGNMENTS if row_bytes % bytes_ == 0))

    @classmethod
    def from_dims(cls, dims: Sequence[int], dtype: str = "bf16", layout: str = "nk") -> GroupedGemmProblem:
        """Return the problem that a table key stands for: its groups are those of `spread_groups`.

        Raises
        ------
        ProblemError
            If there is not one value for each name of `dims`, or a value is impossible.
        """
        if len(dims) != 6:
            raise ProblemError(f"a key of grouped_gemm has 6 sizes, got {tuple(dims)}")
        experts, tokens, active, largest, n, k = dims
        experts = check_experts(experts)
        return cls(spread_groups(experts, tokens, active, largest), n, k, dtype, layout)

    @property
    def experts(self) -> int:
        """Experts, with and without tokens."""
        return len(self.group_sizes)

    @property
    def tokens(self) -> int:
        """Rows of x: a token counts once for every expert that it is routed to."""
        return sum(self.group_sizes)

    @property
    def active(self) -> int:
        """Experts with tokens: those whose weights are read."""
        return self.experts - self.group_sizes.count(0)

    @property
    def largest(self) -> int:
        """Tokens of the busiest expert."""
        return max(self.group_sizes)

    @property
    def dims(self) -> tuple[int, int, int, int, int, int]:
        """``(experts, tokens, active, largest, n, k)``, a summary: many histograms share a key."""
        return self.experts, self.tokens, self.active, self.largest, self.n, self.k

    @property
    def is_gated(self) -> bool:
        """Whether gate and up projection are multiplied in the epilogue."""
        return self.layout == "gated"

    @property
    def out_columns(self) -> int:
        """Columns of the result: n, or half of it if gated."""
        return self.n // 2 if self.is_gated else self.n

    @property
    def is_empty(self) -> bool:
        """True if there are no tokens, or a size is zero; with k = 0 the launcher still fills the result with zeros."""
        return not any(self.group_sizes) or 0 in (self.n, self.k)

    def canonical(self) -> GroupedGemmProblem:
        """Return the problem of the same key with the groups of `spread_groups`: what is stored and read back."""
        return replace(self, group_sizes=spread_groups(*self.dims[:4]))


def check_group_sizes(value: object) -> tuple[int, ...]:
    """Return group sizes as a tuple of integers.

    Raises
    ------
    ProblemTypeError, ProblemError
        If it is no sequence of integers, one of them is negative, there is none, or they sum to more than
        `wavetune.core.problem.MAX_DIMENSION`; names the element.
    """
    # An array without axes says that it can be iterated, and cannot.
    if isinstance(value, str | bytes) or not isinstance(value, Iterable) or getattr(value, "ndim", None) == 0:
        raise ProblemTypeError(f"group_sizes must be a sequence of integers, got {value!r}")
    # The common case at once; what is left is named element by element.
    sizes = tuple(value)
    if not all(type(size) is int and size >= 0 for size in sizes):
        sizes = tuple(check_dimension(f"group_sizes[{index}]", size) for index, size in enumerate(sizes))
    if not sizes:
        raise ProblemError("group_sizes is empty: there is no expert")
    if sum(sizes) > MAX_DIMENSION:
        raise ProblemError(f"group_sizes must sum to at most {MAX_DIMENSION} (2**31 - 1), got {sum(sizes)}")
    return sizes


def check_experts(value: object) -> int:
    """Return a number of experts.

    Raises
    ------
    ProblemTypeError, ProblemError
        If it is no integer from 1 to `MAX_EXPERTS`.
    """
    experts = check_positive("experts", value)
    if experts > MAX_EXPERTS:
        raise ProblemError(f"experts must be at most {MAX_EXPERTS:,}: each has a group size, got {experts}")
    return experts


@lru_cache(maxsize=4096)
def spread_groups(experts: int, tokens: int, active: int, largest: int) -> tuple[int, ...]:
    """Return the group sizes that stand for all histograms with these counts.

    Sizes fall from ``largest`` along ``low + (largest - low) (1 - x)**p``, x from 0 to 1: in a straight line (p near 1)
    where groups differ little, as sampling makes them, and ever more steeply where few experts get most. Neighbours
    differ in rank, as experts do.

    Parameters
    ----------
    experts, tokens, active, largest : int
        As the properties of `GroupedGemmProblem`.

    Returns
    -------
    tuple of int
        Its length, sum, number of positive elements and maximum are the arguments.

    Raises
    ------
    ProblemTypeError, ProblemError
        If no histogram has these counts; says why.
    """
    for name, value in (("experts", experts), ("tokens", tokens), ("active", active), ("largest", largest)):
        check_dimension(name, value)
    if experts == 0 or active > experts:
        raise ProblemError(f"active must be at most experts, and those positive, got {active} of {experts} experts")
    others = active - 1
    if active == 0 or not largest + others <= tokens <= largest * active:
        if active == tokens == largest == 0:
            return (0,) * experts
        raise ProblemError(
            f"{active} active experts with at most {largest} tokens hold {largest + max(others, 0)} to "
            f"{largest * active} tokens, not {tokens}"
        )
    falling = [largest, *_falling_sizes(others, tokens - largest, largest)]
    # A step that shares no factor with the experts visits every place once, and neighbours in rank land far apart.
    step = next(step for step in range(max(int(0.618 * experts), 1), 0, -1) if math.gcd(step, experts) == 1)
    sizes = [0] * experts
    for rank, size in enumerate(falling):
        sizes[rank * step % experts] = size
    return tuple(sizes)


_BISECTIONS = 60
"""Halvings of the logarithm of p, which starts in [-40, 40]: to the precision of a double."""


def _falling_sizes(count: int, total: int, largest: int) -> list[int]:
    """Return ``count`` sizes in [1, largest] that sum to ``total``, along the curve of `spread_groups`."""
    if count == 0:
        return []
    low = max(1.0, 2.0 * total / count - largest)
    remaining = [1.0 - rank / count for rank in range(1, count + 1)]
    shares = [math.log(share) if share > 0.0 else -math.inf for share in remaining]

    def curve(log_p: float) -> list[float]:
        p = math.exp(log_p)
        return [low + (largest - low) * math.exp(p * share) for share in shares]

    lower, upper = -40.0, 40.0
    for _ in range(_BISECTIONS):
        middle = 0.5 * (lower + upper)
        if math.fsum(curve(middle)) > total:
            lower = middle
        else:
            upper = middle
    # Rounding running sums keeps every size within one of the curve, and so within its bounds.
    sizes, done, running = [], 0, 0.0
    for size in curve(upper):
        running += size
        sizes.append(min(round(running), total) - done)
        done += sizes[-1]
    sizes[-1] += total - done
    return sizes
