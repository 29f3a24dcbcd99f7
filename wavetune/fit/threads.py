"""Fits compute on one thread, so that equal measurements give equal models on machines of any number of cores.

The order in which threads add up moves last digits, and a tie between two configurations then falls either way: the
same H200 calibration kept 49 configurations on one thread and 48 on two. One thread is no slower: a fit took 18 s, and
21 to 24 s on two threads, which for the most part waited for each other (two cores, 2026-11).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

from threadpoolctl import threadpool_limits

P = ParamSpec("P")
T = TypeVar("T")


def on_one_thread(function: Callable[P, T]) -> Callable[P, T]:
    """Keep linear algebra and boosting to one thread while ``function`` runs."""
    limited: Callable[P, T] = threadpool_limits.wrap(limits=1)(function)
    return limited
