"""The demonstration: fit the shipped calibration, judge it on a sweep it has not seen, choose for known layers."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import numpy as np

from wavetune.core.arch import find_arch
from wavetune.core.config import GEMM
from wavetune.core.problem import GemmProblem
from wavetune.fit.model import WaveLatencyModel
from wavetune.pipeline.calibrate import Observer
from wavetune.pipeline.evidence import evidence_names
from wavetune.pipeline.recording import read_recording
from wavetune.pipeline.shipped import find_recording
from wavetune.report.accuracy import evaluate_model
from wavetune.report.baselines import boosted_choice_latency
from wavetune.report.metrics import Efficiency, summarise_efficiency
from wavetune.runtime.chooser import Choice, GemmChooser
from wavetune.tables.build import build_model_file

ARCH, DTYPE, LAYOUT = "nvidia-h200", "bf16", "nk"
POINTS, SWEEP, _ = evidence_names("gemm", DTYPE, LAYOUT)
HOLDOUT = "gemm-bf16-holdout.csv.gz"
"""Every configuration on shapes that the calibration did not measure."""

WAVETUNE = "wavetune"
"""The method of this package, among those compared."""

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


@dataclass(frozen=True)
class DemoResult:
    """Everything that the demonstration shows.

    Parameters
    ----------
    gpu : str
        What was measured.
    rows, n_configs, n_survivors, disturbed_rows : int
        Measurements of the calibration, configurations in it and in the model, rows it was fitted without.
    fit_seconds, seconds : float
        Of the fit, and of everything.
    judged_rows, judged_configs, n_judged : int
        Measurements, configurations and shapes of the sweep.
    top3_efficiency : float
        Geometric mean, if the best three of the ranking were measured and the fastest kept.
    mape : float
        Mean relative prediction error of the choices.
    methods : dict of str to Efficiency
        Choices of each method on the shapes of the sweep.
    choices : list of LayerChoice
        What the model chooses for known layers.
    """

    gpu: str
    rows: int
    n_configs: int
    n_survivors: int
    disturbed_rows: int
    fit_seconds: float
    judged_rows: int
    judged_configs: int
    n_judged: int
    top3_efficiency: float
    mape: float
    methods: dict[str, Efficiency]
    choices: list[LayerChoice] = field(default_factory=list)
    seconds: float = 0.0


def run_demo(observer: Observer) -> DemoResult:
    """Run the demonstration; ``observer`` sees progress."""
    start = time.perf_counter()
    arch = find_arch(ARCH)
    observer.begin("reading the shipped calibration", 0)
    files = [find_recording(ARCH, name) for name in (POINTS, SWEEP, HOLDOUT)]
    table = read_recording(files[:1], files[1:2], GEMM, arch, dtype=DTYPE, layout=LAYOUT).table
    judged = read_recording([], files[2:], GEMM, arch, dtype=DTYPE, layout=LAYOUT).table
    observer.begin("fit", 0)
    fit_start = time.perf_counter()
    layers = [(name, (m, n, k)) for name, n, k in LAYERS for m in TOKENS]
    # Cells where they are asked for: those of the whole range would take longer than the fit.
    cell_dims = np.vstack([[dims for _, dims in layers], judged.problems()[0]])
    estimator = WaveLatencyModel(dtype=DTYPE, arch=ARCH, cell_dims=cell_dims).fit_table(table)
    model = build_model_file(estimator, table, provenance={})
    fit_seconds = time.perf_counter() - fit_start
    observer.begin("judging on shapes it has not seen", 0)
    report = evaluate_model(model, judged)
    latency = judged.latency_matrix()[1]
    best_us = np.nanmin(latency, axis=1)
    # No sweep of the calibration holds every configuration, so the best alone comes from the estimator.
    fixed = [entry.config for entry in judged.configs].index(estimator.configs_[estimator.default_].config)
    efficiency = {
        WAVETUNE: np.array([result.efficiency for result in report.results]),
        "gradient boosting alone": best_us / boosted_choice_latency(table, judged, estimator.random_state),
        "best fixed configuration": best_us / latency[:, fixed],
    }
    chooser = GemmChooser(model, arch)
    screening = estimator.screening_
    return DemoResult(
        gpu="NVIDIA H200",
        rows=len(table),
        n_configs=len(table.configs),
        n_survivors=len(estimator.survivors_),
        disturbed_rows=int(screening.disturbed.sum()) if screening is not None else 0,
        fit_seconds=fit_seconds,
        judged_rows=len(judged),
        judged_configs=len(judged.configs),
        n_judged=len(best_us),
        top3_efficiency=report.top3_efficiency,
        mape=report.mape_chosen,
        methods={name: summarise_efficiency(values[~np.isnan(values)]) for name, values in efficiency.items()},
        choices=[LayerChoice(name, dims, chooser.explain(GemmProblem(*dims, DTYPE, LAYOUT))) for name, dims in layers],
        seconds=time.perf_counter() - start,
    )
