"""The statistics of timing."""

import math
import random
from statistics import median

import pytest

from wavetune.measure.timing import (
    StoppingRule,
    has_drifted,
    launches_per_reading,
    median_half_width,
    round_order,
)


@pytest.mark.parametrize("n_readings", [3, 5, 10])
def test_the_interval_covers_the_true_median(n_readings: int) -> None:
    """About 95 % of intervals hold the true median of normal noise; at least 90 %, at most 99.5 %."""
    rng = random.Random(n_readings)
    covered = 0
    for _ in range(2000):
        readings = [rng.gauss(100.0, 2.0) for _ in range(n_readings)]
        covered += abs(median(readings) - 100.0) <= median_half_width(readings)
    assert 0.90 <= covered / 2000 <= 0.995


def test_a_stall_does_not_widen_the_interval() -> None:
    """One reading of five, seven times too slow, changes neither median nor interval much."""
    quiet = [100.0, 101.0, 99.0, 100.5, 99.5]
    stalled = [*quiet[:4], 700.0]
    assert median(stalled) == pytest.approx(median(quiet), rel=0.01)
    assert median_half_width(stalled) < 2.5


def test_too_few_readings_have_no_interval() -> None:
    """One reading says nothing about noise."""
    assert median_half_width([]) == math.inf
    assert median_half_width([5.0]) == math.inf


def test_stopping() -> None:
    """Stops when precise, or at a cap; never before the minimum."""
    rule = StoppingRule(relative=0.01, absolute_us=0.2, min_rounds=3, max_rounds=6, max_total_us=1000.0)
    assert not rule.is_satisfied([100.0, 100.0], 200.0)
    assert rule.is_satisfied([100.0, 100.1, 99.9], 300.0)
    noisy = [100.0, 110.0, 90.0]
    assert not rule.is_satisfied(noisy, 300.0)
    assert rule.is_satisfied(noisy, 1000.0)
    assert rule.is_satisfied(noisy * 2, 600.0)
    # 0.2 us is enough for a short kernel whatever the percentage.
    assert rule.is_satisfied([5.0, 5.05, 4.95], 15.0)


def test_losers_need_less_precision() -> None:
    """The same readings are enough for a candidate that is far from the best."""
    rule = StoppingRule(min_rounds=3)
    readings = [100.0, 100.8, 99.4]
    assert not rule.is_satisfied(readings, 300.0, best_us=95.0)
    assert rule.is_satisfied(readings, 300.0, best_us=50.0)


def test_round_orders_are_fair() -> None:
    """Each round is a permutation, repeatable, and no candidate always follows the same one."""
    orders = [round_order(20, i) for i in range(30)]
    assert all(sorted(order) == list(range(20)) for order in orders)
    assert orders[3] == round_order(20, 3)
    followers = {order[order.index(0) + 1] for order in orders if order[-1] != 0}
    assert len(followers) > 10
    assert round_order(0, 0) == []


def test_launches_per_reading() -> None:
    """Short kernels are batched, long ones stand alone."""
    assert launches_per_reading(5.0, batch_us=40.0, max_launches=6) == 6
    assert launches_per_reading(15.0, batch_us=40.0, max_launches=6) == 3
    assert launches_per_reading(500.0, batch_us=40.0, max_launches=6) == 1
    assert launches_per_reading(0.0, batch_us=40.0, max_launches=6) == 6


def test_drift() -> None:
    """A change of the reference beyond a tenth is a drift, up or down; missing readings are not."""
    assert not has_drifted([100.0, 101.0], [105.0, 106.0])
    assert has_drifted([100.0, 100.0], [114.0, 115.0])
    assert has_drifted([100.0, 100.0], [86.0, 87.0])
    assert not has_drifted([], [100.0])
