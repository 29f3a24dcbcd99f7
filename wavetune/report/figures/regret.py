"""How much choices lose: the distribution, and where in (m, n)."""

from __future__ import annotations

from typing import Any

from wavetune.report.datatable import DataTable
from wavetune.report.figures.spec import SCALE, Figure, Trace, make_figure, make_variant


def regret_figure(regret: DataTable, noise: dict[str, Any] | None) -> Figure:
    """Draw the empirical distribution of regret, with the noise band."""
    styles = {
        "choice": {"color": "@accent", "width": 3},
        "best of top 3": {"color": "@accent", "width": 1.5, "dash": "dot"},
        "default": {"color": "@muted", "width": 1.5},
    }
    names = {
        "choice": "the choice",
        "best of top 3": "best of its top 3, measured",
        "default": "one fixed configuration",
    }
    traces: list[Trace] = []
    for method, style in styles.items():
        rows = [row for row in regret.records() if row["method"] == method]
        if rows:
            traces.append(
                {
                    "type": "scatter", "mode": "lines", "name": names[method],
                    "x": [0.0, *(row["regret"] for row in rows)], "y": [0.0, *(row["share_of_shapes"] for row in rows)],
                    "line": {"shape": "hv", **style},
                    "hovertemplate": "%{y:.0%} of the shapes lose at most %{x:.1%}<extra>" + names[method] + "</extra>",
                }
            )  # fmt: skip
    worst = max((row["regret"] for row in regret.records() if row["method"] == "choice"), default=0.1)
    layout: dict[str, Any] = {
        "xaxis": {"title": "slower than the best by", "tickformat": ".0%", "range": [0, 1.15 * max(worst, 0.05)]},
        "yaxis": {"title": "share of the shapes", "tickformat": ".0%", "range": [0, 1.02]},
    }
    if noise:
        layout["shapes"] = [
            {
                "type": "rect", "xref": "x", "yref": "paper", "x0": 0, "x1": noise["p95"], "y0": 0, "y1": 1,
                "fillcolor": "@band", "line": {"width": 0}, "layer": "below",
            }
        ]  # fmt: skip
        layout["annotations"] = [
            {
                "x": noise["p95"], "y": 0.5, "xref": "x", "yref": "paper", "text": "noise", "showarrow": False,
                "xanchor": "left", "xshift": 4, "font": {"color": "@muted"},
            }
        ]  # fmt: skip
    return make_figure([make_variant("", traces, layout)], 360)


def regret_map_figure(table: DataTable) -> Figure:
    """Draw the worst regret by octave of m and n."""
    rows = table.records()
    ms, ns = (sorted({row[name] for row in rows}) for name in ("m_octave", "n_octave"))
    by_key = {(row["m_octave"], row["n_octave"]): row for row in rows}
    cells = [[by_key.get((m, n)) for m in ms] for n in ns]
    trace: Trace = {
        "type": "heatmap", "x": [str(m) for m in ms], "y": [str(n) for n in ns],
        "z": [[cell["worst_regret"] if cell else None for cell in line] for line in cells],
        "text": [[f"{cell['worst_regret']:.0%}" if cell else "" for cell in line] for line in cells],
        "customdata": [[[cell["shapes"], cell["mean_regret"]] if cell else [0, 0] for cell in line] for line in cells],
        "texttemplate": "%{text}", "hoverongaps": False, "xgap": 2, "ygap": 2, "colorscale": SCALE, "zmin": 0,
        "colorbar": {"tickformat": ".0%", "thickness": 10, "outlinewidth": 0},
        "hovertemplate": "m up to %{x}, n up to %{y}: worst %{z:.1%}, mean %{customdata[1]:.1%} "
        "of %{customdata[0]} shapes<extra></extra>",
    }  # fmt: skip
    layout = {
        "xaxis": {"title": "rows m, up to", "type": "category", "showgrid": False},
        "yaxis": {"title": "columns n, up to", "type": "category", "showgrid": False},
    }
    return make_figure([make_variant("", [trace], layout)] if rows else [], 150 + 30 * len(ns))
