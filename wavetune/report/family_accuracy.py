"""Ask a model of any kernel family about every problem of an exhaustive sweep, as `wavetune.report.accuracy` does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from wavetune.report.accuracy import AccuracyReport, ShapeResult, SweepJudge, check_sweep, summarise_results
from wavetune.runtime.families import chooser_for
from wavetune.runtime.family_chooser import FamilyChooser
from wavetune.runtime.family_file import FamilyFile
from wavetune.store.record import make_problem
from wavetune.store.table import MeasurementTable

ChooserOf = Callable[[tuple[int, ...]], FamilyChooser]
"""Gives what answers a key."""


@dataclass(frozen=True)
class JudgedShapes:
    """Problems of a sweep, judged.

    Parameters
    ----------
    results : tuple of ShapeResult
        One a problem.
    errors : tuple of float
        Absolute relative prediction errors of configurations near the best.
    """

    results: tuple[ShapeResult, ...]
    errors: tuple[float, ...]


def evaluate_family(model: FamilyFile, sweep: MeasurementTable, *, with_exact: bool = False) -> AccuracyReport:
    """Evaluate the model of a family on an exhaustive sweep.

    Parameters
    ----------
    model : FamilyFile
        The model.
    sweep : MeasurementTable
        Every problem measured with many configurations.
    with_exact : bool, default=False
        Whether the exact table may answer.

    Raises
    ------
    MeasurementError
        If sweep and model are of different kernels, dtypes or layouts, or the sweep is empty.
    NoModelError
        If the kernel is no family of the runtime.
    """
    check_sweep(model, sweep)

    def chooser_of(dims: tuple[int, ...]) -> FamilyChooser:
        return chooser_for(model, make_problem(model.kernel, dims, model.dtype, model.layout), use_exact=with_exact)

    judged = judge_shapes(model, sweep, chooser_of)
    return summarise_results(judged.results, judged.errors)


def judge_shapes(model: FamilyFile, sweep: MeasurementTable, chooser_of: ChooserOf) -> JudgedShapes:
    """Compare the choice for every problem of a sweep that has two latencies or more with the best of them."""
    judge = SweepJudge(sweep, model.forms[model.default_index].config)
    for dims, measured in judge.problems():
        if np.count_nonzero(~np.isnan(measured)) < 2:
            continue
        chooser = chooser_of(dims)
        choice = chooser.choose(dims)
        if choice is not None:
            predicted_us = {entry.config: entry.latency_us for entry in chooser.rank(dims)}
            judge.add(dims, measured, choice, predicted_us, predicted_us)
    return JudgedShapes(tuple(judge.results), tuple(judge.errors))
