"""Pictures of a report as plotly figures in plain data."""

from __future__ import annotations

from wavetune.report.document import ReportDocument
from wavetune.report.figures.decisions import decision_figure
from wavetune.report.figures.errors import prediction_figure, residual_figure
from wavetune.report.figures.regret import regret_figure, regret_map_figure
from wavetune.report.figures.spec import Figure
from wavetune.report.figures.waves import staircase_figure, surface_figure


def build_figures(document: ReportDocument) -> dict[str, Figure]:
    """Draw every picture that the document has numbers for, by name."""
    tables = document.tables
    figures = {
        "regret": regret_figure(tables["regret"], document.facts["noise"]),
        "predictions": prediction_figure(tables["predictions"]),
        "residuals": residual_figure(tables["residuals"]),
        "decisions": decision_figure(tables["decisions"], tables["shapes"]),
        "regret_map": regret_map_figure(tables["regret_map"]),
    }
    if len(tables.get("wave_series", ())):
        figures["staircase"] = staircase_figure(tables["wave_series"], tables["wave_points"], tables["staircase"])
        figures["surface"] = surface_figure(tables["wave_points"], tables["surface"])
    return {name: figure for name, figure in figures.items() if figure["variants"]}
