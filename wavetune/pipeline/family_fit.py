"""From a table of measurements to the model of a kernel family, judged on keys that it has not seen. No GPU needed."""

from __future__ import annotations

import datetime
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import wavetune
from wavetune.core.arch import ArchSpec
from wavetune.errors import FitError
from wavetune.fit.family_correction import correct_family
from wavetune.fit.family_model import FamilyFit, fit_family, predict_family
from wavetune.fit.selection import greedy_cover
from wavetune.pipeline.calibrate import LATENCY_DECIMALS
from wavetune.pipeline.family_job import FamilyJob
from wavetune.report.accuracy import AccuracyReport, summarise_results
from wavetune.report.family_accuracy import JudgedShapes, judge_shapes
from wavetune.report.metrics import without_nan
from wavetune.runtime.family_file import FamilyFile, FamilyForm
from wavetune.store.read_report import FileReport
from wavetune.store.table import FloatArray, MeasurementTable, concatenate
from wavetune.tables.too_fast import FastReading, find_too_fast_of_family, without

N_FOLDS = 5
"""Parts that the swept keys are divided into, to be judged by a fit without them."""
CERTAIN = 2.0
"""Standard errors by which choices must be worse with a correction for it to be dropped. A few dozen keys tell no small
difference: on simulated grouped GEMM the correction halved the regret on other layers, whatever 27 keys said."""


@dataclass(frozen=True)
class FittedFamily:
    """A fit, its file, and how good its choices are.

    Parameters
    ----------
    file : FamilyFile
        The model.
    fit : FamilyFit
        What is in it.
    table : MeasurementTable
        The rows behind it: sweeps, then the others.
    held_out : AccuracyReport or None
        Of choices on keys that a fit had not seen; None if there were too few.
    too_fast : tuple of FastReading
        Readings that are in no exact answer, because they are too fast to be true.
    """

    file: FamilyFile
    fit: FamilyFit
    table: MeasurementTable
    held_out: AccuracyReport | None
    too_fast: tuple[FastReading, ...] = ()


def fit_family_file(
    table: MeasurementTable,
    job: FamilyJob,
    arch: ArchSpec,
    *,
    sources: Sequence[FileReport] = (),
    environment: Mapping[str, str] | None = None,
    holdout: bool = True,
    created: datetime.date | None = None,
) -> FittedFamily:
    """Fit a model and build its file.

    Parameters
    ----------
    table : MeasurementTable
        Rows marked exhaustive belong to keys that were measured with every configuration.
    job : FamilyJob
        What was measured; its candidates are not asked for.
    arch : ArchSpec
        GPU that was measured.
    sources : sequence of FileReport
        The files behind the table, for the provenance.
    environment : mapping of str to str, optional
        Fingerprint of the measuring machine, for the provenance.
    holdout : bool, default=True
        Whether to judge choices on held-out keys, which costs `N_FOLDS` more fits, and drops the correction if choices
        are worse with it.
    created : date, optional
        Date in the provenance; today if not given.

    Raises
    ------
    FitError
        If no configuration has enough rows.
    """
    table = in_file_order(table)
    whole = fit_family(table, job.shape, arch)
    fit = select(whole, table, job, arch)
    judged = hold_out(table, job, arch) if holdout else {}
    is_corrected = job.is_corrected and not (len(judged) == 2 and _is_worse(judged[True], judged[False]))
    if is_corrected:
        fit = replace(fit, correction=correct_family(whole, table, job.shape, arch).correction)
    held_out = judged.get(is_corrected)
    accuracy: dict[str, Any] = {"relative_error": round(fit.relative_error, 4), "held_out": None}
    if held_out is not None:
        headline = held_out.to_dict(table.spec.dims)
        accuracy["held_out"] = {name: headline[name] for name in headline if name not in ("worst", "sources")}
    provenance = {
        "created": (created or datetime.date.today()).isoformat(),
        "rows": len(table),
        "exhaustive_rows": int(table.exhaustive.sum()),
        "problems": len(table.problems()[0]),
        "fitted_configs": len(table.configs) - len(fit.too_few_rows),
        "files": [
            {"name": Path(entry.path).name, "sha256": entry.sha256, "rows": entry.rows_kept} for entry in sources
        ],
        "environment": dict(environment or {}),
        "versions": {"wavetune": wavetune.__version__},
    }
    too_fast = find_too_fast_of_family(whole, table, job.shape, arch)
    file = build_family_file(
        job, fit, without(table, too_fast), arch, accuracy=without_nan(accuracy), provenance=provenance
    )
    return FittedFamily(file, fit, table, held_out, too_fast)


def in_file_order(table: MeasurementTable) -> MeasurementTable:
    """Return the rows as a fit reads them from evidence files: sweeps first, latencies to `LATENCY_DECIMALS`."""
    table = replace(table, latency_us=np.round(table.latency_us, LATENCY_DECIMALS))
    parts = [part for rows in (table.exhaustive, ~table.exhaustive) if len(part := table.select(rows))]
    return concatenate(parts)


def select(fit: FamilyFit, table: MeasurementTable, job: FamilyJob, arch: ArchSpec) -> FamilyFit:
    """Keep the configurations that the job wants."""
    return keep_survivors(fit, table, job, arch) if job.n_survivors else fit


def keep_survivors(fit: FamilyFit, table: MeasurementTable, job: FamilyJob, arch: ArchSpec) -> FamilyFit:
    """Restrict a fit to the configurations that together are near the best on every measured key.

    What was not measured counts as predicted, if it is legal. The job's reserved configurations are always among them,
    the best of their kind, and so is the single best one.
    """
    keys, measured = table.latency_matrix()
    dims = [tuple(row) for row in keys.tolist()]
    column = {entry.config: index for index, entry in enumerate(table.configs)}
    latency = measured[:, [column[entry.config] for entry in fit.configs]]
    legal = np.array([[job.is_legal(key, entry.config) for entry in fit.configs] for key in dims])
    predicted = np.where(legal, predict_family(fit, dims, job.shape, arch), np.inf)
    latency = np.where(np.isnan(latency), predicted, latency)
    weight = np.ones(len(keys))
    reserved = np.flatnonzero([job.is_reserved(entry.config) for entry in fit.configs])
    first = [int(reserved[index]) for index in _cover(latency[:, reserved], weight, job.n_reserved)]
    chosen = sorted({*greedy_cover(latency, weight, job.n_survivors, first), fit.default})
    return replace(
        fit,
        configs=tuple(fit.configs[index] for index in chosen),
        ctas_per_sm=fit.ctas_per_sm[chosen],
        coefficients=fit.coefficients[chosen],
        default=chosen.index(fit.default),
    )


def _cover(latency: FloatArray, weight: FloatArray, n_configs: int) -> list[int]:
    known = np.isfinite(latency).any(axis=1)
    return greedy_cover(latency[known], weight[known], n_configs) if latency.shape[1] and known.any() else []


def hold_out(table: MeasurementTable, job: FamilyJob, arch: ArchSpec) -> dict[bool, AccuracyReport]:
    """Judge choices on swept keys, each once, by fits that saw neither them nor keys alike.

    Everything is done again for each part: forms, the selection of configurations and the correction. Where the job
    may correct its forms, choices are judged with and without.

    Returns
    -------
    dict of bool to AccuracyReport
        By whether forms are corrected; empty if a fit without a part of the keys is not possible, or no key was
        measured with two configurations.
    """
    axes = [job.dims.index(name) for name in job.holdout_dims or job.dims]
    groups = [tuple(row) for row in table.dims[:, axes].tolist()]
    swept = sorted({group for group, is_swept in zip(groups, table.exhaustive.tolist(), strict=True) if is_swept})
    parts: dict[bool, list[JudgedShapes]] = {flag: [] for flag in ((False, True) if job.is_corrected else (False,))}
    for fold in range(min(N_FOLDS, len(swept))):
        held = set(swept[fold::N_FOLDS])
        is_held = np.array([group in held for group in groups])
        training = table.select(~is_held)
        try:
            whole = fit_family(training, job.shape, arch)
        except FitError:
            return {}
        plain = select(whole, training, job, arch)
        # Learned from all configurations: those that do not survive teach as well.
        correction = correct_family(whole, training, job.shape, arch).correction if job.is_corrected else None
        for is_corrected, judged in parts.items():
            fit = replace(plain, correction=correction) if is_corrected else plain
            file = build_family_file(job, fit, training, arch)
            judged.append(judge_shapes(file, table.select(is_held & table.exhaustive), partial(job.chooser, file)))
    reports = {}
    for is_corrected, judged in parts.items():
        results = [result for part in judged for result in part.results]
        if any(not np.isnan(result.measured_us) for result in results):
            reports[is_corrected] = summarise_results(results, [error for part in judged for error in part.errors])
    return reports


def _is_worse(ours: AccuracyReport, theirs: AccuracyReport) -> bool:
    """Whether choices lose against others on the same keys by more than `CERTAIN` standard errors of the mean."""
    difference = np.array(
        [math.log(a.efficiency / b.efficiency) for a, b in zip(ours.results, theirs.results, strict=True)]
    )
    difference = difference[~np.isnan(difference)]
    error = difference.std() / math.sqrt(max(len(difference), 1))
    return bool(len(difference) and difference.mean() < -CERTAIN * error)


def build_family_file(
    job: FamilyJob,
    fit: FamilyFit,
    table: MeasurementTable,
    arch: ArchSpec,
    *,
    accuracy: Mapping[str, Any] | None = None,
    provenance: Mapping[str, Any] | None = None,
) -> FamilyFile:
    """Assemble the model file of a fit to ``table``."""
    low, high = table.dims.min(axis=0).tolist(), table.dims.max(axis=0).tolist()
    return FamilyFile(
        kernel=job.kernel,
        dtype=job.dtype,
        layout=job.layout,
        dims=job.dims,
        arch=arch.name,
        num_sms=arch.num_sms,
        mapping_digest=job.mapping_digest,
        forms=tuple(
            FamilyForm(entry.config, int(resident), entry.num_regs, entry.smem_bytes, tuple(row))
            for entry, resident, row in zip(fit.configs, fit.ctas_per_sm, fit.coefficients.tolist(), strict=True)
        ),
        default_index=fit.default,
        exact=_best_measured(fit, table),
        fit_range={name: (a, b) for name, a, b in zip(job.dims, low, high, strict=True)},
        provenance=provenance or {},
        accuracy=accuracy or {},
        correction=fit.correction,
    )


def _best_measured(fit: FamilyFit, table: MeasurementTable) -> dict[tuple[int, ...], tuple[int, float]]:
    """Return the best form of every swept key that was measured with at least two of them."""
    rows = table.select(table.exhaustive)
    if not len(rows):
        return {}
    position = {entry.config: index for index, entry in enumerate(fit.configs)}
    columns = [column for column, entry in enumerate(table.configs) if entry.config in position]
    forms = [position[table.configs[column].config] for column in columns]
    keys, latency = rows.latency_matrix()
    best = {}
    for dims, measured in zip(keys.tolist(), latency[:, columns], strict=True):
        if np.count_nonzero(~np.isnan(measured)) > 1:
            index = int(np.nanargmin(measured))
            best[tuple(dims)] = (forms[index], round(float(measured[index]), 3))
    return best
