"""Find the fastest of some configurations within a time budget: look at all, then compare the best few closely."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median

from wavetune.core.config import KernelConfig
from wavetune.launch.autotune.stopwatch import Lap, Stopwatch
from wavetune.launch.live import MAX_ROUNDS, MIN_ROUNDS, NotMeasuredError, pick
from wavetune.measure.cuda_timing import LONG_KERNEL_US, Timing
from wavetune.measure.timing import median_half_width, round_order
from wavetune.runtime.measurer import MeasuredChoice

SCREENING_SHARE = 0.5
"""Share of the budget for the first look at all candidates."""

logger = logging.getLogger("wavetune")


def race(
    laps: Mapping[KernelConfig, Lap],
    stopwatch: Stopwatch,
    *,
    budget_ms: float,
    top_k: int,
    margin: float,
    kernel_source: str = "",
    clock: Callable[[], float] = time.perf_counter,
) -> MeasuredChoice:
    """Compare configurations.

    Parameters
    ----------
    laps : mapping of KernelConfig to Lap
        The candidates, the default first, then the most promising first: a short budget may not reach the last ones.
    stopwatch : Stopwatch
        Times them.
    budget_ms : float
        Time that all of it may take, milliseconds.
    top_k : int
        Candidates that are compared closely beside the default.
    margin : float
        Share by which a candidate must be faster than the default to replace it.
    kernel_source : str, default=""
        Digest of the kernel's source.
    clock : callable
        Tells the time in seconds.

    Raises
    ------
    NotMeasuredError
        If not even two candidates can be compared within the budget.
    """
    start = clock()
    configs = list(laps)
    seen = _screen(laps, stopwatch, budget_ms, deadline=start + SCREENING_SHARE * budget_ms / 1e3, clock=clock)
    if len(seen) < len(configs):
        logger.info("%d of %d candidates were not reached within the budget", len(configs) - len(seen), len(configs))
    default = configs[0]
    others = sorted((config for config in seen if config != default), key=lambda config: seen[config])[:top_k]
    finalists = [default, *sorted(others, key=configs.index)]
    readings: dict[KernelConfig, list[float]] = {config: [] for config in finalists}
    for round_index in range(MAX_ROUNDS):
        if round_index >= MIN_ROUNDS and clock() - start >= budget_ms / 1e3:
            break
        order = [finalists[index] for index in round_order(len(finalists), round_index)]
        for config, reading in zip(order, stopwatch.read([laps[config] for config in order]), strict=True):
            if reading is not None:
                readings[config].append(reading)
    timings = [
        Timing(median(values), median_half_width(values), len(values)) if values else None
        for values in readings.values()
    ]
    return pick(finalists, timings, margin, kernel_source)


def _screen(
    laps: Mapping[KernelConfig, Lap],
    stopwatch: Stopwatch,
    budget_ms: float,
    *,
    deadline: float,
    clock: Callable[[], float],
) -> dict[KernelConfig, float]:
    """Read every candidate once, as far as the time reaches; returns microseconds."""
    seen: dict[KernelConfig, float] = {}
    for config, lap in laps.items():
        if len(seen) >= 2 and clock() >= deadline:
            break
        reading = stopwatch.read([lap])[0]
        if reading is None or reading < LONG_KERNEL_US:
            # The first launch of a short kernel pays for loading its instructions.
            reading = stopwatch.read([lap])[0]
        if reading is None:
            continue
        if not seen and 2 * MIN_ROUNDS * reading > budget_ms * 1e3:
            raise NotMeasuredError(
                f"one launch takes {reading / 1e3:.1f} ms, too long to compare two in {budget_ms:g} ms; raise "
                "measure_budget_ms"
            )
        seen[config] = reading
    return seen


def by_past_wins(configs: Sequence[KernelConfig], wins: Mapping[KernelConfig, int]) -> list[KernelConfig]:
    """Order candidates after the default by how often they won on other keys; the default stays first."""
    return [configs[0], *sorted(configs[1:], key=lambda config: -wins.get(config, 0))]
