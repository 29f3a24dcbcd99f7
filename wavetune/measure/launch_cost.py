"""What timing itself costs: events, replays, and the floor of a launch, told by kernels that do nothing."""

from __future__ import annotations

from statistics import median

from wavetune.kernels.call import Launch
from wavetune.measure.cuda_timing import Candidate, GraphTimer, StreamTimer
from wavetune.measure.timing import FINALIST_RULE


def measure_replay_cost(timer: GraphTimer, empty: Launch) -> float:
    """Return what a replay takes beside its launches, microseconds: the intercept of graphs of empty launches."""
    few, many = 2, 22
    candidates = [Candidate([empty] * few), Candidate([empty] * many)]
    timer.time(candidates, FINALIST_RULE)
    few_us, many_us = (median(each.readings) * len(each.launches) for each in candidates)
    return _line(few, few_us, many, many_us)[0]


def measure_event_cost(timer: StreamTimer, empty: Launch, n_rounds: int = 15) -> tuple[float, float]:
    """Measure the cost of an event pair and the floor of a launch on a busy stream.

    Parameters
    ----------
    timer : StreamTimer
        Its ``event_cost_us`` must be 0.
    empty : callable
        Launches a kernel that does nothing.

    Returns
    -------
    event_cost_us : float
        Intercept of the time of a batch of empty launches, microseconds.
    floor_us : float
        Slope: time from one empty kernel to the next.
    """
    few, many = 2, 22
    candidates = [Candidate([empty] * few), Candidate([empty] * many)]
    readings: tuple[list[float], list[float]] = ([], [])
    for _ in range(n_rounds):
        for kept, reading, size in zip(readings, timer.read(candidates, [few, many]), (few, many), strict=True):
            if reading is not None:
                kept.append(reading * size)
    if not readings[0] or not readings[1]:
        return 0.0, 0.0
    return _line(few, median(readings[0]), many, median(readings[1]))


def _line(few: int, few_us: float, many: int, many_us: float) -> tuple[float, float]:
    """Return intercept, at least 0, and slope of the line through the times of so many launches."""
    slope_us = (many_us - few_us) / (many - few)
    return max(few_us - few * slope_us, 0.0), slope_us
