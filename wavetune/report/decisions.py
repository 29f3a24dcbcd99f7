"""What is chosen along m for one weight matrix, and where in (m, n) choices lose."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from wavetune.core.arch import find_arch
from wavetune.core.problem import GemmProblem
from wavetune.core.shorthand import describe_config
from wavetune.report.accuracy import ShapeResult
from wavetune.report.datatable import DataTable, make_table
from wavetune.runtime.chooser import GemmChooser
from wavetune.runtime.model_file import ModelFile

N_LAYERS = 6
"""Weight matrices that are drawn: those measured at the most m."""

N_ROWS = 120
"""Values of m between the smallest and the largest, log-spaced, at which the choice is drawn."""


def decision_map(model: ModelFile, results: Sequence[ShapeResult]) -> DataTable:
    """Tabulate the choice along m for the weight matrices that were measured at the most m."""
    by_layer: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for result in results:
        by_layer[result.dims[1:]].append(result.dims[0])
    # Of layers with equally many, the largest first: there the waves are many and the choice changes often.
    layers = sorted(by_layer, key=lambda layer: (-len(by_layer[layer]), -layer[0] * layer[1], layer))
    chooser = GemmChooser(model, find_arch(model.arch), use_exact=False)
    low, high = min(result.dims[0] for result in results), max(result.dims[0] for result in results)
    spaced = np.unique(np.round(np.geomspace(low, high, N_ROWS)).astype(np.int64)).tolist()
    rows = []
    for n, k in layers[:N_LAYERS]:
        for m in sorted({*spaced, *by_layer[n, k]}):
            choice = chooser.explain(GemmProblem(m, n, k, model.dtype, model.layout))
            rows.append((n, k, m, describe_config(choice.config), choice.source.value, choice.waves, choice.latency_us))
    return make_table(
        "decisions",
        "The chosen configuration along m, for the (n, k) that were measured at the most m",
        ("n", "k", "m", "config", "source", "waves", "predicted_us"),
        rows,
    )


def regret_map(results: Sequence[ShapeResult]) -> DataTable:
    """Gather regret by octave of m and n: an octave named 64 holds the sizes in (32, 64]."""
    cells: dict[tuple[int, int], list[float]] = defaultdict(list)
    for result in results:
        if not np.isnan(result.measured_us):
            m, n = (1 << (size - 1).bit_length() for size in result.dims[:2])
            cells[m, n].append(1.0 / result.efficiency - 1.0)
    return make_table(
        "regret_map",
        "Regret by octave of m and n: an octave named 64 holds the sizes in (32, 64]",
        ("m_octave", "n_octave", "shapes", "mean_regret", "worst_regret"),
        [(m, n, len(regret), float(np.mean(regret)), max(regret)) for (m, n), regret in sorted(cells.items())],
    )


def regret_distribution(results: Sequence[ShapeResult]) -> DataTable:
    """Sort regrets: of the choice, of the best of the top 3 if they were measured, and of the default."""
    rows = []
    for name, attribute in (("choice", "measured_us"), ("best of top 3", "top3_us"), ("default", "default_us")):
        regret = np.array([getattr(result, attribute) / result.best_us - 1.0 for result in results])
        known = np.sort(regret[~np.isnan(regret)])
        rows += [(name, value, (rank + 1) / len(known)) for rank, value in enumerate(known.tolist())]
    return make_table(
        "regret", "Empirical distribution of regret over the shapes", ("method", "regret", "share_of_shapes"), rows
    )
