"""``wavetune quicktune``: from a log to verified tables, on a made-up GPU."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command_shell import Result
from tuning_gpu import MadeUpTuningGpu

from wavetune import choose_config, rank_configs
from wavetune.cli.quicktune import EXIT_MISMATCH, pinned_in_force
from wavetune.core.config import KernelConfig
from wavetune.core.problem import GemmProblem
from wavetune.core.workload import Workload
from wavetune.measure.contest import TORCH_MM
from wavetune.runtime.settings import configure, settings

Cli = Callable[..., Result]

TRACE = (
    "[2026-11-29 15:51:52][cublasLt][462][Trace][cublasLtTSTMatmul] A=0X7FDC74000000 "
    "Adesc=[type=R_16BF rows={k} cols={n} ld={k}] B=0X7FDCC1A70A00 Bdesc=[type=R_16BF rows={k} cols={m} ld={k}] "
    "C=0X7FDCC1ABAA00 Cdesc=[type=R_16BF rows={n} cols={m} ld={n}] D=0X7FDCC1ABAA00 "
    "Ddesc=[type=R_16BF rows={n} cols={m} ld={n}] computeDesc=[computeType=COMPUTE_32F scaleType=R_32F transa=OP_T] "
    "algo=[algoId=66 tile=MATMUL_TILE_64x40] workSpace=0X0 workSpaceSizeInBytes=0 beta=0 outOfPlace=0 stream=0X0"
)
CALLS = {(1, 4096, 4096): 64, (16, 6144, 4096): 32, (2048, 4096, 4096): 2}


def winner(problem: GemmProblem) -> KernelConfig:
    """Return what is truly best: neither the model's pick nor its default."""
    default = choose_config(0, problem.n, problem.k, arch="h200")
    return next(entry.config for entry in rank_configs(problem, arch="h200")[1:] if entry.config != default)


def truth(problem: GemmProblem, config: KernelConfig) -> float:
    """Return 100 us for everything but the winner and torch.mm."""
    scale = problem.m * problem.n * problem.k / 1e10 + 1.0
    return scale * {winner(problem): 80.0, TORCH_MM: 90.0}.get(config, 100.0)


@pytest.fixture
def log(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write a log of cuBLASLt, and let the command find a made-up GPU."""
    lines = [TRACE.format(m=m, n=n, k=k) for (m, n, k), calls in CALLS.items() for _ in range(calls)]
    Path("gemm.log").write_text("\n".join(lines) + "\n")

    def opener(key: Any, gpu: int) -> MadeUpTuningGpu:
        return MadeUpTuningGpu(truth, noise=0.002)

    monkeypatch.setattr("wavetune.cli.tune_run.open_runner", opener)
    return Path("gemm.log")


def test_from_log_to_verified_tables(cli: Cli, log: Path):
    """One command imports, estimates, tunes, analyzes, exports and verifies, and the numbers agree with each other."""
    result = cli("quicktune", log, "--out", "q", "--top", 4, "--arch", "h200", "--json")
    assert result.code == 0, result.stderr
    document = result.json
    assert document["import"]["lines"]["recognised"] == sum(CALLS.values())
    assert document["estimate"]["problems"] == 3
    tuned = document["tune"]
    assert tuned["outcomes"]["tuned"] == 3
    total = tuned["totals"]["all"]
    assert total["calls"] == sum(CALLS.values())
    assert total["speedup_over"]["model"] == pytest.approx(1.25, rel=0.01)
    assert total["speedup_over"]["torch"] == pytest.approx(90 / 80, rel=0.01)
    (analysis,) = document["analyze"].values()
    assert analysis["speedup"] == pytest.approx(total["speedup_over"]["default"], rel=1e-3)
    assert (analysis["calls"], analysis["missing_calls"]) == (total["calls"], 0)
    assert document["verify"] == {
        "summary": {"shapes": 3, "matched": 3, "fellback": 0, "tuned": 0, "invalidated": 0},
        "pinned_but_not_matched": 0,
    }
    assert {entry["rows"] for entry in document["export"].values()} == {3}
    # What is exported is what was measured.
    for entry in Workload.read("q/answers.json").entries:
        problem = entry.key.gemm_problem()
        assert problem is not None
        assert entry.extra["config"] == dict(winner(problem))
        assert entry.extra["source"] == "exact"
        assert entry.extra["latency_us"] == pytest.approx(truth(problem, winner(problem)), rel=0.02)
    with Path("q/quicktune.csv").open(newline="") as file:
        assert {row["latency_source"] for row in csv.DictReader(file)} == {"measured"}


def test_nothing_stays_pinned(cli: Cli, log: Path):
    """The command leaves the settings of the process as they were."""
    before = settings().pinned
    cli("quicktune", log, "--out", "q", "--top", 2, "--arch", "h200")
    assert settings().pinned == before
    other = Path("q/pinned.json").resolve()
    configure(pinned=other)
    with pinned_in_force(Path("q/pinned.json")):
        assert settings().pinned == other
    assert settings().pinned == other


def test_text(cli: Cli, log: Path):
    """Each step says one line, in the order of the steps; the table is on stdout."""
    result = cli("quicktune", log, "--out", "q", "--top", 4, "--arch", "h200")
    assert result.code == 0, result.stderr
    places = [result.stderr.index(f"{step}: ") for step in ("import", "estimate", "analyze", "export", "verify")]
    assert places == sorted(places)
    assert "model / tuned" in result.stdout


def test_a_pinned_problem_that_is_answered_otherwise(cli: Cli, log: Path, monkeypatch: pytest.MonkeyPatch):
    """If the tables do not answer what was pinned, verify says so, and the command fails."""
    monkeypatch.setenv("WAVETUNE_DISABLE", "1")
    result = cli("quicktune", log, "--out", "q", "--top", 4, "--arch", "h200")
    assert result.code == EXIT_MISMATCH
    assert "is pinned, and answered otherwise" in result.stderr


def test_a_log_that_holds_nothing(cli: Cli, log: Path):
    """A file without a problem is refused before anything is measured."""
    Path("empty.log").write_text("nothing\n")
    assert cli("quicktune", "empty.log", "--out", "q", "--arch", "h200").code == 3
    assert cli("quicktune", log, "--out", "q", "--arch", "h200", "--top", 0).code == 2
