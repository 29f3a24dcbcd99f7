"""A report on the synthetic GPU, whose truth is known, made once for all tests."""

from __future__ import annotations

import functools

import numpy as np
from synthetic_gpu import SyntheticGpu, fitted, held_out_problems

from wavetune.core.config import GEMM
from wavetune.report.document import ReportDocument, ReportInputs, SourceFile, build_document
from wavetune.store.table import MeasurementTable

N_SHAPES = 40


def table_of(dims: np.ndarray, columns: np.ndarray, latency: np.ndarray, *, exhaustive: bool) -> MeasurementTable:
    """Return measurements of the synthetic GPU as a table."""
    marks = np.full(len(dims), exhaustive)
    return MeasurementTable(GEMM, "bf16", "nk", SyntheticGpu().configs, dims, columns, latency, marks)


def held_out_sweep(noise: float = 0.0, seed: int = 0, n_shapes: int = N_SHAPES) -> MeasurementTable:
    """Return every configuration on held-out problems, with log-normal noise."""
    gpu = SyntheticGpu()
    dims, columns = gpu.sweep(held_out_problems(n_shapes, seed=9))
    factor = np.exp(np.random.default_rng(seed).normal(0.0, noise, len(dims)))
    return table_of(dims, columns, gpu.latency_us(dims, columns) * factor, exhaustive=True)


def anchors() -> MeasurementTable:
    """Return the wave-structured points of the synthetic GPU."""
    gpu = SyntheticGpu()
    dims, columns = gpu.anchors()
    return table_of(dims, columns, gpu.latency_us(dims, columns), exhaustive=False)


@functools.cache
def made_up_inputs() -> ReportInputs:
    """Return a model and everything that is known of it."""
    return ReportInputs(
        model=fitted().file,
        sweep=held_out_sweep(noise=0.01, seed=1),
        sweep_files=(SourceFile("held-out.csv", "0" * 64, N_SHAPES * 20),),
        points=anchors(),
        fitted=anchors(),
        repeat=held_out_sweep(noise=0.01, seed=2),
        calibration={"seconds": {"sparse": 20.0, "dense": 40.5}, "conditions": {"sm_clock_mhz": "1980 1815"}},
    )


@functools.cache
def made_up_document() -> ReportDocument:
    """Return the report of those."""
    return build_document(made_up_inputs())
