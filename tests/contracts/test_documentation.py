"""The documentation names what there is."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from wavetune.cli.app import app

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"

pytestmark = pytest.mark.skipif(not DOCS.is_dir(), reason="only in a checkout")


def verbs(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the words of every command that does something."""
    children = getattr(command, "commands", {})
    if not children:
        yield path
    for name, child in children.items():
        yield from verbs(child, (*path, name))


def test_every_command_is_in_the_documentation() -> None:
    """Each command is named on the page of commands."""
    page = (DOCS / "commands.md").read_text()
    for words in verbs(typer.main.get_command(app)):
        assert f"wavetune {words[0]}" in page, words
        assert words[-1] in page, words


def test_links_between_pages_lead_somewhere() -> None:
    """Every relative link and picture of a page is a file."""
    pages = sorted(DOCS.glob("*.md"))
    assert len(pages) > 8
    for page in pages:
        prose = re.sub(r"```.*?```|`[^`]*`", "", page.read_text(), flags=re.DOTALL)
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", prose):
            assert (DOCS / target).is_file(), f"{page.name}: {target}"


def test_extras_that_are_named_exist() -> None:
    """What a page tells to install is in the package's metadata, and has what the page needs it for."""
    extras = tomllib.loads((DOCS.parent / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    pages = [*DOCS.glob("*.md"), DOCS.parent / "README.md"]
    named = {
        name for page in pages for name in re.findall(r"install (?:-q )?'(?:wavetune|\.)\[(\w+)\]'", page.read_text())
    }
    assert named >= {"docs", "notebooks", "test"}
    assert named <= extras.keys()
    assert any(entry.startswith("matplotlib") for entry in extras["docs"])
