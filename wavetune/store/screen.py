"""Disturbed readings: rows that the host slowed down, found from a model's residuals.

A stall of the host makes whole blocks of consecutive readings 1.3 to 7 times too slow (data README). A single slow
row may be the model's fault; a run of slow rows across configurations is not. So the state of the host is followed
through the file as a two-state hidden Markov chain:

- *clean*: ``log(latency / prediction)`` is Student-t around 0, scaled by the spread of its configuration;
- *disturbed*: it is anywhere between a slight and an eightfold slowdown.

The chain's posterior gives each row its weight. Isolated rows need a large residual, rows inside a run a small one. A
row that is slower still is a mistake, in its unit for instance, and says nothing of the host.

A stall does not come again where the same configurations meet the same sizes, or similar ones. A problem whose slow
rows are slow there too shows what the kernels are like, and is left alone.
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
"""Slowdowns that stalls cause: below, rows repeat within noise; above, a row is wrong for another reason."""

STUDENT_DEGREES = 4.0
"""Tail of clean residuals: a model errs by several spreads now and then."""

MIN_SPREAD, MAX_SPREAD = 0.02, 0.15
"""Clean spread of log residuals: readings repeat within 1 to 2.5 %; a model worse than 15 % hides stalls."""

MIN_WEIGHT = 0.01
"""Weight of a certainly disturbed row: it still says that the latency is no larger."""

MISTAKE_WEIGHT = 1e-6
"""Weight of a row slower than any stall, such as nanoseconds among microseconds. Not 0: if a configuration has no other
rows, they are all there is to fit."""

RUN_LIMIT = 150
"""Longest run of disturbed rows that was recorded (data README): rows further apart are not of one stall."""

ALIKE_OCTAVES = 3.0
"""Distance in octaves of all sizes up to which problems are similar. With 2, one of eight recorded problems of one row,
alike in the configurations that are slow there, was not recognised."""

CONFIRMED_SHARE = 0.5
"""Share of a problem's slow rows that must be slow elsewhere too. Of those recorded problems 0.56 to 1.0 were."""

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
    dims : tuple of int
        Its sizes.
    rows : int
        Rows that are more likely disturbed than not.
    factor : float
        Median slowdown of those rows against the prediction.
    """

    dims: tuple[int, ...]
    rows: int
    factor: float


@dataclass(frozen=True, slots=True)
class Screening:
    """What `screen_rows` found.

    Parameters
    ----------
    weights : ndarray of shape (n_rows,)
        In ``[MIN_WEIGHT, 1]``, and `MISTAKE_WEIGHT`; 1 is clean.
    disturbed : ndarray of bool of shape (n_rows,)
        More likely disturbed than not.
    problems : tuple of DisturbedProblem
        Most rows first.
    """

    weights: FloatArray
    disturbed: npt.NDArray[np.bool_]
    problems: tuple[DisturbedProblem, ...]


def screen_rows(latency_us: FloatArray, predicted_us: FloatArray, config_index: IntArray, dims: IntArray) -> Screening:
    """Weigh readings by how likely they are undisturbed. Pure and deterministic.

    Parameters
    ----------
    latency_us : ndarray of shape (n_rows,)
        Readings in the order they were taken (file order).
    predicted_us : ndarray of shape (n_rows,)
        A model's latency of each row, microseconds. It may have been fitted to these rows, robustly.
    config_index : ndarray of shape (n_rows,)
        Integer labels.
    dims : ndarray of shape (n_rows, n_dims)
        Sizes of each row's problem.

    Returns
    -------
    Screening
        Fast rows are never down-weighted: nothing makes a kernel finish early.
    """
    if not len(latency_us):
        return Screening(np.ones(0), np.zeros(0, dtype=np.bool_), ())
    problems, inverse = np.unique(dims, axis=0, return_inverse=True)
    problem_index = inverse.reshape(-1)
    residual = np.log(latency_us / predicted_us)
    residual = residual - _config_level(residual, config_index)
    level, lower_spread = _problem_level(residual, problem_index)
    residual = residual - level
    spread = np.minimum(_config_spread(residual, config_index), lower_spread).clip(MIN_SPREAD, MAX_SPREAD)
    clean, disturbed = _emissions(residual, spread)
    is_mistake = residual > math.log(SLOWDOWN_RANGE[1])
    posterior = _smooth(np.where(is_mistake, 1.0, disturbed / clean))
    posterior[is_mistake] = 1.0
    # Nothing makes a kernel finish early.
    posterior[residual <= 0.0] = 0.0
    for problem in _confirmed(residual, posterior > 0.5, config_index, problem_index, problems):
        posterior[problem_index == problem] = 0.0
    found = posterior > 0.5
    return Screening(
        weights=np.where(is_mistake & found, MISTAKE_WEIGHT, np.maximum(1.0 - posterior, MIN_WEIGHT)),
        disturbed=found,
        problems=_by_problem(residual, problem_index, problems, found),
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


def _smooth(ratio_of_densities: FloatArray) -> FloatArray:
    """Return the posterior of the disturbed state, forward and backward through the file.

    Each row's density in the disturbed state is given over that in the clean one.
    """
    leave = 1.0 / RUN_ROWS
    enter = leave * DISTURBED_FRACTION / (1.0 - DISTURBED_FRACTION)
    odds = ratio_of_densities.tolist()
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


def _confirmed(
    residual: FloatArray,
    slow: npt.NDArray[np.bool_],
    config_index: IntArray,
    problem_index: IntArray,
    problems: IntArray,
) -> list[int]:
    """Return the problems with many slow rows that are slow wherever else the same configurations were read.

    Problems that several stalls hit from end to end look alike too. So similar problems confirm one another only if
    what is fast on one is fast on the others; a second reading of the same problem needs no such proof.
    """
    octaves = np.log2(np.maximum(problems, 1).astype(np.float64))
    found = []
    for problem in np.flatnonzero(np.bincount(problem_index[slow], minlength=len(problems)) >= MIN_GROUP_ROWS).tolist():
        distance = np.sqrt(np.square(octaves - octaves[problem]).sum(axis=1))[problem_index]
        rows = np.flatnonzero(problem_index == problem)
        readings = [
            _read_elsewhere(row, np.flatnonzero(config_index == config_index[row]), distance) for row in rows.tolist()
        ]
        slow_there = np.array(
            [len(others) > 0 and residual[others].min() > math.log(SLOWDOWN_RANGE[0]) for others in readings]
        )
        repeated = np.array([len(others) > 0 and distance[others[0]] == 0.0 for others in readings])
        here = slow[rows]
        if np.mean(slow_there[here]) < CONFIRMED_SHARE:
            continue
        has_pattern = np.sum(~here) >= MIN_GROUP_ROWS and np.mean(slow_there[~here]) < CONFIRMED_SHARE
        if has_pattern or np.mean(repeated[here]) >= CONFIRMED_SHARE:
            found.append(problem)
    return found


def _read_elsewhere(row: int, same_config: IntArray, distance: FloatArray) -> IntArray:
    """Return the rows that tell a stall of a row from its kernel: repeats, else the two of the most similar problems.

    None where there are fewer: nothing confirms the row then.
    """
    others = same_config[(np.abs(same_config - row) > RUN_LIMIT) & (distance[same_config] <= ALIKE_OCTAVES)]
    repeats: IntArray = others[distance[others] == 0.0]
    if len(repeats):
        return repeats
    nearest: IntArray = others[np.argsort(distance[others], kind="stable")[:2]]
    return nearest if len(nearest) == 2 else nearest[:0]


def _by_problem(
    residual: FloatArray, problem_index: IntArray, problems: IntArray, disturbed: npt.NDArray[np.bool_]
) -> tuple[DisturbedProblem, ...]:
    found = []
    for problem in np.unique(problem_index[disturbed]).tolist():
        rows = disturbed & (problem_index == problem)
        dims = tuple(problems[problem].tolist())
        found.append(DisturbedProblem(dims, int(rows.sum()), float(np.exp(np.median(residual[rows])))))
    return tuple(sorted(found, key=lambda entry: (-entry.rows, entry.dims)))
