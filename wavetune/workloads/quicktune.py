"""QuickTune's result and analysis CSV: column-major sizes, with call counts."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from wavetune.core.workload_entry import WorkloadKey
from wavetune.core.workload_table import (
    COLUMN_MAJOR,
    QUICKTUNE_BASELINE,
    SIZES,
    column_names,
    table_kind,
    why_not_plain,
)
from wavetune.errors import WorkloadError
from wavetune.workloads.bench_options import integer, positive
from wavetune.workloads.blas import EXCHANGED, blas_kind
from wavetune.workloads.intake import Intake, size_error
from wavetune.workloads.source import LineSource
from wavetune.workloads.table_rows import named_cells, read_named_rows, renamed
from wavetune.workloads.vendor_types import hipblaslt_type

_TYPES = ("a_type", "b_type", "c_type", "d_type")
_STRIDES = ("lda", "ldb", "ldd")
_KEY_COLUMNS = frozenset(
    {*SIZES, *_TYPES, "lda", "ldb", "ldc", "ldd", "count", "operation", "dtype", "layout"}
)  # fmt: skip
_COLUMN_NAMES = {name: name for name in _KEY_COLUMNS}
_UNMATCHED = "no_match"
_NEW_NAMES = {
    QUICKTUNE_BASELINE: "baseline_latency_us",
    "tuned_latency(us)": "tuned_latency_us",
    "baseline_solution_idx": "baseline_solution_index",
    "tuned_solution_idx": "tuned_solution_index",
    "baseline/tuned": "speedup",
    "total_baseline_time(us)": "total_baseline_time_us",
    "total_tuned_time(us)": "total_tuned_time_us",
}
TRANSPOSITIONS_TOLD = "the format does not say transpositions: they are told from the leading dimensions"


def read_quicktune(source: LineSource, intake: Intake) -> None:
    """Read the rows of a file. Its textual dedupe may leave several of one shape: their counts are added."""
    account = intake.account

    def take(header: list[str], cells: list[str], number: int) -> None:
        row = named_cells(header, cells)
        if row["m"] == "-":
            # The analysis ends with a row of totals.
            account.recognised += 1
        elif row.get("count") == "0" and _UNMATCHED in row.values():
            account.recognised += 1
            account.note("rows with no_match were tuned, but are not in the log of calls: left out")
        else:
            _take(row, number, intake)

    read_named_rows(source, account, _columns, "the first line must name the columns", take)
    account.note(EXCHANGED)


def _columns(cells: list[str]) -> list[str]:
    kind = table_kind(cells)
    if kind == COLUMN_MAJOR:
        raise WorkloadError(why_not_plain(kind, cells))
    return column_names(cells, _COLUMN_NAMES) if kind else []


def _take(row: dict[str, str], line: int, intake: Intake) -> None:
    account = intake.account
    m, n, k = (integer(name, row[name]) for name in SIZES)
    count = positive("count", row["count"]) if row.get("count") else 1
    if not (m and n and k):
        account.recognised += 1
        account.empty += count
        return
    reason = size_error(m=m, n=n, k=k)
    if reason:
        raise WorkloadError(reason)
    key = _key(row, m, n, k, intake)
    call_key = intake.call_key(key)
    rest = {name: cell for name, cell in row.items() if name not in _KEY_COLUMNS}
    extra: dict[str, Any] = renamed(rest, _NEW_NAMES)
    if intake.find(call_key) is not None:
        account.note(f"line {line} has the sizes and types of an earlier row: counts added, its latencies left out")
    account.recognised += 1
    intake.record(key, line, count, extra)


def _key(row: dict[str, str], m: int, n: int, k: int, intake: Intake) -> WorkloadKey:
    """Return the row-major product."""
    if not all(row.get(name) for name in (*_TYPES, *_STRIDES)):
        # Analyses of this project say these, behind QuickTune's columns.
        operation, dtype, layout = (row.get(name) or "" for name in ("operation", "dtype", "layout"))
        if operation not in ("", "gemm"):
            intake.account.note(f"rows of a {operation}: the format says neither batch nor groups")
        if not (dtype and layout):
            intake.account.note(f"no columns of types: {intake.options.dtype} and a linear layer are taken for granted")
        options = intake.options
        return WorkloadKey(n, m, k, operation or "gemm", dtype or options.dtype, layout or options.layout)
    intake.account.note(TRANSPOSITIONS_TOLD)
    lda, ldb, ldd = (integer(name, row[name]) for name in _STRIDES)
    a_type, b_type, c_type, d_type = (hipblaslt_type(name, row[name]) for name in _TYPES)
    types = partial(blas_kind, a_type=a_type, b_type=b_type, c_type=c_type, d_type=d_type)
    # The usual layer comes first: it is taken where both fit, as in a square.
    for trans_a, trans_b in (("T", "N"), ("N", "N"), ("T", "T"), ("N", "T")):
        blas = types(trans_a=trans_a, trans_b=trans_b)
        dense = (k if trans_a == "T" else m, n if trans_b == "T" else k)
        if (lda, ldb) == dense and not blas.stride_error(m, n, k, lda, ldb, ldd):
            return replace(blas.kind, m=n, n=m, k=k, alignment=blas.alignment(m, n, k, lda, ldb, ldd))
    # Padded operands: the usual layer, if it can be that.
    blas = types(trans_a="T", trans_b="N")
    reason = blas.stride_error(m, n, k, lda, ldb, ldd)
    if reason:
        raise WorkloadError(reason)
    return replace(blas.kind, m=n, n=m, k=k, alignment=blas.alignment(m, n, k, lda, ldb, ldd))
