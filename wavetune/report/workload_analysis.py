"""What measured configurations are worth on a workload: every call counted, none made up."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from wavetune.core.arch import ArchSpec
from wavetune.core.config import KernelConfig
from wavetune.core.dtype import DTYPES, find_dtype
from wavetune.core.problem import GemmProblem
from wavetune.core.workload import Workload
from wavetune.core.workload_entry import SIZE_CLASSES, WorkloadEntry, WorkloadKey
from wavetune.errors import MeasurementError
from wavetune.runtime.choose import find_resolver
from wavetune.runtime.device import Device
from wavetune.store.roofline import ROOFLINE_LAUNCH_US, WORK, roofline_us
from wavetune.store.table import FloatArray, MeasurementTable

LITTLE_GAIN = 1.1
"""Speed-up below which it is said how near to the roofline the best is: there may be nothing left to gain."""


@dataclass(frozen=True, slots=True)
class AnalysedEntry:
    """One entry of the workload, and what was measured for it.

    Parameters
    ----------
    entry : WorkloadEntry
        The call and its count.
    roofline_us : float
        What one call takes at peak rates: weighs calls without a result against the others.
    reason : str
        Why there is no result; empty if there is one, and only then the rest is known.
    baseline, best : KernelConfig or None
        The default configuration, and the fastest one measured.
    baseline_us, best_us : float
        Their measured latencies.
    chosen_us : float
        Measured latency of what the tables answer; NaN if that was not measured.
    candidates : int
        Configurations that were measured.
    bound : str
        What the roofline is made of: ``bandwidth``, ``math rate``, or ``launch`` for the smallest products.
    """

    entry: WorkloadEntry
    roofline_us: float
    reason: str = ""
    baseline: KernelConfig | None = None
    best: KernelConfig | None = None
    baseline_us: float = math.nan
    best_us: float = math.nan
    chosen_us: float = math.nan
    candidates: int = 0
    bound: str = ""

    @property
    def speedup(self) -> float:
        """Latency of the default over that of the best; NaN without a result."""
        return self.baseline_us / self.best_us

    @property
    def peak_share(self) -> float:
        """Share of the peak rate that the best reaches; NaN without a result."""
        return self.roofline_us / self.best_us

    @property
    def roofline_note(self) -> str:
        """How near the best is to what the GPU can do, where it gains less than `LITTLE_GAIN`; else empty."""
        if self.reason or self.speedup >= LITTLE_GAIN:
            return ""
        if self.bound == "launch":
            return "as short as launches are"
        # Operands that stayed in the cache are read faster than the memory's peak.
        return f"{self.peak_share:.0%} of peak {self.bound}"

    @property
    def total_baseline_us(self) -> float:
        """Time of all its calls with the default."""
        return self.entry.count * self.baseline_us

    @property
    def total_best_us(self) -> float:
        """Time of all its calls with the best."""
        return self.entry.count * self.best_us


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over calls that have a result.

    Parameters
    ----------
    calls : int
        Calls with a result.
    missing_calls : int
        Calls without one.
    baseline_us, best_us : float
        Time of the calls with a result.
    time_covered : float
        Share of the time of all calls that those with a result take, at peak rates; 0 if there are none.
    """

    calls: int
    missing_calls: int
    baseline_us: float
    best_us: float
    time_covered: float

    @property
    def speedup(self) -> float:
        """Time with the default over time with the best; NaN if nothing has a result."""
        return self.baseline_us / self.best_us if self.best_us else math.nan

    @property
    def coverage(self) -> float:
        """Share of calls with a result."""
        return self.calls / (self.calls + self.missing_calls) if self.calls else 0.0

    @classmethod
    def of(cls, rows: Iterable[AnalysedEntry]) -> Totals:
        """Add up."""
        rows = list(rows)
        found = [row for row in rows if not row.reason]
        time_us = sum(row.entry.count * row.roofline_us for row in rows)
        return cls(
            sum(row.entry.count for row in found),
            sum(row.entry.count for row in rows if row.reason),
            sum(row.total_baseline_us for row in found),
            sum(row.total_best_us for row in found),
            sum(row.entry.count * row.roofline_us for row in found) / time_us if time_us else 0.0,
        )


@dataclass(frozen=True, slots=True)
class Analysis:
    """A workload with its measurements.

    Parameters
    ----------
    rows : tuple of AnalysedEntry
        Those with a result first, by share of baseline time; then those without, by time at peak rates.
    """

    rows: tuple[AnalysedEntry, ...]

    @property
    def total(self) -> Totals:
        """Sums over the workload."""
        return Totals.of(self.rows)

    @property
    def by_class(self) -> dict[str, Totals]:
        """Sums over decode, small and prefill."""
        return {name: Totals.of(row for row in self.rows if row.entry.key.size_class == name) for name in SIZE_CLASSES}

    @property
    def missing(self) -> tuple[AnalysedEntry, ...]:
        """Entries without a result."""
        return tuple(row for row in self.rows if row.reason)

    @property
    def plainer_calls(self) -> int:
        """Calls with a result that add a bias, an activation, ..., which the measured product does not."""
        return sum(row.entry.count for row in self.rows if not row.reason and not _is_plain(row.entry))

    def chosen_speedup(self) -> tuple[float, int]:
        """Return the speed-up of the tables' answers, and how many calls it is of: those whose answer was measured."""
        rows = [row for row in self.rows if not math.isnan(row.chosen_us)]
        calls = sum(row.entry.count for row in rows)
        chosen_us = sum(row.entry.count * row.chosen_us for row in rows)
        return (sum(row.total_baseline_us for row in rows) / chosen_us if rows else math.nan), calls


def model_speedup(total: Totals, gemm_share: float) -> float:
    """Return the speed-up of a whole model, by Amdahl's law.

    Parameters
    ----------
    gemm_share : float
        Share of the model's time that this workload takes, in [0, 1]. Calls without a result gain nothing; their part
        of it is taken at peak rates.
    """
    share = gemm_share * total.time_covered
    return 1.0 / (1.0 - share + share / total.speedup) if share else 1.0


def analyse_workload(workload: Workload, table: MeasurementTable, device: Device) -> Analysis:
    """Join a workload with measurements, on everything that tells two problems apart.

    Raises
    ------
    MeasurementError
        If not one entry has a result; says why.
    NoModelError
        If nothing knows the default configuration of the measured dtype and layout.
    """
    problems, latency = table.latency_matrix()
    measured = {tuple(map(int, dims)): latency[row] for row, dims in enumerate(problems)}
    column = {entry.config: index for index, entry in enumerate(table.configs)}
    rows = [_analyse(entry, table, measured, column, device) for entry in workload.entries]
    if all(row.reason for row in rows):
        reasons = "; ".join(dict.fromkeys(row.reason for row in rows))
        raise MeasurementError(f"no call of the workload has a result: {reasons}")
    rows.sort(key=_order)
    return Analysis(tuple(rows))


def _analyse(
    entry: WorkloadEntry,
    table: MeasurementTable,
    measured: dict[tuple[int, ...], FloatArray],
    column: dict[KernelConfig, int],
    device: Device,
) -> AnalysedEntry:
    roofline = call_roofline_us(entry.key, device.arch)
    problem = entry.key.gemm_problem()
    if problem is None:
        return AnalysedEntry(entry, roofline, "no plain GEMM")
    if (problem.dtype, problem.layout) != (table.dtype, table.layout):
        reason = f"measured were {table.dtype} {table.layout}, this is {problem.dtype} {problem.layout}"
        return AnalysedEntry(entry, roofline, reason)
    # A measurement file does not name alignments: its operands are contiguous.
    if problem != GemmProblem(*problem.dims, problem.dtype, problem.layout):
        return AnalysedEntry(
            entry, roofline, f"measured were contiguous operands, these are aligned to {problem.alignment}"
        )
    latency = measured.get(problem.dims)
    if latency is None:
        return AnalysedEntry(entry, roofline, "not measured")
    resolver = find_resolver(problem, device.arch.name, device.num_sms, "any")
    baseline = resolver.default(problem)
    baseline_us = _latency(latency, column, baseline)
    if math.isnan(baseline_us):
        return AnalysedEntry(entry, roofline, "the default configuration was not measured")
    best = int(np.nanargmin(latency))
    chosen = resolver.answer(problem, "model", is_listed=False).config
    return AnalysedEntry(
        entry, roofline, "", baseline, table.configs[best].config, baseline_us, float(latency[best]),
        _latency(latency, column, chosen), int(np.sum(~np.isnan(latency))), roofline_bound(problem, device.arch),
    )  # fmt: skip


def roofline_bound(problem: GemmProblem, arch: ArchSpec) -> str:
    """Return what bounds a product at peak rates: ``bandwidth``, ``math rate`` or ``launch``."""
    dims, dtype = np.array([problem.dims]), find_dtype(problem.dtype)
    whole_us = roofline_us(problem.kernel, dims, dtype, arch)
    assert whole_us is not None
    _, moved_bytes = WORK[problem.kernel](dims.astype(np.float64), dtype)
    if whole_us[0] <= ROOFLINE_LAUNCH_US:
        return "launch"
    return "bandwidth" if moved_bytes[0] / (arch.dram_gb_per_s * 1e3) >= whole_us[0] else "math rate"


def call_roofline_us(key: WorkloadKey, arch: ArchSpec) -> float:
    """Return what a call takes at peak rates, its products one after another, microseconds.

    Attention goes by its arithmetic, for its scores never reach memory; types that no kernel here computes as bf16.
    """
    dtype = find_dtype(key.dtype if key.dtype in DTYPES else "bf16")
    if key.operation == "attention":
        return key.flops / (arch.bf16_tflops * 1e6)
    if key.groups:
        products, repeats = [group for group in key.groups if group[0]], 1
    elif key.operation == "grouped_gemm":
        products, repeats = [(-(-key.m // key.batch), key.n, key.k)], key.batch
    else:
        products, repeats = [(key.m, key.n, key.k)], key.batch
    each_us = roofline_us(GemmProblem.kernel, np.array(products, dtype=np.int64).reshape(-1, 3), dtype, arch)
    return 0.0 if each_us is None else float(each_us.sum()) * repeats


def _latency(latency: FloatArray, column: dict[KernelConfig, int], config: KernelConfig) -> float:
    index = column.get(config)
    return math.nan if index is None else float(latency[index])


def _order(row: AnalysedEntry) -> tuple[bool, float]:
    if row.reason:
        return True, -row.entry.count * row.roofline_us
    return False, -row.total_baseline_us


def _is_plain(entry: WorkloadEntry) -> bool:
    problem = entry.key.gemm_problem()
    return problem is not None and WorkloadEntry.from_problem(problem).key == entry.key
