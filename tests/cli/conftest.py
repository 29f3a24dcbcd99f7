"""A small recording of a made-up GPU, and a model fitted to it by the command line."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from command_shell import Result, Runner
from made_up_gpu import LAYERS, write_rows

# Fits of small tables spend their time in OpenMP barriers, which on a busy machine cost a time slice each. Read when
# the library loads.
os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(scope="session")
def points(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return wave-structured points: no shape has every configuration."""
    ks = (256, 1024, 3000, 8192, 16384)
    ms, ns = (1, 16, 64, 300, 700, 1024, 2500, 4000), (640, 2112, 3000, 8448, 9000)
    shapes = [(m, n, k) for m in ms for n in ns for k in ks]
    return write_rows(tmp_path_factory.mktemp("recorded") / "points.csv", shapes, every=5)


@pytest.fixture(scope="session")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an exhaustive sweep over eight layers."""
    shapes = [(m, n, k) for m in (1, 64, 512, 2048) for n, k in LAYERS]
    return write_rows(tmp_path_factory.mktemp("recorded") / "oracle.csv", shapes)


@pytest.fixture(scope="session")
def models(points: Path, oracle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a models folder with one model, fitted to both files."""
    folder = tmp_path_factory.mktemp("models")
    arguments = ["fit", "--measurements", points, "--oracle", oracle, "--arch", "h200", "--n-configs", "4"]
    result = Runner().run(*arguments, "--out", folder / "nvidia-h200" / "gemm-bf16.json")
    assert result.code == 0, result.stderr
    return folder


@pytest.fixture(scope="session")
def model(models: Path) -> Path:
    """Return the model file."""
    return models / "nvidia-h200" / "gemm-bf16.json"


@pytest.fixture
def cli(models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Return a function that runs ``wavetune`` in an empty folder, with the small model found first."""
    from wavetune import clear_caches

    monkeypatch.delenv("COLUMNS", raising=False)  # parallel test runners set it
    monkeypatch.setenv("WAVETUNE_MODELS", str(models))
    monkeypatch.setenv("WAVETUNE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("WAVETUNE_ARCH", raising=False)
    monkeypatch.chdir(tmp_path)
    clear_caches()
    return Runner().run
