"""Models and caches for tests of the runtime."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hand_made import make_model

import wavetune
from wavetune.runtime.locate import find_model_file
from wavetune.runtime.model_file import ModelFile
from wavetune.runtime.settings import SETTINGS

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "fit"))


@pytest.fixture
def model() -> ModelFile:
    """Return the hand-made model."""
    return make_model()


@pytest.fixture(scope="session")
def shipped_path() -> Path:
    """Return the path of the shipped H200 model."""
    path = find_model_file("nvidia-h200", "gemm", "bf16", "nk")
    assert path is not None, "the shipped model is missing"
    return path


@pytest.fixture(autouse=True)
def fresh_caches(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Forget answers and variables before and after every test; the user's own store is not looked at."""
    for setting in SETTINGS:
        monkeypatch.delenv(setting.variable, raising=False)
    monkeypatch.setenv("WAVETUNE_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
    wavetune.clear_caches()
    yield
    wavetune.clear_caches()
