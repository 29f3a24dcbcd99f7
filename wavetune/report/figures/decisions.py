"""The decision map: what is chosen along m, beside what was measured fastest."""

from __future__ import annotations

import math
import statistics

from wavetune.report.datatable import DataTable
from wavetune.report.figures.spec import Figure, Trace, log_ticks, make_figure, make_variant

SHOWN_LOSS = 0.01
"""A choice that loses no more is drawn as a hit: near-best latencies repeat within 1 to 2.5 %."""


def decision_figure(decisions: DataTable, shapes: DataTable) -> Figure:
    """Draw the chosen configuration along m for one (n, k), and the measured best where it is known."""
    variants = []
    for n, k in dict.fromkeys(zip(decisions.column("n"), decisions.column("k"), strict=True)):
        line = [row for row in decisions.records() if (row["n"], row["k"]) == (n, k)]
        known = [row for row in shapes.records() if (row["n"], row["k"]) == (n, k) and row["regret"] is not None]
        missed = [row for row in known if row["regret"] > SHOWN_LOSS]
        configs = _by_rows([(row["config"], row["m"]) for row in line] + [(row["best"], row["m"]) for row in known])
        traces: list[Trace] = [
            {
                "type": "scatter", "mode": "lines", "name": "chosen",
                "x": [row["m"] for row in line], "y": [row["config"] for row in line],
                "text": [f"{row['predicted_us']:.1f} µs predicted, {row['waves']} waves" for row in line],
                "line": {"color": "@accent", "width": 3, "shape": "hv"},
                "hovertemplate": "m = %{x}: %{y}<br>%{text}<extra>chosen</extra>",
            },
            {
                "type": "scatter", "mode": "lines", "name": "lost", "showlegend": False, "hoverinfo": "skip",
                "x": [value for row in missed for value in (row["m"], row["m"], None)],
                "y": [value for row in missed for value in (row["choice"], row["best"], None)],
                "line": {"color": "@muted", "width": 1, "dash": "dot"},
            },
            {
                "type": "scatter", "mode": "markers+text", "name": "measured best",
                "x": [row["m"] for row in known], "y": [row["best"] for row in known],
                "text": [f"+{row['regret']:.0%}" if row["regret"] > SHOWN_LOSS else "" for row in known],
                "textposition": "middle right", "textfont": {"color": "@muted", "size": 11},
                "customdata": [[row["best_us"], row["measured_us"], row["regret"]] for row in known],
                "marker": {"color": "@page", "size": 11, "line": {"color": "@ink", "width": 2}},
                "hovertemplate": "m = %{x}: best %{y}, %{customdata[0]:.1f} µs<br>the choice takes "
                "%{customdata[1]:.1f} µs, %{customdata[2]:+.1%}<extra>measured</extra>",
            },
        ]  # fmt: skip
        layout = {
            "xaxis": {"title": "rows m", "type": "log", **log_ticks([row["m"] for row in line])},
            "yaxis": {
                "categoryorder": "array", "categoryarray": configs, "range": [-0.6, len(configs) - 0.4],
                "tickvals": configs, "ticktext": configs, "tickfont": {"size": 10.5},
            },
        }  # fmt: skip
        # On a narrow screen the tiles alone have to do; the rest is a touch away.
        narrow = {"yaxis": {"ticktext": [config.split(" ")[0] for config in configs], "tickfont": {"size": 9}}}
        variants.append(make_variant(f"n = {n}, k = {k}", traces, layout, narrow))
    tallest = max((len(variant["layout"]["yaxis"]["categoryarray"]) for variant in variants), default=0)
    return make_figure(variants, 120 + 22 * tallest)


def _by_rows(appearances: list[tuple[str, int]]) -> list[str]:
    """Order configurations by the m at which they appear: the line then climbs from left to right."""
    logs: dict[str, list[float]] = {}
    for config, m in appearances:
        logs.setdefault(config, []).append(math.log2(m))
    return sorted(logs, key=lambda config: (statistics.median(logs[config]), config))
