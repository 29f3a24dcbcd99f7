"""The reference page has every public name."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

import wavetune

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference.md"

pytestmark = pytest.mark.skipif(not PAGE.is_file(), reason="only in a checkout")

# Names whose modules need an optional package are looked up by the module alone.
ENTRIES = re.findall(r"^::: (wavetune[\w.]*)\.(\w+)$", PAGE.read_text(), flags=re.MULTILINE) if PAGE.is_file() else []


def test_every_public_name_has_an_entry() -> None:
    """What the package exports is documented, once."""
    names = [name for _, name in ENTRIES]
    assert sorted(names) == sorted(set(wavetune.__all__) - {"__version__"})


@pytest.mark.parametrize(("module", "name"), ENTRIES)
def test_an_entry_is_where_the_page_says(module: str, name: str) -> None:
    """Each entry names the module that has it."""
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if str(error.name).startswith("wavetune"):
            raise
        pytest.skip(f"{error.name} is not installed")
    assert hasattr(found, name)
