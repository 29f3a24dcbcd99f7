"""Accuracy apart by stratum: efficiency over shapes, prediction error over near-best rows, and disturbed rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from wavetune.core.arch import find_arch
from wavetune.core.dtype import find_dtype
from wavetune.report.accuracy import ShapeResult
from wavetune.report.datatable import DataTable, make_table
from wavetune.report.evidence import Seen
from wavetune.report.metrics import summarise_efficiency
from wavetune.report.predictions import Predictions, model_geometry
from wavetune.report.strata import STRATIFICATIONS
from wavetune.runtime.model_file import ModelFile
from wavetune.store.screen import screen_rows
from wavetune.store.table import FloatArray, IntArray

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


def accuracy_by_stratum(
    model: ModelFile, predictions: Predictions, results: Sequence[ShapeResult], seen: Sequence[Seen]
) -> DataTable:
    """Tabulate efficiency and prediction error for all shapes, by what the fit knew of them, and by band.

    A shape is in the bands of the configuration that is chosen for it; prediction error is that of near-best rows of
    those shapes.
    """
    efficiency = np.array([result.efficiency for result in results])
    position = {form.config: index for index, form in enumerate(model.forms)}
    choices = np.array([position[result.choice] for result in results], dtype=np.int64)
    launches = model_geometry(model).points(np.array([result.dims for result in results], dtype=np.int64), choices)
    labels: list[tuple[str, str, IntArray]] = [("all", "all shapes", np.arange(len(results)))]
    kinds = np.array([str(kind) for kind in seen])
    if len(set(seen)) > 1:
        labels += [("fit", str(kind), np.flatnonzero(kinds == kind)) for kind in Seen if (kinds == kind).any()]
    arch, dtype = find_arch(model.arch), find_dtype(model.dtype)
    for name, stratification in STRATIFICATIONS.items():
        band = stratification.band(launches, arch, dtype)
        labels += [(name, label, np.flatnonzero(band == index)) for index, label in enumerate(stratification.labels)]
    near = predictions.near_best
    rows = []
    for name, label, shapes in labels:
        if len(shapes):
            known = efficiency[shapes][~np.isnan(efficiency[shapes])]
            summary = summarise_efficiency(known)
            error = np.abs(predictions.error[near & np.isin(predictions.problem, shapes)])
            mape = float(error.mean()) if len(error) else float("nan")
            rows.append((name, label, len(shapes), summary.geomean, summary.p5, summary.min, mape))
    return make_table(
        "strata",
        "Accuracy by stratum; a shape is in the bands of the configuration chosen for it",
        ("stratum", "band", "shapes", "efficiency", "efficiency_p5", "efficiency_min", "mape"),
        rows,
    )


def residuals(model: ModelFile, predictions: Predictions) -> DataTable:
    """Tabulate the distribution of the prediction error of near-best rows, by band."""
    arch, dtype = find_arch(model.arch), find_dtype(model.dtype)
    near = predictions.select(predictions.near_best)
    rows = []
    for name, stratification in STRATIFICATIONS.items():
        band = stratification.band(near.points, arch, dtype)
        for index, label in enumerate(stratification.labels):
            error = near.error[band == index]
            if len(error):
                rows.append((name, label, len(error), *_quantiles(error), float(np.abs(error).mean())))
    return make_table(
        "residuals",
        "Predicted over measured latency, minus 1, of configurations within 1.5 times the best",
        ("stratum", "band", "rows", "p5", "q1", "median", "q3", "p95", "mape"),
        rows,
    )


def disturbed_rows(predictions: Predictions) -> DataTable:
    """Look for readings that the host slowed down, among the rows of modelled configurations in measuring order."""
    dims = predictions.problems[predictions.problem]
    screening = screen_rows(predictions.measured_us, predictions.predicted_us, predictions.form, dims)
    rows = [(*entry.dims, entry.rows, entry.factor) for entry in screening.problems]
    return make_table(
        "disturbed",
        "Rows of the sweep that read too slow in a run, so that the host is to blame, by problem",
        ("m", "n", "k", "rows", "slowdown"),
        rows,
    )


def scatter(predictions: Predictions, limit: int, seed: int = 0) -> DataTable:
    """Tabulate predicted and measured latency of near-best rows: all choices, and a sample of the others."""
    rows = np.flatnonzero(predictions.near_best | predictions.is_choice)
    if len(rows) > limit:
        others = rows[~predictions.is_choice[rows]]
        n_others = max(limit - int(predictions.is_choice.sum()), 0)
        sample = np.random.default_rng(seed).permutation(others)[:n_others]
        rows = np.sort(np.concatenate([rows[predictions.is_choice[rows]], sample]))
    return make_table(
        "predictions",
        "Predicted and measured latency of the choices and of near-best configurations",
        ("m", "n", "k", "form", "waves", "is_choice", "measured_us", "predicted_us"),
        list(_scatter_rows(predictions, rows)),
    )


def _scatter_rows(predictions: Predictions, rows: IntArray) -> Iterator[tuple[object, ...]]:
    for row in rows.tolist():
        yield (
            *predictions.problems[predictions.problem[row]].tolist(),
            predictions.form[row],
            predictions.points.waves[row],
            predictions.is_choice[row],
            predictions.measured_us[row],
            predictions.predicted_us[row],
        )


def _quantiles(values: FloatArray) -> list[float]:
    quantiles: list[float] = np.quantile(values, QUANTILES).tolist()
    return quantiles
