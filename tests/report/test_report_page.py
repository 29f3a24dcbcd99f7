"""The page of a report: valid figures, nothing from outside, every number beside it."""

from __future__ import annotations

import csv
import json
import math
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("plotly", reason="the extra `report` is not installed")
pytest.importorskip("jinja2", reason="the extra `report` is not installed")

from made_up_report import made_up_document, made_up_inputs

from wavetune.errors import ReportError
from wavetune.report.answers import answer_questions
from wavetune.report.document import ReportDocument, SourceFile, build_document
from wavetune.report.figures import build_figures
from wavetune.report.render import render_page, write_report

PICTURES = {"regret", "predictions", "residuals", "staircase", "surface", "decisions", "regret_map"}
MAX_MB = 8.0
TIMES = "\N{MULTIPLICATION SIGN}"

VARIABLES = re.compile(r"--([a-z0-9-]+):")


def paint(value: Any) -> Any:
    """Replace names of page colours by a colour that plotly knows."""
    if isinstance(value, str):
        return "#123456" if value.startswith("@") else value
    if isinstance(value, list):
        return [paint(entry) for entry in value]
    return {name: paint(entry) for name, entry in value.items()} if isinstance(value, dict) else value


def colors_of(value: Any) -> set[str]:
    """Return the names of page colours in a figure."""
    if isinstance(value, str):
        return {value[1:]} if value.startswith("@") else set()
    entries = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return {color for entry in entries for color in colors_of(entry)}


def n_points(trace: dict[str, Any]) -> int:
    """Return how many values a trace draws."""
    if trace["type"] == "box":
        return len(trace["median"])
    if "z" in trace:
        return sum(value is not None for row in trace["z"] for value in row)
    return sum(value is not None for value in trace["x"])


def without_script(page: str) -> str:
    """Return a page without its scripts."""
    return re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)


def test_every_picture_is_drawn_with_data() -> None:
    """Every picture that was promised is there, every trace of every variant has points, and plotly accepts it."""
    import plotly.graph_objects

    figures = build_figures(made_up_document())
    assert set(figures) == PICTURES
    for name, figure in figures.items():
        assert figure["height"] > 100, name
        for variant in figure["variants"]:
            plotly.graph_objects.Figure(paint({"data": variant["data"], "layout": variant["layout"]}))
            drawn = [trace for trace in variant["data"] if trace.get("name") != "lost"]
            assert drawn, name
            assert all(n_points(trace) > 0 for trace in drawn), (name, variant["label"])
    assert len(figures["staircase"]["variants"]) > 3
    assert len(figures["decisions"]["variants"]) > 3


def test_figures_use_colours_of_the_page() -> None:
    """Each colour that a figure names is defined, for light and for dark."""
    page = render_page(made_up_document())
    light, dark = (
        set(VARIABLES.findall(block)) for block in re.findall(r":root[^{]*\{([^}]*)\}", without_script(page))[:2]
    )
    assert light == dark
    used = colors_of(build_figures(made_up_document()))
    assert {"accent", "ink", "muted"} <= used <= light


def test_the_wave_edges_are_multiples_of_the_width() -> None:
    """The staircase is drawn with a line at each end of a wave, and points on both sides of the first."""
    document = made_up_document()
    for drawn, variant in zip(
        document.tables["wave_series"].records(), build_figures(document)["staircase"]["variants"], strict=True
    ):
        edges = [shape["x0"] for shape in variant["layout"]["shapes"]]
        assert edges == [drawn["wave_width"] * wave for wave in range(1, len(edges) + 1)]
        curve = variant["data"][0]
        assert len(curve["x"]) == len(curve["y"])
        assert curve["x"] == sorted(curve["x"])


def test_the_page_needs_nothing_else() -> None:
    """No script, style, font or picture is fetched, and the page is small enough to send."""
    page = render_page(made_up_document())
    assert len(page.encode()) < MAX_MB * 1e6
    html = without_script(page)
    assert not re.findall(r"""(?:src|href|action)\s*=\s*["'](?:https?:)?//""", html)
    assert not re.findall(r"url\((?!['\"]?data:)", html)
    assert "@import" not in html
    assert page.count("<script") == page.count("</script>") == 3


def test_the_page_says_the_numbers() -> None:
    """The headline, the questions, their answers and the worst shapes with their reasons are on the page."""
    document = made_up_document()
    html = without_script(render_page(document))
    head = document.facts["headline"]
    assert f"{head['efficiency']['geomean']:.3f}" in html
    assert "Held out: none of the" in html
    assert "60 s: sparse 20, dense 40" in html or "60 s: sparse 20, dense 41" in html
    assert "SM clock 1980 to 1815 MHz" in html
    for text in answer_questions(document).values():
        assert text.replace("'", "&#39;") in html
    for row in document.tables["worst"].records():
        assert f"{row['m']} {TIMES} {row['n']} {TIMES} {row['k']}" in html
        assert row["reasons"][:40].replace("'", "&#39;").replace(" us", " µs") in html
    for name in PICTURES:
        assert f'id="plot-{name}"' in html


def test_answers_follow_the_numbers() -> None:
    """A sentence counts what the table holds: many slow choices are told, none are not."""
    document = made_up_document()
    regret = [row["regret"] for row in document.tables["shapes"].records()]
    large = sum(value > 0.1 for value in regret)
    assert answer_questions(document)["regret"].startswith(f"On {large} of {len(regret)} shapes")
    assert (
        "too slow in runs" in answer_questions(document)["disturbed"]
        or "No run" in answer_questions(document)["disturbed"]
    )


def test_fitted_shapes_are_flagged() -> None:
    """Where the sweep was part of the fit, the page warns, and quotes what the model file says of held-out layers."""
    inputs = made_up_inputs()
    own = {"shapes": 12, "efficiency": {"geomean": 0.9123, "p5": 0.8, "min": 0.7}}
    model = replace(
        inputs.model,
        provenance={"files": [{"name": "a.csv", "sha256": "ab"}]},
        accuracy={"held_out": own},
    )
    document = build_document(replace(inputs, model=model, sweep_files=(SourceFile("a.csv", "ab", 1),)))
    assert document.facts["evidence"]["held_out"] is False
    html = without_script(render_page(document))
    assert '<p class="evidence warning">' in html
    assert "were part of the fit" in html
    assert "0.912 of the" in html


def test_names_cannot_break_the_page() -> None:
    """What comes from files is text on the page and in its scripts, never markup."""
    document = made_up_document()
    evil = "</script><script>alert(1)</script><!--"
    facts = {**document.facts, "model": {**document.facts["model"], "file": evil, "gpu": evil}}
    decisions = document.tables["decisions"]
    renamed = replace(decisions, rows=tuple((*row[:3], evil, *row[4:]) for row in decisions.rows))
    page = render_page(ReportDocument(facts, {**document.tables, "decisions": renamed}))
    assert page.count("<script") == page.count("</script>") == 3
    assert "<!--" not in re.search(r'id="figures">(.*?)</script>', page, re.DOTALL).group(1)  # type: ignore[union-attr]


def test_files_hold_every_number(tmp_path: Path) -> None:
    """JSON and CSV hold the same rows as the page, and the facts are there by name."""
    document = made_up_document()
    written = write_report(document, tmp_path / "new" / "folder")
    assert all(path.is_file() for path in written)
    plain = json.loads((tmp_path / "new" / "folder" / "report.json").read_text())
    assert plain["schema"] == "wavetune-report"
    for name, table in document.tables.items():
        with (tmp_path / "new" / "folder" / "tables" / f"{name}.csv").open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        assert len(rows) == len(table) == len(plain["tables"][name]["rows"])
        if rows:
            assert tuple(rows[0]) == table.columns
    facts = dict(csv.reader((tmp_path / "new" / "folder" / "tables" / "facts.csv").read_text().splitlines()))
    efficiency = float(facts["headline.efficiency.geomean"])
    assert math.isclose(efficiency, document.facts["headline"]["efficiency"]["geomean"])
    assert facts["calibration.seconds.sparse"] == "20.0"


def test_an_unwritable_folder_is_told(tmp_path: Path) -> None:
    """A folder that cannot be made is an error with a way out, not a traceback."""
    (tmp_path / "file").write_text("")
    with pytest.raises(ReportError, match="name another folder"):
        write_report(made_up_document(), tmp_path / "file" / "below")


@pytest.mark.parametrize("package", ["jinja2", "plotly.offline"])
def test_a_missing_package_is_told(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the extra, the error says how to get it."""
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ReportError, match=r"pip install 'wavetune\[report\]'"):
        render_page(made_up_document())


def test_a_report_without_points_says_how_to_get_them() -> None:
    """Without wave-structured points the page asks for them instead of an empty picture."""
    inputs = replace(made_up_inputs(), points=None, fitted=None, repeat=None)
    html = without_script(render_page(build_document(inputs)))
    assert "--points" in html
    assert 'id="plot-staircase"' not in html
