"""Readings of a sweep that are too fast to be true: as the best of their problem they would be its answer for ever."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from wavetune.core.arch import ArchSpec, find_arch
from wavetune.core.config import KernelConfig
from wavetune.core.dtype import find_dtype
from wavetune.fit.family_model import FamilyFit, predict_forms
from wavetune.fit.model import WaveLatencyModel
from wavetune.fit.points import GemmGeometry
from wavetune.runtime.family_chooser import Shaper
from wavetune.store.record import CompiledConfig
from wavetune.store.screen import MAD_TO_SIGMA
from wavetune.store.table import BoolArray, FloatArray, IntArray, MeasurementTable

TOO_FAST = 1.5
"""How many times faster than its configuration's model a reading may be, beyond what half of its problem's readings
are. Of 2,000 sweeps of GEMM on an H200 (2026-11: bf16, fp16, fp8, pointer kernels; models of 2, 12 and some 340
configurations), the fastest reading is so by at most 1.27; of 3,500 of grouped GEMM, attention and decode by at most
1.35."""

SPREADS = 5.0
"""Standard deviations of a model's errors that a reading must be beyond, too: where the forms of a kernel fit badly, as
those of a user's may, they testify against no reading. Of GEMM and the families on an H200 they are off by 3 to 8 %."""


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
    rows, form = _swept_rows(table, model.configs_)
    return _find(table, rows, _corrected_us(model, table.select(rows), form)) if len(rows) else ()


def find_too_fast_of_family(
    fit: FamilyFit, table: MeasurementTable, shape: Shaper, arch: ArchSpec
) -> tuple[FastReading, ...]:
    """Find readings of a kernel family as `find_too_fast` does those of GEMM.

    Parameters
    ----------
    fit : FamilyFit
        Fitted to the table, or to one like it; its correction is not asked, since it is of the fastest few alone.
    table : MeasurementTable
        Only rows marked ``exhaustive`` can be found.
    shape : callable
        The kernel's mapping.
    arch : ArchSpec
        GPU that was measured.
    """
    rows, form = _swept_rows(table, fit.configs)
    if not len(rows):
        return ()
    keys, key = table.select(rows).problems()
    predicted_us = predict_forms(fit, [tuple(dims) for dims in keys.tolist()], shape, arch)[key, form]
    # Nothing is predicted of a launch without CTAs.
    is_known = predicted_us > 0.0
    return _find(table, rows[is_known], predicted_us[is_known]) if is_known.any() else ()


def without(table: MeasurementTable, readings: Sequence[FastReading]) -> MeasurementTable:
    """Return a table without the rows of some readings."""
    is_kept: BoolArray = np.ones(len(table), dtype=np.bool_)
    is_kept[[reading.row for reading in readings]] = False
    return table.select(is_kept)


def _swept_rows(table: MeasurementTable, configs: Sequence[CompiledConfig]) -> tuple[IntArray, IntArray]:
    """Return the exhaustive rows whose configuration has a form, and the place of that form."""
    position = {entry.config: index for index, entry in enumerate(configs)}
    form = np.array([position.get(entry.config, -1) for entry in table.configs], dtype=np.int64)[table.config_index]
    rows = np.flatnonzero(table.exhaustive & (form >= 0))
    return rows, form[rows]


def _find(table: MeasurementTable, rows: IntArray, predicted_us: FloatArray) -> tuple[FastReading, ...]:
    part = table.select(rows)
    lead = np.log(predicted_us / part.latency_us)
    spread = MAD_TO_SIGMA * float(np.median(np.abs(lead - np.median(lead))))
    limit = max(float(np.log(TOO_FAST)), SPREADS * spread)
    problem_index = part.problems()[1]
    order = np.argsort(problem_index, kind="stable")
    groups = np.split(order, np.flatnonzero(np.diff(problem_index[order])) + 1)
    found = []
    for members in groups:
        # The model may be off for a whole problem, which says nothing against a reading; so may most readings.
        suspect = lead[members] - max(float(np.median(lead[members])), 0.0) > limit
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


def _corrected_us(model: WaveLatencyModel, table: MeasurementTable, form: IntArray) -> FloatArray:
    """Predict rows by form and smooth correction; not by nearby evidence, which a bad reading would be itself."""
    geometry = GemmGeometry(model.configs_, find_arch(model.arch), find_dtype(model.dtype))
    points = geometry.points(table.dims, form)
    latency: FloatArray = np.einsum("ij,ij->i", points.terms(), model.coefficients_[form])
    return latency if model.correction_ is None else latency * np.exp(model.correction_.predict(points))
