"""``wavetune quicktune`` on a GPU: a few shapes from log to verified tables, beside the real torch.mm."""

from __future__ import annotations

import csv
import shlex
from pathlib import Path

import pytest
from command_shell import Runner

torch = pytest.importorskip("torch")

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]

SHAPES = [(1, 4096, 4096, 64), (64, 6144, 4096, 32), (2048, 4096, 4096, 2), (100, 4090, 4096, 1)]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in an empty folder with a workload in it and an empty user's store."""
    from wavetune import clear_caches

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WAVETUNE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("WAVETUNE_PINNED", raising=False)
    clear_caches()
    rows = [",".join(map(str, shape)) for shape in SHAPES]
    Path("shapes.csv").write_text("\n".join(["m,n,k,count", *rows]) + "\n")
    return tmp_path


def test_quicktune(folder: Path):
    """Every shape is tuned, not slower than pick and default, and pinned; the same command measures nothing again."""
    arguments = ("quicktune", "shapes.csv", "--out", "q", "--top", 4, "--skip-slow", "--json")
    result = Runner().run(*arguments)
    assert result.code == 0, result.stderr
    document = result.json
    tune = document["tune"]
    assert tune["outcomes"]["failed"] == 0
    for problem in tune["problems"]:
        assert problem["latency_us"] <= 1.05 * min(problem["default_us"], problem["model_us"])
        # No kernel of ours is beyond these limits against cuBLAS; a wrong clock or a wrong operand would be.
        assert 0.3 < problem["torch_us"] / problem["latency_us"] < 4.0
    summary = document["verify"]["summary"]
    assert (summary["shapes"], summary["matched"]) == (len(SHAPES), len(SHAPES))
    (analysis,) = document["analyze"].values()
    assert analysis["missing_calls"] <= 1  # unaligned rows are no part of a measurement file
    again = Runner().run(*arguments)
    assert again.code == 0, again.stderr
    assert again.json["tune"]["measured_points"] == 0
    assert again.json["tune"]["problems"] == tune["problems"]


def test_reproduce(folder: Path):
    """The command of a row gives its latency again, within what a GPU repeats."""
    assert Runner().run("tune", "shapes.csv", "--out", "t", "--top", 2).code == 0
    with Path("t/tuned.csv").open(newline="") as file:
        row = next(csv.DictReader(file))
    result = Runner().run(*shlex.split(row["reproduce"])[1:], "--json")
    assert result.code == 0, result.stderr
    found = {entry["config"].get("library", "ours"): entry["latency_us"] for entry in reversed(result.json["rows"])}
    assert found["torch.mm"] == pytest.approx(float(row["torch_us"]), rel=0.15)
    chosen = result.json["rows"][0]
    assert chosen["latency_us"] == pytest.approx(float(row["latency_us"]), rel=0.15)


def test_other_buffers(folder: Path):
    """Renewed buffers are other memory with other data, and timing goes on as before."""
    from wavetune.core.arch import find_arch
    from wavetune.core.problem import GemmProblem
    from wavetune.measure.contest import TORCH_MM
    from wavetune.measure.contest_runner import TritonContestRunner
    from wavetune.store.record import Point, Status

    runner = TritonContestRunner(find_arch(torch.cuda.get_device_name(0)))
    point = Point(GemmProblem(512, 4096, 4096), TORCH_MM, "test")
    (before,) = runner.measure([point])
    assert runner._session is not None
    old = runner._session.windows.inputs
    first = old[:1000].clone()
    address = old.data_ptr()
    del old
    runner.renew_buffers()
    (after,) = runner.measure([point])
    assert runner._session.windows.inputs.data_ptr() != address
    assert not torch.equal(runner._session.windows.inputs[:1000], first)
    assert before.status is after.status is Status.OK
    assert after.latency_us == pytest.approx(before.latency_us, rel=0.2)
