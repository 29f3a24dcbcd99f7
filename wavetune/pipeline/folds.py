"""Which rows a held-out judgement may learn from, and which it judges."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wavetune.plan.holdout import fold_of
from wavetune.store.table import BoolArray, IntArray, MeasurementTable
from wavetune.tables.exact import MIN_CONFIGS

HOLDOUT_FOLDS = 5
"""One of so many parts of the realistic layers is held out for the accuracy headline."""

MIN_HOLDOUT_LAYERS = 5
"""With fewer (n, k), a held-out part would say nothing."""


@dataclass(frozen=True)
class FoldSplit:
    """One fold of realistic layers, apart from the rest.

    Parameters
    ----------
    training, judged : ndarray of bool of shape (n_rows,)
        Rows to fit, and rows of the held-out problems. Wave-structured rows of a held-out layer are in neither.
    problems : ndarray of shape (n_problems, n_dims)
        The held-out problems.
    """

    training: BoolArray
    judged: BoolArray
    problems: IntArray


def split_fold(table: MeasurementTable, fold: int) -> FoldSplit | None:
    """Hold one part of the realistic (n, k) out; None if there are fewer than `MIN_HOLDOUT_LAYERS`."""
    problems, problem_index = table.problems()
    n_measured = np.bincount(problem_index[table.exhaustive], minlength=len(problems))
    # Where only finalists were measured, the best is not known.
    realistic = np.flatnonzero(n_measured >= min(MIN_CONFIGS, len(table.configs)))
    if len(np.unique(problems[realistic, 1:], axis=0)) < MIN_HOLDOUT_LAYERS:
        return None
    held = np.zeros(len(problems), dtype=np.bool_)
    held[realistic] = fold_of(problems[realistic], HOLDOUT_FOLDS) == fold
    layers = {tuple(layer) for layer in problems[held, 1:].tolist()}
    # A held-out layer must not come back in through its wave-structured points.
    same_layer = np.array([tuple(layer) in layers for layer in problems[:, 1:].tolist()])
    return FoldSplit(~same_layer[problem_index], held[problem_index] & table.exhaustive, problems[held])
