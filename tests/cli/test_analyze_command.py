"""``wavetune analyze``: best against default, weighted by calls, nothing made up."""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from command_shell import Result
from made_up_gpu import CONFIGS, HEADER, latency_us, write_rows

from wavetune import choose_config
from wavetune.core.arch import find_arch
from wavetune.core.problem import GemmProblem
from wavetune.core.workload import Workload
from wavetune.core.workload_entry import WorkloadEntry, WorkloadKey
from wavetune.report.workload_analysis import (
    AnalysedEntry,
    Totals,
    call_roofline_us,
    model_speedup,
    roofline_bound,
)

Cli = Callable[..., Result]

LAYER = (6144, 4096)
ENTRIES: list[dict[str, Any]] = [
    {"m": 1, "count": 1000},
    {"m": 128, "count": 20},
    {"m": 2048, "count": 3, "bias": True},
    {"m": 2048, "count": 5, "dtype": "fp16"},
    {"m": 1, "count": 7, "layout": "kn"},
    {"m": 77, "count": 11},
    {"m": 64, "count": 2, "batch": 4},
    {"m": 64, "count": 2, "alignment": 2},
]
MEASURED = {1: 1000, 128: 20, 2048: 3}


@pytest.fixture
def analyze(cli: Cli) -> Callable[..., Result]:
    """Write workload and measurements; return a function that runs the verb on them."""
    n, k = LAYER
    problems = [{"n": n, "k": k, **entry} for entry in ENTRIES]
    Path("w.json").write_text(json.dumps({"schema_version": 1, "problems": problems}))
    write_rows(Path("m.csv"), [(m, *LAYER) for m in (1, 64, 128, 2048)])
    Path("m.csv.gz").write_bytes(gzip.compress(Path("m.csv").read_bytes()))
    return lambda *more: cli("analyze", "w.json", "--measurements", "m.csv.gz", "--arch", "h200", *more)


def times(m: int) -> tuple[float, float]:
    """Return the default's and the best latency of the made-up GPU."""
    default = choose_config(0, *LAYER, arch="h200")
    blocks = (default["block_m"], default["block_n"], default["block_k"])
    return latency_us(m, *LAYER, blocks), min(latency_us(m, *LAYER, each) for each in CONFIGS)


def test_totals_are_weighted_by_count(analyze: Callable[..., Result]):
    """Every joined call counts with its own latencies; all others are listed with their reason."""
    document = analyze("--json").json
    total = document["total"]
    default_us = sum(count * times(m)[0] for m, count in MEASURED.items())
    best_us = sum(count * times(m)[1] for m, count in MEASURED.items())
    assert total["baseline_us"] == pytest.approx(default_us)
    assert total["best_us"] == pytest.approx(best_us)
    assert total["speedup"] == pytest.approx(default_us / best_us)
    assert total["speedup"] > 1.01
    assert (total["calls"], total["missing_calls"]) == (1023, 27)
    assert total["coverage"] == pytest.approx(1023 / 1050)
    reasons = {(p["m"], p["count"]): p["reason"] for p in document["problems"] if p["reason"]}
    assert reasons == {
        (2048, 5): "measured were bf16 nk, this is fp16 nk",
        (1, 7): "measured were bf16 nk, this is bf16 kn",
        (77, 11): "not measured",
        (64, 2): reasons[64, 2],
    }
    assert sum(bool(p["reason"]) for p in document["problems"]) == 5
    assert [p["baseline_us"] for p in document["problems"] if p["reason"]] == [None] * 5
    assert [(p["m"], p["bound"]) for p in document["problems"][:3] if p["m"] != 128] == [
        (1, "bandwidth"), (2048, "math rate"),
    ]  # fmt: skip
    assert all(0 < p["peak_share"] < 1 for p in document["problems"][:3])


def test_classes_add_up(analyze: Callable[..., Result]):
    """Decode, small and prefill are parts of the total."""
    document = analyze("--json").json
    for name in ("calls", "missing_calls", "baseline_us", "best_us"):
        parts = [document["classes"][c][name] for c in ("decode", "small", "prefill")]
        assert sum(parts) == pytest.approx(document["total"][name])
    assert document["classes"]["small"]["baseline_us"] == pytest.approx(20 * times(128)[0])
    assert document["chosen"]["calls"] == 1023
    assert 1 < document["chosen"]["speedup"] <= document["total"]["speedup"]


def test_calls_without_a_baseline(analyze: Callable[..., Result]):
    """Where the default was not measured there is no speed-up to speak of."""
    default = choose_config(0, *LAYER, arch="h200")
    blocks = [str(default[name]) for name in ("block_m", "block_n", "block_k")]
    rows = [line.split(",") for line in Path("m.csv").read_text().splitlines()]
    kept = [",".join(row) for row in rows if not (row[0] == "1" and row[3:6] == blocks)]
    Path("m.csv.gz").write_bytes(gzip.compress("\n".join(kept).encode()))
    document = analyze("--json").json
    (row,) = (p for p in document["problems"] if p["m"] == 1 and p["layout"] == "nk")
    assert row["reason"] == "the default configuration was not measured"
    assert document["total"]["calls"] == 23
    assert HEADER[3:6] == ["block_m", "block_n", "block_k"]


def test_csv(analyze: Callable[..., Result], cli: Cli):
    """QuickTune's columns in its order, shares of the total, the total last; importing it gives the keys and counts."""
    assert analyze("--out", "a.csv").code == 0
    text = Path("a.csv").read_text()
    assert text.startswith(
        "m,n,k,count,baseline_latency(us),baseline_solution_idx,tuned_latency(us),tuned_solution_idx,baseline/tuned,"
        "total_baseline_time(us),total_tuned_time(us),baseline_time_percent,tuned_time_percent,"
    )
    *rows, total = csv.DictReader(io.StringIO(text))
    assert len(rows) == len(ENTRIES)
    found = [row for row in rows if row["status"] == "SUCCESS"]
    assert rows[: len(found)] == found
    assert sorted((row["n"], row["count"]) for row in found) == [("1", "1000"), ("128", "20"), ("2048", "3")]
    shares = [float(row["baseline_time_percent"]) for row in found]
    assert shares == sorted(shares, reverse=True)
    assert sum(shares) == pytest.approx(100, abs=0.02)
    assert (total["m"], total["baseline_latency(us)"]) == ("-", "-")
    spent = sum(float(row["total_baseline_time(us)"]) for row in found)
    assert float(total["total_baseline_time(us)"]) == pytest.approx(spent, abs=0.01)
    assert cli("workload", "import", "a.csv", "--strict", "--out", "back.json").code == 0
    assert Workload.read("back.json").calls == Workload.read("w.json").calls
    known = {entry.key for entry in Workload.read("w.json").entries}
    assert WorkloadKey(1, *LAYER, layout="kn") in known & {entry.key for entry in Workload.read("back.json").entries}


def test_whole_model(analyze: Callable[..., Result]):
    """Amdahl's law; calls without a result gain nothing."""
    whole = Totals(10, 0, 200.0, 100.0, 1.0)
    assert model_speedup(whole, 1.0) == pytest.approx(2)
    assert model_speedup(whole, 0.5) == pytest.approx(1 / 0.75)
    assert model_speedup(whole, 0.0) == 1.0
    assert model_speedup(Totals(10, 10, 200.0, 100.0, 0.5), 1.0) == pytest.approx(1 / 0.75)
    document = analyze("--gemm-share", 0.7, "--json").json
    assert 1 < document["model_speedup"] < document["total"]["speedup"]
    assert analyze("--json").json["model_speedup"] is None
    assert analyze("--gemm-share", 1.5).code == 2


def test_weights_of_calls_without_a_result():
    """Reading a weight takes as long for one row as for a few; batches and groups are products one after another."""
    arch = find_arch("h200")
    one = call_roofline_us(WorkloadKey(1, 8192, 8192), arch)
    assert one == pytest.approx(8192 * 8192 * 2 / 4.8e6, rel=0.01)
    assert call_roofline_us(WorkloadKey(1, 8192, 8192, batch=3), arch) == pytest.approx(3 * one)
    groups = WorkloadKey(2, 8192, 8192, groups=((1, 8192, 8192), (0, 8192, 8192), (1, 8192, 8192)))
    assert call_roofline_us(groups, arch) == pytest.approx(2 * one)
    attention = WorkloadKey(4096, 4096, 128, "attention", heads=8, kv_heads=8)
    assert call_roofline_us(attention, arch) == pytest.approx(4 * 8 * 4096 * 4096 * 128 / 989.4e6)


def test_little_gain_is_held_against_the_roofline():
    """Below 1.1x it is said how near the best is to the peak that bounds it; above, and without a result, nothing."""
    arch = find_arch("h200")
    entry = WorkloadEntry(WorkloadKey(1, 8192, 8192))
    decode = AnalysedEntry(
        entry, 28.0, baseline_us=36.0, best_us=35.0, bound=roofline_bound(GemmProblem(1, 8192, 8192), arch)
    )
    assert decode.roofline_note == "80% of peak bandwidth"
    assert replace(decode, baseline_us=40.0).roofline_note == ""
    assert AnalysedEntry(entry, 28.0, "not measured").roofline_note == ""
    assert roofline_bound(GemmProblem(4096, 8192, 8192), arch) == "math rate"
    assert roofline_bound(GemmProblem(1, 64, 64), arch) == "launch"
    # Where both bounds meet: 206 flops a byte of the weight, 2 m flops for its two bytes.
    bounds = [roofline_bound(GemmProblem(m, 65536, 65536), arch) for m in (190, 240)]
    assert bounds == ["bandwidth", "math rate"]


def test_terminal(analyze: Callable[..., Result]):
    """A table with the total, the calls without a result, classes, coverage and the whole model."""
    result = analyze("--gemm-share", 0.7)
    assert result.code == 0
    for text in ("TOTAL", "decode", "coverage: 97.4% of calls", "whole model: 1.", "no result: gemm 77 x 6144 x 4096"):
        assert text in result.stdout
    assert "3 calls add a bias" in result.stderr


def test_nothing_joined(analyze: Callable[..., Result], cli: Cli):
    """A file of other shapes is an error that says why."""
    write_rows(Path("other.csv"), [(5, 1024, 1024)])
    result = cli("analyze", "w.json", "--measurements", "other.csv", "--arch", "h200")
    assert result.code == 3
    assert "no call of the workload has a result: not measured" in result.stderr
