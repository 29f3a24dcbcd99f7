"""Where the shipped models and their evidence are, and how they are read."""

from __future__ import annotations

import csv
import gzip
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from wavetune.core.arch import find_arch
from wavetune.core.config import KernelConfig, find_kernel_spec
from wavetune.pipeline.evidence import evidence_names
from wavetune.runtime.codec import read_model
from wavetune.runtime.family_file import FamilyFile, is_family_file, read_family
from wavetune.runtime.model_file import ModelFile
from wavetune.store.csv_io import read_measurements
from wavetune.store.table import MeasurementTable, concatenate

ROOT = Path(__file__).resolve().parents[2]
MODELS = ROOT / "models" / "nvidia-h200"
EVIDENCE = ROOT / "calibration" / "nvidia-h200"
ALL_MODELS = sorted(MODELS.glob("*.json"))
FAMILY_MODELS = [path for path in ALL_MODELS if is_family_file(path)]
GEMM_MODELS = [path for path in ALL_MODELS if path not in FAMILY_MODELS]
H200 = find_arch("h200")

GRID = [(m, n, k) for m in (1, 7, 64, 300, 2048, 8192) for n in (576, 4608, 28672) for k in (512, 4096, 14336)]
"""Products to compare two models on."""

# The tests of an installed wheel run without the checkout around them.
in_a_checkout = pytest.mark.skipif(not EVIDENCE.is_dir(), reason="the evidence is in the source tree only")


@lru_cache
def read(path: Path) -> ModelFile | FamilyFile:
    """Read a model file of either kind."""
    return read_family(path) if path in FAMILY_MODELS else read_model(path)


def names_of(model: ModelFile | FamilyFile) -> tuple[str, str, str]:
    """Return the file names of the points, sweeps and facts behind a model."""
    return evidence_names(model.kernel, model.dtype, model.layout)


@lru_cache(maxsize=2)
def measurements(path: Path) -> MeasurementTable:
    """Read what a model was fitted to, points first."""
    model = read(path)
    spec = find_kernel_spec(model.kernel)
    parts = [(EVIDENCE / name, mark) for name, mark in zip(names_of(model), (False, True), strict=False)]
    return concatenate(
        [
            read_measurements(file, spec, model.dtype, H200, layout=model.layout, exhaustive=mark).table
            for file, mark in parts
            if file.exists()
        ]
    )


def sweep_readings(model: ModelFile | FamilyFile) -> dict[tuple[int, ...], dict[KernelConfig, float]]:
    """Read what was timed of the problems in a model's exact table, in microseconds; not with the package's reader."""
    spec = find_kernel_spec(model.kernel)
    wanted = {tuple(map(str, dims)): dims for dims in model.exact}
    configs: dict[tuple[str, ...], KernelConfig] = {}
    readings: dict[tuple[int, ...], dict[KernelConfig, float]] = {dims: {} for dims in model.exact}
    with gzip.open(EVIDENCE / names_of(model)[1], "rt") as file:
        rows = csv.reader(file)
        header = next(rows)
        n_dims, latency = len(spec.dims), header.index("latency_us")
        fields = header[n_dims : header.index("num_regs")]
        assert tuple(header[:n_dims]) == tuple(spec.dims)
        for row in rows:
            dims = wanted.get(tuple(row[:n_dims]))
            if dims is None:
                continue
            values = tuple(row[n_dims : n_dims + len(fields)])
            if values not in configs:
                typed = (int(value) if value.isdecimal() else value for value in values)
                configs[values] = KernelConfig(**dict(zip(fields, typed, strict=True)))
            readings[dims][configs[values]] = float(row[latency])
    return readings


def smallest_by_default(paths: Iterable[Path]) -> list[Any]:
    """Mark models slow, but for one of each family: that with the fewest bytes of evidence, whichever it is.

    A fit of it goes through the same code as the others do. That those are of their evidence is known without a fit:
    they hold its digests.
    """
    sizes = {path: _evidence_bytes(path) for path in paths}
    smallest: dict[str, Path] = {}
    for path in sorted(sizes, key=lambda path: sizes[path]):
        smallest.setdefault(_kernel(path), path)
    return [
        pytest.param(path, id=path.stem, marks=() if path == smallest[_kernel(path)] else pytest.mark.slow)
        for path in sizes
    ]


def _evidence_bytes(path: Path) -> int:
    return sum(file.stat().st_size for file in EVIDENCE.glob(f"{path.stem}-*.csv.gz") if "holdout" not in file.name)


def _kernel(path: Path) -> str:
    return path.stem.split("-")[0]
