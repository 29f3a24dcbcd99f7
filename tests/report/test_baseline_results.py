"""The committed table of baselines follows from the committed model and measurements."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from wavetune.core.arch import find_arch
from wavetune.core.config import GEMM
from wavetune.report.accuracy import evaluate_model
from wavetune.runtime.codec import read_model
from wavetune.store.csv_io import read_measurements

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "nvidia-h200" / "baselines.json"

# The tests of an installed wheel run without the checkout around them.
pytestmark = pytest.mark.skipif(not RESULTS.is_file(), reason="the results are in the source tree only")


def rows(name: str) -> dict[str, dict[str, float]]:
    """Return the rows of one table by method."""
    return {row["method"]: row for row in json.loads(RESULTS.read_text())[name]}


def test_our_row_is_what_the_shipped_model_does() -> None:
    """The live row is the shipped model on the shipped hold-out sweep; if not, run benchmarks/baselines.py again."""
    sweep = ROOT / "calibration" / "nvidia-h200" / "gemm-bf16-holdout.csv.gz"
    table = read_measurements(sweep, GEMM, "bf16", find_arch("h200"), exhaustive=True).table
    report = evaluate_model(read_model(ROOT / "models" / "nvidia-h200" / "gemm-bf16.json"), table)
    ours = rows("live")["wavetune, one shot"]
    assert ours["geomean"] == pytest.approx(report.efficiency.geomean, abs=5e-4)
    assert ours["p5"] == pytest.approx(report.efficiency.p5, abs=5e-4)
    assert rows("live")["wavetune, top 3 measured"]["geomean"] == pytest.approx(report.top3_efficiency, abs=5e-4)


@pytest.mark.parametrize("name", ["recorded", "live"])
def test_the_table_is_whole(name: str) -> None:
    """Every method has its costs and an efficiency that can be one, and measuring more never hurts."""
    table = rows(name)
    assert len(table) >= 10
    for row in table.values():
        assert 0.0 < row["min"] <= row["p5"] <= row["geomean"] <= 1.0
        assert row["unmeasured"] <= 1  # a rival may choose what cannot run
        assert row["timings_before"] >= 0
        assert row["timings_per_shape"] >= 0
    one, three, eight = (table[f"wavetune, {kind}"] for kind in ("one shot", "top 3 measured", "top 8 measured"))
    assert one["geomean"] <= three["geomean"] <= eight["geomean"]
    assert one["timings_per_shape"] == 0
