"""Check configurations against a reference in disposable processes, before anything is timed.

A kernel that reads outside its operands poisons the CUDA context of its process; nothing that follows in that
process can be trusted. So every failure ends the worker, and what failed is tried once more in a fresh one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from wavetune.core.arch import ArchSpec
from wavetune.core.config import KernelConfig
from wavetune.measure.compile import Rejected
from wavetune.measure.isolation import TIMED_OUT, run_isolated
from wavetune.store.record import Status

VALIDATION_LIMIT_S = 60.0
"""Seconds for one configuration, the start of a CUDA context included."""

N_WORKERS = 4
"""Processes that share the GPU. Each holds a CUDA context and about 200 MB."""


@dataclass(frozen=True, slots=True)
class Checked:
    """A configuration that gave the right result.

    Parameters
    ----------
    config : KernelConfig
        The configuration.
    error : float
        Largest relative error over the validation problems.
    """

    config: KernelConfig
    error: float


def validate_configs(
    kernel: str,
    configs: Sequence[KernelConfig],
    arch: ArchSpec,
    *,
    dtype: str,
    layout: str,
    gpu: int = 0,
    n_workers: int = N_WORKERS,
    time_limit_s: float = VALIDATION_LIMIT_S,
    progress: Callable[[int, int], None] | None = None,
) -> list[Checked | Rejected]:
    """Run every configuration on ragged problems and compare with a float64 reference.

    Returns
    -------
    list of Checked or Rejected
        In the order of ``configs``.
    """
    results: list[Checked | Rejected | None] = [None] * len(configs)
    outcomes = run_isolated(
        _validate_one,
        list(configs),
        setup=_set_up,
        setup_args=(kernel, arch, dtype, layout, gpu),
        n_workers=n_workers,
        time_limit_s=time_limit_s,
        attempts=2,
        preload=("torch", "wavetune.kernels.registry", "wavetune.measure.validate"),
    )
    for n_done, outcome in enumerate(outcomes, start=1):
        config = configs[outcome.index]
        if not outcome.failure:
            results[outcome.index] = outcome.value
        else:
            what = "running it " if outcome.failure == TIMED_OUT else ""
            results[outcome.index] = Rejected(config, _status_of(outcome.detail), what + outcome.detail)
        if progress is not None:
            progress(n_done, len(configs))
    return [result for result in results if result is not None]


def _status_of(detail: str) -> Status:
    if "OutOfResources" in detail or "InfeasibleConfig" in detail:
        return Status.OUT_OF_RESOURCES
    if "OutOfMemory" in detail:
        return Status.OUT_OF_MEMORY
    if "CompilationError" in detail:
        return Status.COMPILE_ERROR
    return Status.LAUNCH_ERROR


@dataclass
class _Job:
    family: Any
    arch: ArchSpec
    dtype: str
    cases: list[tuple[Any, Any]]
    device: str


_JOB: _Job | None = None


def _set_up(kernel: str, arch: ArchSpec, dtype: str, layout: str, gpu: int) -> None:
    global _JOB
    import torch

    from wavetune.kernels.registry import find_family

    device = "cpu"
    if torch.cuda.is_available():
        torch.cuda.set_device(gpu)
        device = f"cuda:{gpu}"
    family = find_family(kernel)
    cases = []
    for seed, problem in enumerate(family.validation_problems(dtype, layout)):
        operands = family.make_operands(problem, device, seed)[0]
        cases.append((operands, family.reference(operands)))
    _JOB = _Job(family, arch, dtype, cases, device)


def _validate_one(config: KernelConfig) -> Checked | Rejected:
    assert _JOB is not None
    import torch

    from wavetune.kernels.reference import relative_error

    limit, worst = _JOB.family.max_error(_JOB.dtype), 0.0
    for operands, reference in _JOB.cases:
        reason = _JOB.family.legal(operands.problem, config, _JOB.arch)
        if reason is not None:
            return Rejected(config, Status.ILLEGAL, reason)
        ready = operands.with_workspace(config)
        # Twice: the second launch finds the workspace as the first one left it.
        for _ in range(2):
            ready.out.fill_(float("nan"))
            _JOB.family.launch(ready, config, _JOB.arch)
            if _JOB.device != "cpu":
                torch.cuda.synchronize()
            error = relative_error(ready.out, reference)
            if math.isnan(error) or error > limit:
                return Rejected(
                    config,
                    Status.WRONG_RESULT,
                    f"relative error {error:.2g} on {operands.problem.dims}, limit {limit:g}",
                )
            worst = max(worst, error)
    return Checked(config, worst)
