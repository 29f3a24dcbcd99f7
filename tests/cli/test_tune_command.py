"""``wavetune tune`` and ``wavetune retime`` on a made-up GPU."""

from __future__ import annotations

import csv
import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command_shell import Result
from made_up_gpu import latency_us
from tuning_gpu import MadeUpTuningGpu, some_configs

from wavetune import choose_config, clear_caches, rank_configs
from wavetune.core.arch import find_arch
from wavetune.core.config import KernelConfig
from wavetune.core.problem import GemmProblem
from wavetune.core.workload import Workload
from wavetune.errors import RunnerError
from wavetune.measure.contest import TORCH_MM
from wavetune.pipeline.tune_files import CANDIDATE_COLUMNS, TUNED_COLUMNS
from wavetune.runtime.device import Device
from wavetune.runtime.pinned import read_pinned
from wavetune.workloads.pattern_cache import PatternCache

Cli = Callable[..., Result]

SHAPES = [(1, 4096, 4096), (64, 6144, 4096), (512, 4096, 4096), (2048, 8192, 2048)]
WORKLOAD: dict[str, Any] = {
    "schema_version": 1,
    "problems": [
        *({"m": m, "n": n, "k": k, "dtype": "bf16", "count": 10 * m} for m, n, k in SHAPES),
        {"operation": "batched_gemm", "m": 8, "n": 64, "k": 64, "batch": 4, "dtype": "bf16", "count": 3},
        {"m": 8, "n": 64, "k": 64, "dtype": "int8", "count": 2},
    ],
}


def hidden_winner(problem: GemmProblem) -> KernelConfig:
    """Return what is truly best on the made-up GPU: neither the model's pick nor its default."""
    default = choose_config(0, problem.n, problem.k, arch="h200")
    return next(entry.config for entry in rank_configs(problem, arch="h200")[1:] if entry.config != default)


def truth(problem: GemmProblem, config: KernelConfig) -> float:
    """Return latencies of the recording's formula, but for the hidden winner and torch.mm."""
    pick = rank_configs(problem, arch="h200")[0].config
    base_us = latency_us(*problem.dims, blocks(pick))
    if config == TORCH_MM:
        return 0.95 * base_us
    return 0.8 * base_us if config == hidden_winner(problem) else latency_us(*problem.dims, blocks(config))


def blocks(config: KernelConfig) -> tuple[int, int, int]:
    """Return the tile."""
    return int(config["block_m"]), int(config["block_n"]), int(config["block_k"])


@pytest.fixture
def gpus(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> list[MadeUpTuningGpu]:
    """Let every command find a fresh made-up GPU, and list them."""
    opened: list[MadeUpTuningGpu] = []

    def opener(key: Any, gpu: int) -> MadeUpTuningGpu:
        opened.append(MadeUpTuningGpu(truth, noise=0.003))
        return opened[-1]

    monkeypatch.setattr("wavetune.cli.tune_run.open_runner", opener)
    Path("w.json").write_text(json.dumps(WORKLOAD))
    return opened


def rows_of(path: str) -> list[dict[str, str]]:
    """Read a CSV file."""
    with Path(path).open(newline="") as file:
        return list(csv.DictReader(file))


def test_tune(cli: Cli, gpus: list[MadeUpTuningGpu]):
    """The folder holds the winners; pinned, they are what the runtime answers; other entries are listed."""
    result = cli("tune", "w.json", "--out", "t", "--top", 4, "--arch", "h200", "--json")
    document = result.json
    assert document["outcomes"] == {"tuned": 4, "pick": 0, "default": 0, "failed": 0}
    assert [entry["operation"] for entry in document["not_tuned"]] == ["batched_gemm", "gemm"]
    rows = rows_of("t/tuned.csv")
    assert tuple(rows[0]) == TUNED_COLUMNS
    for row, (m, n, k) in zip(rows, SHAPES, strict=True):
        problem = GemmProblem(m, n, k)
        assert (row["m"], row["n"], row["k"], row["count"]) == (str(m), str(n), str(k), str(10 * m))
        assert float(row["latency_us"]) == pytest.approx(truth(problem, hidden_winner(problem)), rel=0.02)
        assert float(row["speedup_over_model"]) == pytest.approx(1 / 0.8, rel=0.02)
        assert float(row["speedup_over_torch"]) == pytest.approx(0.95 / 0.8, rel=0.02)
    table = read_pinned("t/pinned.json")
    assert {p.dims: config for p, (config, _) in table.entries.items()} == {
        dims: hidden_winner(GemmProblem(*dims)) for dims in SHAPES
    }
    assert table.provenance["environment"] == {"gpu_name": "made up"}
    # The table of results is a workload as well.
    read = Workload.read("t/tuned.csv")
    assert [(entry.key.m, entry.count) for entry in read.entries] == [(m, 10 * m) for m, _, _ in SHAPES]
    candidates = rows_of("t/candidates.csv")
    assert tuple(candidates[0]) == CANDIDATE_COLUMNS
    assert {row["stage"] for row in candidates} == {"screen", "final", "confirm"}
    assert len(candidates) == document["measured_points"] == len(gpus[0].asked)


def test_pinned_results_are_in_use(cli: Cli, gpus: list[MadeUpTuningGpu], monkeypatch: pytest.MonkeyPatch):
    """With WAVETUNE_PINNED the runtime answers the winners, and verify matches all of them."""
    cli("tune", "w.json", "--out", "t", "--top", 4, "--arch", "h200")
    winner = hidden_winner(GemmProblem(*SHAPES[0]))
    assert choose_config(*SHAPES[0], arch="h200") != winner
    monkeypatch.setenv("WAVETUNE_PINNED", "t/pinned.json")
    clear_caches()
    assert choose_config(*SHAPES[0], arch="h200") == winner
    summary = cli("verify", "t/tuned.csv", "--arch", "h200", "--strict", "--json").json["summary"]
    assert (summary["matched"], summary["fellback"]) == (4, 0)


def test_analyze_reads_what_was_confirmed(cli: Cli, gpus: list[MadeUpTuningGpu], monkeypatch: pytest.MonkeyPatch):
    """Analyze joins the readings on fresh buffers, and finds the same gain over the default."""
    document = cli("tune", "w.json", "--out", "t", "--top", 4, "--arch", "h200", "--json").json
    monkeypatch.setenv("WAVETUNE_PINNED", "t/pinned.json")
    clear_caches()
    arguments = ("analyze", "t/tuned.csv", "--measurements", "t/confirmed-bf16-nk.csv.gz", "--arch", "h200", "--json")
    analysis = cli(*arguments).json
    assert analysis["total"]["missing_calls"] == 0
    expected = document["totals"]["all"]["speedup_over"]["default"]
    assert analysis["chosen"]["speedup"] == pytest.approx(expected, rel=1e-3)


def test_the_same_command_goes_on(cli: Cli, gpus: list[MadeUpTuningGpu], monkeypatch: pytest.MonkeyPatch):
    """Ctrl-C exits with 130 and says how to go on; the same command then measures only what is missing."""
    arguments = ("tune", "w.json", "--out", "t", "--top", 4, "--arch", "h200")
    stopped = MadeUpTuningGpu(truth, noise=0.003, stop_after=9)
    with monkeypatch.context() as patch:
        patch.setattr("wavetune.cli.tune_run.open_runner", lambda key, gpu: stopped)
        result = cli(*arguments)
    assert result.code == 130
    assert "t/journal-" in result.stderr
    assert "go on with: wavetune" in result.stderr
    assert not Path("t/tuned.csv").exists()
    document = cli(*arguments, "--json").json
    assert document["resumed_points"] == 8
    assert document["outcomes"]["tuned"] == 4
    again = cli(*arguments, "--json").json
    assert again["measured_points"] == 0
    assert again["problems"] == document["problems"]


def test_the_reproduce_command_works(cli: Cli, gpus: list[MadeUpTuningGpu]):
    """The command of a row times winner, pick and default again, and torch.mm beside them."""
    cli("tune", "w.json", "--out", "t", "--top", 4, "--arch", "h200")
    row = rows_of("t/tuned.csv")[1]
    words = shlex.split(row["reproduce"])
    assert words[0] == "wavetune"
    document = cli(*words[1:], "--json").json
    latencies = {json.dumps(entry["config"]): entry["latency_us"] for entry in document["rows"]}
    problem = GemmProblem(*SHAPES[1])
    assert latencies[json.dumps(dict(TORCH_MM))] == pytest.approx(truth(problem, TORCH_MM), rel=0.02)
    assert latencies[json.dumps(dict(hidden_winner(problem)))] == pytest.approx(float(row["latency_us"]), rel=0.02)
    assert "torch.mm" in cli(*words[1:]).stdout


@pytest.mark.parametrize("text", ["block_m", "block_m=16 block_m=16", "block_m=16", "library=torch.mm"])
def test_a_configuration_that_is_none(cli: Cli, gpus: list[MadeUpTuningGpu], text: str):
    """A configuration that is cut, doubled or foreign is refused."""
    assert cli("retime", 1, 64, 64, "--arch", "h200", "--config", text).code == 3


def test_remember(cli: Cli, gpus: list[MadeUpTuningGpu]):
    """With --remember the next process answers the winners without a pinned table."""
    cli("tune", "w.json", "--out", "t", "--top", 4, "--arch", "h200", "--remember")
    clear_caches()
    for dims in SHAPES:
        assert choose_config(*dims, arch="h200") == hidden_winner(GemmProblem(*dims))


def test_text(cli: Cli, gpus: list[MadeUpTuningGpu]):
    """The terminal shows problems, classes, and what was left out."""
    result = cli("tune", "w.json", "--out", "t", "--top", 4, "--arch", "h200")
    assert result.code == 0, result.stderr
    assert "default / tuned" in result.stdout
    assert "prefill" in result.stdout
    assert "4 tuned" in result.stdout
    assert "2 of 6 entries are not tuned" in result.stderr
    assert "WAVETUNE_PINNED=t/pinned.json" in result.stderr


def test_pattern_cache(cli: Cli, gpus: list[MadeUpTuningGpu]):
    """Winners seed the next tuning: with the model's pick alone to measure, the winners of the first are found."""
    cli("tune", "w.json", "--out", "a", "--top", 4, "--arch", "h200", "--pattern-cache", "p.json")
    assert len(cli("patterns", "show", "p.json", "--json").json["patterns"]) >= 1
    without = cli("tune", "w.json", "--out", "b", "--top", 1, "--arch", "h200", "--json").json
    seeded = cli(
        "tune", "w.json", "--out", "c", "--top", 1, "--arch", "h200", "--pattern-cache", "p.json", "--json"
    ).json
    assert without["outcomes"]["tuned"] == 0
    assert seeded["outcomes"]["tuned"] == 4
    (pattern, *_) = cli("patterns", "show", "p.json", "--json").json["patterns"]
    assert pattern["wins"] >= 2


def test_patterns_verbs(cli: Cli):
    """Caches are added up, cut to the most useful, and refused where they are damaged."""
    problem = GemmProblem(512, 4096, 4096)
    arch = find_arch("h200")
    for name, wins in (("a.json", 1), ("b.json", 3)):
        cache = PatternCache()
        for config in some_configs(4):
            for _ in range(wins):
                cache.record_use(problem, config, arch, won=True)
        cache.write(name)
    assert cli("patterns", "merge", "a.json", "b.json", "--out", "c.json").code == 0
    assert [entry["wins"] for entry in cli("patterns", "show", "c.json", "--json").json["patterns"]] == [4] * 4
    assert "64x128x64 w4 s3" in cli("patterns", "show", "c.json").stdout
    result = cli("patterns", "prune", "c.json", "--limit", 3)
    assert result.stdout == "c.json: 3 patterns\n"
    assert len(cli("patterns", "show", "c.json", "--json").json["patterns"]) == 3
    assert cli("patterns", "merge", "a.json", "a.json", "--out", "d.json").code == 2
    Path("a.json").write_text(Path("a.json").read_text()[:-9])
    result = cli("patterns", "merge", "b.json", "a.json", "--out", "d.json")
    assert result.code == 3
    assert "a.json: field file" in result.stderr
    assert not Path("d.json").exists()
    Path("w.csv").write_text("m,n,k\n512,4096,4096\n")
    result = cli("tune", "w.csv", "--out", "t", "--arch", "h200", "--pattern-cache", "a.json")
    assert result.code == 3
    assert "a.json: field file" in result.stderr


def test_wrong_use(cli: Cli, gpus: list[MadeUpTuningGpu], monkeypatch: pytest.MonkeyPatch):
    """--top 0, unknown backends and options of another backend are usage errors."""
    assert cli("tune", "w.json", "--out", "t", "--arch", "h200", "--top", 0).code == 2
    assert cli("tune", "w.json", "--out", "t", "--arch", "h200", "--backend", "hipblaslt").code == 2
    assert cli("tune", "w.json", "--out", "t", "--arch", "h200", "--backend", "cublaslt", "--remember").code == 2
    Path("w.csv").write_text("m,n,k,dtype\n8,64,64,int8\n")
    assert cli("tune", "w.csv", "--out", "t", "--arch", "h200").code == 4
    Path("b.json").write_text(json.dumps({"problems": [WORKLOAD["problems"][-2]]}))
    assert cli("tune", "b.json", "--out", "t", "--arch", "h200").code == 3


def test_another_backend(cli: Cli, gpus: list[MadeUpTuningGpu], monkeypatch: pytest.MonkeyPatch):
    """--backend cublaslt hands workload and GPU to the library's tuner, and opens no GPU of its own."""
    calls: list[dict[str, Any]] = []

    def tuner(workload: Workload, device: Device, **keywords: Any) -> None:
        calls.append({"calls": workload.calls, "arch": device.arch.name, **keywords})

    monkeypatch.setattr("wavetune.cli.tune_vendor.tune_cublaslt", tuner)
    arguments = ("tune", "w.json", "--out", "t", "--arch", "h200", "--backend", "cublaslt", "--top", 8, "--json")
    assert cli(*arguments).code == 0
    total = sum(problem["count"] for problem in WORKLOAD["problems"])
    assert calls == [{"calls": total, "arch": "nvidia-h200", "gpu": 0, "top": 8, "out": Path("t"), "as_json": True}]
    assert gpus == []


def test_no_gpu(cli: Cli, monkeypatch: pytest.MonkeyPatch):
    """Without a GPU the error says what would do without."""

    def no_gpu(gpu: int) -> str:
        raise RunnerError("no NVIDIA driver answers")

    monkeypatch.setattr("wavetune.measure.environment.device_name", no_gpu)
    Path("w.json").write_text(json.dumps(WORKLOAD))
    result = cli("tune", "w.json", "--out", "t", "--arch", "h200", "--top", 2)
    assert result.code == 3
    assert "wavetune estimate" in result.stderr
    assert not Path("t").exists()


def test_nothing_to_time(cli: Cli, gpus: list[MadeUpTuningGpu]):
    """A size of zero is told before a GPU is asked for."""
    config = "block_m=64 block_n=64 block_k=64 group_m=8 num_warps=4 num_stages=3"
    negative = cli("retime", -1, 64, 64, "--config", config, "--arch", "h200")
    assert (negative.code, "m must not be negative" in negative.stderr) == (3, True)
    result = cli("retime", 0, 64, 64, "--config", config, "--arch", "h200")
    assert (result.code, "0 x 64 x 64 is zero: there is nothing to time" in result.stderr) == (3, True)
    assert not gpus
