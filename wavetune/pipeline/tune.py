"""Tune the GEMMs of a workload: screen, choose among the best, believe only what holds on fresh buffers."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from wavetune.core.config import KernelConfig
from wavetune.core.problem import GemmProblem
from wavetune.measure.contest import TORCH_MM, ContestRunner
from wavetune.pipeline.calibrate import Observer, SilentObserver, prepare_all
from wavetune.pipeline.tune_plan import ProblemPlan
from wavetune.pipeline.tune_stages import (
    CONFIRM,
    FINAL,
    GLANCE,
    LOOK,
    PRECISE,
    SCREEN,
    STAGES,
    Contest,
    Journal,
    Readings,
    screening_method,
    succeeded,
)
from wavetune.pipeline.tune_verdict import Fates, TunedProblem, judge
from wavetune.plan.iteration_policy import POLICY
from wavetune.store.database import MeasurementStore
from wavetune.store.record import CompiledConfig, Measurement, Status

FINALISTS = 4
"""Best of a screening that are timed again, against each other: its readings rank within about 1 % of each other."""

SLOW_RATIO = 1.5
"""A candidate whose first reading is so many times the best first reading is left out, where slow ones are skipped.
On an H200 single readings repeat within 2 % (calibration/nvidia-h200), but for stalls of the host."""

MIN_IMPROVEMENT = 0.01
"""Share that a configuration must save to replace the model's pick; near-best timings repeat within 1 to 2.5 %."""


@dataclass(frozen=True, slots=True)
class TuneOptions:
    """How to tune.

    Parameters
    ----------
    min_improvement : float, default=0.01
        Share that a configuration must save to replace the model's pick.
    skip_slow : bool, default=False
        Whether candidates that are far behind in their first reading are left out.
    """

    min_improvement: float = MIN_IMPROVEMENT
    skip_slow: bool = False


@dataclass
class TunedGroup:
    """What came of the problems of one element type and layout.

    Parameters
    ----------
    problems : list of TunedProblem
        In the order of the plans.
    compiled : tuple of CompiledConfig
        What could be timed.
    failures : list of Measurement
        Configurations and points without a latency, with status and reason.
    measured, resumed : int
        Points that were timed, and those that the journal already held.
    seconds : dict of str to float
        Wall time of each stage.
    """

    problems: list[TunedProblem]
    compiled: tuple[CompiledConfig, ...]
    failures: list[Measurement]
    measured: int = 0
    resumed: int = 0
    seconds: dict[str, float] = field(default_factory=dict)


def tune_problems(
    runner: ContestRunner,
    plans: Sequence[ProblemPlan],
    store: MeasurementStore,
    *,
    options: TuneOptions | None = None,
    observer: Observer | None = None,
) -> TunedGroup:
    """Tune problems of one element type and layout.

    Parameters
    ----------
    runner : ContestRunner
        Measures.
    plans : sequence of ProblemPlan
        Who competes.
    store : MeasurementStore
        Keeps every measurement; what it already holds is not measured again.
    options : TuneOptions, optional
        Knobs.
    observer : Observer, optional
        Sees progress.

    Raises
    ------
    StoreError
        If the store belongs to another environment, or cannot be written.
    RunnerError
        If the GPU is being timed by another process, or its context is lost.
    """
    options, observer = options or TuneOptions(), observer or SilentObserver()
    seconds: dict[str, float] = {}
    began = time.perf_counter()
    wanted = dict.fromkeys(config for plan in plans for config in plan.candidates)
    prepared = prepare_all(runner, wanted, store, observer)
    usable = {entry.config for entry in prepared.compiled}
    seconds["prepare"] = time.perf_counter() - began

    journal = Journal(store)
    contest: Contest = {plan.problem: [c for c in plan.candidates if c in usable] for plan in plans}
    n_usable = {problem: len(configs) for problem, configs in contest.items()}
    if options.skip_slow:
        began = time.perf_counter()
        observer.begin(STAGES[LOOK], sum(n_usable.values()))
        looks = journal.run(runner, contest, LOOK, GLANCE, observer)
        contest = {plan.problem: _not_slow(plan, contest[plan.problem], looks[plan.problem]) for plan in plans}
        seconds[LOOK] = time.perf_counter() - began

    began = time.perf_counter()
    observer.begin(STAGES[SCREEN], sum(map(len, contest.values())))
    screened: dict[GemmProblem, Readings] = {}
    for members in _by_latency(plans):
        how = screening_method(members[0].iterations, min(plan.predicted_us for plan in members))
        part = {plan.problem: contest[plan.problem] for plan in members}
        screened |= journal.run(runner, part, SCREEN, how, observer, sum(map(len, screened.values())))
    seconds[SCREEN] = time.perf_counter() - began

    began = time.perf_counter()
    finals: Contest = {plan.problem: _finalists(plan, screened[plan.problem]) for plan in plans}
    observer.begin(STAGES[FINAL], sum(map(len, finals.values())))
    decided = journal.run(runner, finals, FINAL, PRECISE, observer)
    winners = {problem: _fastest(readings) for problem, readings in decided.items()}
    seconds[FINAL] = time.perf_counter() - began

    began = time.perf_counter()
    pairs: Contest = {plan.problem: _confirmed(plan, winners[plan.problem], usable) for plan in plans}
    observer.begin(STAGES[CONFIRM], sum(map(len, pairs.values())))
    runner.renew_buffers()
    confirmed = journal.run(runner, pairs, CONFIRM, PRECISE, observer)
    seconds[CONFIRM] = time.perf_counter() - began

    why_not = {entry.config: f"{entry.status}: {entry.detail}" for entry in prepared.failures}
    problems = [
        judge(
            plan, winners[plan.problem], confirmed[plan.problem],
            _fates(plan, n_usable[plan.problem], screened[plan.problem], why_not), options.min_improvement,
        )
        for plan in plans
    ]  # fmt: skip
    failures = [entry for entry in store.measurements(failed=True) if entry.status is not Status.OK]
    return TunedGroup(problems, prepared.compiled, failures, journal.measured, journal.resumed, seconds)


def _by_latency(plans: Sequence[ProblemPlan]) -> list[list[ProblemPlan]]:
    """Group plans by latency class and octave, short ones first: within a group one limit of launches fits all."""
    groups: dict[tuple[float, int], list[ProblemPlan]] = {}
    for plan in sorted(plans, key=lambda plan: plan.predicted_us):
        octave = math.floor(math.log2(max(plan.predicted_us, 1.0)))
        groups.setdefault((POLICY.index(plan.iterations), octave), []).append(plan)
    return list(groups.values())


def _not_slow(plan: ProblemPlan, configs: Sequence[KernelConfig], looks: Readings) -> list[KernelConfig]:
    """Return who stays: pick and default always, so that everybody is compared with them."""
    best_us = min((entry.latency_us or math.inf for entry in succeeded(looks)), default=math.inf)
    kept = []
    for config in configs:
        entry = looks.get(config)
        is_slow = entry is not None and entry.latency_us is not None and entry.latency_us > SLOW_RATIO * best_us
        if not is_slow or config in (plan.pick, plan.default):
            kept.append(config)
    return kept


def _finalists(plan: ProblemPlan, screened: Readings) -> list[KernelConfig]:
    ranked = [entry.config for entry in succeeded(screened)]
    rest = [config for config in (plan.pick, plan.default) if config in ranked]
    return list(dict.fromkeys([*ranked[:FINALISTS], *rest]))


def _fastest(readings: Readings) -> KernelConfig | None:
    ranked = succeeded(readings)
    return ranked[0].config if ranked else None


def _confirmed(plan: ProblemPlan, winner: KernelConfig | None, usable: set[KernelConfig]) -> list[KernelConfig]:
    ours = [config for config in (winner, plan.pick, plan.default) if config is not None and config in usable]
    return list(dict.fromkeys([*ours, TORCH_MM]))


def _fates(plan: ProblemPlan, n_usable: int, screened: Readings, why_not: dict[KernelConfig, str]) -> Fates:
    measured = len(succeeded(screened))
    skipped = n_usable - len(screened)
    reasons = [why_not[config] for config in plan.candidates if config in why_not]
    reasons += [f"{entry.status}: {entry.detail}" for entry in screened.values() if entry.status is not Status.OK]
    return Fates(measured, len(plan.candidates) - measured - skipped, skipped, reasons)
