"""What timing itself costs is found on timers that are made up."""

from collections.abc import Sequence

import pytest

from wavetune.measure.cuda_timing import Candidate
from wavetune.measure.launch_cost import measure_event_cost, measure_replay_cost


class MadeUpTimer:
    """Every reading costs so much, and every launch in it so much more; one in three readings is slow or lost."""

    def __init__(self, cost_us: float, launch_us: float) -> None:
        self.cost_us, self.launch_us, self.n_rounds = cost_us, launch_us, 0

    def read(self, candidates: Sequence[Candidate], sizes: Sequence[int]) -> list[float | None]:
        """Read as a busy stream does."""
        self.n_rounds += 1
        stall_us = 50.0 if self.n_rounds % 3 == 0 else 0.0
        readings = [(self.cost_us + stall_us) / size + self.launch_us for size in sizes]
        return [None, readings[1]] if self.n_rounds % 5 == 0 else readings

    def time(self, candidates: Sequence[Candidate], rule: object) -> None:
        """Read as replays of a graph do."""
        for candidate in candidates:
            n_launches = len(candidate.launches)
            for stall_us in (0.0, 70.0, 0.0):
                candidate.readings.append((self.cost_us + stall_us) / n_launches + self.launch_us)


@pytest.mark.parametrize(("cost_us", "launch_us"), [(3.0, 1.4), (6.5, 0.9), (0.0, 2.0)])
def test_cost_and_floor_are_told_apart(cost_us: float, launch_us: float) -> None:
    """Stalls and lost readings do not count."""
    timer = MadeUpTimer(cost_us, launch_us)
    assert measure_event_cost(timer, lambda: None) == pytest.approx((cost_us, launch_us))
    assert measure_replay_cost(timer, lambda: None) == pytest.approx(cost_us)
