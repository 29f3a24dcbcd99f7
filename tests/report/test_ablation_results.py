"""The committed ablation follows from the committed model, measurements and code."""

from __future__ import annotations

import itertools
import json
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from wavetune.core.arch import find_arch
from wavetune.core.config import GEMM
from wavetune.core.dtype import find_dtype
from wavetune.fit.points import GemmGeometry, GemmPoints
from wavetune.report.accuracy import evaluate_model
from wavetune.runtime.codec import read_model
from wavetune.store.csv_io import read_measurements
from wavetune.waves.terms import TERMS

ROOT = Path(__file__).resolve().parents[2]
BENCHMARKS = ROOT / "benchmarks"
RESULTS = BENCHMARKS / "results" / "nvidia-h200" / "ablation.json"

# The tests of an installed wheel run without the checkout around them.
pytestmark = pytest.mark.skipif(not RESULTS.is_file(), reason="the results are in the source tree only")

GROUPS = {"term", "points", "pruning", "correction", "screening"}


@pytest.fixture(scope="module")
def results() -> dict[str, Any]:
    """Return the committed tables."""
    found: dict[str, Any] = json.loads(RESULTS.read_text())
    return found


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the module that names the parts."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    pytest.importorskip("joblib")
    import ablation_parts

    yield ablation_parts
    for name in ("ablation_parts", "baselines", "nvidia_heuristics", "tutorial_list"):
        sys.modules.pop(name, None)


def test_the_complete_model_is_the_shipped_one(results: dict[str, Any]) -> None:
    """Its first seed is as good as the shipped model, which knows a few configurations more; if not, run it again."""
    sweep = ROOT / "calibration" / "nvidia-h200" / "gemm-bf16-holdout.csv.gz"
    table = read_measurements(sweep, GEMM, "bf16", find_arch("h200"), exhaustive=True).table
    report = evaluate_model(read_model(ROOT / "models" / "nvidia-h200" / "gemm-bf16.json"), table)
    assert results["seeds"][0] == pytest.approx(report.efficiency.geomean, abs=3e-3)
    assert results["shapes"] == len(report.results)


def test_every_part_is_there(results: dict[str, Any], parts: Any) -> None:
    """What the code takes out now is what the table has, and one more screening."""
    wanted = [(change.group, change.part) for change in parts.changes()]
    found = [(row["group"], row["part"]) for row in results["parts"]]
    assert found[:-1] == wanted
    assert {group for group, _ in found} == GROUPS
    for row in results["parts"]:
        assert 0.0 < row["min"] <= row["p5"] <= row["geomean"] <= row["top3"] <= 1.0
        assert row["error"] > 0.0


def test_efficiency_grows_with_measurements(results: dict[str, Any]) -> None:
    """From 1 % to all points, by shares; the best of three predictions grows with every step."""
    growth = results["growth"]
    assert [row["fraction"] for row in growth] == [0.01, 0.03, 0.1, 0.3, 1.0]
    assert growth[-1]["points"] == results["complete"]["points"]
    assert growth[-1]["geomean"] > growth[0]["geomean"]
    assert all(before["top3"] < after["top3"] for before, after in itertools.pairwise(growth))
    for row in growth:
        assert row["low"] <= row["geomean"] <= row["high"]


@lru_cache
def some_points() -> GemmPoints:
    """Return a few rows of the held-out sweep, mapped."""
    arch = find_arch("h200")
    sweep = ROOT / "calibration" / "nvidia-h200" / "gemm-bf16-holdout.csv.gz"
    table = _few_rows(read_measurements(sweep, GEMM, "bf16", arch, exhaustive=True).table)
    return GemmGeometry(table.configs, arch, find_dtype("bf16")).points(table.dims, table.config_index)


@pytest.mark.parametrize("name", TERMS)
def test_a_term_that_is_taken_out_counts_for_nothing(parts: Any, name: str) -> None:
    """Inside the patch its column is zero and the others are not touched; afterwards all is as before."""
    points = some_points()
    whole = points.terms()
    with parts.without_term(name):
        reduced = points.terms()
    column = TERMS.index(name)
    assert not reduced[:, column].any()
    np.testing.assert_array_equal(np.delete(reduced, column, axis=1), np.delete(whole, column, axis=1))
    np.testing.assert_array_equal(GemmPoints.terms(points), whole)


def _few_rows(table: Any) -> Any:
    return table.select(np.arange(0, len(table), 997))
