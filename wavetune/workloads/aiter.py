"""AITER's CSV files (gradlib and its kin), untuned and tuned: row-major, M counts tokens."""

from __future__ import annotations

from pathlib import PurePath
from typing import Any

from wavetune.core.element import find_element
from wavetune.core.workload_entry import WorkloadKey
from wavetune.errors import WorkloadError
from wavetune.workloads.bench_options import integer
from wavetune.workloads.intake import Intake, size_error
from wavetune.workloads.source import LineSource
from wavetune.workloads.table_rows import latency_us, named_cells, read_named_rows, renamed, true_or_false
from wavetune.workloads.tunableop import NO_COUNTS

SIZES = ("M", "N", "K")
_KEY_COLUMNS = frozenset(
    {*SIZES, "bias", "dtype", "q_dtype_w", "outdtype", "scaleAB", "bpreshuffle", "gfx", "cu_num"}
)  # fmt: skip
_LATENCIES = ("us", "soltimes")
_NEW_NAMES = {"solidx": "solution_index", "kernelId": "solution_index", "kernelName": "kernel_name"}


def read_aiter(source: LineSource, intake: Intake) -> None:
    """Read the rows of a file; a header may stand again and again."""
    account = intake.account

    def take(header: list[str], cells: list[str], number: int) -> None:
        if _take(named_cells(header, cells), number, intake):
            account.recognised += 1

    read_named_rows(source, account, SIZES, "the order of columns depends on the version", take)
    account.note(NO_COUNTS)


def _take(row: dict[str, str], line: int, intake: Intake) -> bool:
    """Take a row; False if it is skipped."""
    gpu = row.get("gfx", "")
    if intake.origins.is_elsewhere(gpu):
        intake.account.elsewhere += 1
        return False
    facts = {"GPU": gpu, "compute units": row.get("cu_num", "")}
    intake.origins.agree({name: value for name, value in facts.items() if value}, f"{intake.account.path}:{line}")
    m, n, k = (integer(name, row[name]) for name in SIZES)
    if not (m and n and k):
        intake.account.empty += 1
        return True
    reason = size_error(M=m, N=n, K=k)
    if reason:
        raise WorkloadError(reason)
    return intake.row(_key(row, m, n, k, intake), line, _extra(row))


def _key(row: dict[str, str], m: int, n: int, k: int, intake: Intake) -> WorkloadKey:
    name = PurePath(intake.account.path).name.lower()
    quantized = row.get("q_dtype_w", "")
    spelled = row.get("dtype") or quantized
    if not spelled:
        spelled = intake.options.dtype
        intake.account.note(f"no column dtype: {spelled} is taken for granted")
    is_scaled = bool(quantized) or true_or_false("scaleAB", row.get("scaleAB", ""))
    # Nothing inside the file tells the kinds of scaling apart.
    mode = "block128x128" if "blockscale" in name else "row" if quantized else "tensor"
    shuffled = true_or_false("bpreshuffle", row.get("bpreshuffle", "")) or "bpreshuffle" in name
    return WorkloadKey(
        m, n, k, dtype=find_element(spelled), dtype_d=find_element(row["outdtype"]) if row.get("outdtype") else "",
        bias=true_or_false("bias", row.get("bias", "")), scale=mode if is_scaled else "none",
        swizzle="b" if shuffled else "none",
    )  # fmt: skip


def _extra(row: dict[str, str]) -> dict[str, Any]:
    rest = {name: cell for name, cell in row.items() if name not in _KEY_COLUMNS and name not in _LATENCIES}
    extra = renamed(rest, _NEW_NAMES)
    for name in _LATENCIES:
        if row.get(name):
            extra["latency_us"] = latency_us(row[name])
    return extra
