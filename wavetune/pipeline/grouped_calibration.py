"""Calibrate grouped GEMM: plan, measure, store, fit, keep what ever wins, judge. Resumes where it stopped."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from wavetune.core.arch import ArchSpec
from wavetune.core.config import GROUPED_GEMM, KernelConfig, KernelSpec
from wavetune.core.grouped_problem import GroupedGemmProblem
from wavetune.fit.family_correction import correct_family
from wavetune.fit.family_model import FamilyFit, fit_family, judge_family, predict_family
from wavetune.fit.selection import greedy_cover
from wavetune.mapping.grouped_shape import GroupedShaper, grouped_mapping
from wavetune.mapping.source_digest import mapping_digest
from wavetune.measure.runner import Runner
from wavetune.pipeline.calibrate import LATENCY_DECIMALS, Observer, SilentObserver
from wavetune.pipeline.user_kernel import (
    KernelCalibration,
    KernelJob,
    build_family_file,
    measure_in_slices,
    prepare_configs,
)
from wavetune.plan.grouped_plan import EXHAUSTIVE_STRATA, GroupedPlanOptions, plan_grouped
from wavetune.runtime.family_chooser import Shaper
from wavetune.store.database import MeasurementStore
from wavetune.store.table import FloatArray, MeasurementTable

N_SURVIVORS = 32
"""Most configurations of a model: an answer evaluates each, 1 us or so."""

N_POINTER_SURVIVORS = 3
"""Configurations with pointer loads that are kept beside them: nothing else takes unaligned operands."""

SLICE_POINTS = 512
"""Points that are measured between two looks at the clock."""


@dataclass(frozen=True)
class GroupedJob(KernelJob):
    """A calibration of grouped GEMM, for one element type and layout."""

    def problem(self, dims: tuple[int, ...]) -> GroupedGemmProblem:  # type: ignore[override]
        """Return the problem that a key stands for."""
        return GroupedGemmProblem.from_dims(dims, self.dtype, self.layout)

    @property
    def spec(self) -> KernelSpec:
        """The fields of the family."""
        return GROUPED_GEMM


def grouped_job(configs: Sequence[KernelConfig], arch: ArchSpec, *, dtype: str, layout: str) -> GroupedJob:
    """Describe a calibration.

    Parameters
    ----------
    configs : sequence of KernelConfig
        Candidates.
    arch : ArchSpec
        GPU that is measured.
    dtype, layout : str
        Of the operands.
    """
    mapping = grouped_mapping(dtype, layout, arch)
    shape = GroupedShaper(dtype, layout, arch)
    return GroupedJob(
        GROUPED_GEMM.name, dtype, layout, mapping.dims, tuple(configs), shape, mapping_digest(mapping), pool=()
    )


def calibrate_grouped(
    runner: Runner,
    job: GroupedJob,
    store: MeasurementStore,
    *,
    options: GroupedPlanOptions | None = None,
    problems: Sequence[GroupedGemmProblem] = (),
    budget_s: float = float("inf"),
    observer: Observer | None = None,
) -> KernelCalibration:
    """Run the whole pipeline.

    Parameters
    ----------
    runner : Runner
        Measures.
    job : GroupedJob
        What.
    store : MeasurementStore
        Receives every measurement; points it already holds are not measured again.
    options : GroupedPlanOptions, optional
        Size of the plan.
    problems : sequence of GroupedGemmProblem
        The user's, measured before the built-in ones with every configuration.
    budget_s : float
        Seconds of measuring after which no more points are begun.
    observer : Observer, optional
        Sees progress.

    Raises
    ------
    FitError
        If no configuration can be prepared, or there are not enough measurements.
    StoreError
        If the store belongs to another environment, or cannot be written.
    """
    observer = observer or SilentObserver()
    seconds: dict[str, float] = {}
    start = time.perf_counter()
    compiled = prepare_configs(runner, "grouped_gemm", job.configs, store, observer)
    plan = plan_grouped(compiled, runner.arch, dtype=job.dtype, layout=job.layout, options=options, problems=problems)
    seconds["prepare"] = time.perf_counter() - start

    start = time.perf_counter()
    measured = measure_in_slices(runner, plan.points, store, observer, budget_s=budget_s, n_slice=SLICE_POINTS)
    seconds["measuring"] = time.perf_counter() - start

    start = time.perf_counter()
    observer.begin("fit", 0)
    table = store.to_table(GROUPED_GEMM, dtype=job.dtype, layout=job.layout, exhaustive_strata=EXHAUSTIVE_STRATA)
    table = replace(table, latency_us=np.round(table.latency_us, LATENCY_DECIMALS))
    fit = keep_survivors(fit_family(table, job.shape, runner.arch), table, job.shape, runner.arch)
    fit = correct_family(fit, table, job.shape, runner.arch)
    survivors = {entry.config for entry in fit.configs}
    kept = np.array([entry.config in survivors for entry in table.configs])[table.config_index]
    accuracy = judge_family(table.select(table.exhaustive), table.select(kept), job.shape, runner.arch, correct_family)
    file = build_family_file(job, fit, accuracy, table, runner, store.environment())
    seconds["fit"] = time.perf_counter() - start
    return KernelCalibration(
        file=file, fit=fit, accuracy=accuracy, rows=len(table), resumed=measured.resumed,
        skipped=measured.skipped, failures=store.measurements(failed=True), seconds=seconds,
    )  # fmt: skip


def keep_survivors(
    fit: FamilyFit, table: MeasurementTable, shape: Shaper, arch: ArchSpec, n_configs: int = N_SURVIVORS
) -> FamilyFit:
    """Restrict a fit to the configurations that together are near the best on every measured problem.

    What was not measured counts as predicted. A few configurations with pointer loads are always among them, the best
    of their kind.
    """
    keys, measured = table.latency_matrix()
    column = {entry.config: index for index, entry in enumerate(table.configs)}
    latency = measured[:, [column[entry.config] for entry in fit.configs]]
    predicted = predict_family(fit, [tuple(row) for row in keys.tolist()], shape, arch)
    latency = np.where(np.isnan(latency), predicted, latency)
    weight = np.ones(len(keys))
    by_pointer = np.flatnonzero([entry.config["load"] == "pointer" for entry in fit.configs])
    first = [int(by_pointer[index]) for index in _cover(latency[:, by_pointer], weight, N_POINTER_SURVIVORS)]
    chosen = sorted(greedy_cover(latency, weight, n_configs, first))
    if fit.default not in chosen:
        chosen = sorted([*chosen, fit.default])
    return replace(
        fit,
        configs=tuple(fit.configs[index] for index in chosen),
        ctas_per_sm=fit.ctas_per_sm[chosen],
        coefficients=fit.coefficients[chosen],
        default=chosen.index(fit.default),
    )


def _cover(latency: FloatArray, weight: FloatArray, n_configs: int) -> list[int]:
    return greedy_cover(latency, weight, n_configs) if latency.shape[1] else []
