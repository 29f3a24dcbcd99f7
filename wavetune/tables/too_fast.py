"""Readings of a sweep that are too fast to be true: as the best of their problem they would be its answer for ever."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wavetune.core.arch import find_arch
from wavetune.core.config import KernelConfig
from wavetune.core.dtype import find_dtype
from wavetune.fit.model import WaveLatencyModel
from wavetune.fit.points import GemmGeometry
from wavetune.store.table import FloatArray, IntArray, MeasurementTable

TOO_FAST = 1.5
"""How many times faster than its configuration's corrected form a reading may be, beyond what half of its problem's
readings are. Of 2,000 sweeps on an H200 (2026-11: bf16, fp16, fp8, pointer kernels; models of 2, 12 and some 340
configurations), the fastest reading is so by at most 1.27."""


@dataclass(frozen=True, slots=True)
class FastReading:
    """A reading that would have been the best of its problem, and is not believed.

    Parameters
    ----------
    row : int
        Of the table.
    dims : tuple of int
        Sizes.
    config : KernelConfig
        What was timed.
    latency_us : float
        What was read.
    factor : float
        How many times faster that is than the model of the configuration.
    """

    row: int
    dims: tuple[int, ...]
    config: KernelConfig
    latency_us: float
    factor: float


def find_too_fast(model: WaveLatencyModel, table: MeasurementTable) -> tuple[FastReading, ...]:
    """Find readings of exhaustive sweeps that are faster than all credible ones of their problem, and not credible.

    A kernel that is faster than its model is common; one that is faster by `TOO_FAST` where the others of the same
    problem are not is a clock that failed, a launch that failed, or an edited cell.

    Parameters
    ----------
    model : WaveLatencyModel
        Fitted to the table, or to one like it.
    table : MeasurementTable
        Only rows marked ``exhaustive`` can be found.

    Returns
    -------
    tuple of FastReading
        In the order of the table.
    """
    position = {entry.config: index for index, entry in enumerate(model.configs_)}
    fitted = np.array([position.get(entry.config, -1) for entry in table.configs], dtype=np.int64)
    rows = np.flatnonzero(table.exhaustive & (fitted[table.config_index] >= 0))
    if not len(rows):
        return ()
    part = table.select(rows)
    lead = np.log(_corrected_us(model, part, fitted[part.config_index]) / part.latency_us)
    problem_index = part.problems()[1]
    order = np.argsort(problem_index, kind="stable")
    groups = np.split(order, np.flatnonzero(np.diff(problem_index[order])) + 1)
    found = []
    for members in groups:
        # The model may be off for a whole problem, which says nothing against a reading; so may most readings.
        beyond = lead[members] - max(float(np.median(lead[members])), 0.0)
        suspect = beyond > np.log(TOO_FAST)
        if suspect.any():
            best_us = part.latency_us[members[~suspect]].min()
            found += [row for row in members[suspect].tolist() if part.latency_us[row] < best_us]
    return tuple(
        FastReading(
            int(rows[row]), tuple(part.dims[row].tolist()), table.configs[part.config_index[row]].config,
            float(part.latency_us[row]), float(np.exp(lead[row])),
        )
        for row in sorted(found)
    )  # fmt: skip


def _corrected_us(model: WaveLatencyModel, table: MeasurementTable, fitted: IntArray) -> FloatArray:
    """Predict rows by form and smooth correction; not by nearby evidence, which a bad reading would be itself."""
    geometry = GemmGeometry(model.configs_, find_arch(model.arch), find_dtype(model.dtype))
    points = geometry.points(table.dims, fitted)
    latency: FloatArray = np.einsum("ij,ij->i", points.terms(), model.coefficients_[fitted])
    return latency if model.correction_ is None else latency * np.exp(model.correction_.predict(points))
