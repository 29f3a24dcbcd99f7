"""The estimator: measurements in, forms, survivors and cells out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils.validation import check_array, check_consistent_length, check_is_fitted

from wavetune.core.arch import find_arch
from wavetune.core.config import KernelSpec, find_kernel_spec
from wavetune.core.dtype import find_dtype
from wavetune.errors import ConfigError, FitError
from wavetune.fit.correction import ResidualCorrection
from wavetune.fit.encoding import decode_matrix, encode_table, feature_columns
from wavetune.fit.lattice import cells_around, cells_of, distil
from wavetune.fit.nearby import DOUBT, NearbyEvidence
from wavetune.fit.points import GemmGeometry
from wavetune.fit.selection import CONTENDER_RATIO, broad_sample, cover_unaligned, greedy_cover
from wavetune.fit.solver import fit_forms, largest_coefficients
from wavetune.fit.threads import on_one_thread
from wavetune.store.record import CompiledConfig
from wavetune.store.screen import Screening, screen_rows
from wavetune.store.table import BoolArray, FloatArray, IntArray, MeasurementTable

EXHAUSTIVE_FORM_WEIGHT = 2.0
EXHAUSTIVE_CORRECTION_WEIGHT = 4.0
"""How much more a row of a realistic problem counts than a wave-structured one: in a form (the square enters the sum),
and in the correction. Real shapes matter more than more anchors; of 1, 2 and 4, these picked best on held-out layers
(H200, 2026-11)."""

COMPETITIVE_POWER = 2.0
"""Rows of the correction are weighted by (best form / this form) ** 2: only near-best configurations must be right."""

COVER_GAIN = 2e-4
"""A configuration survives if it lowers the mean log regret by this: a fiftieth of what readings repeat within."""

N_BROAD = 1200
"""Problems of the broad sample that survivors are chosen on."""


@dataclass(frozen=True)
class _Training:
    """The training rows, mapped."""

    geometry: GemmGeometry
    dims: IntArray
    config_index: IntArray
    latency_us: FloatArray
    weight: FloatArray
    exhaustive: BoolArray


class WaveLatencyModel(RegressorMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Wave-aware bilinear latency of a family of launch configurations.

    For each configuration, with W waves, D CTAs on the busiest SM, G CTAs in all, L loop trips and S SMs,

        latency_us = (launch + (wave + wave_trip L) W + depth_trip L D + (work + work_trip L) G / S
                      + compulsory C + reread R + workspace P + sustained F) * factor(cell)

    Coefficients are non-negative; their units are in `wavetune.waves.terms.TERM_UNITS`. Inside a wave regime, where
    W and D are constant, the form is bilinear in G and L. The factor is 1 unless rows of realistic problems were given
    (``exhaustive``); it is constant in each cell and known for the surviving configurations only.

    Parameters
    ----------
    kernel : str, default="gemm"
        Kernel family.
    dtype : str, default="bf16"
        Element type.
    arch : str, default="nvidia-h200"
        GPU that was measured.
    n_configs : int, default=64
        Most configurations that survive (and a few more for unaligned operands); fewer do where few ever win: of 330
        recorded pointer configurations 20, of 342 with TMA and split-k about 50.
    bound_log2 : float, default=2.0
        Cells are made up to this many octaves from a measured problem.
    screen : bool, default=True
        Whether rows that the host disturbed are sought, and the fit repeated without them.
    cell_dims : array-like of shape (n_problems, n_dims), optional
        Make cells for these problems only, which saves cross-validation time; by default, for all in bound. Where it
        is empty, nothing is selected and only `predict_undistilled` works, which is what plans ask.
    random_state : int, default=0
        Seed of everything random; equal seeds give equal fits.

    Attributes
    ----------
    configs_ : tuple of CompiledConfig
        Every configuration that was fitted.
    coefficients_ : ndarray of shape (n_fitted, n_terms)
        Its form.
    survivors_ : tuple of int
        Indices into ``configs_`` of the configurations that ever win, in table order.
    default_ : int
        The single best of ``survivors_`` over realistic problems; index into ``configs_``.
    lattice_ : Lattice
        Cells; columns in the order of ``survivors_``.
    measured_dims_ : ndarray of shape (n_problems, n_dims)
        Distinct problems that were measured.
    correction_ : ResidualCorrection or None
        The correction before it was distilled; never part of a model file.
    screening_ : Screening or None
        Disturbed rows, in the order of the fitted rows; None without rows of realistic problems, since the forms
        alone cannot tell a stall from their own error.
    too_few_rows_ : tuple of CompiledConfig
        Configurations that were left out, because they had too few rows.
    """

    def __init__(
        self,
        kernel: str = "gemm",
        dtype: str = "bf16",
        arch: str = "nvidia-h200",
        n_configs: int = 64,
        bound_log2: float = 2.0,
        screen: bool = True,
        cell_dims: Any = None,
        random_state: int = 0,
    ) -> None:
        self.kernel = kernel
        self.dtype = dtype
        self.arch = arch
        self.n_configs = n_configs
        self.bound_log2 = bound_log2
        self.screen = screen
        self.cell_dims = cell_dims
        self.random_state = random_state

    @property
    def spec(self) -> KernelSpec:
        """The kernel family's fields."""
        return find_kernel_spec(self.kernel)

    @on_one_thread
    def fit(self, X: Any, y: Any, sample_weight: Any = None, exhaustive: Any = None) -> WaveLatencyModel:
        """Fit to measurements.

        Parameters
        ----------
        X : array-like of shape (n_rows, n_columns)
            Columns as in `wavetune.fit.encoding.feature_columns`.
        y : array-like of shape (n_rows,)
            Latencies, microseconds.
        sample_weight : array-like of shape (n_rows,), optional
            Weight of each row.
        exhaustive : array-like of bool of shape (n_rows,), optional
            Rows of sweeps over realistic problems; none if not given.

        Raises
        ------
        FitError
            If the rows are not enough to fit two configurations, or a parameter is out of range.
        """
        if self.n_configs < 1 or self.bound_log2 < 0:
            raise FitError(
                f"n_configs must be at least 1 and bound_log2 at least 0, got {self.n_configs}, {self.bound_log2}"
            )
        x = check_array(X, dtype=np.float64)
        latency = check_array(y, dtype=np.float64, ensure_2d=False)
        check_consistent_length(x, latency)
        n_columns = len(feature_columns(self.spec))
        if x.shape[1] != n_columns:
            raise FitError(f"X must have the {n_columns} columns {', '.join(feature_columns(self.spec))}")
        if np.any(latency <= 0):
            raise FitError("latencies must be positive")
        self.n_features_in_ = x.shape[1]
        self.too_few_rows_: tuple[CompiledConfig, ...] = ()
        dims, configs, index = decode_matrix(x, self.spec)
        marks = np.zeros(len(x), dtype=np.bool_) if exhaustive is None else np.asarray(exhaustive, dtype=np.bool_)
        weight = np.ones(len(x)) if sample_weight is None else sample_weight
        weight = check_array(weight, dtype=np.float64, ensure_2d=False)
        geometry = GemmGeometry(configs, find_arch(self.arch), find_dtype(self.dtype))
        self._fit(_Training(geometry, dims, index, latency, weight, marks))
        return self

    def fit_table(self, table: MeasurementTable, sample_weight: Any = None) -> WaveLatencyModel:
        """Fit to a table of measurements; see `fit`."""
        return self.fit(encode_table(table), table.latency_us, sample_weight, table.exhaustive)

    def predict(self, X: Any) -> FloatArray:
        """Predict latencies in microseconds, shape (n_rows,).

        What the tables built from this model say: survivors with the correction of their cell, other configurations
        by their form alone.

        Raises
        ------
        ConfigError
            If a configuration was never fitted.
        """
        check_is_fitted(self, "coefficients_")
        x = check_array(X, dtype=np.float64)
        dims, configs, index = decode_matrix(x, self.spec)
        known = {entry.config: position for position, entry in enumerate(self.configs_)}
        for entry in configs:
            if entry.config not in known:
                raise ConfigError(f"{entry.config} was not among the fitted configurations")
        fitted = np.array([known[entry.config] for entry in configs], dtype=np.int64)[index]
        return self._form_latency(dims, fitted) * self._factor(dims, fitted)

    def predict_problems(self, dims: IntArray) -> FloatArray:
        """Predict the survivors on whole problems, shape (n_problems, n_survivors), microseconds.

        Raises
        ------
        FitError
            If a size is below 1.
        """
        check_is_fitted(self, "coefficients_")
        if np.any(dims < 1):
            raise FitError("problem sizes must be at least 1")
        rows, fitted = np.repeat(dims, len(self.survivors_), axis=0), np.tile(self.survivors_, len(dims))
        return (self._form_latency(rows, fitted) * self._factor(rows, fitted)).reshape(len(dims), -1)

    @on_one_thread
    def predict_undistilled(self, dims: IntArray) -> FloatArray:
        """Predict every fitted configuration on whole problems with the undistilled correction.

        What plans use to decide what to measure next; tables are never built from it.

        Returns
        -------
        ndarray of shape (n_problems, n_fitted)
            Microseconds, columns as in ``configs_``.
        """
        check_is_fitted(self, "coefficients_")
        every = np.arange(len(self.configs_))
        latency = self._corrected(np.repeat(dims, len(every), axis=0), np.tile(every, len(dims)))
        return latency.reshape(len(dims), -1) * np.exp(self._nearby(dims, doubt=0.0))

    def is_measured_range(self, dims: IntArray) -> BoolArray:
        """Tell which problems are inside the measured range: within ``bound_log2`` of a measured one."""
        check_is_fitted(self, "coefficients_")
        return self.lattice_.find(dims) >= 0

    def _fit(self, training: _Training) -> None:
        training = self._fit_forms(training)
        sample = broad_sample(self._realistic_ranges(training), N_BROAD, self.random_state)
        self.correction_: ResidualCorrection | None = None
        self.evidence_: NearbyEvidence | None = None
        self.screening_: Screening | None = None
        if training.exhaustive.any():
            self._fit_correction(training, sample)
            if self.screen:
                self.screening_ = self._screen(training)
                # Once more without what the host disturbed: now the corrected model can tell.
                training = self._fit_forms(replace(training, weight=training.weight * self.screening_.weights))
                self._fit_correction(training, sample)
        if self.cell_dims is None or len(self.cell_dims):
            self._select(training, sample)
            self._distil()

    def _fit_forms(self, training: _Training) -> _Training:
        """Fit every configuration that has enough rows; return the rows of those, renumbered."""
        configs = training.geometry.configs
        terms = training.geometry.points(training.dims, training.config_index).terms()
        weight = training.weight * np.where(training.exhaustive, EXHAUSTIVE_FORM_WEIGHT, 1.0)
        upper = largest_coefficients(training.geometry.arch)
        coefficients = fit_forms(terms, training.latency_us, weight, training.config_index, len(configs), upper)
        fitted = np.flatnonzero(~np.isnan(coefficients[:, 0]))
        if not len(fitted):
            raise FitError("no configuration has enough rows to be fitted; measure more points for each")
        renumber = np.full(len(configs), -1, dtype=np.int64)
        renumber[fitted] = np.arange(len(fitted))
        kept = renumber[training.config_index] >= 0
        self.too_few_rows_ = (*self.too_few_rows_, *(configs[i] for i in np.flatnonzero(renumber < 0)))
        self.configs_ = tuple(configs[i] for i in fitted)
        self.coefficients_ = coefficients[fitted]
        self.measured_dims_ = np.unique(training.dims[kept], axis=0)
        self._geometry = GemmGeometry(self.configs_, training.geometry.arch, training.geometry.dtype)
        return _Training(
            geometry=self._geometry,
            dims=training.dims[kept],
            config_index=renumber[training.config_index[kept]],
            latency_us=training.latency_us[kept],
            weight=training.weight[kept],
            exhaustive=training.exhaustive[kept],
        )

    def _fit_correction(self, training: _Training, sample: IntArray) -> None:
        points = self._geometry.points(training.dims, training.config_index)
        form = np.einsum("ij,ij->i", points.terms(), self.coefficients_[training.config_index])
        weight = training.weight * np.where(training.exhaustive, EXHAUSTIVE_CORRECTION_WEIGHT, 1.0)
        weight = weight * self._competitiveness(training.dims, form, self._all_forms(sample))
        residual = np.log(training.latency_us / form)
        self.correction_ = ResidualCorrection(self.random_state).fit(points, residual, weight)
        rows = np.flatnonzero(training.exhaustive)
        dims, index = training.dims[rows], training.config_index[rows]
        rest = np.log(training.latency_us[rows] / self._corrected(dims, index))
        self.evidence_ = NearbyEvidence(dims, index, rest, training.weight[rows], len(self.configs_))

    def _screen(self, training: _Training) -> Screening:
        predicted = self._corrected(training.dims, training.config_index)
        return screen_rows(training.latency_us, predicted, training.config_index, training.dims)

    def _corrected(self, dims: IntArray, config_index: IntArray) -> FloatArray:
        """Predict any fitted configuration with the undistilled correction."""
        latency = self._form_latency(dims, config_index)
        if self.correction_ is not None:
            latency = latency * np.exp(self.correction_.predict(self._geometry.points(dims, config_index)))
        return latency

    def _nearby(self, dims: IntArray, doubt: float = DOUBT) -> FloatArray:
        """Return the log factor of what was measured nearby, shape (n_problems, n_configs)."""
        if self.evidence_ is None:
            return np.zeros((len(dims), len(self.configs_)))
        return self.evidence_.log_factors(dims, doubt)

    def _realistic_ranges(self, training: _Training) -> list[tuple[int, int]]:
        rows = training.dims[training.exhaustive] if training.exhaustive.any() else training.dims
        low, high = np.percentile(np.unique(rows, axis=0), (2, 98), axis=0)
        return [(max(1, int(a)), max(1, int(b))) for a, b in zip(low, high, strict=True)]

    def _all_forms(self, dims: IntArray) -> FloatArray:
        terms = self._geometry.grid(dims).terms().reshape(len(dims), len(self.configs_), -1)
        latency: FloatArray = np.einsum("pct,ct->pc", terms, self.coefficients_)
        return latency

    def _competitiveness(self, dims: IntArray, form: FloatArray, form_sample: FloatArray) -> FloatArray:
        """Weight rows by how near the best form they are; the best is sought among frequent winners only."""
        winners = np.array(greedy_cover(form_sample, np.ones(len(form_sample)), 32), dtype=np.int64)
        problems, inverse = np.unique(dims, axis=0, return_inverse=True)
        rows, columns = np.repeat(problems, len(winners), axis=0), np.tile(winners, len(problems))
        best = self._form_latency(rows, columns).reshape(len(problems), -1).min(axis=1)
        ratio = best[inverse.reshape(-1)] / form
        weight: FloatArray = np.clip(ratio, 0.01, 1.0) ** COMPETITIVE_POWER
        return weight

    def _select(self, training: _Training, sample: IntArray) -> None:
        """Choose survivors and the default on the broad sample and on measured problems."""
        latency = self._contender_latency(sample)
        weight = np.ones(len(latency))
        realistic = self._all_forms(sample)
        if training.exhaustive.any():
            realistic = self._measured_latency(training)
            latency = np.vstack([latency, realistic])
            # Measured and predicted problems count alike in total: the measured are certain, the predicted are broad.
            weight = np.concatenate([weight, np.full(len(realistic), len(sample) / len(realistic))])
        default = greedy_cover(realistic, np.ones(len(realistic)), 1)[0]
        # The default is always a candidate, also where something else wins everywhere.
        chosen = greedy_cover(latency, weight, self.n_configs, (default,), COVER_GAIN)
        fallbacks = cover_unaligned(self.configs_, training.geometry.arch, self._all_forms(sample))
        self.survivors_ = tuple(sorted({*chosen, *fallbacks}))
        self.default_ = default

    def _contender_latency(self, dims: IntArray) -> FloatArray:
        """Predict every fitted configuration that can win, shape (n_problems, n_fitted); inf for the others."""
        form = self._all_forms(dims)
        rows, columns = np.nonzero(form <= CONTENDER_RATIO * form.min(axis=1, keepdims=True))
        latency = np.full(form.shape, np.inf)
        latency[rows, columns] = self._corrected(dims[rows], columns) * np.exp(self._nearby(dims)[rows, columns])
        return latency

    def _measured_latency(self, training: _Training) -> FloatArray:
        """Arrange realistic problems, shape (n_problems, n_fitted): measured or predicted; inf if no contender."""
        rows = training.exhaustive
        problems, inverse = np.unique(training.dims[rows], axis=0, return_inverse=True)
        latency = self._contender_latency(problems)
        latency[inverse.reshape(-1), training.config_index[rows]] = training.latency_us[rows]
        return latency

    def _distil(self) -> None:
        survivors = np.array(self.survivors_, dtype=np.int64)
        cells = cells_around(self.measured_dims_, self.bound_log2)
        if self.cell_dims is not None:
            cells = cells_of(np.asarray(self.cell_dims, dtype=np.int64), cells)

        def log_factor(dims: IntArray) -> FloatArray:
            # Column by column: the features of all at once would take gigabytes.
            smooth = np.zeros((len(dims), len(survivors)))
            if self.correction_ is not None:
                for column, config in enumerate(survivors):
                    points = self._geometry.points(dims, np.full(len(dims), config))
                    smooth[:, column] = self.correction_.predict(points)
            return smooth + self._nearby(dims)[:, survivors]

        def form_latency(dims: IntArray) -> FloatArray:
            columns = [self._form_latency(dims, np.full(len(dims), config)) for config in survivors]
            return np.stack(columns, axis=1)

        self.lattice_ = distil(cells, len(survivors), log_factor, form_latency)

    def _form_latency(self, dims: IntArray, config_index: IntArray) -> FloatArray:
        terms = self._geometry.points(dims, config_index).terms()
        latency: FloatArray = np.einsum("ij,ij->i", terms, self.coefficients_[config_index])
        return latency

    def _factor(self, dims: IntArray, config_index: IntArray) -> FloatArray:
        cell = self.lattice_.find(dims)
        column = np.full(len(self.configs_), -1, dtype=np.int64)
        column[list(self.survivors_)] = np.arange(len(self.survivors_))
        survivor = column[config_index]
        known = (cell >= 0) & (survivor >= 0)
        factor = np.ones(len(dims))
        factor[known] = np.exp(self.lattice_.correction_permille[cell[known], survivor[known]] / 1000.0)
        return factor
