"""An analysis as CSV: QuickTune's columns, column-major as there, and ours behind them."""

from __future__ import annotations

import contextlib
import csv
import io
import math
from typing import Any

from wavetune.core.shorthand import describe_config
from wavetune.errors import WorkloadError
from wavetune.report.workload_analysis import AnalysedEntry, Analysis, Totals
from wavetune.workloads.quicktune_export import KEY_COLUMNS, key_cells, ratio_cell

SIZES = ("m", "n", "k")
QUICKTUNE_COLUMNS = (
    *SIZES, "count", "baseline_latency(us)", "baseline_solution_idx", "tuned_latency(us)", "tuned_solution_idx",
    "baseline/tuned", "total_baseline_time(us)", "total_tuned_time(us)", "baseline_time_percent", "tuned_time_percent",
)  # fmt: skip
OUR_COLUMNS = (
    *KEY_COLUMNS[len(SIZES) :], "operation", "dtype", "layout", "class", "chosen_latency(us)", "candidates", "bound",
    "peak_share", "status",
)  # fmt: skip
"""Leading dimensions and types are filled where they say all of the key."""


def analysis_csv(analysis: Analysis) -> str:
    """Return the text of the file: entries by share of baseline time, those without a result, and the total."""
    total = analysis.total
    text = io.StringIO()
    writer = csv.DictWriter(text, [*QUICKTUNE_COLUMNS, *OUR_COLUMNS], restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(_cells(row, total) for row in analysis.rows)
    last = dict.fromkeys([*QUICKTUNE_COLUMNS, *OUR_COLUMNS], "-")
    last |= {
        "total_baseline_time(us)": f"{total.baseline_us:.3f}", "total_tuned_time(us)": f"{total.best_us:.3f}",
        "baseline_time_percent": "100.00", "tuned_time_percent": "100.00",
    }  # fmt: skip
    writer.writerow(last)
    return text.getvalue()


def _cells(row: AnalysedEntry, total: Totals) -> dict[str, Any]:
    key = row.entry.key
    # Column-major: m and n change places.
    cells: dict[str, Any] = {"m": key.n, "n": key.m, "k": key.k}
    with contextlib.suppress(WorkloadError):
        cells |= key_cells(key)
    cells |= {
        "count": row.entry.count, "operation": key.operation, "dtype": key.dtype, "layout": key.layout,
        "class": key.size_class, "status": row.reason or "SUCCESS",
    }  # fmt: skip
    if row.reason or row.baseline is None or row.best is None:
        return cells
    return cells | {
        "baseline_latency(us)": f"{row.baseline_us:.3f}",
        "baseline_solution_idx": describe_config(row.baseline),
        "tuned_latency(us)": f"{row.best_us:.3f}",
        "tuned_solution_idx": describe_config(row.best),
        "baseline/tuned": ratio_cell(row.baseline_us, row.best_us),
        "total_baseline_time(us)": f"{row.total_baseline_us:.3f}",
        "total_tuned_time(us)": f"{row.total_best_us:.3f}",
        "baseline_time_percent": f"{100 * row.total_baseline_us / total.baseline_us:.2f}",
        "tuned_time_percent": f"{100 * row.total_best_us / total.best_us:.2f}",
        "chosen_latency(us)": "" if math.isnan(row.chosen_us) else f"{row.chosen_us:.3f}",
        "candidates": row.candidates,
        "bound": row.bound,
        "peak_share": f"{row.peak_share:.3f}",
    }
