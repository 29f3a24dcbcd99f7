"""The closed set of configurations that a layer can ever be given."""

from __future__ import annotations

from typing import Any

from wavetune.core.config import KernelConfig
from wavetune.core.problem import CONTIGUOUS, GemmProblem, check_dimension
from wavetune.errors import ProblemError, ProblemTypeError
from wavetune.runtime.choose import find_resolver, policy

MAX_ROWS = 1 << 20
"""Most values of m in one question: each is answered, in some ten microseconds."""


def reachable_configs(
    n: int,
    k: int,
    m_range: tuple[int, int] = (1, 8192),
    *,
    dtype: Any = "bf16",
    layout: str = "nk",
    alignment: int = CONTIGUOUS,
    arch: str | None = None,
    num_sms: int | None = None,
    numerics: str = "any",
    on_miss: str | None = None,
) -> tuple[KernelConfig, ...]:
    """Return every configuration that `wavetune.choose_config` can answer for a layer.

    Closed: with the same files and settings no m of the range is answered outside of it, by tables, by the forms, by
    the default where the policy gives it, or by a live measurement where the policy allows one. Nothing is measured
    here, and nothing counts as a miss.

    Parameters
    ----------
    n, k : int
        Output and input features.
    m_range : tuple of int, default=(1, 8192)
        Smallest and largest m, both included.
    dtype, layout, alignment, arch, num_sms, numerics, on_miss
        As in `wavetune.choose_config`.

    Returns
    -------
    tuple of KernelConfig
        Without repeats, in the order of the smallest m that gets them.

    Raises
    ------
    ProblemTypeError
        If the range is no pair of integers.
    ProblemError
        If it is empty or holds more than `MAX_ROWS` values.
    """
    low, high = check_m_range(m_range)
    first = GemmProblem(low, n, k, dtype, layout, alignment)
    resolver, on_miss = find_resolver(first, arch, num_sms, numerics), policy(on_miss)
    found: dict[KernelConfig, None] = {}
    for m in range(low, high + 1):
        problem = GemmProblem(m, n, k, dtype, layout, alignment)
        found.update(dict.fromkeys(resolver.possible(problem, on_miss)))
    return tuple(found)


def check_m_range(m_range: Any, smallest: int = 0) -> tuple[int, int]:
    """Return the smallest and the largest m of a range.

    Parameters
    ----------
    m_range : object
        A pair, both ends included.
    smallest : int, default=0
        Least m that is allowed.

    Raises
    ------
    ProblemTypeError
        If it is no pair of integers.
    ProblemError
        If it is empty, holds more than `MAX_ROWS` values, or begins below ``smallest``.
    """
    try:
        first, last = m_range
    except (TypeError, ValueError):
        raise ProblemTypeError(f"m_range must be a pair, (smallest m, largest m), got {m_range!r}") from None
    low, high = check_dimension("m_range", first), check_dimension("m_range", last)
    if not smallest <= low <= high < low + MAX_ROWS:
        raise ProblemError(
            f"m_range must be (smallest, largest) with {smallest} <= smallest <= largest and at most {MAX_ROWS} "
            f"values, got {m_range!r}"
        )
    return low, high
