"""Notebooks run from top to bottom with the public API, and are committed without outputs."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb")) if FOLDER.is_dir() else []

RUNNER = """
import json, linecache, sys

names = {"__name__": "__main__"}
for cell in json.load(open(sys.argv[1]))["cells"]:
    if cell["cell_type"] == "code":
        name = f"<{cell['id']}>"
        # Triton reads the source of kernels; notebooks keep that of their cells in the same place.
        linecache.cache[name] = (0, None, cell["source"], name)
        exec(compile("".join(cell["source"]), name, "exec"), names)
"""

OPTIONAL = ("torch", "triton")

TIMEOUT_S = 120.0
"""Each takes 2 to 10 seconds on two quiet cores."""

pytestmark = pytest.mark.skipif(not NOTEBOOKS, reason="notebooks are in the source tree only")

every_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def cells(path: Path, kind: str) -> list[dict[str, object]]:
    """Return the cells of one kind."""
    return [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == kind]


@every_notebook
def test_a_notebook_runs(path: Path, tmp_path: Path) -> None:
    """In a process of its own every code cell runs after those before it, and they print something to look at."""
    for package in OPTIONAL:
        if f"import {package}" in path.read_text() and importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    clean = {name: value for name, value in os.environ.items() if not name.startswith("WAVETUNE_")}
    environment = {**clean, "WAVETUNE_CACHE_DIR": str(tmp_path), "TMPDIR": str(tmp_path), "PYTHONIOENCODING": "utf-8"}
    command = [sys.executable, "-c", RUNNER, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=TIMEOUT_S)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) > 10


@every_notebook
def test_a_notebook_is_committed_without_outputs(path: Path) -> None:
    """Outputs would go stale, and hide what has changed."""
    for cell in cells(path, "code"):
        assert cell["outputs"] == []
        assert cell["execution_count"] is None


@every_notebook
def test_a_notebook_uses_the_public_api_only(path: Path) -> None:
    """No notebook imports a module below the top of the package."""
    source = "".join("".join(cell["source"]) for cell in cells(path, "code"))
    assert "import wavetune" in source
    assert "from wavetune." not in source
    assert "import wavetune." not in source


def test_notebooks_are_numbered_from_one() -> None:
    """They are read in this order."""
    assert [path.stem.split("-")[0] for path in NOTEBOOKS] == [f"{i:02}" for i in range(1, len(NOTEBOOKS) + 1)]
