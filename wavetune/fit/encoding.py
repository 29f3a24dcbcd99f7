"""Measurements as the numeric matrix X of a scikit-learn estimator, and back."""

from __future__ import annotations

import numpy as np

from wavetune.core.config import FieldValue, KernelSpec
from wavetune.errors import FitError
from wavetune.fit.points import encode_configs
from wavetune.store.record import CompiledConfig
from wavetune.store.table import FloatArray, IntArray, MeasurementTable, sort_configs

COMPILED_FACTS = ("num_regs", "num_spills", "smem_bytes")


def feature_columns(spec: KernelSpec) -> tuple[str, ...]:
    """Return the columns of X: problem sizes, configuration fields, compiled facts."""
    return spec.dims + spec.fields + COMPILED_FACTS


def encode_table(table: MeasurementTable) -> FloatArray:
    """Return X of shape (n_rows, len(feature_columns)); words become their position in ``spec.words``."""
    facts = np.array([[getattr(c, name) for name in COMPILED_FACTS] for c in table.configs], dtype=np.int64)
    per_config = np.hstack([encode_configs(table.configs, table.spec), facts.reshape(len(table.configs), -1)])
    return np.hstack([table.dims, per_config[table.config_index]]).astype(np.float64)


def decode_matrix(x: FloatArray, spec: KernelSpec) -> tuple[IntArray, tuple[CompiledConfig, ...], IntArray]:
    """Take X apart.

    Returns
    -------
    dims : ndarray of shape (n_rows, n_dims)
    configs : tuple of CompiledConfig
        Distinct, in table order.
    config_index : ndarray of shape (n_rows,)

    Raises
    ------
    FitError
        If a value is not a whole number, or a field is impossible.
    """
    whole = np.rint(x)
    if not np.array_equal(whole, x):
        column = feature_columns(spec)[int(np.argwhere(whole != x)[0][1])]
        raise FitError(f"column {column} of X must hold whole numbers")
    rows = whole.astype(np.int64)
    n_dims, n_fields = len(spec.dims), len(spec.fields)
    unique, inverse = np.unique(rows[:, n_dims:], axis=0, return_inverse=True)
    configs = []
    for values in unique.tolist():
        fields: dict[str, FieldValue] = {}
        for name, value in zip(spec.fields, values, strict=False):
            words = spec.words.get(name)
            if words is not None and not 0 <= value < len(words):
                raise FitError(f"column {name} of X must be in [0, {len(words)}), got {value}")
            fields[name] = words[value] if words is not None else value
        configs.append(CompiledConfig(spec.config(fields), *values[n_fields:]))
    ordered = sort_configs(configs)
    position = np.array([ordered.index(config) for config in configs], dtype=np.int64)
    return rows[:, :n_dims], ordered, position[inverse.reshape(-1)]
