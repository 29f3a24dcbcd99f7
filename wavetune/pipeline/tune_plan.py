"""What a tuning measures: for each GEMM of a workload, who competes with whom."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from wavetune.core.config import KernelConfig
from wavetune.core.problem import GemmProblem
from wavetune.core.workload import Workload
from wavetune.core.workload_entry import WorkloadEntry
from wavetune.errors import NoModelError
from wavetune.mapping.legality import refusal
from wavetune.pipeline.tuning_estimate import Space, tuning_candidates
from wavetune.plan.iteration_policy import Iterations, iterations_for
from wavetune.runtime.choice import Source
from wavetune.runtime.choose import find_resolver
from wavetune.runtime.device import Device

Seeds = Callable[[GemmProblem], Sequence[KernelConfig]]
"""From a problem to configurations that won on problems like it, best first."""


def no_seeds(problem: GemmProblem) -> Sequence[KernelConfig]:
    """Return nothing."""
    return ()


@dataclass(frozen=True, slots=True)
class ProblemPlan:
    """The competition for one problem.

    Parameters
    ----------
    problem : GemmProblem
        Which.
    count : int
        Its calls.
    predicted_us : float
        Predicted latency of the model's pick; decides the iterations.
    pick, default : KernelConfig
        The model's pick, and the model's default configuration.
    candidates : tuple of KernelConfig
        Who competes, every one legal: seeds, then by prediction. Pick and default are among them.
    seeds : tuple of KernelConfig, default=()
        Those that won on problems like this one.
    """

    problem: GemmProblem
    count: int
    predicted_us: float
    pick: KernelConfig
    default: KernelConfig
    candidates: tuple[KernelConfig, ...]
    seeds: tuple[KernelConfig, ...] = ()

    @property
    def iterations(self) -> Iterations:
        """Launches of a candidate, by the latency class."""
        return iterations_for(self.predicted_us)

    @property
    def group(self) -> tuple[str, str]:
        """Element type and layout: what one runner, one journal and one file of measurements are for."""
        return self.problem.dtype, self.problem.layout


@dataclass(frozen=True, slots=True)
class NotTuned:
    """An entry of the workload that is left as it is, and why."""

    entry: WorkloadEntry
    reason: str


@dataclass(frozen=True, slots=True)
class TuningPlan:
    """Everything that is to be measured.

    Parameters
    ----------
    plans : tuple of ProblemPlan
        In the order of the workload, every problem once.
    not_tuned : tuple of NotTuned
        The other entries.
    """

    plans: tuple[ProblemPlan, ...]
    not_tuned: tuple[NotTuned, ...]

    @property
    def groups(self) -> dict[tuple[str, str], list[ProblemPlan]]:
        """The plans of each element type and layout."""
        groups: dict[tuple[str, str], list[ProblemPlan]] = {}
        for plan in self.plans:
            groups.setdefault(plan.group, []).append(plan)
        return groups


def plan_tuning(workload: Workload, device: Device, *, top: int, space: Space, seeds: Seeds = no_seeds) -> TuningPlan:
    """Decide who competes for each problem.

    Parameters
    ----------
    top : int
        Candidates by the model's ranking; `wavetune.pipeline.tuning_estimate.ALL` for the whole space. The default,
        what the tables answer exactly, and seeds come on top.
    space : callable
        Where candidates that the model does not rank come from.
    seeds : callable
        Configurations that are measured first.
    """
    plans: dict[GemmProblem, ProblemPlan] = {}
    reasons: dict[GemmProblem, str] = {}
    for problem, count in workload.gemm_problems():
        try:
            plan = _plan(problem, count, device, top, space, seeds)
        except NoModelError:
            reasons[problem] = f"no model of {device.arch.name} for {problem.dtype} {problem.layout}"
            continue
        if plan is None:
            reasons[problem] = f"no ranked configuration is legal for {problem.dims}"
        else:
            plans[problem] = plan
    not_tuned = []
    for entry in workload.entries:
        of_entry = entry.key.gemm_problem()
        if of_entry is None:
            not_tuned.append(NotTuned(entry, "no plain GEMM of a type that the kernels compute"))
        elif of_entry in reasons:
            not_tuned.append(NotTuned(entry, reasons[of_entry]))
    return TuningPlan(tuple(plans.values()), tuple(not_tuned))


def _plan(problem: GemmProblem, count: int, device: Device, top: int, space: Space, seeds: Seeds) -> ProblemPlan | None:
    resolver = find_resolver(problem, device.arch.name, device.num_sms, "any")
    ranked = {entry.config: entry.latency_us for entry in resolver.rank(problem)}
    default = resolver.default(problem)
    if not ranked:
        return None
    taken, _ = tuning_candidates(problem, device, ranked, default, top, space)
    known = resolver.lookup(problem)
    exact = [known.config] if known.source is Source.EXACT else []
    wanted = [config for config in seeds(problem) if _is_legal(problem, config, device)]
    pick = next(iter(ranked))
    return ProblemPlan(
        problem, count, ranked[pick], pick, default, tuple(dict.fromkeys([*wanted, *taken, *exact])), tuple(wanted)
    )


def _is_legal(problem: GemmProblem, config: KernelConfig, device: Device) -> bool:
    return refusal(problem, config, device.arch) is None
