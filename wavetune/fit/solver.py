"""Fit the forms: one robust least squares with bounds for each configuration.

Residuals are relative (each row is divided by its latency), so a 10 us launch counts as much as a 1 ms launch.
Non-negative coefficients keep every prediction positive and non-decreasing in work, also far beyond the data; a byte
costs at most its time at the peak bandwidth of the memory, so that bytes cannot stand in for what the other terms mean.
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import lsq_linear, nnls

from wavetune.core.arch import ArchSpec
from wavetune.store.table import FloatArray, IntArray
from wavetune.waves.terms import TERM_UNITS, TERMS

ROBUST_ROUNDS = 2
"""Reweighting rounds. Coefficients of the recorded H200 sweeps stop moving after two."""

OUTLIER_SCALES = 3.0
"""Residuals beyond this many robust standard deviations lose weight in proportion (Huber's weights)."""

SCALE_FLOOR = 0.01
"""Relative: readings repeat within 1 to 2.5 % (H200, 2026-11), so a smaller scale would be fitted noise."""

MAD_TO_SIGMA = 1.4826
"""Standard deviation over median absolute deviation of a normal distribution."""


def fit_form(terms: FloatArray, latency_us: FloatArray, weight: FloatArray, upper: FloatArray) -> FloatArray:
    """Fit one configuration.

    Parameters
    ----------
    terms : ndarray of shape (n_rows, n_terms)
        Non-negative design matrix.
    latency_us : ndarray of shape (n_rows,)
        Positive latencies, microseconds.
    weight : ndarray of shape (n_rows,)
        Positive weight of each relative residual.
    upper : ndarray of shape (n_terms,)
        Largest value of each coefficient; infinite where there is none.

    Returns
    -------
    ndarray of shape (n_terms,)
        Coefficients between 0 and ``upper``; deterministic.
    """
    relative = terms / latency_us[:, None]
    # NNLS works best on columns of similar size: milliseconds of GFLOP beside single trips.
    scale = np.sqrt(np.mean(np.square(relative), axis=0))
    scale[scale == 0.0] = 1.0
    relative = relative / scale
    robust = np.ones(len(latency_us))
    coefficients = np.zeros(terms.shape[1])
    for _ in range(1 + ROBUST_ROUNDS):
        root = np.sqrt(robust) * weight
        coefficients = _solve(relative * root[:, None], root, upper * scale)
        residual = np.abs(np.log(np.maximum(relative @ coefficients, 1e-3)))
        sigma = MAD_TO_SIGMA * float(np.median(residual)) + SCALE_FLOOR
        robust = 1.0 / np.maximum(1.0, residual / (OUTLIER_SCALES * sigma))
    unscaled: FloatArray = coefficients / scale
    return unscaled


def _solve(design: FloatArray, target: FloatArray, upper: FloatArray) -> FloatArray:
    """Solve least squares between 0 and ``upper``; the bounds from above seldom bind, and cost ten times as much."""
    coefficients: FloatArray = nnls(design, target)[0]
    if np.any(coefficients > upper):
        # It may undershoot a bound by a rounding error.
        coefficients = np.clip(lsq_linear(design, target, bounds=(0.0, upper), method="bvls").x, 0.0, upper)
    return coefficients


def largest_coefficients(arch: ArchSpec) -> FloatArray:
    """Return the bound of each coefficient from above, shape (n_terms,): bytes at the peak bandwidth of the memory.

    Without it held-out efficiency was 0.949, with it 0.957; bounds at 2/3 and at 1.2 of the peak 0.949 and 0.958 (H200,
    128 shapes, 2026-11).
    """
    us_per_mb = 1e3 / arch.dram_gb_per_s
    return np.array([us_per_mb if TERM_UNITS[name] == "us/MB" else np.inf for name in TERMS])


def fit_forms(
    terms: FloatArray,
    latency_us: FloatArray,
    weight: FloatArray,
    config_index: IntArray,
    n_configs: int,
    upper: FloatArray | None = None,
) -> FloatArray:
    """Fit every configuration on its own rows; without ``upper``, coefficients have no bound from above.

    Returns
    -------
    ndarray of shape (n_configs, n_terms)
        Coefficients; NaN for a configuration with fewer than `MIN_ROWS` rows.
    """
    coefficients = np.full((n_configs, terms.shape[1]), np.nan)
    upper = np.full(terms.shape[1], np.inf) if upper is None else upper
    order = np.argsort(config_index, kind="stable")
    bounds = np.searchsorted(config_index[order], np.arange(n_configs + 1))
    for index in range(n_configs):
        rows = order[bounds[index] : bounds[index + 1]]
        if len(rows) >= MIN_ROWS:
            coefficients[index] = fit_form(terms[rows], latency_us[rows], weight[rows], upper)
    return coefficients


MIN_ROWS = 8
"""Fewest rows of a configuration that are fitted: the bilinear form alone needs 4 points with 2 grids and 2 loops
(WaveTune paper, by arithmetic); twice that leaves something to average."""
