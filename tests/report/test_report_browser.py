"""The page in a real browser, without a window; skipped where no Chromium is installed."""

from __future__ import annotations

import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest

pytest.importorskip("plotly", reason="the extra `report` is not installed")
pytest.importorskip("jinja2", reason="the extra `report` is not installed")

from made_up_report import made_up_document
from test_report_page import PICTURES

from wavetune.report.render import PAGE, write_report

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

MARKS = {
    "regret": "js-line", "predictions": "point", "residuals": "box", "staircase": "js-line", "surface": "contourfill",
    "decisions": "js-line", "regret_map": "hm",
}  # fmt: skip
"""Class of what plotly draws for each picture's data; axes alone have none of them."""

INTERACTIVE_MS = 10_000
"""Five times the promise of two seconds, which is for a quiet machine: this is a test that a page works at all."""

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")


class _Marks(HTMLParser):
    """Counts the classes of elements inside each plot."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = ""
        self.depth = 0
        self.classes: dict[str, list[str]] = {}
        self.root: dict[str, str | None] = {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Enter an element."""
        values = dict(attrs)
        if tag == "html":
            self.root = values
        if str(values.get("id", "")).startswith("plot-"):
            self.inside, self.depth = str(values["id"]).removeprefix("plot-"), 0
            self.classes[self.inside] = []
        if self.inside:
            self.depth += tag not in ("br", "image", "img", "input", "hr")
            self.classes[self.inside] += (values.get("class") or "").split()

    def handle_endtag(self, tag: str) -> None:
        """Leave an element."""
        if self.inside:
            self.depth -= 1
            if self.depth == 0:
                self.inside = ""


def browse(page: Path, *options: str, profile: Path) -> subprocess.CompletedProcess[str]:
    """Open a page without a window and with no way to any network."""
    assert CHROMIUM is not None
    command = [
        CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--enable-logging=stderr",
        f"--user-data-dir={profile}", "--virtual-time-budget=30000", "--proxy-server=127.0.0.1:9", *options,
        page.as_uri(),
    ]  # fmt: skip
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a written report."""
    folder = tmp_path_factory.mktemp("report")
    write_report(made_up_document(), folder)
    return folder / PAGE


@pytest.mark.parametrize("size", ["1280,900", "390,844"], ids=["wide", "narrow"])
def test_every_plot_has_data_and_the_console_is_silent(page: Path, tmp_path: Path, size: str) -> None:
    """In a wide and in a narrow window all pictures are drawn, and nothing is written to the console."""
    done = browse(page, "--dump-dom", f"--window-size={size}", profile=tmp_path)
    assert not re.findall(r"CONSOLE.*", done.stderr)
    marks = _Marks()
    marks.feed(done.stdout)
    assert marks.root["data-plots"] == str(len(PICTURES))
    assert set(marks.classes) == PICTURES
    for name, classes in marks.classes.items():
        assert "main-svg" in classes, name
        assert MARKS[name] in classes, (name, sorted(set(classes)))
    assert int(marks.root["data-interactive"] or INTERACTIVE_MS) < INTERACTIVE_MS


def test_the_page_prints(page: Path, tmp_path: Path) -> None:
    """Printing makes a document of several pages."""
    target = tmp_path / "report.pdf"
    browse(page, f"--print-to-pdf={target}", profile=tmp_path / "profile")
    data = target.read_bytes()
    assert data.startswith(b"%PDF")
    assert len(data) > 100_000
