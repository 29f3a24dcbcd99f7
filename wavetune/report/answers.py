"""One sentence under the title of each section: what its numbers say. Data in, words out."""

from __future__ import annotations

from typing import Any

from wavetune.report.datatable import DataTable
from wavetune.report.document import ReportDocument
from wavetune.report.metrics import NEAR_BEST

LARGE_REGRET = 0.1
"""A tenth slower than the best is what a reader would want to know of."""

MIN_SHAPES = 3
"""A cell with fewer shapes is not called the worst."""

MIN_ROWS = 20
"""A band with fewer rows is not called the best or the worst."""


def answer_questions(document: ReportDocument) -> dict[str, str]:
    """Return the sentence of each section by name; sections without numbers have none."""
    tables, facts = document.tables, document.facts
    answers = {
        "regret": _regret(tables["shapes"], facts["noise"]),
        "strata": _strata(tables["strata"]),
        "predictions": _predictions(facts["headline"]),
        "residuals": _residuals(tables["residuals"]),
        "decisions": _decisions(tables["shapes"]),
        "regret_map": _regret_map(tables["regret_map"]),
        "disturbed": _disturbed(tables["disturbed"], facts),
    }
    if len(tables.get("wave_points", ())):
        answers["staircase"] = _staircase(tables["wave_points"])
    return {name: text for name, text in answers.items() if text}


def _regret(shapes: DataTable, noise: dict[str, Any] | None) -> str:
    regret = [value for value in shapes.column("regret") if value is not None]
    if not regret:
        return ""
    large = sum(value > LARGE_REGRET for value in regret)
    text = f"On {large} of {len(regret)} shapes the choice is more than {LARGE_REGRET:.0%} slower than the best"
    if noise:
        within = sum(value <= noise["p95"] for value in regret)
        text += (
            f"; on {within} it is within the noise. When the fastest configuration of the sweep was measured again on "
            f"{noise['shapes']} shapes, it was {noise['mean']:.1%} slower than the best on average, and within "
            f"{noise['p95']:.1%} on 95% of them: that is the band"
        )
    return text + "."


def _strata(strata: DataTable) -> str:
    bands = [row for row in strata.records() if row["stratum"] == "rows" and row["efficiency"] is not None]
    if len(bands) < 2:
        return ""
    low, high = (f(bands, key=lambda row: row["efficiency"]) for f in (min, max))
    return (
        f"By the number of rows, choices are best at {high['band']} ({high['efficiency']:.3f}) and worst at "
        f"{low['band']} ({low['efficiency']:.3f})."
    )


def _predictions(headline: dict[str, Any]) -> str:
    if headline["mape_near_best"] is None:
        return ""
    return (
        f"Predictions of what is chosen are off by {headline['mape_chosen']:.1%} on average, those of all "
        f"configurations within {NEAR_BEST} times the best by {headline['mape_near_best']:.1%}: what was not measured "
        "nearby is predicted slower on purpose. Dotted lines are 10% off."
    )


def _residuals(residuals: DataTable) -> str:
    bands = [row for row in residuals.records() if row["rows"] >= MIN_ROWS]
    if not bands:
        return ""
    off = max(bands, key=lambda row: abs(row["median"]))
    wide = max(bands, key=lambda row: row["mape"])
    direction = "slow" if off["median"] > 0 else "fast"
    return (
        f"The largest bias is at “{off['band']}”: half of its predictions are more than {abs(off['median']):.1%} too "
        f"{direction}. The largest mean error is at “{wide['band']}”, {wide['mape']:.1%}. Boxes hold half of the rows, "
        "whiskers nine tenths."
    )


def _decisions(shapes: DataTable) -> str:
    known = [row for row in shapes.records() if row["regret"] is not None]
    same = sum(row["choice"] == row["best"] for row in known)
    return (
        f"On {same} of {len(known)} shapes the choice is the very configuration that was measured fastest. The line is "
        "what is chosen along m, rings are what was measured fastest, and a percentage says what the choice loses."
    )


def _regret_map(cells: DataTable) -> str:
    text = "Each cell is an octave of m and n and shows its worst shape."
    rows = [row for row in cells.records() if row["shapes"] >= MIN_SHAPES]
    if not rows:
        return text
    worst = max(rows, key=lambda row: row["mean_regret"])
    return (
        f"{text} Of the cells with {MIN_SHAPES} shapes or more, the one with m up to {worst['m_octave']:,} and n up to "
        f"{worst['n_octave']:,} loses most: {worst['mean_regret']:.1%} on average over {worst['shapes']} shapes."
    )


def _staircase(points: DataTable) -> str:
    errors = [abs(row["predicted_us"] / row["measured_us"] - 1.0) for row in points.records()]
    mean = sum(errors) / len(errors)
    return (
        f"The {len(errors):,} points of the configurations drawn here are described to {mean:.1%} on average. They are "
        "points that the model was fitted to: the question here is the form, not accuracy. The curve "
        "is that of square grids; flat ones move more bytes."
    )


def _disturbed(disturbed: DataTable, facts: dict[str, Any]) -> str:
    rows = sum(row["rows"] for row in disturbed.records())
    fitted = facts["model"]["provenance"].get("disturbed_rows")
    text = (
        f"{rows:,} rows of modelled configurations read too slow in runs, on {len(disturbed):,} shapes: the host was "
        "busy, not the kernel."
        if rows
        else "No run of the sweep's rows reads too slow."
    )
    return text + (f" The fit gave {fitted:,} rows of its own data less weight for that reason." if fitted else "")
