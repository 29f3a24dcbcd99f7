"""What tuning a workload would take, before anything is compiled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from wavetune.core.config import KernelConfig
from wavetune.core.problem import GemmProblem
from wavetune.core.workload import Workload
from wavetune.errors import NoModelError
from wavetune.mapping.legality import refusal
from wavetune.plan.iteration_policy import iterations_for
from wavetune.runtime.choose import find_resolver
from wavetune.runtime.device import Device

PREPARE_CORE_SECONDS = 0.88
"""Seconds of one core to compile and check one configuration: 342 took 18.8 s on the 16 cores of an H200's host
(calibration/nvidia-h200/gemm-bf16-calibration.json, stage ``prepare``, Triton 3.6)."""

ALL = -1
"""In place of a number of candidates: the whole space."""

Space = Callable[[str], Sequence[KernelConfig]]
"""From a dtype to every configuration that calibration considers; empty where the kernels are not installed."""


@dataclass(frozen=True, slots=True)
class KeyEstimate:
    """What one problem takes.

    Parameters
    ----------
    problem : GemmProblem
        Which.
    count : int
        Its calls.
    latency_us : float
        Predicted latency of the best candidate, which decides the iterations.
    iterations : str
        Name of the latency class.
    candidates : int
        Configurations that would be timed, the default among them.
    assumed : int
        Those of them that the model does not rank: taken to be as slow as the slowest that it does.
    launches : int
        Of all candidates together.
    seconds : float
        Of all launches together.
    """

    problem: GemmProblem
    count: int
    latency_us: float
    iterations: str
    candidates: int
    assumed: int
    launches: int
    seconds: float


@dataclass(frozen=True, slots=True)
class TuningEstimate:
    """What all of it takes.

    Parameters
    ----------
    keys : tuple of KeyEstimate
        In the order of the workload.
    unknown : tuple of GemmProblem
        Problems that no model answers: they cannot be estimated.
    n_configs : int
        Configurations to compile: each once for a dtype and a layout.
    measure_seconds, prepare_seconds : float
        Of launches on the GPU, and of compiling on the cores.
    """

    keys: tuple[KeyEstimate, ...]
    unknown: tuple[GemmProblem, ...]
    n_configs: int
    measure_seconds: float
    prepare_seconds: float


def estimate_tuning(workload: Workload, device: Device, *, top: int, space: Space, cores: int) -> TuningEstimate:
    """Add up candidates, launches and seconds.

    Parameters
    ----------
    top : int
        Candidates for each problem, best predicted first; `ALL` for the whole space. The default comes on top, if it
        is none of them.
    space : callable
        Where candidates that the model does not rank come from.
    cores : int
        Processes that compile.
    """
    keys, unknown = [], []
    compiled: set[tuple[str, str, KernelConfig]] = set()
    for problem, count in workload.gemm_problems():
        try:
            resolver = find_resolver(problem, device.arch.name, device.num_sms, "any")
            ranked = {entry.config: entry.latency_us for entry in resolver.rank(problem)}
            default = resolver.default(problem)
        except NoModelError:
            unknown.append(problem)
            continue
        if not ranked:
            unknown.append(problem)
            continue
        taken, assumed = tuning_candidates(problem, device, ranked, default, top, space)
        iterations = iterations_for(next(iter(ranked.values())))
        slowest = max(ranked.values())
        spent_us = iterations.launches * sum(ranked.get(config, slowest) for config in taken)
        compiled.update((problem.dtype, problem.layout, config) for config in taken)
        keys.append(
            KeyEstimate(
                problem, count, next(iter(ranked.values())), iterations.name, len(taken), assumed,
                iterations.launches * len(taken), spent_us / 1e6,
            )
        )  # fmt: skip
    prepare_seconds = PREPARE_CORE_SECONDS * len(compiled) / min(cores, max(len(compiled), 1))
    measure_seconds = sum(key.seconds for key in keys)
    return TuningEstimate(tuple(keys), tuple(unknown), len(compiled), measure_seconds, prepare_seconds)


def tuning_candidates(
    problem: GemmProblem,
    device: Device,
    ranked: dict[KernelConfig, float],
    default: KernelConfig,
    top: int,
    space: Space,
) -> tuple[list[KernelConfig], int]:
    """Return what would be timed, and how much of it the model does not rank."""
    taken = list(ranked) if top == ALL else list(ranked)[:top]
    assumed = 0
    if top == ALL or top > len(taken):
        arch = device.arch
        for config in space(problem.dtype):
            if top != ALL and len(taken) >= top:
                break
            if config not in ranked and refusal(problem, config, arch) is None:
                taken.append(config)
                assumed += 1
    if default not in taken:
        taken.append(default)
        assumed += default not in ranked
    return taken, assumed
