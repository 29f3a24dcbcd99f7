"""The bounded comparison behind `wavetune.autotune`, on a stopwatch whose time is made up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

pytest.importorskip("triton")

from wavetune.core.config import KernelConfig
from wavetune.launch.autotune.race import by_past_wins, race
from wavetune.launch.autotune.stopwatch import Lap
from wavetune.launch.live import MIN_ROUNDS, NotMeasuredError
from wavetune.runtime.measurer import MeasuredChoice

HOST_US = 100.0


class MadeUpStopwatch:
    """Reads made-up latencies; a reading takes as long as its launch and a little of the host.

    Parameters
    ----------
    latency_us : mapping of KernelConfig to float
        The truth.
    stalls : sequence of int, optional
        Numbers of the readings that the host spoils.
    """

    def __init__(self, latency_us: Mapping[KernelConfig, float], stalls: Sequence[int] = ()) -> None:
        self.latency_us = latency_us
        self.stalls = set(stalls)
        self.now_s = 0.0
        self.order: list[KernelConfig] = []
        self.laps = {config: Lap(lambda config=config: self.order.append(config)) for config in latency_us}

    def read(self, laps: Sequence[Lap]) -> list[float | None]:
        """Launch every lap once."""
        readings: list[float | None] = []
        for lap in laps:
            lap.launch()
            latency = self.latency_us[self.order[-1]]
            self.now_s += (latency + HOST_US) * 1e-6
            readings.append(None if len(self.order) in self.stalls else latency)
        return readings

    def clock(self) -> float:
        """Tell the time."""
        return self.now_s


def configs(n_configs: int) -> list[KernelConfig]:
    """Return distinct configurations."""
    return [KernelConfig(BLOCK=index, num_warps=4) for index in range(1, n_configs + 1)]


def run(stopwatch: MadeUpStopwatch, budget_ms: float = 50.0, top_k: int = 4, margin: float = 0.02) -> MeasuredChoice:
    """Race all configurations of a stopwatch."""
    return race(
        stopwatch.laps, stopwatch, budget_ms=budget_ms, top_k=top_k, margin=margin, kernel_source="sha256:1",
        clock=stopwatch.clock,
    )  # fmt: skip


def test_the_fastest_wins_wherever_it_stands() -> None:
    """All candidates are looked at once; the winner's and the default's latencies come back."""
    names = configs(20)
    stopwatch = MadeUpStopwatch({name: 200.0 - 3.0 * index for index, name in enumerate(names)})
    choice = run(stopwatch)
    assert choice == MeasuredChoice(names[-1], 143.0, 200.0, "sha256:1")


def test_only_the_best_few_are_compared_closely() -> None:
    """After the first look, the default and ``top_k`` others are launched, each equally often."""
    names = configs(10)
    stopwatch = MadeUpStopwatch({name: 200.0 + 5.0 * index for index, name in enumerate(names)})
    run(stopwatch, top_k=3)
    counts = [stopwatch.order.count(name) for name in names]
    assert counts[0] == counts[1] == counts[2] == counts[3] > MIN_ROUNDS
    assert counts[4:] == [1] * 6


def test_the_budget_is_kept() -> None:
    """Nothing is begun after it, beyond the rounds that a comparison needs."""
    names = configs(40)
    stopwatch = MadeUpStopwatch(dict.fromkeys(names, 900.0))
    run(stopwatch, budget_ms=30.0)
    assert stopwatch.now_s * 1e3 < 30.0 + 5 * 1.0
    # Half of it for a first look at 1 ms each.
    assert 10 < len(set(stopwatch.order)) < 20


def test_finalists_are_interleaved() -> None:
    """Rounds are shuffled: no candidate always follows the same one."""
    names = configs(4)
    stopwatch = MadeUpStopwatch(dict.fromkeys(names, 200.0))
    run(stopwatch)
    rounds = [stopwatch.order[i : i + 4] for i in range(4, len(stopwatch.order) - 3, 4)]
    assert all(sorted(map(str, entry)) == sorted(map(str, names)) for entry in rounds)
    assert len({tuple(map(str, entry)) for entry in rounds}) > 3


def test_ties_stay_with_the_default() -> None:
    """One percent is not enough for a margin of two."""
    first, second = configs(2)
    assert run(MadeUpStopwatch({first: 200.0, second: 198.0})).config == first
    assert run(MadeUpStopwatch({first: 200.0, second: 198.0}), margin=0.0).config == second


def test_spoiled_readings_do_not_count() -> None:
    """A candidate whose first readings were spoiled is left out of this race; later spoiled ones are skipped."""
    first, second = configs(2)
    stopwatch = MadeUpStopwatch({first: 200.0, second: 100.0}, stalls=range(5, 60, 3))
    assert run(stopwatch).config == second
    with pytest.raises(NotMeasuredError):
        run(MadeUpStopwatch({first: 200.0, second: 100.0}, stalls=range(1000)))


def test_a_launch_longer_than_the_budget_allows_is_not_raced() -> None:
    """One reading tells; the message names the setting."""
    first, second = configs(2)
    stopwatch = MadeUpStopwatch({first: 30_000.0, second: 100.0})
    with pytest.raises(NotMeasuredError, match="measure_budget_ms"):
        run(stopwatch)
    assert stopwatch.order == [first]


def test_past_winners_come_after_the_default() -> None:
    """The default stays first; the others by wins, equal ones in their order."""
    first, second, third, fourth = configs(4)
    assert by_past_wins([first, second, third, fourth], {third: 2, first: 5}) == [first, third, second, fourth]
