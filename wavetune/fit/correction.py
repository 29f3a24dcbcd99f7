"""What the forms miss, learned from measurements: a smooth factor on the latency of each configuration.

Two regressors of the residual ``log(latency / form)`` are averaged: histogram gradient boosting, which finds
thresholds, and ridge regression with a Gaussian kernel, which is smooth. Their errors are
different; on held-out layers of the recorded H200 sweep the average picks better than either (ARCHITECTURE.md).
Neither is ever part of a model file: `wavetune.fit.lattice` distils them into table cells.
"""

from __future__ import annotations

import numpy as np
from scipy.linalg import solve
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.metrics.pairwise import rbf_kernel

from wavetune.fit.points import GemmPoints
from wavetune.store.table import FloatArray

MAX_LOG_CORRECTION = 0.7
"""The correction stays within a factor of 2 either way: beyond it, it would be repairing a broken form."""

N_LANDMARKS = 400
"""Landmarks of the smooth regressor; more cost time and gained nothing."""

KERNEL_GAMMA = 0.02
"""Width of the Gaussian kernel for the scaled columns of `features`: of 0.02, 0.05 and 0.1, 0.02 picked best on
held-out layers (H200, 2026-11)."""

_CHUNK = 20_000
_JITTER = 1e-6

# Each column's scale in the kernel: sizes and counts in octaves, fractions stretched so that a full tail counts like
# two octaves. Chosen once; the choice is not critical (halving or doubling them all moves efficiency by 0.1 points).
_SCALES = {
    "block_m": 1.0, "block_n": 1.0, "block_k": 1.0, "split_k": 1.0, "schedule": 1.0, "load": 1.0,
    "epilogue_split": 0.5, "group_m": 0.5,
    "num_warps": 1.0, "num_stages": 0.5, "ctas_per_sm": 0.5, "grid_size": 0.5, "loop_trips": 0.5,
    "m": 0.3, "n": 0.3, "k": 0.3, "depth_fill": 2.0, "wave_fill": 2.0, "depth": 0.2, "waves": 0.2, "bytes": 0.3,
    "fill_m": 1.0, "fill_n": 1.0, "tiles_m": 0.3, "tiles_n": 0.3,
}  # fmt: skip
# In double precision, since distances between single-precision rows are computed in small converted pieces.
_SCALE = np.array(list(_SCALES.values()), dtype=np.float64)


def features(points: GemmPoints) -> FloatArray:
    """Describe points for the regressors.

    Returns
    -------
    ndarray of shape (n_points, n_features)
        Logarithms of sizes and counts, and how full tiles, waves and SMs are.
    """
    columns = {
        "block_m": np.log2(points.block_m),
        "block_n": np.log2(points.block_n),
        "block_k": np.log2(points.block_k),
        "split_k": np.log2(points.split_k),
        "schedule": points.schedule,
        "load": points.load,
        "epilogue_split": points.epilogue_split,
        "group_m": np.log2(points.group_m),
        "num_warps": np.log2(points.num_warps),
        "num_stages": points.num_stages,
        "ctas_per_sm": points.ctas_per_sm,
        "grid_size": np.log2(points.grid_size),
        "loop_trips": np.log2(points.loop_trips),
        "m": np.log2(points.m),
        "n": np.log2(points.n),
        "k": np.log2(points.k),
        "depth_fill": points.grid_size / (points.num_sms * points.depth),
        "wave_fill": points.grid_size / (points.num_sms * points.ctas_per_sm * points.waves),
        "depth": np.minimum(points.depth, 10),
        "waves": np.minimum(points.waves, 10),
        "bytes": np.log2(points.compulsory_mb),
        "fill_m": points.m / (points.tiles_m * points.block_m),
        "fill_n": points.n / (points.tiles_n * points.block_n),
        "tiles_m": np.log2(points.tiles_m),
        "tiles_n": np.log2(points.tiles_n),
    }
    assert columns.keys() == _SCALES.keys()
    return np.stack([np.asarray(column, dtype=np.float32) for column in columns.values()], axis=1)


class _SmoothRegressor:
    """Kernel ridge regression on a subset of landmark points ("subset of regressors").

    Minimises ``sum_i w_i (y_i - k_i a)^2 + a K a``, with k_i the Gaussian kernel between point i and the landmarks and
    K that among landmarks (Rasmussen and Williams, Gaussian Processes for Machine Learning, section 8.3.1).
    """

    def fit(self, x: FloatArray, y: FloatArray, weight: FloatArray, rng: np.random.Generator) -> _SmoothRegressor:
        self._landmarks = x[np.sort(rng.choice(len(x), min(len(x), N_LANDMARKS), replace=False))]
        self._mean = float(np.average(y, weights=weight))
        among = rbf_kernel(self._landmarks, gamma=KERNEL_GAMMA)
        gram = among + _JITTER * np.eye(len(among))
        moment = np.zeros(len(among))
        # Accumulated in chunks: the kernel matrix of a full calibration would not fit in the memory budget.
        for start in range(0, len(x), _CHUNK):
            rows = slice(start, start + _CHUNK)
            kernel = rbf_kernel(x[rows], self._landmarks, gamma=KERNEL_GAMMA)
            weighted = kernel * weight[rows, None]
            gram += weighted.T @ kernel
            moment += weighted.T @ (y[rows] - self._mean)
        self._dual = solve(gram, moment, assume_a="pos")
        return self

    def predict(self, x: FloatArray) -> FloatArray:
        parts = [
            rbf_kernel(x[start : start + _CHUNK], self._landmarks, gamma=KERNEL_GAMMA) @ self._dual
            for start in range(0, len(x), _CHUNK)
        ]
        return np.concatenate(parts) + self._mean


class ResidualCorrection:
    """Predicts the logarithm of measured over form latency.

    Parameters
    ----------
    random_state : int
        Seed of the column sampling and of the landmarks; equal seeds give equal fits.
    """

    def __init__(self, random_state: int = 0) -> None:
        self.random_state = random_state

    def fit(self, points: GemmPoints, log_residual: FloatArray, weight: FloatArray) -> ResidualCorrection:
        """Fit to ``log_residual`` of shape (n_points,) with positive weights of the same shape."""
        x = features(points)
        target = np.clip(log_residual, -MAX_LOG_CORRECTION, MAX_LOG_CORRECTION)
        boosting = HistGradientBoostingRegressor(
            max_iter=120,
            learning_rate=0.12,
            max_leaf_nodes=31,
            max_features=0.5,
            min_samples_leaf=30,
            early_stopping=False,
            random_state=self.random_state,
        )
        self._thresholds = boosting.fit(x, target, sample_weight=weight)
        rng = np.random.default_rng(self.random_state)
        self._smooth = _SmoothRegressor().fit(x * _SCALE, target, weight, rng)
        return self

    def predict(self, points: GemmPoints) -> FloatArray:
        """Return the log factor of each point, within `MAX_LOG_CORRECTION`, shape (n_points,)."""
        x = features(points)
        if not len(x):
            return np.zeros(0)
        mean = 0.5 * (self._thresholds.predict(x) + self._smooth.predict(x * _SCALE))
        clipped: FloatArray = np.clip(mean, -MAX_LOG_CORRECTION, MAX_LOG_CORRECTION)
        return clipped
