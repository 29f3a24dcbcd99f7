"""Time candidates against each other until a deadline: a look at each of them, then interleaved rounds.

How long a launch takes is known only after the first one, and a launch cannot be stopped. So the candidates are looked
at one by one while there is time. From then on it is known what a round takes: those that have lost are left out, and a
round is begun only if it will end in time. A contest thus takes the time that it has, and at most the launch of one
candidate that turned out slow.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from wavetune.core.config import KernelConfig
from wavetune.launch.live import MAX_ROUNDS, MIN_ROUNDS, NotMeasuredError
from wavetune.measure.cuda_timing import BATCH_US, LEAD_US, LONG_KERNEL_US, Candidate, Timing
from wavetune.measure.timing import launches_per_reading, round_order

LOSER_RATIO = 3.0
"""A candidate this many times slower than another has lost, unless it is a short kernel: no state of clock or cache
makes such a difference. A launch held up by another program may read so too. That must not put the default out: it is
read until its interval of confidence has lost."""

READING_US = LEAD_US + 100.0
"""What a round takes besides its launches, before there is one to learn it from: the host's lead, flush and events."""

MAX_LOOKS = 2
"""Looks at a candidate whose reading cannot be trusted."""


class RoundTimer(Protocol):
    """Times launches in a given order, as `wavetune.measure.cuda_timing.StreamTimer` does."""

    def read(self, candidates: Sequence[Candidate], sizes: Sequence[int]) -> list[float | None]:
        """Return microseconds of one launch of each candidate, from ``sizes`` of them; None if not to be trusted."""
        ...


class Contest:
    """Candidates of one problem, a timer and a deadline.

    Parameters
    ----------
    candidates : mapping of KernelConfig to Candidate
        The default first, or what stands in for it, then by prediction.
    timer : RoundTimer
        Times them.
    deadline : float
        In the seconds of ``clock``.
    on_failure : callable
        Told of every candidate that cannot be launched, with the error; what it raises ends the contest.
    clock : callable, optional
        Tells the time.
    """

    def __init__(
        self,
        candidates: Mapping[KernelConfig, Candidate],
        timer: RoundTimer,
        deadline: float,
        on_failure: Callable[[KernelConfig, Exception], None],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._candidates = dict(candidates)
        self._timer, self._deadline, self._on_failure, self._clock = timer, deadline, on_failure, clock
        self._sizes: dict[KernelConfig, int] = {}
        self._last_us: dict[KernelConfig, float] = {}
        self._n_reads = 0
        self._overhead_s = 0.0

    def run(self) -> dict[KernelConfig, Timing]:
        """Time the candidates.

        Returns
        -------
        dict of KernelConfig to Timing
            Those that were read often enough to be compared, the default first and always among them.

        Raises
        ------
        NotMeasuredError
            If the default cannot be compared with anything, or nothing can be launched.
        """
        self._look()
        if not self._candidates:
            raise NotMeasuredError("no candidate can be launched")
        default = next(iter(self._candidates))
        if default not in self._last_us or len(self._last_us) < min(2, len(self._candidates)):
            raise self._too_few()
        entrants = self._entrants(default)
        racing = entrants.copy()
        for round_index in range(3 * MAX_ROUNDS):
            if self._time_left() < self._round_s(racing):
                break
            self._read([racing[index] for index in round_order(len(racing), round_index)])
            timing = self._candidates[default].timing()
            if default in racing and timing is not None and self._has_lost(timing.latency_us - timing.spread_us):
                racing.remove(default)
            if all(len(self._candidates[config].readings) >= MAX_ROUNDS for config in racing):
                break
        timings = {config: candidate.timing() for config, candidate in self._candidates.items()}
        known = {config: timing for config, timing in timings.items() if timing and math.isfinite(timing.spread_us)}
        if default not in known or len(known) < min(2, len(entrants)):
            raise self._too_few()
        return known

    def _look(self) -> None:
        """Launch each candidate once, the best predicted and the default first, as long as there is time."""
        default, *others = self._candidates
        for config in (*others[:1], default, *others[1:]):
            looks = self._last_us
            # A look at one more is of no use without the time to compare the default with the best.
            reserved_s = self._round_s((default, min(looks, key=lambda c: looks[c]))) if default in looks else 0.0
            # Nobody knows what it takes; it does not win if it takes longer than the best so far.
            expected_s = min(looks.values(), default=0.0) / 1e6
            for _ in range(MAX_LOOKS):
                if self._time_left() < self._overhead() + expected_s + reserved_s:
                    return
                began = self._clock()
                try:
                    self._read([config])
                except Exception as error:
                    self._on_failure(config, error)
                    del self._candidates[config]
                    break
                if config in looks:
                    break
                expected_s = self._clock() - began

    def _entrants(self, default: KernelConfig) -> list[KernelConfig]:
        """Return who takes part in the rounds: the default, nobody who has lost, and no more than there is time for."""
        looks = self._last_us
        racing = [c for c in self._candidates if c in looks and (c == default or not self._has_lost(looks[c]))]
        # The look was the first of the rounds.
        while len(racing) > 2 and self._time_left() < (MIN_ROUNDS - 1) * self._round_s(racing):
            racing.remove(max(racing[1:], key=lambda config: looks[config]))
        return racing

    def _read(self, configs: Sequence[KernelConfig]) -> None:
        """Read each candidate once, in this order."""
        sizes = [self._sizes.get(config, 1) for config in configs]
        began = self._clock()
        readings = self._timer.read([self._candidates[config] for config in configs], sizes)
        self._n_reads += 1
        self._overhead_s += self._clock() - began
        for config, size, reading in zip(configs, sizes, readings, strict=True):
            if reading is None:
                continue
            self._overhead_s -= reading * size / 1e6
            candidate = self._candidates[config]
            if config not in self._sizes:
                n_launches = len(candidate.launches)
                self._sizes[config] = launches_per_reading(reading, batch_us=BATCH_US, max_launches=n_launches)
            # The first launch of a short kernel pays for loading its instructions.
            if config in self._last_us or reading >= LONG_KERNEL_US:
                candidate.readings.append(reading)
            self._last_us[config] = reading

    def _time_left(self) -> float:
        return self._deadline - self._clock()

    def _round_s(self, racing: Sequence[KernelConfig]) -> float:
        """Return what a round takes, seconds."""
        return self._overhead() + sum(self._last_us[config] * self._sizes[config] for config in racing) / 1e6

    def _overhead(self) -> float:
        """Return what a round takes besides its launches: the mean so far, seconds."""
        return self._overhead_s / self._n_reads if self._n_reads else READING_US / 1e6

    def _has_lost(self, latency_us: float) -> bool:
        return latency_us >= max(LOSER_RATIO * min(self._last_us.values()), LONG_KERNEL_US)

    def _too_few(self) -> NotMeasuredError:
        if not self._last_us:
            return NotMeasuredError("no reading could be trusted, or preparing took the whole budget")
        slowest_ms = max(self._last_us.values()) / 1e3
        return NotMeasuredError(
            f"too few readings were taken in time and could be trusted; a launch takes up to {slowest_ms:.3g} ms, "
            "raise measure_budget_ms if that is much of it"
        )
