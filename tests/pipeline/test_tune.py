"""Tuning on a made-up GPU whose true latencies are known."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tuning_gpu import MadeUpTuningGpu, plan_of, some_configs

from wavetune.core.config import KernelConfig
from wavetune.core.problem import GemmProblem
from wavetune.core.workload_entry import size_class
from wavetune.measure.contest import TORCH_MM, ContestRunner
from wavetune.measure.timing import GRAPH_METHOD, STREAM_METHOD
from wavetune.pipeline.tune import FINALISTS, SLOW_RATIO, TunedGroup, TuneOptions, tune_problems
from wavetune.pipeline.tune_plan import ProblemPlan
from wavetune.pipeline.tune_stages import CONFIRM, FINAL, LOOK, SCREEN, screening_method
from wavetune.pipeline.tune_summary import outcomes, totals_by_class
from wavetune.pipeline.tune_verdict import Outcome
from wavetune.plan.iteration_policy import LONG, MEDIUM, SHORT
from wavetune.store.database import MeasurementStore
from wavetune.store.record import Status

CONFIGS = some_configs(24)
PROBLEMS = [GemmProblem(m, n, 4096) for m in (1, 16, 64, 512, 2048) for n in (1024, 4096, 6144, 8192)]


def planted(problem: GemmProblem) -> KernelConfig:
    """Return the configuration that is truly best for a problem; never the pick, nor the default."""
    return CONFIGS[1 + random.Random(f"{problem}").randrange(len(CONFIGS) - 2)]


def truth(problem: GemmProblem, config: KernelConfig) -> float:
    """Return 0.85 of the pick's time for the planted configuration, 1 to 1.6 for others, 0.9 for torch.mm."""
    base_us = 5.0 + problem.m * problem.n / 1e5
    if config == TORCH_MM:
        return 0.9 * base_us
    if config == planted(problem):
        return 0.85 * base_us
    slower = 0.0 if config == CONFIGS[0] else random.Random(f"{problem}{config}").uniform(0.0, 0.6)
    return base_us * (1.0 + slower)


def equal(problem: GemmProblem, config: KernelConfig) -> float:
    """Every configuration is as fast as every other."""
    return 20.0


def tune(gpu: MadeUpTuningGpu, path: Path, plans: list[ProblemPlan], options: TuneOptions | None = None) -> TunedGroup:
    """Tune with a journal in a file."""
    with MeasurementStore(path, gpu.environment()) as store:
        return tune_problems(gpu, plans, store, options=options)


def plans_of(problems: list[GemmProblem], configs: list[KernelConfig]) -> list[ProblemPlan]:
    """Return a plan for each problem."""
    return [plan_of(problem, configs) for problem in problems]


def test_the_planted_winner_is_found(tmp_path: Path):
    """With readings that scatter by 6 %, every planted winner is found, and its latency is reported as it is."""
    gpu = MadeUpTuningGpu(truth, noise=0.02)
    assert isinstance(gpu, ContestRunner)
    group = tune(gpu, tmp_path / "j.sqlite", plans_of(PROBLEMS, CONFIGS))
    for tuned in group.problems:
        problem = tuned.plan.problem
        assert (tuned.outcome, tuned.config) == (Outcome.TUNED, planted(problem))
        assert tuned.latency_us == pytest.approx(truth(problem, tuned.config), rel=0.08)
        assert tuned.library_us == pytest.approx(truth(problem, TORCH_MM), rel=0.08)
        assert (tuned.measured, tuned.failed, tuned.skipped) == (len(CONFIGS), 0, 0)
    total = totals_by_class(group.problems)["all"]
    assert total.speedup["model"] == pytest.approx(1 / 0.85, rel=0.02)
    assert total.speedup["torch"] == pytest.approx(0.9 / 0.85, rel=0.02)
    assert gpu.renewed == 1


def test_a_lucky_reading_is_no_speed_up(tmp_path: Path):
    """Where nothing is better than anything else, the best reading says 10 % and the result says nothing."""
    configs = some_configs(60)
    problems = [GemmProblem(m, 4096, 4096) for m in range(1, 81)]
    gpu = MadeUpTuningGpu(equal, noise=0.015)
    group = tune(gpu, tmp_path / "j.sqlite", plans_of(problems, configs), TuneOptions(min_improvement=0.01))
    with MeasurementStore(tmp_path / "j.sqlite") as store:
        screened = [entry for entry in store.measurements() if entry.stratum == SCREEN]
    best_us = {p: min(e.latency_us or 0.0 for e in screened if e.problem == p) for p in problems}
    naive = sum(20.0 for _ in problems) / sum(best_us.values())
    assert naive > 1.08
    total = totals_by_class(group.problems)["all"]
    assert total.speedup["model"] == pytest.approx(1.0, abs=0.005)
    assert total.speedup["default"] == pytest.approx(1.0, abs=0.01)
    assert outcomes(group.problems)["pick"] >= 0.85 * len(problems)


def test_only_fresh_readings_are_reported(tmp_path: Path):
    """Every latency of a result is that of the last stage, which saw winner, pick, default and torch.mm alone."""
    gpu = MadeUpTuningGpu(truth, noise=0.02)
    group = tune(gpu, tmp_path / "j.sqlite", plans_of(PROBLEMS, CONFIGS))
    with MeasurementStore(tmp_path / "j.sqlite") as store:
        last = {(e.problem, e.config): e.latency_us for e in store.measurements() if e.stratum == CONFIRM}
    for tuned in group.problems:
        plan = tuned.plan
        reported = {tuned.config: tuned.latency_us, plan.pick: tuned.pick_us, plan.default: tuned.default_us}
        for config, latency_us in {**reported, TORCH_MM: tuned.library_us}.items():
            assert last[plan.problem, config] == latency_us
    per_problem = len(last) / len(PROBLEMS)
    assert per_problem <= 4
    assert sum(point.stratum == FINAL for point in gpu.asked) <= len(PROBLEMS) * (FINALISTS + 2)


def test_stopped_and_resumed(tmp_path: Path):
    """A tuning that is stopped again and again ends as one that is not, and measures no problem twice."""
    plans = plans_of(PROBLEMS[:6], CONFIGS)
    whole = tune(MadeUpTuningGpu(truth, noise=0.02), tmp_path / "whole.sqlite", plans)
    asked = []
    for stop_after in (40, 60, 30, 20):
        gpu = MadeUpTuningGpu(truth, noise=0.02, stop_after=stop_after)
        with pytest.raises(KeyboardInterrupt):
            tune(gpu, tmp_path / "parts.sqlite", plans)
        asked += gpu.asked
    gpu = MadeUpTuningGpu(truth, noise=0.02)
    resumed = tune(gpu, tmp_path / "parts.sqlite", plans)
    assert resumed.problems == whole.problems
    assert resumed.resumed > 0
    # What was lost is the problem in flight, each time.
    assert len(asked) + len(gpu.asked) <= whole.measured + 4 * len(CONFIGS)
    again = MadeUpTuningGpu(truth, noise=0.02)
    assert tune(again, tmp_path / "parts.sqlite", plans).problems == whole.problems
    assert again.asked == []


WORKER = """
import os, signal, sys
from pathlib import Path
sys.path[:0] = [sys.argv[2], str(Path(sys.argv[2]).parent)]
from test_tune import CONFIGS, PROBLEMS, MadeUpTuningGpu, plans_of, truth, tune

class Killed(MadeUpTuningGpu):
    def _read(self, point, method):
        if len(self.asked) > int(sys.argv[3]):
            os.kill(os.getpid(), signal.SIGKILL)
        return super()._read(point, method)

tune(Killed(truth, noise=0.02), Path(sys.argv[1]), plans_of(PROBLEMS[:6], CONFIGS))
"""


def test_kill_nine(tmp_path: Path):
    """After kill -9 in the middle of a problem, the next run goes on and ends as if nothing had happened."""
    plans = plans_of(PROBLEMS[:6], CONFIGS)
    path = tmp_path / "killed.sqlite"
    arguments = [sys.executable, "-c", WORKER, str(path), str(Path(__file__).parent), "100"]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=120)
    assert done.returncode == -signal.SIGKILL, done.stderr
    gpu = MadeUpTuningGpu(truth, noise=0.02)
    resumed = tune(gpu, path, plans)
    assert resumed.resumed >= 4 * len(CONFIGS)
    assert resumed.problems == tune(MadeUpTuningGpu(truth, noise=0.02), tmp_path / "whole.sqlite", plans).problems


def test_the_least_improvement(tmp_path: Path):
    """What saves less than the least improvement stays with the model's pick; the reason says how much it saves."""
    problem, configs = PROBLEMS[5], CONFIGS[:6]
    better = configs[2]

    def close(problem: GemmProblem, config: KernelConfig) -> float:
        return 99.2 if config == better else 100.0

    plans = [plan_of(problem, configs)]
    (kept,) = tune(MadeUpTuningGpu(close), tmp_path / "a.sqlite", plans).problems
    assert (kept.outcome, kept.config, kept.winner) == (Outcome.PICK, configs[0], better)
    assert "0.8%" in kept.reason
    options = TuneOptions(min_improvement=0.005)
    (taken,) = tune(MadeUpTuningGpu(close), tmp_path / "b.sqlite", plans, options).problems
    assert (taken.outcome, taken.config, taken.reason) == (Outcome.TUNED, better, "")


def test_noise_larger_than_the_improvement(tmp_path: Path):
    """A winner whose lead is inside the 95 % interval is not believed, whatever the least improvement."""
    configs = CONFIGS[:3]

    class Uncertain(MadeUpTuningGpu):
        def _read(self, point, method):
            from dataclasses import replace

            return replace(super()._read(point, method), spread_us=3.0)

    def close(problem: GemmProblem, config: KernelConfig) -> float:
        return 98.0 if config == configs[1] else 100.0

    (kept,) = tune(Uncertain(close), tmp_path / "a.sqlite", [plan_of(PROBLEMS[0], configs)]).problems
    assert kept.outcome is Outcome.PICK


def test_a_pick_that_is_slower_than_the_default(tmp_path: Path):
    """The default takes the place of a pick that is slower, so nothing is ever slower than the default."""
    configs = CONFIGS[:4]

    def bad_pick(problem: GemmProblem, config: KernelConfig) -> float:
        return 120.0 if config == configs[0] else 100.0

    (tuned,) = tune(MadeUpTuningGpu(bad_pick), tmp_path / "a.sqlite", [plan_of(PROBLEMS[0], configs)]).problems
    assert (tuned.outcome, tuned.config) == (Outcome.DEFAULT, configs[-1])
    assert tuned.latency_us == tuned.default_us < tuned.pick_us


def test_skipping_slow_candidates(tmp_path: Path):
    """The same winners with fewer readings: who is far behind at the first look is not screened, and counted."""

    def wide(problem: GemmProblem, config: KernelConfig) -> float:
        if config in (TORCH_MM, planted(problem)):
            return truth(problem, config)
        return truth(problem, config) * random.Random(f"{config}{problem}").choice((1.0, 4.0))

    plans = plans_of(PROBLEMS, CONFIGS)
    every, some = MadeUpTuningGpu(wide, noise=0.01), MadeUpTuningGpu(wide, noise=0.01)
    whole = tune(every, tmp_path / "a.sqlite", plans)
    part = tune(some, tmp_path / "b.sqlite", plans, TuneOptions(skip_slow=True))
    assert [t.config for t in part.problems] == [t.config for t in whole.problems]
    screened = {name: sum(p.stratum == SCREEN for p in gpu.asked) for name, gpu in (("all", every), ("some", some))}
    assert screened["some"] < 0.8 * screened["all"]
    assert sum(p.stratum == LOOK for p in some.asked) == len(PROBLEMS) * len(CONFIGS)
    for tuned in part.problems:
        assert tuned.measured + tuned.skipped == len(CONFIGS)
        slow = [c for c in CONFIGS if wide(tuned.plan.problem, c) > 1.2 * SLOW_RATIO * tuned.latency_us]
        assert tuned.skipped >= len(set(slow) - {tuned.plan.pick, tuned.plan.default})


def test_every_failure_has_a_status(tmp_path: Path):
    """What does not compile or crashes is counted and kept with its reason; others win as ever."""
    problem = PROBLEMS[0]
    bystanders = [config for config in CONFIGS if config not in (planted(problem), CONFIGS[0])]
    broken, crashing = bystanders[:2], bystanders[2:5]
    gpu = MadeUpTuningGpu(truth, broken=broken, crashing=crashing)
    group = tune(gpu, tmp_path / "a.sqlite", [plan_of(problem, CONFIGS)])
    (tuned,) = group.problems
    assert (tuned.config, tuned.measured, tuned.failed) == (planted(problem), len(CONFIGS) - 5, 5)
    by_config = {entry.config: entry.status for entry in group.failures}
    assert by_config == dict.fromkeys(broken, Status.COMPILE_ERROR) | dict.fromkeys(crashing, Status.LAUNCH_ERROR)


def test_nothing_can_be_measured(tmp_path: Path):
    """A problem without any reading has failed, with the reasons; the others are not touched by it."""
    gpu = MadeUpTuningGpu(truth, crashing=CONFIGS[:3], broken=CONFIGS[3:5])
    plans = [plan_of(PROBLEMS[0], CONFIGS[:5]), plan_of(PROBLEMS[1], CONFIGS[5:])]
    failed, fine = tune(gpu, tmp_path / "a.sqlite", plans).problems
    assert (failed.outcome, failed.measured, failed.failed) == (Outcome.FAILED, 0, 5)
    assert "crash" in failed.reason
    assert "too big" in failed.reason
    assert fine.outcome is not Outcome.FAILED
    assert totals_by_class([failed, fine])["all"].problems == 1


def test_launches_by_latency_class(tmp_path: Path):
    """Each class is screened within its launches, on the busy stream; what decides is timed as graphs."""
    predictions = {1: 8.0, 512: 200.0, 9999: 3e3}
    plans = [plan_of(GemmProblem(m, 4096, 4096), CONFIGS[:3], predicted_us=us) for m, us in predictions.items()]
    gpu = MadeUpTuningGpu(truth)
    tune(gpu, tmp_path / "a.sqlite", plans)
    screens = [rule for method, rule in gpu.rules if method == STREAM_METHOD]
    assert [rule.cold_launches for rule in screens] == [SHORT.cold, MEDIUM.cold, LONG.cold]
    for rule, iterations, us in zip(screens, (SHORT, MEDIUM, LONG), (8.0, 200.0, 3e3), strict=True):
        assert rule == screening_method(iterations, us).rule
        # Six launches a reading, each as long as predicted, with noise: the policy's number is the limit.
        spent, readings = 0.0, []
        while not rule.is_satisfied(readings, spent):
            readings.append(us * (1.0 + 0.1 * (len(readings) % 7)))
            spent += 6 * us
        assert len(readings) == max(3, -(-iterations.timed // 6))
    assert [method for method, _ in gpu.rules].count(GRAPH_METHOD) == 2


def test_totals_are_weighted_by_calls(tmp_path: Path):
    """A problem that is called a thousand times counts a thousand times; classes add up to all."""
    plans = [plan_of(PROBLEMS[0], CONFIGS, count=1000), plan_of(PROBLEMS[-1], CONFIGS, count=1)]
    problems = tune(MadeUpTuningGpu(truth), tmp_path / "a.sqlite", plans).problems
    totals = totals_by_class(problems)
    assert set(totals) == {size_class(p.plan.problem.m) for p in problems} | {"all"}
    expected = sum(p.plan.count * truth(p.plan.problem, p.config) for p in problems)
    assert totals["all"].tuned_us == pytest.approx(expected)
    assert totals["all"].tuned_us == pytest.approx(sum(part.tuned_us for name, part in totals.items() if name != "all"))
