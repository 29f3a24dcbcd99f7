"""Calibrate any kernel family: prepare, measure, store, fit, judge. Resumes where it stopped."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from wavetune.core.config import KernelConfig
from wavetune.errors import FitError
from wavetune.measure.runner import Runner
from wavetune.pipeline.calibrate import Observer, SilentObserver, prepare_all, record_all
from wavetune.pipeline.family_fit import FittedFamily, fit_family_file
from wavetune.pipeline.family_job import FamilyJob
from wavetune.runtime.family_file import FamilyFile
from wavetune.store.database import MeasurementStore
from wavetune.store.record import CompiledConfig, Measurement, Point
from wavetune.store.table import MeasurementTable


@dataclass
class FamilyCalibration:
    """What a calibration did.

    Parameters
    ----------
    fitted : FittedFamily
        The model.
    resumed : int
        Points that the store already held.
    skipped : int
        Planned points that the budget did not reach.
    failures : list of Measurement
        Configurations and points without a latency.
    seconds : dict of str to float
        Wall time of each stage.
    points : dict of str to int
        Points planned, by stratum.
    """

    fitted: FittedFamily
    resumed: int
    skipped: int
    failures: list[Measurement]
    seconds: dict[str, float] = field(default_factory=dict)
    points: dict[str, int] = field(default_factory=dict)

    @property
    def file(self) -> FamilyFile:
        """The model file."""
        return self.fitted.file

    @property
    def table(self) -> MeasurementTable:
        """The rows behind it."""
        return self.fitted.table


def calibrate_family(
    runner: Runner,
    job: FamilyJob,
    store: MeasurementStore,
    *,
    budget_s: float = float("inf"),
    holdout: bool = True,
    observer: Observer | None = None,
) -> FamilyCalibration:
    """Run the whole pipeline for one kernel and one combination of element types.

    Parameters
    ----------
    runner : Runner
        Measures.
    job : FamilyJob
        What.
    store : MeasurementStore
        Receives every measurement; points it already holds are not measured again.
    budget_s : float
        Seconds of measuring after which no more points are begun; the first slice is always measured.
    holdout : bool, default=True
        Whether to judge choices on held-out keys.
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
    plan = job.plan(compiled, runner.arch)
    seconds["prepare"] = time.perf_counter() - start

    start = time.perf_counter()
    measured = measure_in_slices(runner, plan.points, store, observer, budget_s=budget_s, n_slice=job.slice_points)
    seconds["measuring"] = time.perf_counter() - start

    start = time.perf_counter()
    observer.begin("fit", 0)
    table = store.to_table(job.spec, dtype=job.dtype, layout=job.layout, exhaustive_strata=job.exhaustive_strata)
    fitted = fit_family_file(table, job, runner.arch, environment=store.environment(), holdout=holdout)
    seconds["fit"] = time.perf_counter() - start
    return FamilyCalibration(
        fitted, measured.resumed, measured.skipped, store.measurements(failed=True), seconds, plan.strata()
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
    prepared = prepare_all(runner, configs, store, observer)
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
    runner: Runner, points: Sequence[Point], store: MeasurementStore, observer: Observer, *, budget_s: float,
    n_slice: int,
) -> MeasuredPoints:  # fmt: skip
    """Measure the points that the store lacks, slice by slice; after ``budget_s`` seconds no further slice is begun."""
    done_before = store.done_points()
    todo = [point for point in points if point not in done_before]
    observer.begin("measuring", len(todo))
    start = time.perf_counter()
    n_begun = 0
    for part in slices(todo, n_slice):
        if n_begun and time.perf_counter() - start >= budget_s:
            break
        begun = n_begun
        record_all(store, runner.measure(part, lambda done, total, begun=begun: observer.update(begun + done)))
        n_begun += len(part)
    return MeasuredPoints(resumed=len(points) - len(todo), skipped=len(todo) - n_begun)


def slices(points: Sequence[Point], n_slice: int) -> Iterator[list[Point]]:
    """Cut points into parts of ``n_slice`` or a few more, between problems: half a sweep cannot be judged."""
    part: list[Point] = []
    for point in points:
        if len(part) >= n_slice and point.problem != part[-1].problem:
            yield part
            part = []
        part.append(point)
    if part:
        yield part
