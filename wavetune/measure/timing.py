"""The statistics of timing: how many rounds, in which order, and what is reported. No GPU, no torch.

Candidates are interleaved over rounds, so that a drift of the clock or a stall of the host hits all of them alike,
and the median over rounds is reported with a 95 % confidence interval.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

STREAM_METHOD = "rotating-stream-1"
"""Events around batches of launches on a busy stream, every launch on data that is not in the cache."""

GRAPH_METHOD = "rotating-graph-1"
"""Replays of a CUDA graph of launches over rotating buffers larger than the cache: what a server runs."""

BRIEF_GRAPH_METHOD = "brief-graph-1"
"""Replays of a CUDA graph of about `BRIEF_US`, the cache flushed before each round: for calls of a few microseconds."""

SUSTAINED_METHOD = "sustained-1"
"""Launches back to back for a second or more: what the power limit leaves."""

TIMING_METHODS = (STREAM_METHOD, GRAPH_METHOD, BRIEF_GRAPH_METHOD, SUSTAINED_METHOD)
"""Names of the methods, as stored with every measurement."""

BRIEF_US = 100.0
"""Expected time of one replay of `BRIEF_GRAPH_METHOD`. Beside its launches a replay takes 4 to 7 us (H200, 2026-11),
which are measured and taken off."""

MEDIAN_EFFICIENCY = 1.2533
"""Standard error of the median over that of the mean for normal noise, sqrt(pi / 2)."""

# Two-sided 95 % quantiles of Student's t by degrees of freedom (any statistics text).
_T_95 = (
    math.inf, 12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145,
    2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class StoppingRule:
    """When a candidate has been measured enough.

    Parameters
    ----------
    relative : float
        Half-width of the 95 % confidence interval of the median, as a fraction of the median ...
    absolute_us : float
        ... or in microseconds; the easier of the two is enough.
    min_rounds, max_rounds : int
        Bounds on the rounds.
    max_total_us : float
        GPU time after which a candidate with ``min_rounds`` rounds stops anyway, microseconds.
    loser_ratio : float
        A candidate this many times slower than the best of its problem needs a third of the precision.
    """

    relative: float = 0.01
    absolute_us: float = 0.2
    min_rounds: int = 3
    max_rounds: int = 6
    max_total_us: float = 2_500.0
    loser_ratio: float = 1.25

    def is_satisfied(self, readings: Sequence[float], spent_us: float, best_us: float = math.inf) -> bool:
        """Whether ``readings`` are enough, having cost ``spent_us`` of GPU time; ``best_us`` is the problem's best."""
        if len(readings) < self.min_rounds:
            return False
        if len(readings) >= self.max_rounds or spent_us >= self.max_total_us:
            return True
        middle = median(readings)
        slack = 3.0 if middle > self.loser_ratio * best_us else 1.0
        return median_half_width(readings) <= slack * max(self.relative * middle, self.absolute_us)


CALIBRATION_RULE = StoppingRule()
"""1 % or 0.2 us, at most 6 rounds and about 2.5 ms of GPU time for one point: a reading repeats within 1.4 to 2.1 %
(H200, 2026-11), and a budget buys more from more points than from more rounds."""

FINALIST_RULE = StoppingRule(relative=0.003, absolute_us=0.05, min_rounds=9, max_rounds=25, max_total_us=200_000.0)
"""For the few candidates that decide a comparison."""


def median_half_width(readings: Sequence[float]) -> float:
    """Return the half-width of the 95 % confidence interval of the median.

    Student's t on the sample standard deviation, widened by the efficiency of the median. One reading in five, the
    slowest, is left out of the deviation: a stall of the host makes a reading too slow by any factor, the median
    ignores it, and its interval should too.

    Parameters
    ----------
    readings : sequence of float

    Returns
    -------
    float
        Infinite for fewer than two readings.
    """
    kept = sorted(readings)[: len(readings) - len(readings) // 5]
    if len(kept) < 2:
        return math.inf
    mean = math.fsum(kept) / len(kept)
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in kept) / (len(kept) - 1))
    freedom = len(kept) - 1
    quantile = _T_95[freedom] if freedom < len(_T_95) else 2.0
    return quantile * MEDIAN_EFFICIENCY * deviation / math.sqrt(len(kept))


def round_order(n_candidates: int, round_index: int, seed: int = 0) -> list[int]:
    """Return the order of candidates in a round: a fresh shuffle, the same for the same arguments.

    A fixed order would give each candidate the same predecessor, and so the same heat and cache, in every round.
    """
    order = list(range(n_candidates))
    random.Random(f"{seed}/{round_index}").shuffle(order)
    return order


def launches_per_reading(expected_us: float, *, batch_us: float, max_launches: int) -> int:
    """Return how many launches to time between two events.

    Parameters
    ----------
    expected_us : float
        Expected time of one launch.
    batch_us : float
        Time that makes the cost of the events small.
    max_launches : int
        Upper bound.
    """
    return max(1, min(max_launches, math.ceil(batch_us / max(expected_us, 1e-3))))


def has_drifted(first: Sequence[float], last: Sequence[float], tolerance: float = 0.1) -> bool:
    """Whether reference readings at the end of a run differ from those at its start by more than ``tolerance``.

    Parameters
    ----------
    first, last : sequence of float
        Readings of the same launch, in any one unit.
    tolerance : float, default=0.1
        Relative change that counts. The power limit alone moves large products by several percent (H200, 2026-11).
    """
    if not first or not last:
        return False
    return abs(median(last) / median(first) - 1.0) > tolerance
