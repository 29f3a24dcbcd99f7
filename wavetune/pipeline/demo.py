"""The demonstration: fit the shipped recording, judge it on layers it has not seen, choose for known layers."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from wavetune.core.arch import find_arch
from wavetune.core.config import GEMM
from wavetune.core.problem import GemmProblem
from wavetune.fit.model import WaveLatencyModel
from wavetune.pipeline.calibrate import Observer
from wavetune.pipeline.folds import HOLDOUT_FOLDS, split_fold
from wavetune.pipeline.recording import read_recording
from wavetune.pipeline.refit import hold_out
from wavetune.pipeline.shipped import find_recording
from wavetune.report.baselines import best_fixed_latency, boosted_choice_latency
from wavetune.report.metrics import Efficiency, summarise_efficiency
from wavetune.runtime.chooser import Choice, GemmChooser
from wavetune.store.table import FloatArray, MeasurementTable
from wavetune.tables.build import build_model_file

ARCH, DTYPE, LAYOUT = "nvidia-h200", "bf16", "nk"
POINTS, SWEEP = "recorded/h200-gemm-bf16-anchors.csv.gz", "recorded/h200-gemm-bf16-oracle.csv.gz"

WAVETUNE = "wavetune"
"""The method of this package, among those compared."""

TIME_LIMIT_S = 54.0
"""No further folds are begun that would end later: the demonstration promises a minute on two cores."""

LAYERS = (
    ("Llama-3-8B qkv", 6144, 4096),
    ("Llama-3-8B down", 4096, 14336),
    ("Llama-3-70B up", 57344, 8192),
    ("Qwen2.5-7B up", 37888, 3584),
    ("Qwen3-32B o", 5120, 8192),
)
"""Name, n and k on one GPU, from the models' published ``config.json``."""

TOKENS = (1, 64, 2048)
"""Decode of one sequence, of a batch, and prefill."""


@dataclass(frozen=True, slots=True)
class LayerChoice:
    """The choice for one layer at one number of tokens."""

    layer: str
    dims: tuple[int, int, int]
    choice: Choice


@dataclass(frozen=True, slots=True)
class FoldResult:
    """Best over chosen latency on the shapes of one fold, by method; NaN where the choice was not measured."""

    efficiency: dict[str, FloatArray]
    top3_efficiency: float
    mape: float


@dataclass(frozen=True)
class DemoResult:
    """Everything that the demonstration shows.

    Parameters
    ----------
    methods : dict of str to Efficiency
        On the held-out shapes of all folds together.
    top3_efficiency : float
        Geometric mean over those shapes, if the best three of the ranking were measured and the fastest kept.
    mape : float
        Mean relative prediction error on near-best configurations, averaged over folds.
    """

    gpu: str
    rows: int
    n_configs: int
    n_shapes: int
    n_survivors: int
    disturbed_rows: int
    fit_seconds: float
    n_folds: int
    n_judged: int
    top3_efficiency: float
    mape: float
    methods: dict[str, Efficiency]
    choices: list[LayerChoice] = field(default_factory=list)
    seconds: float = 0.0
    max_folds: int = HOLDOUT_FOLDS


def run_demo(observer: Observer, folds: int | None = None) -> DemoResult:
    """Run the demonstration.

    Parameters
    ----------
    observer : Observer
        Sees progress.
    folds : int, optional
        Folds to hold out; by default as many of `HOLDOUT_FOLDS` as fit in `TIME_LIMIT_S`.
    """
    start = time.perf_counter()
    arch = find_arch(ARCH)
    observer.begin("reading the shipped recording", 0)
    recording = read_recording(
        [find_recording(ARCH, POINTS)], [find_recording(ARCH, SWEEP)], GEMM, arch, dtype=DTYPE, layout=LAYOUT
    )
    table = recording.table
    observer.begin("fit", 0)
    fit_start = time.perf_counter()
    layers = [(name, (m, n, k)) for name, n, k in LAYERS for m in TOKENS]
    # Cells where they are asked for: those of the whole range would take as long as the fit.
    cell_dims = np.array([dims for _, dims in layers])
    estimator = WaveLatencyModel(dtype=DTYPE, arch=ARCH, cell_dims=cell_dims).fit_table(table)
    chooser = GemmChooser(build_model_file(estimator, table, provenance={}), arch)
    fit_seconds = time.perf_counter() - fit_start
    choices = [LayerChoice(name, dims, chooser.explain(GemmProblem(*dims, DTYPE, LAYOUT))) for name, dims in layers]
    total = folds or HOLDOUT_FOLDS
    observer.begin("judging on held-out layers (folds)", total)
    results: list[FoldResult] = []
    for result in _judge(table, estimator, total, None if folds else start + TIME_LIMIT_S):
        results.append(result)
        observer.update(len(results))
    pooled = {name: np.concatenate([r.efficiency[name] for r in results]) for name in results[0].efficiency}
    n_shapes = [len(result.efficiency[WAVETUNE]) for result in results]
    screening = estimator.screening_
    return DemoResult(
        gpu="NVIDIA H200",
        rows=len(table),
        n_configs=len(table.configs),
        n_shapes=len(table.select(table.exhaustive).problems()[0]),
        n_survivors=len(estimator.survivors_),
        disturbed_rows=int(screening.disturbed.sum()) if screening is not None else 0,
        fit_seconds=fit_seconds,
        n_folds=len(results),
        n_judged=sum(n_shapes),
        top3_efficiency=float(np.exp(np.average(np.log([r.top3_efficiency for r in results]), weights=n_shapes))),
        mape=float(np.mean([result.mape for result in results])),
        methods={name: summarise_efficiency(values[~np.isnan(values)]) for name, values in pooled.items()},
        choices=choices,
        seconds=time.perf_counter() - start,
    )


def judge_fold(table: MeasurementTable, estimator: WaveLatencyModel, fold: int) -> FoldResult:
    """Hold a fold of layers out and let every method choose on its shapes, all trained on the same rows."""
    report, split = hold_out(table, estimator, fold), split_fold(table, fold)
    assert report is not None
    assert split is not None
    training, judged = table.select(split.training), table.select(split.judged)
    best = judged.latency_matrix()[1]
    best_us = np.nanmin(best, axis=1)
    boosted = boosted_choice_latency(training, judged, estimator.random_state)
    return FoldResult(
        {
            WAVETUNE: np.array([result.efficiency for result in report.results]),
            "gradient boosting alone": best_us / boosted,
            "best fixed configuration": best_us / best_fixed_latency(training, judged),
        },
        report.top3_efficiency,
        report.mape_near_best,
    )


def _judge(
    table: MeasurementTable, estimator: WaveLatencyModel, folds: int, deadline: float | None
) -> Iterator[FoldResult]:
    """Yield folds, two at a time on two cores, until another round would pass the deadline."""
    from joblib import Parallel, delayed, parallel_config

    n_jobs = min(2, os.cpu_count() or 1)
    # The parts that are not threaded take most of the time: two processes beat two threads.
    with parallel_config("loky", inner_max_num_threads=1), Parallel(n_jobs=n_jobs) as parallel:
        for first in range(0, folds, n_jobs):
            start = time.perf_counter()
            yield from parallel(
                delayed(judge_fold)(table, estimator, fold) for fold in range(first, min(first + n_jobs, folds))
            )
            elapsed = time.perf_counter() - start
            if deadline is not None and time.perf_counter() + elapsed > deadline:
                return
