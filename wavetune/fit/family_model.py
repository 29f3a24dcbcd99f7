"""Fit any kernel from its mapping: one non-negative form a configuration.

What `wavetune.fit.model` does for GEMM, without what only a GEMM has (survivors of hundreds of configurations, cells):
the owner of a kernel lists the few configurations that are worth trying. `wavetune.fit.family_correction` adds a smooth
factor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from wavetune.core.arch import ArchSpec
from wavetune.errors import FitError
from wavetune.fit.points import resident_ctas
from wavetune.fit.solver import MIN_ROWS, fit_forms
from wavetune.mapping.kernel_mapping import LaunchShape
from wavetune.runtime.family_chooser import Shaper
from wavetune.runtime.family_correction import CorrectionTrees, FamilyCorrection
from wavetune.store.record import CompiledConfig
from wavetune.store.table import FloatArray, IntArray, MeasurementTable
from wavetune.waves.family_terms import FAMILY_TERMS, N_BASIC_TERMS, family_terms
from wavetune.waves.terms import BYTES_PER_MB

DIGITS = 10
"""Significant digits of a coefficient: what the file holds is what was fitted."""


ROWS_FOR_ALL_TERMS = 100
"""Rows of a configuration from which terms beyond the basic ones are fitted; calibrations of users' kernels have fewer,
and what is right for hundreds of rows would be noise there."""


@dataclass(frozen=True)
class FamilyPoints:
    """Launches by column; every array has shape (n_points,) and is float64, counts included.

    Parameters
    ----------
    grid_size, loop_trips, total_trips : ndarray
        As in `wavetune.mapping.kernel_mapping.LaunchShape`.
    moved_mb : ndarray
        Megabytes (1e6 bytes) that move through DRAM.
    ctas_per_sm : ndarray
        Resident CTAs of each point's configuration.
    num_sms : int
        SMs of the GPU.
    """

    grid_size: FloatArray
    loop_trips: FloatArray
    total_trips: FloatArray
    moved_mb: FloatArray
    ctas_per_sm: FloatArray
    num_sms: int

    @classmethod
    def of(cls, shapes: Sequence[LaunchShape], ctas_per_sm: IntArray, num_sms: int) -> FamilyPoints:
        """Arrange launches and the residency of their configurations."""
        return cls(
            grid_size=np.array([shape.grid_size for shape in shapes], dtype=np.float64),
            loop_trips=np.array([shape.loop_trips for shape in shapes], dtype=np.float64),
            total_trips=np.array([shape.total_trips for shape in shapes], dtype=np.float64),
            moved_mb=np.array([shape.moved_bytes for shape in shapes], dtype=np.float64) / BYTES_PER_MB,
            ctas_per_sm=ctas_per_sm.astype(np.float64),
            num_sms=num_sms,
        )

    def terms(self) -> FloatArray:
        """Return the design matrix, shape (n_points, len(FAMILY_TERMS))."""
        values = family_terms(
            grid_size=self.grid_size,
            loop_trips=self.loop_trips,
            total_trips=self.total_trips,
            waves=np.ceil(self.grid_size / (self.ctas_per_sm * self.num_sms)),
            depth=np.ceil(self.grid_size / self.num_sms),
            ctas_per_sm=self.ctas_per_sm,
            num_sms=self.num_sms,
            moved_mb=self.moved_mb,
        )
        return np.stack(np.broadcast_arrays(*values), axis=1)


@dataclass(frozen=True)
class FamilyFit:
    """A fitted kernel.

    Parameters
    ----------
    configs : tuple of CompiledConfig
        Configurations with a form.
    ctas_per_sm : ndarray of shape (n_fitted,)
        Their residency.
    coefficients : ndarray of shape (n_fitted, len(FAMILY_TERMS))
        Non-negative; units in `wavetune.waves.family_terms.FAMILY_TERM_UNITS`.
    default : int
        The single best of them over the measured keys.
    too_few_rows : tuple of CompiledConfig
        Configurations that were left out.
    relative_error : float
        Median of ``|predicted / measured - 1|`` of the forms over the fitted rows.
    correction : FamilyCorrection or None
        What the forms miss, see `wavetune.fit.family_correction`.
    """

    configs: tuple[CompiledConfig, ...]
    ctas_per_sm: IntArray
    coefficients: FloatArray
    default: int
    too_few_rows: tuple[CompiledConfig, ...]
    relative_error: float
    correction: FamilyCorrection | None = None


def fit_family(table: MeasurementTable, shape: Shaper, arch: ArchSpec) -> FamilyFit:
    """Fit the forms of every configuration that has enough rows.

    Parameters
    ----------
    table : MeasurementTable
        Latencies by key and configuration.
    shape : callable
        The kernel's mapping.
    arch : ArchSpec
        GPU that was measured.

    Raises
    ------
    FitError
        If no configuration has enough rows.
    InfeasibleConfigError
        If a configuration does not fit on an SM of ``arch``.
    """
    resident = resident_ctas(table.configs, arch)
    terms = _points(table, shape, resident, arch).terms()
    weight = np.ones(len(table))
    coefficients = fit_forms(terms, table.latency_us, weight, table.config_index, len(table.configs))
    few = np.bincount(table.config_index, minlength=len(table.configs)) < ROWS_FOR_ALL_TERMS
    if few.any():
        basic = fit_forms(terms[:, :N_BASIC_TERMS], table.latency_us, weight, table.config_index, len(table.configs))
        coefficients[few] = np.pad(basic[few], ((0, 0), (0, len(FAMILY_TERMS) - N_BASIC_TERMS)))
    fitted = np.flatnonzero(~np.isnan(coefficients[:, 0]))
    if not len(fitted):
        raise FitError(
            f"no configuration of {table.spec.name} was measured on {MIN_ROWS} keys or more; give more calibration keys"
        )
    # Rounded here, so that what is judged below is what the file will say.
    kept = np.array([[float(f"{value:.{DIGITS}g}") for value in row] for row in coefficients[fitted]])
    position = np.full(len(table.configs), -1)
    position[fitted] = np.arange(len(fitted))
    rows = position[table.config_index] >= 0
    predicted = np.einsum("ij,ij->i", terms[rows], kept[position[table.config_index[rows]]])
    return FamilyFit(
        configs=tuple(table.configs[index] for index in fitted),
        ctas_per_sm=resident[fitted],
        coefficients=kept,
        default=_best_alone(table, fitted),
        too_few_rows=tuple(table.configs[index] for index in np.flatnonzero(position < 0)),
        relative_error=float(np.median(np.abs(predicted / table.latency_us[rows] - 1.0))),
    )


def predict_family(fit: FamilyFit, dims: Sequence[tuple[int, ...]], shape: Shaper, arch: ArchSpec) -> FloatArray:
    """Predict every fitted configuration on every key, shape (n_keys, n_fitted), microseconds."""
    latency = predict_forms(fit, dims, shape, arch)
    if fit.correction is None:
        return latency
    configs = [entry.config for entry in fit.configs]
    trees = CorrectionTrees(fit.correction, configs, fit.ctas_per_sm.tolist())
    places = range(len(configs))
    return np.array(
        [
            trees.correct(row, places, sizes, [shape(sizes, config) for config in configs], arch.num_sms)
            for row, sizes in zip(latency.tolist(), dims, strict=True)
        ]
    )


def predict_forms(fit: FamilyFit, dims: Sequence[tuple[int, ...]], shape: Shaper, arch: ArchSpec) -> FloatArray:
    """Predict as `predict_family` does, by the forms alone."""
    shapes = [shape(sizes, entry.config) for sizes in dims for entry in fit.configs]
    points = FamilyPoints.of(shapes, np.tile(fit.ctas_per_sm, len(dims)), arch.num_sms)
    terms = points.terms().reshape(len(dims), len(fit.configs), -1)
    latency: FloatArray = np.einsum("kct,ct->kc", terms, fit.coefficients)
    return latency


def _points(table: MeasurementTable, shape: Shaper, resident: IntArray, arch: ArchSpec) -> FamilyPoints:
    shapes = [
        shape(tuple(sizes), table.configs[index].config)
        for sizes, index in zip(table.dims.tolist(), table.config_index.tolist(), strict=True)
    ]
    return FamilyPoints.of(shapes, resident[table.config_index], arch.num_sms)


def _best_alone(table: MeasurementTable, fitted: IntArray) -> int:
    """Return the position in ``fitted`` of the configuration that loses least, over keys that others have as well."""
    _, latency = table.latency_matrix()
    regret = np.log(latency[:, fitted] / np.nanmin(latency, axis=1, keepdims=True))
    # A key on which a configuration was not measured counts as a loss of a factor of two.
    return int(np.argmin(np.where(np.isnan(regret), np.log(2.0), regret).mean(axis=0)))
