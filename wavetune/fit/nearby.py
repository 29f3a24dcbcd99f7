"""What was measured nearby: a local correction of the smooth one, and doubt where there is nothing.

The correction is smooth: it carries what it learned on some problems to configurations that nobody measured there. Of
hundreds of such predictions the most optimistic is chosen, so a choice needs evidence. With

    n = sum over measured problems of exp(-d^2 / (2 REACH^2)),    d their distance in octaves of all sizes

a configuration's prediction is multiplied by the shrunken mean of its residuals, ``sum(weight residual) / (n + 1)`` in
the logarithm (Nadaraya-Watson with one pseudo-measurement of no residual), and by ``exp(DOUBT / (n + 1))``: an upper
confidence bound whose width falls as evidence comes nearer. The doubt of the configuration with most evidence is taken
off all, which changes no ranking and leaves its own prediction as it is.
"""

from __future__ import annotations

import numpy as np
from scipy.spatial.distance import cdist

from wavetune.store.table import FloatArray, IntArray

REACH_OCTAVES = 0.5
"""How far a measurement counts. Of 0.3, 0.4, 0.5 and 0.7 octaves, 0.5 and 0.7 picked best on held-out layers."""

DOUBT = 0.1
"""Log factor without any evidence, about twice the error of the correction between configurations. Held-out efficiency
was 0.960 without doubt and local residuals, 0.962 with residuals alone, and 0.975, 0.976, 0.975 with 0.06, 0.1 and 0.2
(one H200 calibration of 342 configurations against a sweep of 128 layers, 2026-11)."""


_CHUNK = 2048


class NearbyEvidence:
    """Residuals of the correction at the realistic problems that each configuration was measured on.

    Parameters
    ----------
    dims : ndarray of shape (n_rows, n_dims)
        Problem of each measurement.
    config_index : ndarray of shape (n_rows,)
        Its configuration.
    log_residual : ndarray of shape (n_rows,)
        Logarithm of measured over corrected latency.
    weight : ndarray of shape (n_rows,)
        Weight of each measurement; 1 for a normal one, 0 for one that was disturbed.
    n_configs : int
        Configurations.
    """

    def __init__(
        self, dims: IntArray, config_index: IntArray, log_residual: FloatArray, weight: FloatArray, n_configs: int
    ) -> None:
        problems, inverse = np.unique(dims, axis=0, return_inverse=True)
        self.n_configs = n_configs
        self._problems = np.log2(problems.astype(np.float64))
        self._weight = np.zeros((len(problems), n_configs))
        self._residual = np.zeros_like(self._weight)
        at = (inverse.reshape(-1), config_index)
        np.add.at(self._weight, at, weight)
        np.add.at(self._residual, at, weight * log_residual)

    def log_factors(self, dims: IntArray, doubt: float = DOUBT) -> FloatArray:
        """Return the log factor of every configuration on problems, shape (n_problems, n_configs).

        Parameters
        ----------
        dims : ndarray of shape (n_problems, n_dims)
            Problems.
        doubt : float
            Log factor where there is no evidence; 0 to rank by what is expected, as plans of what to measure do.
        """
        factors = np.empty((len(dims), self.n_configs))
        # In chunks: the distances of all cells of a table to all measured problems would take hundreds of megabytes.
        for start in range(0, len(dims), _CHUNK):
            rows = slice(start, start + _CHUNK)
            squared = cdist(np.log2(dims[rows].astype(np.float64)), self._problems, "sqeuclidean")
            nearness = np.exp(squared / (-2.0 * REACH_OCTAVES**2))
            shrinkage = 1.0 / (nearness @ self._weight + 1.0)
            doubts = doubt * shrinkage
            factors[rows] = (nearness @ self._residual) * shrinkage + doubts - doubts.min(axis=1, keepdims=True)
        return factors
