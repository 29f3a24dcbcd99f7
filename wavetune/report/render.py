"""Write a report: one page that needs nothing else, JSON, and a CSV file for each table."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from wavetune.errors import ReportError
from wavetune.report.answers import answer_questions
from wavetune.report.datatable import DataTable
from wavetune.report.document import ReportDocument
from wavetune.report.figures import build_figures
from wavetune.report.summary import UNKNOWN, describe_choices, describe_measurements, number, share

PAGE, DOCUMENT, TABLES = "report.html", "report.json", "tables"
"""Names in the output folder."""

MAX_LISTED = 400
"""Shapes listed on the page; the CSV file has them all."""


def write_report(document: ReportDocument, folder: Path) -> list[Path]:
    """Write page, JSON and CSV files into a folder, which is made if needed.

    Returns
    -------
    list of Path
        What was written, the page first.

    Raises
    ------
    ReportError
        If plotly or jinja2 is not installed, or a file cannot be written.
    """
    page = render_page(document)
    files = {folder / PAGE: page, folder / DOCUMENT: json.dumps(document.to_dict(), indent=1, allow_nan=False) + "\n"}
    files |= {folder / TABLES / f"{name}.csv": _csv(table) for name, table in document.tables.items()}
    files[folder / TABLES / "facts.csv"] = _facts_csv(document.facts)
    try:
        (folder / TABLES).mkdir(parents=True, exist_ok=True)
        for path, text in files.items():
            path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ReportError(f"cannot write the report to {folder} ({error.strerror}); name another folder") from None
    return list(files)


def render_page(document: ReportDocument) -> str:
    """Return the page as HTML; everything that it needs is inside.

    Raises
    ------
    ReportError
        If plotly or jinja2 is not installed.
    """
    try:
        from jinja2 import Environment, PackageLoader, StrictUndefined
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise ReportError(f"a report needs {error.name}; install it with `pip install 'wavetune[report]'`") from None
    environment = Environment(
        loader=PackageLoader("wavetune.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"share": share, "number": number, "us": _us, "micro": _micro}
    figures = build_figures(document)
    return environment.get_template("page.html").render(
        facts=document.facts,
        tables=document.tables,
        answers=answer_questions(document),
        choice_lines=list(describe_choices(document.facts)),
        measurement_lines=list(describe_measurements(document.facts)),
        figures=figures,
        figures_json=_embed(figures),
        plotly_js=get_plotlyjs(),
        max_listed=MAX_LISTED,
        tables_folder=TABLES,
    )


def _embed(data: Any) -> str:
    """Write JSON that is safe inside a script element."""
    return json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def _csv(table: DataTable) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(table.columns)
    writer.writerows(["" if value is None else value for value in row] for row in table.rows)
    return text.getvalue()


def _facts_csv(facts: Mapping[str, Any]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("fact", "value"))
    writer.writerows(_flatten(facts))
    return text.getvalue()


def _flatten(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for name, entry in value.items():
            yield from _flatten(entry, f"{path}.{name}" if path else str(name))
    elif isinstance(value, list):
        for index, entry in enumerate(value):
            yield from _flatten(entry, f"{path}.{index}")
    else:
        yield path, "" if value is None else value


def _us(value: float | None) -> str:
    if value is None:
        return UNKNOWN
    return f"{value:.2f}" if value < 100 else f"{value:,.0f}"


def _micro(text: str) -> str:
    """Spell microseconds as a page can."""
    return re.sub(r"\bus\b", "µs", text)
