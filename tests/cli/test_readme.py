"""The README's set-up is what continuous integration runs."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.skipif(not (ROOT / ".ci" / "run").is_file(), reason="only in a checkout")


def readme_commands() -> list[str]:
    """Return the lines of the README's first shell block."""
    block = (ROOT / "README.md").read_text().split("```sh\n", 1)[1].split("```", 1)[0]
    return [line for line in block.splitlines() if line.strip()]


def test_two_commands_do_all_the_set_up():
    """One installs and runs the demonstration, one installs the test extra and runs the tests."""
    first, second = readme_commands()
    assert first.endswith("wavetune demo")
    assert "[test]" in second
    assert second.endswith("-m pytest -n auto")


def test_continuous_integration_runs_those_commands():
    """``.ci/run`` takes them from the README."""
    listed = subprocess.run(
        [ROOT / ".ci" / "run", "--list"], capture_output=True, text=True, check=True, cwd=ROOT
    ).stdout  # fmt: skip
    assert listed.splitlines() == readme_commands()
