"""Calibrate a kernel that brings its own mapping: plan, measure, store, fit, judge. Resumes where it stopped."""

from __future__ import annotations

import datetime
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

import wavetune
from wavetune.core.config import KernelConfig, KernelSpec
from wavetune.errors import FitError
from wavetune.fit.family_model import FamilyAccuracy, FamilyFit, fit_family, judge_family
from wavetune.mapping.kernel_mapping import KernelProblem
from wavetune.measure.runner import Runner
from wavetune.pipeline.calibrate import LATENCY_DECIMALS, Observer, SilentObserver, record_all
from wavetune.plan.kernel_points import POINTS_PER_CONFIG, SWEEP_KEYS, Dims, plan_points, sweep_keys
from wavetune.runtime.family_chooser import Shaper
from wavetune.runtime.family_file import FamilyFile, FamilyForm
from wavetune.store.database import MeasurementStore
from wavetune.store.record import CompiledConfig, Measurement, Point
from wavetune.store.table import MeasurementTable

STRATUM_SWEEP = "kernel-sweep"
STRATUM_POINTS = "kernel-points"

SLICE_POINTS = 128
"""Points that are measured between two looks at the clock."""


@dataclass(frozen=True)
class KernelJob:
    """What is calibrated.

    Parameters
    ----------
    kernel, dtype, layout : str
        As in `wavetune.mapping.kernel_mapping.KernelProblem`.
    dims : tuple of str
        Names of a key's sizes.
    configs : tuple of KernelConfig
        Candidates, the default first.
    shape : callable
        The kernel's mapping.
    mapping_digest : str
        Of its functions.
    pool : sequence of tuple of int
        Keys to choose wave-structured points from.
    sweep : sequence of tuple of int
        Keys that every configuration is measured on; chosen from the pool if empty.
    """

    kernel: str
    dtype: str
    layout: str
    dims: tuple[str, ...]
    configs: tuple[KernelConfig, ...]
    shape: Shaper
    mapping_digest: str
    pool: Sequence[Dims]
    sweep: Sequence[Dims] = ()

    def problem(self, dims: Dims) -> KernelProblem:
        """Return a key as a problem."""
        return KernelProblem(self.kernel, dims, self.dtype, self.layout)

    @property
    def spec(self) -> KernelSpec:
        """The fields of a table of this kernel; every field may change the mapping."""
        return KernelSpec(self.kernel, self.dims, tuple(dict.fromkeys(name for c in self.configs for name in c)), ())


@dataclass
class KernelCalibration:
    """What a calibration did.

    Parameters
    ----------
    file : FamilyFile
        The model.
    fit : FamilyFit
        What is in it.
    accuracy : FamilyAccuracy or None
        Of choices on keys that a fit had not seen; None if there were too few.
    rows : int
        Measurements behind the fit.
    resumed : int
        Points that the store already held.
    skipped : int
        Planned points that the budget did not reach.
    failures : list of Measurement
        Configurations and points without a latency.
    seconds : dict of str to float
        Wall time of each stage.
    """

    file: FamilyFile
    fit: FamilyFit
    accuracy: FamilyAccuracy | None
    rows: int
    resumed: int
    skipped: int
    failures: list[Measurement]
    seconds: dict[str, float] = field(default_factory=dict)


def calibrate_kernel(
    runner: Runner,
    job: KernelJob,
    store: MeasurementStore,
    *,
    budget_s: float = float("inf"),
    n_points: int = POINTS_PER_CONFIG,
    observer: Observer | None = None,
) -> KernelCalibration:
    """Run the whole pipeline for one kernel and one combination of element types.

    Parameters
    ----------
    runner : Runner
        Measures.
    job : KernelJob
        What.
    store : MeasurementStore
        Receives every measurement; points it already holds are not measured again.
    budget_s : float
        Seconds of measuring after which no more points are begun; the first slice is always measured.
    n_points : int
        Wave-structured points of each configuration.
    observer : Observer, optional
        Sees progress.

    Raises
    ------
    FitError
        If no configuration can be prepared, or there are not enough measurements.
    MappingError
        If a mapping function fails on a key.
    StoreError
        If the store belongs to another environment, or cannot be written.
    """
    observer = observer or SilentObserver()
    seconds: dict[str, float] = {}
    start = time.perf_counter()
    compiled = prepare_configs(runner, job.kernel, job.configs, store, observer)
    seconds["prepare"] = time.perf_counter() - start

    points = plan_kernel(job, compiled, runner, n_points)
    start = time.perf_counter()
    measured = measure_in_slices(runner, points, store, observer, budget_s=budget_s, n_slice=SLICE_POINTS)
    seconds["measuring"] = time.perf_counter() - start

    start = time.perf_counter()
    observer.begin("fit", 0)
    table = store.to_table(job.spec, dtype=job.dtype, layout=job.layout, exhaustive_strata=(STRATUM_SWEEP,))
    table = replace(table, latency_us=np.round(table.latency_us, LATENCY_DECIMALS))
    fit = fit_family(table, job.shape, runner.arch)
    accuracy = judge_family(table.select(table.exhaustive), table, job.shape, runner.arch)
    file = build_family_file(job, fit, accuracy, table, runner, store.environment())
    seconds["fit"] = time.perf_counter() - start
    return KernelCalibration(
        file=file,
        fit=fit,
        accuracy=accuracy,
        rows=len(table),
        resumed=measured.resumed,
        skipped=measured.skipped,
        failures=store.measurements(failed=True),
        seconds=seconds,
    )


def prepare_configs(
    runner: Runner, kernel: str, configs: Sequence[KernelConfig], store: MeasurementStore, observer: Observer
) -> tuple[CompiledConfig, ...]:
    """Compile and check configurations; the store keeps what passed and what did not.

    Raises
    ------
    FitError
        If none can be prepared.
    """
    observer.begin("prepare", 0)
    prepared = runner.prepare(configs, lambda done, total: observer.update(done))
    store.record_compiled(prepared.compiled)
    store.record(prepared.failures)
    if not prepared.compiled:
        reason = prepared.failures[0].detail if prepared.failures else "the list is empty"
        raise FitError(f"no configuration of {kernel} could be prepared; first reason: {reason}")
    return prepared.compiled


@dataclass(frozen=True, slots=True)
class MeasuredPoints:
    """How much of a plan was measured: points the store already held, and points that the budget left out."""

    resumed: int
    skipped: int


def measure_in_slices(
    runner: Runner,
    points: Sequence[Point],
    store: MeasurementStore,
    observer: Observer,
    *,
    budget_s: float,
    n_slice: int,
) -> MeasuredPoints:
    """Measure the points that the store lacks, slice by slice; after ``budget_s`` seconds no further slice is begun."""
    done_before = store.done_points()
    todo = [point for point in points if point not in done_before]
    observer.begin("measuring", len(todo))
    start = time.perf_counter()
    n_begun = 0
    for first in range(0, len(todo), n_slice):
        if first and time.perf_counter() - start >= budget_s:
            break
        part = todo[first : first + n_slice]
        begun = n_begun
        record_all(store, runner.measure(part, lambda done, total, begun=begun: observer.update(begun + done)))
        n_begun += len(part)
    return MeasuredPoints(resumed=len(points) - len(todo), skipped=len(todo) - n_begun)


def plan_kernel(
    job: KernelJob, compiled: Sequence[CompiledConfig], runner: Runner, n_points: int = POINTS_PER_CONFIG
) -> list[Point]:
    """Return the points of a calibration, those that every key's choice rests on first.

    Raises
    ------
    FitError
        If no key gives a launch.
    """
    default = next((c for config in job.configs for c in compiled if c.config == config), compiled[0])
    sweep = list(job.sweep) or sweep_keys(job.pool, default, job.shape, runner.arch, SWEEP_KEYS)
    points = [Point(job.problem(dims), entry.config, STRATUM_SWEEP) for dims in sweep for entry in compiled]
    swept = {(dims, entry.config) for dims in sweep for entry in compiled}
    for dims, entry in plan_points(compiled, job.pool, job.shape, runner.arch, n_points):
        if (dims, entry.config) not in swept:
            points.append(Point(job.problem(dims), entry.config, STRATUM_POINTS))
    if not points:
        raise FitError(f"no key of {job.kernel} gives a launch: grid_size is 0 for all {len(job.pool)} keys")
    # One problem's points are neighbours, so that its tensors are made once and its configurations interleaved.
    sweep_part = [point for point in points if point.stratum == STRATUM_SWEEP]
    rest = [point for point in points if point.stratum != STRATUM_SWEEP]
    order = {problem: place for place, problem in enumerate(dict.fromkeys(point.problem for point in rest))}
    return sweep_part + sorted(rest, key=lambda point: order[point.problem])


def build_family_file(
    job: KernelJob,
    fit: FamilyFit,
    accuracy: FamilyAccuracy | None,
    table: MeasurementTable,
    runner: Runner,
    environment: dict[str, str],
) -> FamilyFile:
    """Assemble the model file of a fitted kernel."""
    low, high = table.dims.min(axis=0).tolist(), table.dims.max(axis=0).tolist()
    held_out: dict[str, Any] | None = None
    if accuracy is not None:
        held_out = {
            "efficiency": round(accuracy.efficiency, 4), "worst": round(accuracy.worst, 4), "keys": accuracy.n_keys
        }  # fmt: skip
    return FamilyFile(
        kernel=job.kernel,
        dtype=job.dtype,
        layout=job.layout,
        dims=job.dims,
        arch=runner.arch.name,
        num_sms=runner.arch.num_sms,
        mapping_digest=job.mapping_digest,
        forms=tuple(
            FamilyForm(entry.config, int(resident), entry.num_regs, entry.smem_bytes, tuple(row))
            for entry, resident, row in zip(fit.configs, fit.ctas_per_sm, fit.coefficients.tolist(), strict=True)
        ),
        default_index=fit.default,
        exact=_best_measured(fit, table),
        fit_range={name: (a, b) for name, a, b in zip(job.dims, low, high, strict=True)},
        provenance={
            "created": datetime.date.today().isoformat(),
            "rows": len(table),
            "environment": dict(environment),
            "versions": {"wavetune": wavetune.__version__},
        },
        accuracy={"relative_error": round(fit.relative_error, 4), "held_out": held_out},
        correction=fit.correction,
    )


def _best_measured(fit: FamilyFit, table: MeasurementTable) -> dict[Dims, tuple[int, float]]:
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
