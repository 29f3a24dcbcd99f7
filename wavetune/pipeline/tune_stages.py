"""The rounds of a tuning, and its journal: a problem is measured whole in each stage, or again.

Whoever is compared was timed in the same interleaved rounds. So a stage that was stopped in the middle of a problem
begins that problem afresh, and every other one is taken from the journal.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from wavetune.core.config import KernelConfig
from wavetune.core.problem import GemmProblem, Problem
from wavetune.measure.contest import PAIR_RULE, ContestRule, ContestRunner
from wavetune.measure.timing import GRAPH_METHOD, STREAM_METHOD, StoppingRule
from wavetune.pipeline.calibrate import Observer
from wavetune.plan.iteration_policy import Iterations
from wavetune.store.database import MeasurementStore
from wavetune.store.record import Measurement, Point, Status

LOOK = "tune-look"
"""One reading of every candidate, where slow ones are to be left out."""

SCREEN = "tune-screen"
"""Every candidate, by the iteration policy."""

FINAL = "tune-final"
"""The best of the screening against each other, precisely: names the winner."""

CONFIRM = "tune-confirm"
"""Winner, pick, default and torch.mm on fresh buffers: the only readings that are reported."""

STAGES = {
    LOOK: "measuring: a first look at every candidate",
    SCREEN: "measuring: every candidate",
    FINAL: "measuring: the best against each other",
    CONFIRM: "measuring: winners on fresh buffers",
}
"""Strata of the journal in their order, and what a progress bar calls them."""

LOOK_RULE = ContestRule(min_rounds=1, max_rounds=1)

LEAST_ROUNDS = 3
"""Fewer readings have no useful median, even of launches of milliseconds, for which the policy has two."""

Readings = dict[KernelConfig, Measurement]
"""What one stage found for one problem."""

Contest = Mapping[GemmProblem, Sequence[KernelConfig]]
"""Who competes in a stage."""


@dataclass(frozen=True, slots=True)
class Method:
    """How a stage times."""

    method: str
    rule: StoppingRule


PRECISE = Method(GRAPH_METHOD, PAIR_RULE)
GLANCE = Method(STREAM_METHOD, LOOK_RULE)


def screening_method(iterations: Iterations, predicted_us: float) -> Method:
    """Return how the candidates of a latency class are screened: the policy's launches are the limit.

    Parameters
    ----------
    predicted_us : float
        Of the shortest problem that is screened so, microseconds.
    """
    rounds = max(iterations.timed, LEAST_ROUNDS)
    rule = ContestRule(
        relative=0.005, absolute_us=0.05, min_rounds=LEAST_ROUNDS, max_rounds=rounds,
        max_total_us=max(rounds * predicted_us, 1.0), cold_launches=iterations.cold,
    )  # fmt: skip
    return Method(STREAM_METHOD, rule)


@dataclass
class Journal:
    """Every measurement of a tuning, kept as it comes.

    Parameters
    ----------
    store : MeasurementStore
        Where.
    """

    store: MeasurementStore

    def __post_init__(self) -> None:
        self._known: dict[tuple[Problem, str], Readings] = {}
        for entry in self.store.measurements():
            self._known.setdefault((entry.problem, entry.stratum), {})[entry.config] = entry
        self.measured = self.resumed = 0

    def run(
        self, runner: ContestRunner, contest: Contest, stage: str, how: Method, observer: Observer, done: int = 0
    ) -> dict[GemmProblem, Readings]:
        """Measure what the journal does not have.

        Parameters
        ----------
        contest : mapping
            Who competes for each problem.
        stage : str
            One of `STAGES`.
        how : Method
            How to time.
        done : int, default=0
            Points of this stage that the observer has seen.

        Returns
        -------
        dict
            The readings of every problem of the contest, of its competitors alone.
        """
        todo = [problem for problem, configs in contest.items() if not self._has(problem, stage, configs)]
        points = [Point(problem, config, stage) for problem in todo for config in contest[problem]]
        self.resumed += sum(map(len, contest.values())) - len(points)
        if points:
            self._record(
                runner.measure(points, lambda n, total: observer.update(done + n), method=how.method, rule=how.rule)
            )
        found = {}
        for problem, configs in contest.items():
            readings = self._known.get((problem, stage), {})
            found[problem] = {config: readings[config] for config in configs if config in readings}
        return found

    def _has(self, problem: Problem, stage: str, configs: Sequence[KernelConfig]) -> bool:
        known = self._known.get((problem, stage), {})
        return all(config in known for config in configs)

    def _record(self, measured: Iterable[Measurement]) -> None:
        """Keep measurements problem by problem, each in one transaction."""
        batch: list[Measurement] = []
        for entry in measured:
            if batch and entry.problem != batch[-1].problem:
                self._keep(batch)
                batch = []
            batch.append(entry)
        self._keep(batch)

    def _keep(self, batch: list[Measurement]) -> None:
        self.store.record(batch)
        self.measured += len(batch)
        for entry in batch:
            self._known.setdefault((entry.problem, entry.stratum), {})[entry.config] = entry


def succeeded(readings: Readings) -> list[Measurement]:
    """Return the successes, fastest first."""
    found = [entry for entry in readings.values() if entry.status is Status.OK]
    return sorted(found, key=lambda entry: entry.latency_us or math.inf)
