"""The exact table: measured problems and their best configuration."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from wavetune.core.config import KernelConfig
from wavetune.store.table import MeasurementTable

SURVIVOR_MARGIN = 0.01
"""A configuration outside the survivors must be faster by more than this to enter: the set of kernels that a server
may need stays small, and near-best latencies repeat only within 1 to 2.5 % (H200, 2026-11)."""

MIN_CONFIGS = 16
"""A problem measured with fewer configurations has no known best one."""


def best_measured(
    table: MeasurementTable, survivors: Mapping[KernelConfig, int]
) -> dict[tuple[int, ...], tuple[int, float]]:
    """Find the best configuration of every exhaustively measured problem.

    Parameters
    ----------
    table : MeasurementTable
        Rows marked ``exhaustive`` count.
    survivors : mapping of KernelConfig to int
        Configurations that the tables hold anyway.

    Returns
    -------
    dict of tuple of int to (int, float)
        Sizes to (index into ``table.configs``, latency in microseconds).
    """
    rows = table.select(table.exhaustive)
    if not len(rows):
        return {}
    problems, latency = rows.latency_matrix()
    kept = np.array([entry.config in survivors for entry in table.configs])
    best: dict[tuple[int, ...], tuple[int, float]] = {}
    for sizes, measured in zip(problems.tolist(), latency, strict=True):
        if np.count_nonzero(~np.isnan(measured)) < min(MIN_CONFIGS, len(table.configs)):
            continue
        index = int(np.nanargmin(measured))
        among = np.where(kept, measured, np.nan)
        if not np.isnan(among).all() and np.nanmin(among) <= measured[index] * (1.0 + SURVIVOR_MARGIN):
            index = int(np.nanargmin(among))
        best[tuple(sizes)] = (index, float(measured[index]))
    return best
