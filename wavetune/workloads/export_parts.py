"""What all exports share: the entries that can be answered, what is left out, and what is to be written."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from wavetune.core.config import KernelConfig
from wavetune.core.problem import GemmProblem
from wavetune.core.workload import Workload
from wavetune.core.workload_entry import WorkloadEntry
from wavetune.errors import NoModelError, WorkloadError
from wavetune.runtime.choice import Source
from wavetune.runtime.choose import find_resolver
from wavetune.runtime.device import Device
from wavetune.workloads.answers import TableAnswer
from wavetune.workloads.tuned_json_export import Bucketing


@dataclass(frozen=True, slots=True)
class Layer:
    """The file of one layer.

    Parameters
    ----------
    n, k : int
        The layer.
    pinned : int
        Rows that hold the default, because the choice is not better.
    bucketing : Bucketing
        What the consumer's rule costs.
    """

    n: int
    k: int
    pinned: int
    bucketing: Bucketing


@dataclass(frozen=True, slots=True)
class Export:
    """What is to be written.

    Parameters
    ----------
    files : mapping of str to str
        Names and texts; the name is empty where the user names the file.
    rows : int
        Rows, or configurations, of all files.
    pinned : int
        Rows that hold the default.
    left_out : mapping of str to int
        Why entries are not in it, and how many.
    layers : sequence of Layer
        Of formats with a file for each layer.
    kernel_cost : float
        What it costs that another kernel is tuned, which knows fewer configurations: predicted time of all calls over
        that with any configuration of the model, minus 1. NaN of formats that hold any configuration, or have layers.
    """

    files: Mapping[str, str]
    rows: int
    pinned: int
    left_out: Mapping[str, int]
    layers: Sequence[Layer] = ()
    kernel_cost: float = math.nan


@dataclass(slots=True)
class LeftOut:
    """Entries that are left out, by reason."""

    reasons: dict[str, int] = field(default_factory=dict)

    def add(self, reason: str) -> None:
        """Count an entry."""
        self.reasons[reason] = self.reasons.get(reason, 0) + 1

    def refuse_nothing(self, rows: int, format: str) -> None:
        """Refuse to write a file without rows.

        Raises
        ------
        WorkloadError
            If there are none; tells the reasons.
        """
        if not rows:
            reasons = "; ".join(f"{reason} ({count} entries)" for reason, count in self.reasons.items())
            raise WorkloadError(f"nothing of the workload can be written as {format}: {reasons}")


def answerable_entries(
    workload: Workload, device: Device, left_out: LeftOut
) -> list[tuple[WorkloadEntry, GemmProblem]]:
    """Return the entries that the tables of the device answer.

    Raises
    ------
    NoModelError
        If those are none for want of a model.
    """
    chosen = []
    missing: dict[str, NoModelError] = {}
    for entry in workload.entries:
        problem = entry.key.gemm_problem()
        if problem is None:
            left_out.add("no plain GEMM of a type that the kernels compute")
            continue
        try:
            find_resolver(problem, device.arch.name, device.num_sms, "any")
        except NoModelError as error:
            reason = f"no tables of {device.arch.name} for {problem.dtype} {problem.layout}"
            missing[reason] = error
            left_out.add(reason)
            continue
        chosen.append((entry, problem))
    if not chosen and missing:
        # Of the most entries: that model is missed most.
        raise missing[max(missing, key=left_out.reasons.__getitem__)]
    return chosen


def of_kernel(
    latencies: Mapping[KernelConfig, float], is_possible: Callable[[KernelConfig], bool]
) -> dict[KernelConfig, float]:
    """Return the latencies of what a consumer's kernel can run."""
    return {config: latency for config, latency in latencies.items() if is_possible(config)}


def of_those(latencies: Mapping[KernelConfig, float], answer: TableAnswer, margin: float) -> tuple[KernelConfig, bool]:
    """Return what was measured to be best, else the fastest, or the default if that is possible and hardly slower."""
    if answer.source is Source.EXACT and answer.config in latencies:
        return answer.config, False
    best = min(latencies, key=lambda config: latencies[config])
    default = answer.default
    if default in latencies and default != best and latencies[best] > (1.0 - margin) * latencies[default]:
        return default, True
    return best, False
