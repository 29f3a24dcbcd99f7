"""Calibrate: prepare, plan, measure, store, fit. Resumes where it stopped."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from wavetune.core.config import KernelConfig, find_kernel_spec
from wavetune.errors import FitError
from wavetune.measure.runner import PreparedConfigs, Runner
from wavetune.pipeline.refit import FitOptions, FittedModel, fit_model_file
from wavetune.pipeline.strategy import Strategy
from wavetune.store.database import MeasurementStore
from wavetune.store.read_report import FileReport
from wavetune.store.record import Measurement, Status
from wavetune.store.table import MeasurementTable, concatenate

BATCH = 512
"""Measurements in one transaction: what a kill can lose, beside the block in flight."""

LATENCY_DECIMALS = 4
"""Microseconds are kept to a tenth of a nanosecond: far below any spread, and evidence files stay small."""


class Observer(Protocol):
    """Sees a calibration proceed; the command line draws it."""

    def begin(self, stage: str, total: int) -> None:
        """Start a stage of ``total`` steps; 0 if unknown."""
        ...

    def update(self, done: int) -> None:
        """Report the steps of the current stage that are finished."""
        ...


class SilentObserver:
    """Reports nothing."""

    def begin(self, stage: str, total: int) -> None:
        """Ignore."""

    def update(self, done: int) -> None:
        """Ignore."""


@dataclass
class CalibrationResult:
    """What a calibration did.

    Parameters
    ----------
    fitted : FittedModel
        The model.
    table : MeasurementTable
        The rows behind it.
    seconds : dict of str to float
        Wall time of each stage.
    points : dict of str to int
        Points planned in each measuring stage.
    resumed : int
        Points that the store already held.
    failures : list of Measurement
        Configurations and points without a latency, with the reason.
    """

    fitted: FittedModel
    table: MeasurementTable
    seconds: dict[str, float] = field(default_factory=dict)
    points: dict[str, int] = field(default_factory=dict)
    resumed: int = 0
    failures: list[Measurement] = field(default_factory=list)


def calibrate(
    runner: Runner,
    strategy: Strategy,
    store: MeasurementStore,
    *,
    kernel: str,
    dtype: str,
    layout: str,
    options: FitOptions | None = None,
    sources: Iterable[FileReport] = (),
    observer: Observer | None = None,
) -> CalibrationResult:
    """Run the whole pipeline.

    Parameters
    ----------
    runner : Runner
        Measures, or replays.
    strategy : Strategy
        Decides what.
    store : MeasurementStore
        Receives every measurement; points it already holds are not measured again.
    kernel, dtype, layout : str
        What is calibrated.
    options : FitOptions, optional
        Knobs of the fit.
    sources : iterable of FileReport
        Files behind a replay, for the provenance.
    observer : Observer, optional
        Sees progress.

    Raises
    ------
    StoreError
        If the store belongs to another environment, or cannot be written.
    FitError
        If nothing could be measured.
    """
    observer = observer or SilentObserver()
    spec = find_kernel_spec(kernel)
    seconds: dict[str, float] = {}
    planned: dict[str, int] = {}

    def to_table() -> MeasurementTable:
        rows = store.to_table(spec, dtype=dtype, layout=layout, exhaustive_strata=strategy.exhaustive_strata)
        rows = replace(rows, latency_us=np.round(rows.latency_us, LATENCY_DECIMALS))
        # Points, then layers: the order in which a fit reads them from evidence files.
        parts = [part for marks in (~rows.exhaustive, rows.exhaustive) if len(part := rows.select(marks))]
        return concatenate(parts)

    start = time.perf_counter()
    configs = list(strategy.configs())
    prepared = prepare_all(runner, configs, store, observer)
    seconds["prepare"] = time.perf_counter() - start
    if not prepared.compiled:
        reason = prepared.failures[0].detail if prepared.failures else "the space is empty"
        raise FitError(f"no configuration could be prepared; first reason: {reason}")

    done_before = store.done_points()
    resumed = 0
    start = time.perf_counter()
    for stage, plan in strategy.stages(prepared.compiled, to_table):
        seconds[f"plan {stage}"] = time.perf_counter() - start
        start = time.perf_counter()
        todo = [point for point in plan.points if point not in done_before]
        resumed += len(plan.points) - len(todo)
        planned[stage] = len(plan.points)
        observer.begin(stage, len(todo))
        record_all(store, runner.measure(todo, lambda done, total: observer.update(done)))
        seconds[stage] = time.perf_counter() - start
        start = time.perf_counter()

    observer.begin("fit", 0)
    table = to_table()
    if not len(table):
        raise FitError(f"{store.path}: no point was measured successfully; see the failures in the store")
    fitted = fit_model_file(table, runner.arch, sources=list(sources), environment=store.environment(), options=options)
    seconds["fit"] = time.perf_counter() - start
    failures = [entry for entry in store.measurements(failed=True) if entry.status is not Status.OK]
    return CalibrationResult(fitted, table, seconds, planned, resumed, failures)


def prepare_all(
    runner: Runner, configs: Iterable[KernelConfig], store: MeasurementStore, observer: Observer
) -> PreparedConfigs:
    """Compile and check configurations; the store keeps what passed and what did not."""
    observer.begin("prepare", 0)
    prepared = runner.prepare(configs, lambda done, _: observer.update(done))
    store.record_compiled(prepared.compiled)
    store.record(prepared.failures)
    return prepared


def record_all(store: MeasurementStore, measurements: Iterable[Measurement]) -> None:
    """Record measurements in batches as they come; what came before an interruption or an error is recorded too."""
    batch: list[Measurement] = []
    try:
        for entry in measurements:
            batch.append(entry)
            if len(batch) >= BATCH:
                store.record(batch)
                # Only now: an interrupted record is rolled back, and done again below.
                batch = []
    finally:
        store.record(batch)
