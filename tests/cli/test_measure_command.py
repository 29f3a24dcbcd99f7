"""``wavetune measure``, with a recording in the place of the GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from wavetune.core.arch import find_arch
from wavetune.core.config import GEMM
from wavetune.errors import RunnerError
from wavetune.measure.replay_runner import ReplayRunner
from wavetune.store.csv_io import read_measurements


@pytest.fixture
def gpu(oracle: Path, monkeypatch: pytest.MonkeyPatch) -> ReplayRunner:
    """Let the command find a GPU that knows the oracle's shapes."""
    table = read_measurements(oracle, GEMM, "bf16", find_arch("h200"), exhaustive=True).table
    runner = ReplayRunner(table, find_arch("h200"))
    monkeypatch.setattr("wavetune.measure.triton_runner.TritonRunner", lambda *arguments: runner)
    monkeypatch.setattr("wavetune.cli.measure.candidate_configs", lambda key: [entry.config for entry in table.configs])
    Path("shapes.csv").write_text("m,n,k,why\n512,4096,4096,prefill\n1,4096,4096,decode\n512,4096,4096,again\n")
    return runner


def test_all_configs_make_an_oracle(cli, gpu: ReplayRunner, model: Path):
    """The file that is written can be evaluated against."""
    result = cli("measure", "--shapes", "shapes.csv", "--all-configs", "--arch", "h200", "--out", "o.csv.gz", "--json")
    assert result.json["rows"] == 12
    assert result.json["shapes"] == 2
    assert cli("evaluate", "--model", model, "--oracle", "o.csv.gz", "--json").json["shapes"] == 2


def test_top_of_the_ranking(cli, gpu: ReplayRunner):
    """Only the model's best are timed; a second run resumes."""
    arguments = ("measure", "--shapes", "shapes.csv", "--top", 2, "--arch", "h200", "--out", "o.csv.gz", "--json")
    assert cli(*arguments).json["rows"] == 4
    assert cli(*arguments).json["resumed_points"] == 4


def test_interruption(cli, gpu: ReplayRunner, monkeypatch: pytest.MonkeyPatch):
    """Ctrl-C names the store and exits with 130."""

    def interrupted(points, progress):
        raise KeyboardInterrupt

    monkeypatch.setattr(gpu, "measure", interrupted)
    result = cli("measure", "--shapes", "shapes.csv", "--arch", "h200", "--out", "o.csv.gz")
    assert result.code == 130
    assert "o.sqlite" in result.stderr


def test_no_gpu(cli, monkeypatch: pytest.MonkeyPatch):
    """Without a GPU there is nothing to measure on."""

    def no_gpu(gpu: int) -> str:
        raise RunnerError("no NVIDIA driver answers")

    monkeypatch.setattr("wavetune.measure.environment.device_name", no_gpu)
    Path("shapes.csv").write_text("m,n,k\n1,2,3\n")
    result = cli("measure", "--shapes", "shapes.csv", "--arch", "h200", "--out", "o.csv.gz")
    assert result.code == 3
    assert "doctor" in result.stderr


def test_two_choices_of_configurations_exclude_each_other(cli):
    """--all-configs and --top are one question."""
    Path("shapes.csv").write_text("m,n,k\n1,2,3\n")
    arguments = ("measure", "--shapes", "shapes.csv", "--arch", "h200", "--out", "o.csv", "--all-configs", "--top", 3)
    assert cli(*arguments).code == 2
