"""The measures of a choice, defined once.

*Efficiency* of a choice is the best measured latency over the chosen one's, in (0, 1]; *regret* is its inverse
minus 1. Means of efficiency are geometric.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from wavetune.store.table import FloatArray

NEAR_BEST = 1.5
"""Prediction errors are judged on configurations within this ratio of the best; the others are never chosen."""


@dataclass(frozen=True, slots=True)
class Efficiency:
    """Distribution of efficiency over problems."""

    geomean: float
    p5: float
    min: float


@dataclass(frozen=True, slots=True)
class Regret:
    """Distribution of regret over problems."""

    mean: float
    p95: float
    max: float


def summarise_efficiency(efficiency: FloatArray) -> Efficiency:
    """Summarise efficiencies of shape (n_problems,); all NaN for none."""
    if not len(efficiency):
        return Efficiency(float("nan"), float("nan"), float("nan"))
    return Efficiency(
        float(np.exp(np.mean(np.log(efficiency)))), float(np.percentile(efficiency, 5)), float(efficiency.min())
    )


def summarise_regret(efficiency: FloatArray) -> Regret:
    """Summarise the regret of efficiencies of shape (n_problems,); all NaN for none."""
    if not len(efficiency):
        return Regret(float("nan"), float("nan"), float("nan"))
    regret = 1.0 / efficiency - 1.0
    return Regret(float(regret.mean()), float(np.percentile(regret, 95)), float(regret.max()))


def geometric_mean(values: Sequence[float] | FloatArray) -> float:
    """Return the geometric mean of positive values; NaN for none."""
    return float(np.exp(np.mean(np.log(values)))) if len(values) else float("nan")


def rounded(record: Efficiency | Regret) -> dict[str, float]:
    """Return a record as a dict with five decimals."""
    return {name: round(value, 5) for name, value in asdict(record).items()}


def without_nan(value: Any) -> Any:
    """Return plain data for JSON with None for NaN: where nothing was measured, there is no number."""
    if isinstance(value, Mapping):
        return {str(key): without_nan(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [without_nan(entry) for entry in value]
    return None if isinstance(value, float) and math.isnan(value) else value
