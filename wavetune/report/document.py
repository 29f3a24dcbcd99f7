"""Everything that an accuracy report says, as plain numbers: facts and tables. Pictures and pages are made from it."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from wavetune.core.arch import ArchSpec, find_arch
from wavetune.core.config import GEMM
from wavetune.core.problem import GemmProblem
from wavetune.core.shorthand import describe_config
from wavetune.errors import ReportError
from wavetune.report.accuracy import AccuracyReport, ShapeResult, evaluate_model
from wavetune.report.anatomy import dissect
from wavetune.report.breakdown import accuracy_by_stratum, disturbed_rows, residuals, scatter
from wavetune.report.datatable import DataTable, make_table
from wavetune.report.decisions import decision_map, regret_distribution, regret_map
from wavetune.report.evidence import Seen, classify, coverage_of, describe_evidence
from wavetune.report.metrics import geometric_mean, rounded, without_nan
from wavetune.report.noise import replay_noise
from wavetune.report.predictions import Predictions, predict_sweep
from wavetune.report.reasons import explain_miss
from wavetune.report.staircase import draw_waves
from wavetune.runtime.chooser import GemmChooser
from wavetune.runtime.model_file import LaunchForm, ModelFile
from wavetune.store.record import CompiledConfig
from wavetune.store.table import MeasurementTable
from wavetune.waves.occupancy import ctas_per_sm

MAX_SCATTER = 2500
"""Points of the predicted-against-measured picture: more cannot be told apart, and a browser feels them."""

TIMING_REPEATS = 5


@dataclass(frozen=True)
class SourceFile:
    """A file that a report was made from."""

    name: str
    sha256: str
    rows: int


@dataclass(frozen=True)
class ReportInputs:
    """What a report is made from.

    Parameters
    ----------
    model : ModelFile
        The model to judge.
    sweep : MeasurementTable
        Every problem with many configurations: the yardstick.
    sweep_files : tuple of SourceFile
        Where the sweep comes from.
    points : MeasurementTable or None
        Wave-structured points, for the staircase and the surface.
    fitted : MeasurementTable or None
        Rows that the model was fitted to, where they were found; they tell what is held out.
    repeat : MeasurementTable or None
        A second measurement of some of the sweep's problems, for the noise.
    calibration : mapping
        Facts of the calibration behind the model: environment, conditions, seconds; empty if not found.
    """

    model: ModelFile
    sweep: MeasurementTable
    sweep_files: tuple[SourceFile, ...] = ()
    points: MeasurementTable | None = None
    fitted: MeasurementTable | None = None
    repeat: MeasurementTable | None = None
    calibration: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ReportDocument:
    """A report.

    Parameters
    ----------
    facts : dict
        Everything that is not a table; plain data, None where there is no number.
    tables : dict of str to DataTable
        By name.
    """

    facts: dict[str, Any]
    tables: dict[str, DataTable]

    def to_dict(self) -> dict[str, Any]:
        """Return the document as plain data that JSON can say."""
        tables = {name: {"title": table.title, "rows": table.records()} for name, table in self.tables.items()}
        return {"schema": "wavetune-report", "schema_version": 1, **self.facts, "tables": tables}


def build_document(inputs: ReportInputs) -> ReportDocument:
    """Judge a model, and gather every number of its report.

    Raises
    ------
    MeasurementError
        If model and sweep do not go together, the sweep is empty, or has not one of the model's choices.
    ReportError
        If the model is of another kernel family than GEMM: its waves are drawn by other formulas.
    """
    model = inputs.model
    if model.kernel != GEMM.name:
        raise ReportError(f"a report draws {GEMM.name} models only, this one is for {model.kernel}; try `evaluate`")
    report = evaluate_model(model, inputs.sweep)
    report.require_choices()
    predictions = predict_sweep(model, inputs.sweep)
    fitted = None if inputs.fitted is None else {tuple(dims) for dims in inputs.fitted.problems()[0].tolist()}
    dims = [result.dims for result in report.results]
    seen = classify(model, dims, [entry.sha256 for entry in inputs.sweep_files], fitted)
    held_us = dict(zip(map(tuple, predictions.problems.tolist()), predictions.best_held_us.tolist(), strict=True))
    tables = [
        _shapes(report.results, seen, held_us),
        accuracy_by_stratum(model, predictions, report.results, seen),
        residuals(model, predictions),
        regret_distribution(report.results),
        scatter(predictions, MAX_SCATTER),
        decision_map(model, report.results),
        regret_map(report.results),
        worst_shapes(model, inputs.sweep, report.worst, held_us),
        disturbed_rows(predictions),
    ]
    if inputs.points is not None:
        tables += vars(draw_waves(model, predict_sweep(model, inputs.points), _frequency(predictions))).values()
    if inputs.repeat is not None:
        tables.append(replay_noise(inputs.sweep, inputs.repeat))
    by_name = {table.name: table for table in tables}
    return ReportDocument(_facts(inputs, report, seen, by_name), by_name)


def worst_shapes(
    model: ModelFile,
    sweep: MeasurementTable,
    results: Sequence[ShapeResult],
    held_us: Mapping[tuple[int, ...], float],
) -> DataTable:
    """Tabulate the problems with the largest regret, each with its reasons in words."""
    arch = find_arch(model.arch)
    forms = {entry.config: _form_of(entry, arch) for entry in sweep.configs}
    forms |= {form.config: form for form in model.forms}
    rows = []
    for result in results:
        m, n, k = result.dims
        problem = GemmProblem(m, n, k, model.dtype, model.layout)
        choice = dissect(model, arch, problem, result.choice)
        best = dissect(model, arch, problem, result.best, form=forms[result.best])
        rows.append(
            (
                *result.dims, 1.0 / result.efficiency - 1.0, describe_config(result.choice), result.measured_us,
                result.predicted_us, describe_config(result.best), result.best_us,
                held_us[result.dims],
                explain_miss(choice, result.measured_us, best, result.best_us, held_us[result.dims]),
            )
        )  # fmt: skip
    columns = (
        "m", "n", "k", "regret", "choice", "measured_us", "predicted_us", "best", "best_us", "best_held_us", "reasons",
    )  # fmt: skip
    return make_table("worst", "The shapes with the largest regret, and why", columns, rows)


def decision_us(model: ModelFile, dims: Sequence[tuple[int, ...]]) -> float:
    """Time one decision on a new shape, on this machine, in microseconds: the best of a few repeats over all shapes."""
    chooser = GemmChooser(model, find_arch(model.arch), use_exact=False)
    problems = [GemmProblem(m, n, k, model.dtype, model.layout) for m, n, k in dims]
    best = math.inf
    # The first pass makes the cells ready.
    for _ in range(TIMING_REPEATS + 1):
        start = time.perf_counter()
        for problem in problems:
            chooser.choose(problem)
        best = min(best, time.perf_counter() - start)
    return best / len(problems) * 1e6


def _form_of(entry: CompiledConfig, arch: ArchSpec) -> LaunchForm:
    """Return a form without coefficients: what is known of a configuration that the model does not hold."""
    resident = ctas_per_sm(
        arch, num_warps=int(entry.config["num_warps"]), num_regs=entry.num_regs, smem_bytes=entry.smem_bytes
    )
    return LaunchForm(entry.config, resident, entry.num_regs, entry.smem_bytes, None)


def _shapes(
    results: Sequence[ShapeResult], seen: Sequence[Seen], held_us: Mapping[tuple[int, ...], float]
) -> DataTable:
    columns = (
        "m", "n", "k", "seen", "source", "choice", "predicted_us", "measured_us", "best", "best_us", "efficiency",
        "regret", "default_us", "top3_us", "top8_us", "best_held_us",
    )  # fmt: skip
    rows = [
        (
            *result.dims, str(kind), result.source, describe_config(result.choice), result.predicted_us,
            result.measured_us, describe_config(result.best), result.best_us, result.efficiency,
            1.0 / result.efficiency - 1.0, result.default_us, result.top3_us, result.top8_us,
            held_us[result.dims],
        )
        for result, kind in zip(results, seen, strict=True)
    ]  # fmt: skip
    return make_table(
        "shapes", "Every shape of the sweep: what is chosen, and what was measured fastest", columns, rows
    )


def _frequency(predictions: Predictions) -> list[int]:
    n_forms = int(predictions.form.max()) + 1 if len(predictions) else 0
    counts: list[int] = np.bincount(predictions.form[predictions.is_choice], minlength=n_forms).tolist()
    return counts


def _facts(
    inputs: ReportInputs, report: AccuracyReport, seen: Sequence[Seen], tables: Mapping[str, DataTable]
) -> dict[str, Any]:
    model = inputs.model
    held_out, evidence = describe_evidence(seen)
    coverage = coverage_of(inputs.sweep, model)
    evidence = " ".join(filter(None, (evidence, coverage.describe())))
    facts = {
        "model": {
            "kernel": model.kernel, "dtype": model.dtype, "layout": model.layout, "arch": model.arch,
            "gpu": find_arch(model.arch).aliases[-1], "num_sms": model.num_sms, "digest": model.digest,
            "file": model.path.rsplit("/", 1)[-1], "configs": model.n_modelled, "cells": len(model.cells),
            "exact_problems": len(model.exact),
            "default": describe_config(model.forms[model.default_index].config),
            "provenance": dict(model.provenance), "own_held_out": model.accuracy.get("held_out"),
        },
        "evidence": {
            "held_out": held_out, "text": evidence, "seen": dict(Counter(str(kind) for kind in seen)),
            "files": [vars(entry) for entry in inputs.sweep_files], "rows": len(inputs.sweep),
            "configs": len(inputs.sweep.configs), "configs_per_shape": coverage.per_shape,
            "layers": len({result.dims[1:] for result in report.results}),
        },
        "headline": {
            "shapes": len(report.results), "unmeasured": report.unmeasured,
            "efficiency": rounded(report.efficiency), "regret": rounded(report.regret),
            "top1_rate": report.hit_rate(1), "top3_rate": report.hit_rate(3), "top8_rate": report.hit_rate(8),
            "top3_efficiency": report.top3_efficiency, "top8_efficiency": report.top8_efficiency,
            "top3_judged": report.known("top3_us"), "top8_judged": report.known("top8_us"),
            "mape_chosen": report.mape_chosen, "mape_near_best": report.mape_near_best,
            "never_slower_rate": report.never_slower_rate,
            "default_efficiency": rounded(report.default_efficiency), "sources": report.sources,
            "decision_us": decision_us(model, [result.dims for result in report.results]),
            "held_efficiency": _held_efficiency(tables["shapes"]),
            "disturbed_rows": sum(int(rows or 0) for rows in tables["disturbed"].column("rows")),
        },
        "noise": _noise_facts(tables.get("noise")),
        "calibration": dict(inputs.calibration),
    }  # fmt: skip
    plain: dict[str, Any] = without_nan(facts)
    return plain


def _held_efficiency(shapes: DataTable) -> float:
    """Return what the held configurations are worth, if the fastest of them were always chosen."""
    pairs = [(row["best_us"], row["best_held_us"]) for row in shapes.records() if row["best_held_us"] is not None]
    return geometric_mean([best / held for best, held in pairs])


def _noise_facts(noise: DataTable | None) -> dict[str, Any] | None:
    if noise is None or not len(noise):
        return None
    regret = np.array(noise.column("regret"), dtype=np.float64)
    return {"shapes": len(regret), "mean": float(regret.mean()), "p95": float(np.percentile(regret, 95))}
