"""Check chosen configurations on the very problems that they were chosen for, in disposable processes.

`wavetune.measure.validate` judges configurations before anything is timed, on ragged problems of its own. Here a
deployment is proved: every pair of problem and configuration that it would launch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from wavetune.core.arch import ArchSpec
from wavetune.core.config import KernelConfig
from wavetune.core.problem import Problem
from wavetune.measure.isolation import TIMED_OUT, run_isolated

CHECK_LIMIT_S = 120.0
"""Seconds for one pair: a CUDA context, a compilation, and a reference in float64."""

N_WORKERS = 2
"""Processes that share the GPU. The reference of a vocabulary layer takes 10 GB in float64."""


@dataclass(frozen=True, slots=True)
class CheckedChoice:
    """How a configuration did on a problem.

    Parameters
    ----------
    problem : Problem
        What was computed.
    config : KernelConfig
        By which configuration.
    error : float
        Relative error against torch in float64; NaN if there is no result.
    reason : str
        Why the result does not count; empty if it is right.
    """

    problem: Problem
    config: KernelConfig
    error: float = math.nan
    reason: str = ""


def check_choices(
    choices: Sequence[tuple[Problem, KernelConfig]],
    arch: ArchSpec,
    *,
    gpu: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> list[CheckedChoice]:
    """Run every pair on random data and compare with torch in float64.

    Returns
    -------
    list of CheckedChoice
        In the order of ``choices``.

    Raises
    ------
    RunnerError
        If no process can start: torch, triton or the GPU is missing.
    """
    results: list[CheckedChoice | None] = [None] * len(choices)
    outcomes = run_isolated(
        check_one,
        list(choices),
        setup=set_up,
        setup_args=(arch, gpu),
        n_workers=N_WORKERS,
        time_limit_s=CHECK_LIMIT_S,
        attempts=2,
        preload=("torch", "wavetune.kernels.registry", "wavetune.measure.check_choices"),
    )
    for n_done, outcome in enumerate(outcomes, start=1):
        what = "running it " if outcome.failure == TIMED_OUT else ""
        results[outcome.index] = (
            CheckedChoice(*choices[outcome.index], reason=what + outcome.detail) if outcome.failure else outcome.value
        )
        if progress is not None:
            progress(n_done, len(choices))
    return [result for result in results if result is not None]


_WHERE: tuple[ArchSpec, str] | None = None


def set_up(arch: ArchSpec, gpu: int) -> None:
    """Prepare a worker; on the CPU where there is no GPU, which only Triton's interpreter can use."""
    global _WHERE
    import torch

    device = "cpu"
    if torch.cuda.is_available():
        torch.cuda.set_device(gpu)
        device = f"cuda:{gpu}"
    _WHERE = (arch, device)


def check_one(choice: tuple[Any, KernelConfig]) -> CheckedChoice:
    """Check one pair in this process, after `set_up`."""
    assert _WHERE is not None
    from wavetune.kernels.reference import relative_error
    from wavetune.kernels.registry import find_family

    problem, config = choice
    arch, device = _WHERE
    family = find_family(problem.kernel)
    reason = family.legal(problem, config, arch)
    if reason is not None:
        return CheckedChoice(problem, config, reason=reason)
    operands = family.make_operands(problem, device, 0)[0].with_workspace(config)
    reference = family.reference(operands)
    limit, worst = family.max_error(problem.dtype), 0.0
    # Twice: the second launch finds the workspace as the first one left it.
    for _ in range(2):
        operands.out.fill_(math.nan)
        family.launch(operands, config, arch)
        error = relative_error(operands.out, reference)
        # NaN, of an element that was not written, is below no limit.
        if not error <= limit:
            return CheckedChoice(problem, config, error, f"relative error {error:.2g}, limit {limit:g}")
        worst = max(worst, error)
    return CheckedChoice(problem, config, worst)
