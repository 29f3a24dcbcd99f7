"""The wave staircase and the bilinear surface."""

from __future__ import annotations

import math

from wavetune.report.datatable import DataTable
from wavetune.report.figures.spec import LATENCIES, SCALE, Figure, Trace, make_figure, make_variant, octave_ticks
from wavetune.report.staircase import MAX_WAVES


def staircase_figure(series: DataTable, points: DataTable, curve: DataTable) -> Figure:
    """Draw measured points and the fitted form over the grid size, with the edges of waves."""
    variants = []
    for drawn in series.records():
        key = (drawn["config"], drawn["loop_trips"])
        line = [row for row in curve.records() if (row["config"], row["loop_trips"]) == key]
        largest = line[-1]["grid_size"]
        measured = [
            row
            for row in points.records()
            if (row["config"], row["loop_trips"]) == key and row["grid_size"] <= 1.02 * largest
        ]
        traces: list[Trace] = [
            {
                "type": "scatter", "mode": "lines", "name": "fitted form",
                "x": [row["grid_size"] for row in line], "y": [row["predicted_us"] for row in line],
                "line": {"color": "@accent", "width": 2},
                "hovertemplate": "%{x} CTAs: %{y:.1f} µs<extra>fitted form, square grid</extra>",
            }
        ]  # fmt: skip
        for square, label, marker in (
            (True, "measured", {"color": "@ink", "size": 7}),
            (False, "measured, flat grid", {"color": "@page", "size": 6, "line": {"color": "@muted", "width": 1}}),
        ):
            some = [row for row in measured if row["square"] is square]
            if some:
                traces.append(
                    {
                        "type": "scatter", "mode": "markers", "name": label, "marker": marker,
                        "x": [row["grid_size"] for row in some], "y": [row["measured_us"] for row in some],
                        "text": [
                            f"{row['m']} x {row['n']} x {row['k']}: predicted {row['predicted_us']:.1f} µs"
                            for row in some
                        ],
                        "hovertemplate": "%{x} CTAs: measured %{y:.1f} µs<br>%{text}<extra></extra>",
                    }
                )  # fmt: skip
        edges = [drawn["wave_width"] * wave for wave in range(1, MAX_WAVES + 1)]
        edges = [edge for edge in edges if edge <= 1.02 * largest]
        layout = {
            "xaxis": {"title": "CTAs in the grid", "range": [0, 1.05 * largest], "showgrid": False},
            "yaxis": {"title": "latency, µs", "rangemode": "tozero"},
            "shapes": [
                {
                    "type": "line", "x0": edge, "x1": edge, "yref": "paper", "y0": 0, "y1": 1, "layer": "below",
                    "line": {"color": "@line", "width": 1},
                }
                for edge in edges
            ],
            "annotations": [
                {
                    "x": edge, "y": 1, "yref": "paper", "yanchor": "bottom", "showarrow": False,
                    "text": f"{wave}" if wave > 1 else "1 wave", "font": {"color": "@muted", "size": 11},
                }
                for wave, edge in enumerate(edges, 1)
            ],
        }  # fmt: skip
        variants.append(make_variant(f"{drawn['config']}, {drawn['loop_trips']} trips", traces, layout))
    return make_figure(variants, 400)


def surface_figure(points: DataTable, surface: DataTable) -> Figure:
    """Draw the form over grid and trips, and measured points in the same colours: where they fit, they vanish."""
    variants = []
    for config in dict.fromkeys(surface.column("config")):
        rows = [row for row in surface.records() if row["config"] == config]
        grids, trips = (sorted({row[name] for row in rows}) for name in ("grid_size", "loop_trips"))
        by_key = {(row["grid_size"], row["loop_trips"]): row["predicted_us"] for row in rows}
        square = [row for row in points.records() if row["config"] == config and row["square"]]
        low, high = (
            f(math.log10(value) for value in [*by_key.values(), *(row["measured_us"] for row in square)])
            for f in (min, max)
        )
        ticks = [value for value in LATENCIES if low <= math.log10(value) <= high]
        traces: list[Trace] = [
            {
                "type": "contour", "x": [math.log2(g) for g in grids], "y": [math.log2(t) for t in trips],
                "z": [[math.log10(by_key[g, t]) for g in grids] for t in trips],
                "customdata": [[[g, t, by_key[g, t]] for g in grids] for t in trips],
                "coloraxis": "coloraxis", "contours": {"coloring": "heatmap"}, "line": {"width": 0.5, "color": "@page"},
                "ncontours": 14, "name": "fitted form",
                "hovertemplate": "%{customdata[0]} CTAs, %{customdata[1]} trips: %{customdata[2]:.1f} µs"
                "<extra>fitted form</extra>",
            },
            {
                "type": "scatter", "mode": "markers", "name": "measured",
                "x": [math.log2(row["grid_size"]) for row in square],
                "y": [math.log2(row["loop_trips"]) for row in square],
                "customdata": [
                    [row[name] for name in ("grid_size", "loop_trips", "measured_us", "predicted_us")] for row in square
                ],
                "marker": {
                    "size": 10, "coloraxis": "coloraxis", "color": [math.log10(row["measured_us"]) for row in square],
                    "line": {"width": 1, "color": "@ink"},
                },
                "hovertemplate": "%{customdata[0]} CTAs, %{customdata[1]} trips: measured %{customdata[2]:.1f} µs, "
                "predicted %{customdata[3]:.1f} µs<extra></extra>",
            },
        ]  # fmt: skip
        layout = {
            "xaxis": {"title": "CTAs in the grid", "zeroline": False, **octave_ticks(grids)},
            "yaxis": {"title": "loop trips", "zeroline": False, **octave_ticks(trips)},
            "coloraxis": {
                "colorscale": SCALE, "cmin": low, "cmax": high,
                "colorbar": {
                    "title": {"text": "µs"}, "tickvals": [math.log10(value) for value in ticks],
                    "ticktext": [f"{value:,}" for value in ticks], "thickness": 10, "outlinewidth": 0,
                },
            },
            "showlegend": False,
        }  # fmt: skip
        variants.append(make_variant(str(config), traces, layout))
    return make_figure(variants, 420)
