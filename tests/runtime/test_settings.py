"""Settings: read once, checked, each with a Python equal, and documented as they are."""

from __future__ import annotations

import logging
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

import wavetune
from wavetune.core.config import KernelConfig
from wavetune.errors import SettingsError
from wavetune.runtime.settings import SETTINGS, Settings

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "environment.md"

GOOD = {
    "arch": ("h200", "h200"),
    "models": ("/a:/b", (Path("/a"), Path("/b"))),
    "cache_dir": ("/c", Path("/c")),
    "disable": ("yes", True),
    "force_config": ("block_m=128, load=tma", KernelConfig(block_m=128, load="tma")),
    "pinned": ("/p.json", Path("/p.json")),
    "on_miss": ("Default", "default"),
    "measure_budget_ms": ("12.5", 12.5),
    "measure_top_k": ("7", 7),
    "measure_in": ("background", "background"),
    "measure_margin": ("0", 0.0),
    "record": ("on", True),
    "log_level": ("INFO", "info"),
    "lock_dir": ("/l", Path("/l")),
}
BAD = {
    "models": ["~nosuchuser/x", "/a:~nosuchuser"],
    "cache_dir": ["~nosuchuser/x"],
    "pinned": ["~nosuchuser/x"],
    "lock_dir": ["~nosuchuser/x"],
    "disable": ["maybe", "2"],
    "force_config": ["block_m", "block_m=", "=3", ","],
    "on_miss": ["wait"],
    "measure_budget_ms": ["0", "-1", "soon", "nan", "inf"],
    "measure_top_k": ["0", "1.5", "-2", "four"],
    "measure_in": ["elsewhere"],
    "measure_margin": ["-0.1", "nan", "inf", "x"],
    "record": ["sometimes"],
    "log_level": ["loud", "10"],
}
BAD_IN_PYTHON = {
    "arch": [5, ""], "models": [7, ["a\0b"]], "cache_dir": [3], "disable": ["maybe", 3],
    "pinned": [1, "a\0b"], "on_miss": [1],
    "measure_budget_ms": [True, []], "measure_top_k": [True, 0, 2.5], "measure_margin": [True], "lock_dir": [2.0],
    "force_config": [5, {"block_m": 1.5}],
}  # fmt: skip


@pytest.fixture(autouse=True)
def quiet_logger():
    """Leave the logger as it was."""
    logger = logging.getLogger("wavetune")
    level, handlers = logger.level, list(logger.handlers)
    yield
    logger.setLevel(level)
    logger.handlers[:] = handlers


def test_every_setting_is_tried() -> None:
    """The tables above and the settings are the same."""
    names = [field.name for field in fields(Settings)]
    assert names == [setting.name for setting in SETTINGS] == list(GOOD)


@pytest.mark.parametrize("name", GOOD)
def test_a_variable_and_its_keyword_are_equal(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable, the same text as a keyword, and the Python value give the same setting; None gives it back."""
    text, value = GOOD[name]
    default = getattr(wavetune.settings(), name)
    monkeypatch.setenv(f"WAVETUNE_{name.upper()}", text)
    assert getattr(wavetune.settings(), name) == default, "the environment is read once"
    wavetune.clear_caches()
    assert getattr(wavetune.settings(), name) == value
    monkeypatch.delenv(f"WAVETUNE_{name.upper()}")
    wavetune.clear_caches()
    for given in (text, value):
        assert getattr(wavetune.configure(**{name: given}), name) == value
        assert getattr(wavetune.settings(), name) == value
        wavetune.clear_caches()
        assert getattr(wavetune.settings(), name) == value, "clearing caches forgets no configuration"
    wavetune.configure(**{name: None})
    if name != "cache_dir":
        assert getattr(wavetune.settings(), name) == default


@pytest.mark.parametrize(("name", "text"), [(name, text) for name, texts in BAD.items() for text in texts])
def test_an_impossible_variable_is_named(name: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong value is an error that names variable and value, at every call, until it is corrected."""
    variable = f"WAVETUNE_{name.upper()}"
    monkeypatch.setenv(variable, text)
    wavetune.clear_caches()
    for _ in range(2):
        with pytest.raises(SettingsError, match=f"^{variable}: .*{re.escape(repr(text))}"):
            wavetune.choose_config(8, 64, 64, arch="h200")
    monkeypatch.delenv(variable)
    assert wavetune.choose_config(8, 64, 64, arch="h200") is not None


@pytest.mark.parametrize(
    ("name", "value"),
    [*((n, v) for n, values in BAD_IN_PYTHON.items() for v in values), *((n, v) for n, vs in BAD.items() for v in vs)],
)
def test_an_impossible_keyword_changes_nothing(name: str, value: object) -> None:
    """Of several keywords none takes effect if one is wrong."""
    before = wavetune.settings()
    with pytest.raises(SettingsError, match=name):
        wavetune.configure(**{"record": True, name: value})
    assert wavetune.settings() is before


def test_an_unknown_keyword_is_an_error_that_lists_the_known() -> None:
    """A misspelled setting is no silence."""
    with pytest.raises(SettingsError, match=r"on_mis.*on_miss.*measure_top_k"):
        wavetune.configure(on_mis="model")


def test_a_keyword_wins_over_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    """`configure` is the last word; an empty variable says nothing."""
    monkeypatch.setenv("WAVETUNE_ON_MISS", "error")
    monkeypatch.setenv("WAVETUNE_RECORD", "")
    wavetune.clear_caches()
    assert (wavetune.settings().on_miss, wavetune.settings().record) == ("error", False)
    wavetune.configure(on_miss="default")
    assert wavetune.settings().on_miss == "default"
    wavetune.configure(on_miss=None)
    assert wavetune.settings().on_miss == "error"


def test_the_cache_folder_follows_the_rules_of_xdg(monkeypatch: pytest.MonkeyPatch) -> None:
    """``XDG_CACHE_HOME`` counts if it is absolute; else the home folder; without one there is no folder."""

    def cache_dir() -> Path | None:
        wavetune.clear_caches()
        return wavetune.settings().cache_dir

    def no_home() -> Path:
        raise RuntimeError("no home")

    monkeypatch.delenv("WAVETUNE_CACHE_DIR")
    monkeypatch.setenv("HOME", "/somebody")
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert cache_dir() == Path("/x/wavetune")
    for ignored in ("", "relative/path"):
        monkeypatch.setenv("XDG_CACHE_HOME", ignored)
        assert cache_dir() == Path("/somebody/.cache/wavetune")
    monkeypatch.setattr(Path, "home", no_home)
    assert cache_dir() is None
    assert wavetune.choose_config(8, 64, 64, arch="h200") is not None
    monkeypatch.setenv("WAVETUNE_CACHE_DIR", "/w")
    assert cache_dir() == Path("/w")


def test_the_documented_table_is_the_code() -> None:
    """Variables, keywords, defaults and meanings of the documentation are those of the code, in order."""
    if not DOCUMENT.exists():
        pytest.skip("documentation is not installed")
    rows = [line.strip("| \n").split(" | ") for line in DOCUMENT.read_text().splitlines() if line.startswith("| `WAVE")]
    assert rows == [[f"`{s.variable}`", f"`{s.name}`", s.default_text, s.meaning] for s in SETTINGS]


def test_the_log_level_shows_the_log_of_a_program_without_logging() -> None:
    """With a level the log goes to stderr; without one a program that set nothing up sees nothing."""
    program = (
        "import wavetune; wavetune.choose_config(511, 4096, 4096, arch='h200');"
        "wavetune.choose_config(511, 4096, 4096, arch='h200')"
    )
    for level, n_lines in (("info", 1), ("error", 0), ("", 0)):
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True,
            env={"WAVETUNE_LOG_LEVEL": level, "WAVETUNE_CACHE_DIR": "/nonexistent"},
        )  # fmt: skip
        assert done.stderr.count("not exact: gemm 511 x 4096 x 4096") == n_lines
        assert len(done.stderr.splitlines()) == n_lines
        assert done.stdout == ""
