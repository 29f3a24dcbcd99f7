"""What a contest with cuBLASLt's list says: rows of a workload, their sums, and both as files."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from wavetune.core.config import KernelConfig
from wavetune.core.problem import GemmProblem

if TYPE_CHECKING:
    from wavetune.measure.cublaslt_contest import VendorResult
    from wavetune.measure.cuda_timing import Timing

COLUMNS = (
    "m", "n", "k", "dtype", "layout", "count", "status", "default_us", "default_spread_us", "best_us",
    "best_spread_us", "first_us", "own_us", "own_spread_us", "speedup", "best", "best_rank", "algorithms",
    "own_config", "reproduce",
)  # fmt: skip
"""Of the CSV file. ``default`` is torch.mm, ``first`` and ``best`` are of cuBLASLt's list, ``own`` is ours."""


@dataclass(frozen=True, slots=True)
class VendorRow:
    """One problem of a workload.

    Parameters
    ----------
    problem : GemmProblem
        Which.
    count : int
        Its calls.
    result : VendorResult or None
        How it went; None if it could not be timed at all.
    config : KernelConfig or None
        This project's choice.
    reason : str
        Why there is no result.
    """

    problem: GemmProblem
    count: int
    result: VendorResult | None
    config: KernelConfig | None = None
    reason: str = ""

    @property
    def status(self) -> str:
        """``ok``, or what is missing."""
        reason = self.reason if self.result is None else self.result.reason
        return reason or ("ok" if math.isfinite(self.speedup) else "no reading")

    @property
    def default_us(self) -> float:
        """Latency of torch.mm; NaN without a reading, as below."""
        return _us(self.result.default) if self.result else math.nan

    @property
    def best_us(self) -> float:
        """Latency of the best of the list, re-timed."""
        return _us(self.result.best) if self.result else math.nan

    @property
    def first_us(self) -> float:
        """Latency of the first of the list."""
        return _us(self.result.first) if self.result else math.nan

    @property
    def own_us(self) -> float:
        """Latency of this project's choice."""
        return _us(self.result.own) if self.result else math.nan

    @property
    def speedup(self) -> float:
        """Time of torch.mm over that of the best of the list."""
        return self.default_us / self.best_us


def vendor_summary(rows: Iterable[VendorRow]) -> dict[str, Any]:
    """Weigh problems by their calls.

    Returns
    -------
    dict
        ``best_speedup`` is the time of torch.mm over that of the best of the list, ``own_speedup`` over that of this
        project's choice; each over the problems that have both readings, which are counted beside it; None without.
    """
    rows = list(rows)
    summary: dict[str, Any] = {"problems": len(rows), "calls": sum(row.count for row in rows)}
    for name in ("best", "own"):
        both = [row for row in rows if math.isfinite(row.default_us) and math.isfinite(getattr(row, f"{name}_us"))]
        time_us = sum(row.count * getattr(row, f"{name}_us") for row in both)
        default_us = sum(row.count * row.default_us for row in both)
        summary[f"{name}_problems"] = len(both)
        summary[f"{name}_speedup"] = round(default_us / time_us, 4) if both else None
    return summary


def vendor_document(
    rows: Sequence[VendorRow], left_out: Mapping[str, int], conditions: Mapping[str, Any], top: int
) -> dict[str, Any]:
    """Return everything: the summary, and every problem with its whole list. None stands for what is not known.

    Parameters
    ----------
    rows : sequence of VendorRow
        The problems.
    left_out : mapping of str to int
        Problems that were not timed, by reason.
    conditions : mapping of str to object
        State of the GPU while timing, by dtype.
    top : int
        Algorithms that were asked for.
    """
    return {
        "backend": "cublaslt",
        "top": top,
        "summary": vendor_summary(rows),
        "left_out": dict(left_out),
        "conditions": dict(conditions),
        "problems": [_cells(row, top) | {"list": _list(row.result)} for row in rows],
    }


def vendor_csv(rows: Iterable[VendorRow], top: int) -> str:
    """Return one line a problem; what is not known is an empty cell."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in rows:
        cells = _cells(row, top)
        writer.writerow([_cell(cells[name]) for name in COLUMNS])
    return text.getvalue()


def _cell(value: Any) -> Any:
    return "" if value is None else json.dumps(value) if isinstance(value, dict) else value


def _cells(row: VendorRow, top: int) -> dict[str, Any]:
    problem, result = row.problem, row.result
    best = result.algorithm if result else None
    timings = {name: getattr(result, name) if result else None for name in ("default", "best", "own")}
    line = f"{problem.m},{problem.n},{problem.k},{problem.dtype},{problem.layout}"
    return {
        "m": problem.m, "n": problem.n, "k": problem.k, "dtype": problem.dtype, "layout": problem.layout,
        "count": row.count, "status": row.status, "first_us": _rounded(row.first_us),
        **{f"{name}_us": _rounded(_us(timing)) for name, timing in timings.items()},
        **{f"{name}_spread_us": _rounded(timing.spread_us) if timing else None for name, timing in timings.items()},
        "speedup": _rounded(row.speedup), "best": best.describe() if best else None,
        "best_rank": best.rank if best else None, "algorithms": len(result.algorithms) if result else 0,
        "own_config": dict(row.config) if row.config else None,
        "reproduce": f"printf 'm,n,k,dtype,layout\\n{line}\\n' > one.csv && "
        f"wavetune tune one.csv --backend cublaslt --top {top} --out one",
    }  # fmt: skip


def _list(result: VendorResult | None) -> list[dict[str, Any]]:
    if result is None:
        return []
    return [
        asdict(entry)
        | {"qualifying_us": result.qualifying_us.get(entry.rank), "failure": result.failures.get(entry.rank)}
        for entry in result.algorithms
    ]


def _us(timing: Timing | None) -> float:
    return math.nan if timing is None else timing.latency_us


def _rounded(value: float) -> float | None:
    return round(value, 4) if math.isfinite(value) else None
