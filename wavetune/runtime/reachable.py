"""The closed set of configurations that a layer can ever be given."""

from __future__ import annotations

from typing import Any

from wavetune.core.config import KernelConfig
from wavetune.core.problem import CONTIGUOUS, GemmProblem
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
    try:
        low, high = m_range
    except (TypeError, ValueError):
        raise ProblemTypeError(f"m_range must be a pair, (smallest m, largest m), got {m_range!r}") from None
    first, last = (GemmProblem(m, n, k, dtype, layout, alignment) for m in (low, high))
    if not first.m <= last.m < first.m + MAX_ROWS:
        raise ProblemError(f"m_range must be (smallest, largest) with at most {MAX_ROWS} values, got {m_range}")
    resolver, on_miss = find_resolver(first, arch, num_sms, numerics), policy(on_miss)
    found: dict[KernelConfig, None] = {}
    for m in range(first.m, last.m + 1):
        problem = GemmProblem(m, n, k, dtype, layout, alignment)
        found.update(dict.fromkeys(resolver.possible(problem, on_miss)))
    return tuple(found)
