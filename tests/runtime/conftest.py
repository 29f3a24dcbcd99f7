"""Models and caches for tests of the runtime."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hand_made import make_model

import wavetune
from wavetune.runtime.model_file import ModelFile
from wavetune.runtime.settings import SETTINGS
from wavetune.runtime.sources import find_model

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "fit"))


@pytest.fixture
def model() -> ModelFile:
    """Return the hand-made model."""
    return make_model()


@pytest.fixture(scope="session")
def shipped_path() -> Path:
    """Return the path of the shipped H200 model."""
    model, refused = find_model("gemm", "bf16", "nk", "nvidia-h200")
    assert model is not None, refused
    return Path(model.path)


@pytest.fixture(autouse=True)
def fresh_caches(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Forget answers and variables before and after every test; the user's own store is not looked at."""
    for setting in SETTINGS:
        monkeypatch.delenv(setting.variable, raising=False)
    monkeypatch.setenv("WAVETUNE_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
    wavetune.clear_caches()
    yield
    wavetune.clear_caches()
