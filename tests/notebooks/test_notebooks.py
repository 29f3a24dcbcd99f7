"""Notebooks run from top to bottom with the public API, and are committed without outputs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb")) if FOLDER.is_dir() else []

pytestmark = pytest.mark.skipif(not NOTEBOOKS, reason="notebooks are in the source tree only")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every code cell runs after those before it, and they print something to look at."""
    cells = [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
    names: dict[str, object] = {}
    for cell in cells:
        assert cell["outputs"] == []
        assert cell["execution_count"] is None
        exec(compile("".join(cell["source"]), f"{path.name}:{cell['id']}", "exec"), names)
    assert len(capsys.readouterr().out.splitlines()) > 10


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_uses_the_public_api_only(path: Path) -> None:
    """No notebook imports a module below the top of the package."""
    source = path.read_text()
    assert "import wavetune" in source
    assert "wavetune." not in "".join(line for line in source.splitlines() if "from wavetune." in line)
