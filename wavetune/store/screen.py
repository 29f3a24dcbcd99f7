"""Disturbed readings: rows that the host slowed down, found from a model's residuals.

A stall of the host makes whole blocks of consecutive readings 1.3 to 7 times too slow (data README). A single slow
row may be the model's fault; a run of slow rows across configurations is not. So the state of the host is followed
through the file as a two-state hidden Markov chain:

- *clean*: ``log(latency / prediction)`` is Student-t around 0, scaled by the spread of its configuration;
- *disturbed*: it is anywhere between a slight and an eightfold slowdown.

The chain's posterior gives each row its weight. Isolated rows need a large residual, rows inside a run a small one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

DISTURBED_FRACTION = 0.006
"""Prior share of disturbed rows: what single-round sweeps showed (data README)."""

RUN_ROWS = 20.0
"""Mean length of a disturbed run, rows. Recorded runs are up to 150 long."""

SLOWDOWN_RANGE = (1.15, 8.0)
"""Slowdowns of a disturbed row; below the first, rows repeat within noise."""

STUDENT_DEGREES = 4.0
"""Tail of clean residuals: a model errs by several spreads now and then."""

MIN_SPREAD, MAX_SPREAD = 0.02, 0.15
"""Clean spread of log residuals: readings repeat within 1 to 2.5 %; a model worse than 15 % hides stalls."""

MIN_WEIGHT = 0.01
"""Weight of a certainly disturbed row: it still says that the latency is no larger."""

MIN_GROUP_ROWS = 12
"""Smaller groups have no level or spread of their own."""

QUARTILE_IN_SIGMA = 0.6745
"""Distance from the lower quartile of a normal distribution to its median."""

FIFTH_PERCENTILE_IN_SIGMA = 1.645
"""Distance from the fifth percentile of a normal distribution to its median."""

MAD_TO_SIGMA = 1.4826
"""Spread of a normal distribution over its median absolute deviation."""


@dataclass(frozen=True, slots=True)
class DisturbedProblem:
    """Disturbed rows of one problem.

    Parameters
    ----------
    problem : int
        The problem's index, as given.
    rows : int
        Rows that are more likely disturbed than not.
    factor : float
        Median slowdown of those rows against the prediction.
    """

    problem: int
    rows: int
    factor: float


@dataclass(frozen=True, slots=True)
class Screening:
    """What `screen_rows` found.

    Parameters
    ----------
    weights : ndarray of shape (n_rows,)
        In ``[MIN_WEIGHT, 1]``; 1 is clean.
    disturbed : ndarray of bool of shape (n_rows,)
        More likely disturbed than not.
    problems : tuple of DisturbedProblem
        Most rows first.
    """

    weights: FloatArray
    disturbed: npt.NDArray[np.bool_]
    problems: tuple[DisturbedProblem, ...]


def screen_rows(
    latency_us: FloatArray, predicted_us: FloatArray, config_index: IntArray, problem_index: IntArray
) -> Screening:
    """Weigh readings by how likely they are undisturbed. Pure and deterministic.

    Parameters
    ----------
    latency_us : ndarray of shape (n_rows,)
        Readings in the order they were taken (file order).
    predicted_us : ndarray of shape (n_rows,)
        A model's latency of each row, microseconds. It may have been fitted to these rows, robustly.
    config_index, problem_index : ndarray of shape (n_rows,)
        Integer labels.

    Returns
    -------
    Screening
        Fast rows are never down-weighted: nothing makes a kernel finish early.
    """
    if not len(latency_us):
        return Screening(np.ones(0), np.zeros(0, dtype=np.bool_), ())
    residual = np.log(latency_us / predicted_us)
    residual = residual - _config_level(residual, config_index)
    level, lower_spread = _problem_level(residual, problem_index)
    residual = residual - level
    spread = np.minimum(_config_spread(residual, config_index), lower_spread).clip(MIN_SPREAD, MAX_SPREAD)
    posterior = _smooth(*_emissions(residual, spread))
    # Nothing makes a kernel finish early.
    posterior[residual <= 0.0] = 0.0
    disturbed = posterior > 0.5
    return Screening(
        weights=np.maximum(1.0 - posterior, MIN_WEIGHT),
        disturbed=disturbed,
        problems=_by_problem(residual, problem_index, disturbed),
    )


def _groups(index: IntArray) -> list[IntArray]:
    order = np.argsort(index, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(index[order])) + 1)


def _config_level(residual: FloatArray, index: IntArray) -> FloatArray:
    """Return each row's configuration median, 0 where there are too few rows for one."""
    level = np.zeros(len(residual))
    for rows in _groups(index):
        if len(rows) >= MIN_GROUP_ROWS:
            level[rows] = np.median(residual[rows])
    return level


def _problem_level(residual: FloatArray, index: IntArray) -> tuple[FloatArray, FloatArray]:
    """Return where each row's problem would have its median without stalls, and the spread below it.

    A model may be off for a whole problem. Stalls only add time and may hit most of its rows, so both come from the
    lower quartile, which they leave alone longest; a level far above those of the other problems is a stall itself.
    """
    groups = [rows for rows in _groups(index) if len(rows) >= MIN_GROUP_ROWS]
    level, spread = np.zeros(len(residual)), np.full(len(residual), MAX_SPREAD)
    if not groups:
        return level, spread
    low, quartile = np.array([np.quantile(residual[rows], (0.05, 0.25)) for rows in groups]).T
    sigma = (quartile - low) / (FIFTH_PERCENTILE_IN_SIGMA - QUARTILE_IN_SIGMA)
    levels = quartile + QUARTILE_IN_SIGMA * np.minimum(sigma, MAX_SPREAD)
    middle = float(np.median(levels))
    highest = middle + 3.0 * max(MAD_TO_SIGMA * float(np.median(np.abs(levels - middle))), MIN_SPREAD)
    for rows, of_problem, below in zip(groups, np.minimum(levels, highest), sigma, strict=True):
        level[rows], spread[rows] = of_problem, below
    return level, spread


def _config_spread(residual: FloatArray, index: IntArray) -> FloatArray:
    """Return each row's robust standard deviation, that of all rows where its group is too small."""
    spread = np.full(len(residual), MAD_TO_SIGMA * float(np.median(np.abs(residual))))
    for rows in _groups(index):
        if len(rows) >= MIN_GROUP_ROWS:
            spread[rows] = MAD_TO_SIGMA * float(np.median(np.abs(residual[rows])))
    return spread


def _emissions(residual: FloatArray, spread: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the density of each residual in the clean and in the disturbed state."""
    nu = STUDENT_DEGREES
    scale = math.gamma((nu + 1) / 2) / (math.gamma(nu / 2) * math.sqrt(nu * math.pi))
    clean = scale / spread * (1.0 + (residual / spread) ** 2 / nu) ** (-(nu + 1) / 2)
    low, high = (math.log(factor) for factor in SLOWDOWN_RANGE)
    # Uniform in the logarithm, its edges softened by the spread.
    inside = 1.0 / (1.0 + np.exp(-np.clip(2.0 * (residual - low) / spread, -50.0, 50.0)))
    beyond = 1.0 / (1.0 + np.exp(-np.clip(2.0 * (high - residual) / spread, -50.0, 50.0)))
    return clean, np.maximum(inside * beyond / (high - low), 1e-12)


def _smooth(clean: FloatArray, disturbed: FloatArray) -> FloatArray:
    """Return the posterior of the disturbed state, forward and backward through the file."""
    leave = 1.0 / RUN_ROWS
    enter = leave * DISTURBED_FRACTION / (1.0 - DISTURBED_FRACTION)
    odds = (disturbed / clean).tolist()
    n_rows = len(odds)
    forward, backward = [0.0] * n_rows, [1.0] * n_rows
    probability = DISTURBED_FRACTION
    for row, ratio in enumerate(odds):
        prior = probability * (1.0 - leave) + (1.0 - probability) * enter
        probability = prior * ratio / (prior * ratio + 1.0 - prior)
        forward[row] = probability
    # The ratio of what follows given disturbed to what follows given clean.
    follow = 1.0
    for row in range(n_rows - 1, -1, -1):
        backward[row] = follow
        message = odds[row] * follow
        follow = ((1.0 - leave) * message + leave) / (enter * message + 1.0 - enter)
    before, after = np.array(forward), np.array(backward)
    posterior: FloatArray = before * after / (before * after + 1.0 - before)
    return posterior


def _by_problem(
    residual: FloatArray, problem_index: IntArray, disturbed: npt.NDArray[np.bool_]
) -> tuple[DisturbedProblem, ...]:
    found = []
    for problem in np.unique(problem_index[disturbed]).tolist():
        rows = disturbed & (problem_index == problem)
        found.append(DisturbedProblem(problem, int(rows.sum()), float(np.exp(np.median(residual[rows])))))
    return tuple(sorted(found, key=lambda entry: (-entry.rows, entry.problem)))
