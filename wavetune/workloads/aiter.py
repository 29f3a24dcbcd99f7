"""AITER's CSV files (gradlib and its kin), untuned and tuned: row-major, M counts tokens."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from wavetune.core.element import find_element
from wavetune.core.workload_entry import WorkloadKey
from wavetune.core.workload_table import AITER, PLAIN, SIZES, column_names, table_kind, why_not_plain
from wavetune.errors import WorkloadError
from wavetune.workloads.account import FileAccount
from wavetune.workloads.aiter_names import FileTypes
from wavetune.workloads.bench_options import integer, positive
from wavetune.workloads.intake import Intake, size_error
from wavetune.workloads.source import LineSource
from wavetune.workloads.table_rows import latency_us, named_cells, read_named_rows, renamed, true_or_false
from wavetune.workloads.tunableop import NO_COUNTS

_KEY_COLUMNS = (
    *SIZES, "batch", "count", "bias", "dtype", "q_dtype_w", "outdtype", "scaleAB", "bpreshuffle", "gfx", "cu_num",
)  # fmt: skip
_NAMES = {name.lower(): name for name in _KEY_COLUMNS} | {"b": "batch"}
_LATENCIES = ("us", "soltimes")
_NEW_NAMES = {"solidx": "solution_index", "kernelId": "solution_index", "kernelName": "kernel_name"}


def read_aiter(source: LineSource, intake: Intake) -> None:
    """Read the rows of a file; a header may stand again and again."""
    account = intake.account
    types = FileTypes.of(account.path, intake.options.dtype)
    gpus: dict[str, None] = {}
    has_counts = False

    def take(header: list[str], cells: list[str], number: int) -> None:
        nonlocal has_counts
        row = named_cells(header, cells)
        has_counts = has_counts or bool(row.get("count"))
        gpus.setdefault(" ".join(filter(None, (row.get("gfx"), row.get("cu_num")))))
        if _take(row, types, number, intake):
            account.recognised += 1

    read_named_rows(source, account, _columns, "the order of columns depends on the version", take)
    if not has_counts:
        account.note(NO_COUNTS)
    if len(gpus) > 1 and not intake.origins.device:
        account.note(f"rows of several GPUs ({', '.join(gpus)}): --device with a name or a number of compute units")


def _columns(cells: list[str]) -> list[str]:
    kind = table_kind(cells)
    if kind not in ("", PLAIN, AITER):
        raise WorkloadError(why_not_plain(kind, cells))
    return column_names(cells, _NAMES) if kind else []


def _take(row: dict[str, str], types: FileTypes, line: int, intake: Intake) -> bool:
    """Take a row; False if it is skipped."""
    account = intake.account
    gpu, units = row.get("gfx", ""), row.get("cu_num", "")
    if intake.origins.is_elsewhere(gpu, units):
        account.leave(gpu, units)
        return False
    facts = {"GPU": gpu, "compute units": units}
    intake.origins.agree({name: value for name, value in facts.items() if value}, f"{account.path}:{line}")
    m, n, k = (integer(name.upper(), row[name]) for name in SIZES)
    batch = integer("B", row.get("batch", "1"))
    if not (m and n and k and batch):
        account.empty += 1
        return True
    reason = size_error(M=m, N=n, K=k, B=batch)
    if reason:
        raise WorkloadError(reason)
    key, extra = replace(_kind(row, types, account), m=m, n=n, k=k, batch=batch), _extra(row)
    if row.get("count"):
        intake.record(key, line, positive("count", row["count"]), extra)
        return True
    return intake.row(key, line, extra)


def _kind(row: dict[str, str], types: FileTypes, account: FileAccount) -> WorkloadKey:
    """Return everything but the sizes."""
    quantized = row.get("q_dtype_w", "")
    spelled = row.get("dtype") or quantized
    dtype, dtype_b = (find_element(spelled), "") if spelled else (types.dtype, types.dtype_b)
    scale = "tensor" if true_or_false("scaleAB", row.get("scaleAB", "")) else "none"
    if quantized or not spelled:
        scale = types.scale(dtype, scale)
    if not spelled:
        account.note(types.note)
    return WorkloadKey(
        1, 1, 1, "batched_gemm" if "batch" in row else "gemm", dtype, dtype_b=dtype_b,
        dtype_d=find_element(row["outdtype"]) if row.get("outdtype") else "",
        bias=true_or_false("bias", row.get("bias", "")), scale=scale,
        swizzle="b" if true_or_false("bpreshuffle", row.get("bpreshuffle", "")) or types.is_shuffled else "none",
    )  # fmt: skip


def _extra(row: dict[str, str]) -> dict[str, Any]:
    rest = {name: cell for name, cell in row.items() if name not in _KEY_COLUMNS and name not in _LATENCIES}
    extra = renamed(rest, _NEW_NAMES)
    for name in _LATENCIES:
        # Tuners write nan where no kernel ran.
        if row.get(name) and row[name].lower() != "nan":
            extra["latency_us"] = latency_us(row[name])
    return extra
