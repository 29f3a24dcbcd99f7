"""``wavetune verify --numerics --remeasure``, on a GPU that is made up."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from command_shell import Result

from wavetune import clear_caches
from wavetune.core.config import KernelConfig
from wavetune.core.problem import GemmProblem
from wavetune.measure.check_choices import CheckedChoice
from wavetune.measure.contest import TORCH_MM
from wavetune.measure.runner import Point, PreparedConfigs
from wavetune.store.record import CompiledConfig, Measurement, Status

Cli = Callable[..., Result]


class MadeUpGpu:
    """Times every configuration at 10 us, what a table says otherwise, and torch.mm at 12.

    Parameters
    ----------
    latency_us : mapping of int to float
        Of the answer for this many rows.
    """

    def __init__(self, latency_us: dict[int, float]) -> None:
        self.latency_us = latency_us
        self.keys: list[tuple[str, str]] = []
        self.wrong: set[int] = set()
        self._first: dict[Any, KernelConfig] = {}

    def open(self, key: Any, gpu: int) -> MadeUpGpu:
        """Stand in for `open_runner`."""
        self.keys.append((key.dtype, key.layout))
        return self

    def check(self, pairs: Sequence[tuple[GemmProblem, KernelConfig]], arch: Any, **kwargs: Any) -> list[CheckedChoice]:
        """Stand in for `check_choices`."""
        return [
            CheckedChoice(problem, config, 0.3 if problem.m in self.wrong else 2e-3, "off" * (problem.m in self.wrong))
            for problem, config in pairs
        ]

    def prepare(self, configs: Iterable[KernelConfig]) -> PreparedConfigs:
        """Compile everything."""
        return PreparedConfigs(tuple(CompiledConfig(config, 96, 0, 100_000) for config in configs), ())

    def measure(self, points: Sequence[Point], progress: Any, **how: Any) -> Iterator[Measurement]:
        """Time; the first configuration of a problem is its answer."""
        for point in points:
            answer = self._first.setdefault(point.problem, point.config)
            latency = 12.0 if point.config == TORCH_MM else 10.0
            if point.config == answer:
                latency = self.latency_us.get(point.problem.m, 10.0)
            yield Measurement(point.problem, point.config, Status.OK, latency_us=latency, spread_us=0.05, rounds=9)


@pytest.fixture
def gpu(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> MadeUpGpu:
    """Put a made-up GPU in the place of the real one, and write a workload of two layouts."""
    made_up = MadeUpGpu({})
    monkeypatch.setattr("wavetune.cli.verify_gpu.live_runner", lambda *_, **__: None)
    monkeypatch.setattr("wavetune.cli.tune_run.open_runner", made_up.open)
    monkeypatch.setattr("wavetune.measure.check_choices.check_choices", made_up.check)
    Path("w.csv").write_text("m,n,k,layout,count\n64,4096,4096,nk,90\n65,4096,4096,nk,9\n8,512,512,kn,1\n")
    clear_caches()
    return made_up


def test_right_and_fast_answers_pass(cli: Cli, gpu: MadeUpGpu) -> None:
    """What the tables do not answer is said to be unanswered; the summary keeps its words and gets new ones."""
    gpu.latency_us = {64: 8.0, 65: 10.1}
    result = cli("verify", "w.csv", "--arch", "h200", "--numerics", "--remeasure")
    assert result.code == 0, result.stderr
    assert result.stdout.splitlines()[-1] == (
        "summary shapes=3 matched=1 fellback=2 tuned=0 invalidated=0 unanswered=1 wrong=0 slower=0 unmeasured=0"
    )
    assert gpu.keys == [("bf16", "nk")]
    assert "2.0e-03" in result.stdout


def test_a_slower_answer_fails(cli: Cli, gpu: MadeUpGpu) -> None:
    """Without --strict as well; the document has every figure. An answer that is the default cannot be slower."""
    Path("w.csv").write_text("m,n,k\n" + "".join(f"{m},4096,4096\n" for m in (1, 16, 300, 2048)))
    gpu.latency_us = dict.fromkeys((1, 16, 300, 2048), 11.0)
    result = cli("verify", "w.csv", "--arch", "h200", "--remeasure", "--json")
    assert result.code == 1
    problems = result.json["problems"]
    chosen = [problem for problem in problems if problem["config"] != problem["default"]]
    assert chosen
    for problem in chosen:
        assert (problem["chosen_us"], problem["default_us"], problem["torch_mm_us"]) == (11.0, 10.0, 12.0)
    assert [problem["is_slower"] for problem in problems] == [problem in chosen for problem in problems]
    assert result.json["summary"]["slower"] == len(chosen)
    assert "wrong" not in result.json["summary"]


def test_a_wrong_answer_fails(cli: Cli, gpu: MadeUpGpu) -> None:
    """The row says how far off it is."""
    gpu.wrong = {65}
    result = cli("verify", "w.csv", "--arch", "h200", "--numerics")
    assert result.code == 1
    assert "wrong: off" in result.stdout
    assert result.stdout.splitlines()[-1].endswith("unanswered=1 wrong=1")


def test_without_a_gpu_it_says_so(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """And what works without one."""
    from wavetune.errors import RunnerError

    def no_gpu(*arguments: Any) -> None:
        raise RunnerError("no driver")

    monkeypatch.setattr("wavetune.measure.triton_runner.TritonRunner", no_gpu)
    Path("w.csv").write_text("m,n,k\n64,4096,4096\n")
    result = cli("verify", "w.csv", "--arch", "h200", "--numerics")
    assert result.code == 3
    assert "without them no GPU is needed" in result.stderr
