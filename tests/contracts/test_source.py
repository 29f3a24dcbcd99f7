"""Rules of the source: short modules, no pickles, no prints, docstrings everywhere."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import wavetune

ROOT = Path(__file__).resolve().parents[2]
# Of the checkout or of the installed wheel: whatever is under test.
PACKAGE = Path(wavetune.__file__).resolve().parent
MODULES = sorted(PACKAGE.rglob("*.py"))
MAX_LINES = 400


def names_called(path: Path) -> set[str]:
    """Return the dotted names that a module calls."""
    return {ast.unparse(node.func) for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)}


def test_there_are_modules() -> None:
    """The scans below see the package."""
    assert len(MODULES) > 50


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_module_can_be_read_in_one_sitting(path: Path) -> None:
    """No module is longer than 400 lines, and none is named for a heap."""
    assert len(path.read_text().splitlines()) <= MAX_LINES
    assert path.stem not in ("util", "utils", "helper", "helpers", "common", "misc", "manager")


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_reading_data_never_runs_code(path: Path) -> None:
    """Nothing is pickled, marshalled, evaluated or executed."""
    text = path.read_text()
    tree = ast.parse(text)
    modules = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    modules |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert not modules & {"pickle", "cPickle", "dill", "cloudpickle", "shelve", "marshal", "joblib.numpy_pickle"}
    calls = names_called(path)
    assert not calls & {"eval", "exec", "joblib.dump", "joblib.load", "torch.load", "torch.save"}
    assert "allow_pickle=True" not in text


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_only_the_command_line_prints(path: Path) -> None:
    """Standard output belongs to the command line."""
    if path.relative_to(PACKAGE).parts[0] != "cli":
        assert "print" not in names_called(path)
        assert "sys.stdout" not in path.read_text()


def test_every_test_says_what_it_shows() -> None:
    """Every test function has a docstring of one sentence."""
    mute = []
    for path in (ROOT / "tests").rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                docstring = ast.get_docstring(node)
                if not docstring or not docstring.rstrip().endswith("."):
                    mute.append(f"{path.name}:{node.lineno} {node.name}")
    assert mute == []
