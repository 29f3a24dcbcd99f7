"""``wavetune tune --backend cublaslt``, on a GPU that is made up."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from command_shell import Result

pytest.importorskip("triton")

from wavetune import clear_caches
from wavetune.core.config import KernelConfig
from wavetune.core.problem import GemmProblem
from wavetune.errors import RunnerError
from wavetune.measure.cublaslt import Algorithm
from wavetune.measure.cublaslt_contest import VendorResult
from wavetune.measure.cuda_timing import Timing

Cli = Callable[..., Result]

LATENCY_US = {1: (10.0, 8.0, 9.0), 64: (20.0, 20.0, 40.0), 512: (50.0, 40.0, 25.0)}
"""torch.mm, best of the list, and ours, by rows."""


class MadeUpContest:
    """Stands in for `VendorContest`."""

    asked: list[tuple[GemmProblem, int]]
    refused: int
    lost_at: int

    def __init__(self, arch: Any, dtype: str, gpu: int) -> None:
        self.dtype, self.is_lost = dtype, False
        self.library = SimpleNamespace(version=130000)
        self.session = SimpleNamespace(watch=lambda: None, conditions=lambda: {"drifted": "false"})

    def __enter__(self) -> MadeUpContest:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def run(self, problem: GemmProblem, config: KernelConfig | None, *, top: int) -> VendorResult:
        """Answer from the table."""
        assert problem.dtype == self.dtype
        self.asked.append((problem, top))
        if problem.m == self.lost_at:
            self.is_lost = True
            raise RunnerError("the GPU failed")
        if problem.m == self.refused:
            raise RunnerError("exceeds the data pool")
        default, best, own = (Timing(value, 0.1, 9) for value in LATENCY_US[problem.m])
        listed = tuple(Algorithm(i, 60 + i, "128x128", "64xAUTO", "1x1x1", 1, 0, 0, 0, 1.0) for i in range(2))
        return VendorResult(
            problem, default, own if config else None, default, best, listed[1], listed, {0: 11.0, 1: 7.5}, {}
        )  # fmt: skip


@pytest.fixture
def contest(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> type[MadeUpContest]:
    """Put the made-up contest in the place of the real one, and write a workload."""
    MadeUpContest.asked, MadeUpContest.refused, MadeUpContest.lost_at = [], -1, -1
    monkeypatch.setattr("wavetune.cli.tune_vendor.live_runner", lambda *_, **__: None)
    monkeypatch.setattr("wavetune.measure.cublaslt_contest.VendorContest", MadeUpContest)
    Path("w.csv").write_text(
        "m,n,k,dtype,count,batch,alignment\n1,4096,4096,bf16,100,1,0\n64,4096,4096,fp16,10,1,0\n"
        "512,4096,4096,bf16,1,1,0\n8,512,512,fp32,1,1,0\n8,512,512,bf16,1,4,0\n8,512,512,bf16,1,1,2\n"
    )
    clear_caches()
    return MadeUpContest


def tune(cli: Cli, *arguments: object) -> Result:
    """Run the verb."""
    return cli("tune", "w.csv", "--backend", "cublaslt", "--arch", "h200", "--out", "out", *arguments)


def rows_of(path: str) -> list[dict[str, str]]:
    """Read a table."""
    return list(csv.DictReader(Path(path).read_text().splitlines()))


def test_sums_are_weighted_by_calls(cli: Cli, contest: type[MadeUpContest]) -> None:
    """Of each rival over the problems that it has a reading of; what is not timed is counted by reason."""
    result = tune(cli, "--top", 16, "--json")
    assert result.code == 0, result.stderr
    document = result.json
    assert document == json.loads(Path("out/cublaslt.json").read_text())
    assert document["summary"] == {
        "problems": 3, "calls": 111,
        "best_problems": 3, "best_speedup": pytest.approx((1000 + 200 + 50) / (800 + 200 + 40), abs=1e-4),
        "own_problems": 3, "own_speedup": pytest.approx((1000 + 200 + 50) / (900 + 400 + 25), abs=1e-4),
    }  # fmt: skip
    assert document["left_out"] == {"fp32, not bf16 or fp16": 1, "rows are padded": 1, "no plain GEMM": 1}
    assert {top for _, top in contest.asked} == {16}
    # The qualifying reading of the winner is a little too good, and is not what is reported.
    assert document["problems"][0]["best_us"] == 8.0
    assert [entry["qualifying_us"] for entry in document["problems"][0]["list"]] == [11.0, 7.5]


def test_a_row_can_be_reproduced(cli: Cli, contest: type[MadeUpContest]) -> None:
    """The command of a row makes a workload of it, and times it with the same list."""
    tune(cli, "--top", 4)
    rows = rows_of("out/cublaslt.csv")
    assert [row["status"] for row in rows] == ["ok"] * 3
    assert float(rows[0]["speedup"]) == 1.25
    prepare, command = rows[0]["reproduce"].split(" && ")
    text = prepare.removeprefix("printf '").removesuffix("' > one.csv").replace("\\n", "\n")
    Path("one.csv").write_text(text)
    contest.asked.clear()
    assert cli(*command.removeprefix("wavetune ").split(), "--arch", "h200").code == 0
    assert contest.asked == [(GemmProblem(1, 4096, 4096), 4)]


def test_the_terminal_has_the_most_time_first(cli: Cli, contest: type[MadeUpContest]) -> None:
    """And the sums at the end."""
    lines = tune(cli).stdout.splitlines()
    assert [line.split()[0] for line in lines[1:4]] == ["100", "10", "1"]
    assert lines[-1].startswith("weighted by calls, against torch.mm: best of the list 1.202x over 3 problems, ours 0.")


def test_one_refused_problem_does_not_stop_the_others(cli: Cli, contest: type[MadeUpContest]) -> None:
    """Its row says why; a lost GPU ends the run, and what was timed is kept."""
    contest.refused = 1
    document = tune(cli, "--json").json
    assert [row["status"] for row in document["problems"]] == ["exceeds the data pool", "ok", "ok"]
    assert document["problems"][0]["best_us"] is None
    contest.refused, contest.lost_at = -1, 512
    result = tune(cli)
    assert (result.code, "the GPU failed" in result.stderr) == (3, True)
    rows = rows_of("out/cublaslt.csv")
    assert [row["status"] for row in rows] == ["ok", "the GPU failed"]


def test_mistakes(cli: Cli, contest: type[MadeUpContest]) -> None:
    """Nothing to time is an error with the reasons."""
    assert tune(cli, "--top", -2).code == 2
    Path("w.csv").write_text("m,n,k,dtype\n8,512,512,fp32\n")
    result = tune(cli)
    assert result.code == 3
    assert "fp32" in result.stderr
