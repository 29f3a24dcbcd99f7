"""How well a careless exhaustive sweep chooses: what is left of a regret when noise is taken out."""

from __future__ import annotations

import numpy as np

from wavetune.report.datatable import DataTable, make_table
from wavetune.store.table import MeasurementTable

MIN_CONFIGS = 2
"""A problem with fewer configurations in both measurements leaves nothing to confuse."""


def replay_noise(sweep: MeasurementTable, repeat: MeasurementTable) -> DataTable:
    """Take the fastest configuration of the sweep and look at what a second measurement says of it.

    Parameters
    ----------
    sweep, repeat : MeasurementTable
        Two measurements of some common problems; the second may be of the sweep's finalists only.

    Returns
    -------
    DataTable
        A row for each common problem: the regret, in the repeat, of the configuration that was the fastest of
        those in both when they were first measured.
    """
    position = {entry.config: index for index, entry in enumerate(sweep.configs)}
    first_problems, first = sweep.latency_matrix()
    first_row = {tuple(dims): row for row, dims in enumerate(first_problems.tolist())}
    problems, second = repeat.latency_matrix()
    common = [(j, position[entry.config]) for j, entry in enumerate(repeat.configs) if entry.config in position]
    columns = np.array(common, dtype=np.int64).reshape(-1, 2)
    rows = []
    for dims, again in zip(problems.tolist(), second[:, columns[:, 0]], strict=True):
        if tuple(dims) not in first_row:
            continue
        before = first[first_row[tuple(dims)], columns[:, 1]]
        both = ~np.isnan(before) & ~np.isnan(again)
        if both.sum() >= MIN_CONFIGS:
            picked = int(np.argmin(np.where(both, before, np.inf)))
            rows.append((*dims, int(both.sum()), float(again[picked] / np.min(again[both]) - 1.0)))
    return make_table(
        "noise",
        "Regret of the sweep's fastest configuration when it was measured again",
        (*sweep.spec.dims, "configs", "regret"),
        rows,
    )
