"""How far predictions are off: one by one, and by band."""

from __future__ import annotations

import math
from typing import Any

from wavetune.report.datatable import DataTable
from wavetune.report.figures.spec import LATENCIES, Figure, Trace, make_figure, make_variant
from wavetune.report.strata import STRATIFICATIONS

WAVE_CLASSES = ((1, "1 wave"), (2, "2 waves"), (4, "3-4 waves"), (8, "5-8 waves"), (math.inf, "9 or more waves"))
"""Upper end and name of each colour."""


def prediction_figure(table: DataTable) -> Figure:
    """Draw predicted against measured latency, log-log, coloured by wave count."""
    rows = table.records()
    traces: list[Trace] = []
    lower = 0.0
    for index, (upper, label) in enumerate(WAVE_CLASSES):
        for is_choice in (False, True):
            some = [row for row in rows if lower < row["waves"] <= upper and row["is_choice"] is is_choice]
            if some:
                traces.append(
                    {
                        "type": "scatter", "mode": "markers", "name": label, "legendgroup": label,
                        "showlegend": is_choice,
                        "x": [row["measured_us"] for row in some], "y": [row["predicted_us"] for row in some],
                        "text": [f"{row['m']} x {row['n']} x {row['k']}, {row['waves']} waves" for row in some],
                        "marker": {
                            "color": f"@wave{index}", "size": 9 if is_choice else 4,
                            "opacity": 1.0 if is_choice else 0.5,
                            "line": {"width": 1 if is_choice else 0, "color": "@page"},
                        },
                        "hovertemplate": "%{text}<br>measured %{x:.1f} µs, predicted %{y:.1f} µs"
                        f"<extra>{'the choice' if is_choice else 'another near-best configuration'}</extra>",
                    }
                )  # fmt: skip
        lower = upper
    if not traces:
        return make_figure([], 0)
    both = [row[name] for row in rows for name in ("measured_us", "predicted_us")]
    ends = [min(both) * 0.9, max(both) * 1.1]
    for factor, dash in ((1.0, "solid"), (1.1, "dot"), (1 / 1.1, "dot")):
        traces.append(
            {
                "type": "scatter", "mode": "lines", "x": ends, "y": [factor * end for end in ends], "hoverinfo": "skip",
                "showlegend": False, "line": {"color": "@muted", "width": 1, "dash": dash},
            }
        )  # fmt: skip
    axis = {"type": "log", "tickvals": list(LATENCIES), "ticktext": [f"{value:,}" for value in LATENCIES]}
    bounds = [math.log10(end) for end in ends]
    layout = {
        "xaxis": {**axis, "title": "measured, µs", "range": bounds},
        "yaxis": {**axis, "title": "predicted, µs", "range": bounds},
    }
    return make_figure([make_variant("", traces, layout)], 540)


def residual_figure(table: DataTable) -> Figure:
    """Draw the prediction error by band, every stratification under the other."""
    labels: list[str] = []
    rows: list[dict[str, Any]] = []
    for name in STRATIFICATIONS:
        some = [row for row in table.records() if row["stratum"] == name]
        if some and labels:
            labels.append(" " * (1 + sum(not label.strip() for label in labels)))
        labels += [str(row["band"]) for row in some]
        rows += some
    trace: Trace = {
        "type": "box", "orientation": "h", "y": [row["band"] for row in rows],
        "q1": [row["q1"] for row in rows], "median": [row["median"] for row in rows], "q3": [row["q3"] for row in rows],
        "lowerfence": [row["p5"] for row in rows], "upperfence": [row["p95"] for row in rows],
        "line": {"color": "@accent", "width": 1.5}, "fillcolor": "@band", "showlegend": False, "hoveron": "boxes",
        "whiskerwidth": 0.4, "name": "",
    }  # fmt: skip
    layout = {
        "xaxis": {"title": "predicted over measured, minus 1", "tickformat": "+.0%", "zeroline": True},
        "yaxis": {
            "categoryorder": "array",
            "categoryarray": labels[::-1],
            "showgrid": False,
            "range": [-0.7, len(labels) - 0.3],
        },
    }
    return make_figure([make_variant("", [trace], layout)] if rows else [], 90 + 19 * len(labels))
