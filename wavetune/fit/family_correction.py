"""Learn the factor that the forms of a kernel miss, from their residuals on measured keys.

Ridge regression with a Gaussian kernel on a subset of centres, one set of centres for all forms, see
`wavetune.runtime.family_correction`. Rows weigh by how near the best of their key they are, squared: only near-best
predictions decide.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from scipy.linalg import solve

from wavetune.core.arch import ArchSpec
from wavetune.fit.family_model import FamilyFit, predict_forms
from wavetune.runtime.family_chooser import Shaper
from wavetune.runtime.family_correction import (
    MAX_LOG_FACTOR,
    STEPS_PER_OCTAVE,
    WEIGHT_UNIT,
    FamilyCorrection,
    cell_of,
)
from wavetune.store.table import FloatArray, MeasurementTable

N_CENTRES = 96
"""Most centres."""

GAMMA = 0.1
"""Inverse squared width, per square octave: a centre speaks for about two octaves around it. Of 0.02 to 0.2, with 48 to
192 centres, 0.1 and 96 chose best on simulated grouped GEMM (2026-11); no GPU has been asked yet."""

RIDGE = 0.1
"""Penalty: the weight of one row that is the best of its key, in squares of its residual."""

MIN_KEYS = 24
"""Fewest measured keys from which anything is learned."""

_JITTER = 1e-6


def correct_family(fit: FamilyFit, table: MeasurementTable, shape: Shaper, arch: ArchSpec) -> FamilyFit:
    """Return a fit with the correction that its residuals on ``table`` ask for; without one if there are few keys.

    Parameters
    ----------
    fit : FamilyFit
        Forms; a correction that it has is replaced.
    table : MeasurementTable
        Rows to learn from; those of configurations without a form count only as the best of their key.
    shape : callable
        The kernel's mapping.
    arch : ArchSpec
        GPU that was measured.
    """
    keys, measured = table.latency_matrix()
    if len(keys) < MIN_KEYS:
        return replace(fit, correction=None)
    column = {entry.config: index for index, entry in enumerate(table.configs)}
    latency = measured[:, [column[entry.config] for entry in fit.configs]]
    dims = [tuple(row) for row in keys.tolist()]
    with np.errstate(invalid="ignore"):
        residual = np.clip(np.log(latency / predict_forms(fit, dims, shape, arch)), -MAX_LOG_FACTOR, MAX_LOG_FACTOR)
        weight = np.square(np.nanmin(measured, axis=1, keepdims=True) / latency)
    cells = np.array([cell_of(key) for key in dims], dtype=np.float64) / STEPS_PER_OCTAVE
    chosen = spread_centres(cells, N_CENTRES)
    kernel = np.exp(-GAMMA * _squared_distances(cells, cells[chosen]))
    penalty = RIDGE * kernel[chosen] + _JITTER * np.eye(len(chosen))
    weights = []
    for index in range(len(fit.configs)):
        rows = ~np.isnan(residual[:, index])
        weighted = kernel[rows] * weight[rows, index, None]
        dual = solve(weighted.T @ kernel[rows] + penalty, weighted.T @ residual[rows, index], assume_a="pos")
        weights.append(tuple(np.rint(dual / WEIGHT_UNIT).astype(np.int64).tolist()))
    centres = tuple(dims[index] for index in chosen)
    return replace(fit, correction=FamilyCorrection(GAMMA, centres, tuple(weights)))


def spread_centres(cells: FloatArray, n_centres: int) -> list[int]:
    """Choose rows that are as far from each other as possible: the first, then always the farthest from those before.

    Returns
    -------
    list of int
        Distinct places; fewer than ``n_centres`` if there are not as many.
    """
    chosen = [0]
    distance = _squared_distances(cells, cells[:1])[:, 0]
    while len(chosen) < n_centres:
        farthest = int(np.argmax(distance))
        if distance[farthest] == 0.0:
            break
        chosen.append(farthest)
        distance = np.minimum(distance, _squared_distances(cells, cells[farthest : farthest + 1])[:, 0])
    return chosen


def _squared_distances(a: FloatArray, b: FloatArray) -> FloatArray:
    distances: FloatArray = np.square(a[:, None, :] - b[None, :, :]).sum(axis=2)
    return distances
