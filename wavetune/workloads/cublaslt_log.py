"""``CUBLASLT_LOG_LEVEL=2``: a ``[Trace]`` line a launch. hipBLASLt's trace lines differ in spelling only.

Lines of one shape differ in time stamp, process and pointers. So their descriptors are counted as bytes, and only
different ones are parsed.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from wavetune.errors import WavetuneError, WorkloadError
from wavetune.workloads.bench_options import integer
from wavetune.workloads.blas import EXCHANGED, blas_kind
from wavetune.workloads.intake import Intake, size_error
from wavetune.workloads.source import LineSource
from wavetune.workloads.vendor_types import cuda_compute, cuda_scale, cuda_type

MAX_DIFFERENT_LINES = 1 << 13

_LAUNCH = re.compile(rb"\[Trace\]\[(?:cublasLt\w*Matmul|rocblaslt_matmul)\]")
_DESCRIPTOR = re.compile(rb"(\w+)=\[([^\[\]]*)\]")
_POINTER = re.compile(rb"\b(\w*Pointer)=0[xX]0*([0-9a-fA-F]*)")
_NEEDED = (b"Adesc", b"Bdesc", b"Ddesc", b"computeDesc")

_DESCRIPTOR_KEYS = {"type", "rows", "cols", "ld", "batchcount", "batch_count", "order"}
_BATCH_KEYS = ("batchcount", "batch_count")
_COMPUTE_KEYS = {
    "computetype", "scaletype", "transa", "transb", "epilogue", "biaspointer", "ascalepointer", "bscalepointer",
    "ascalemode", "bscalemode", "smcounttarget",
}  # fmt: skip


def read_cublaslt_log(source: LineSource, intake: Intake) -> None:
    """Read the launches of a log."""
    account = intake.account
    counts: dict[tuple[tuple[bytes, bytes], ...], list[int]] = {}
    number = 0
    for block in source.blocks():
        lines = block.split(b"\n")
        if not lines[-1]:
            lines.pop()
        for line in lines:
            number += 1
            # The plain search is fast, and most lines of a level-5 log fail it.
            if b"[Trace]" not in line or _LAUNCH.search(line) is None:
                continue
            # A last line that was cut keeps no closing bracket, and lacks what is needed.
            if b"Pointer=" in line:
                line = _POINTER.sub(_pointer_state, line)
            key = tuple(_DESCRIPTOR.findall(line))
            known = counts.get(key)
            if known is not None:
                known[0] += 1
                continue
            counts[key] = [1, number]
            if len(counts) >= MAX_DIFFERENT_LINES:
                _parse_counted(counts, intake)
    _parse_counted(counts, intake)
    account.read = number
    account.note(EXCHANGED)


def _pointer_state(match: re.Match[bytes]) -> bytes:
    """Keep of a pointer whether it is null."""
    return match[1] + (b"=set" if match[2] else b"=null")


def _parse_counted(counts: dict[tuple[tuple[bytes, bytes], ...], list[int]], intake: Intake) -> None:
    for found, (count, line) in counts.items():
        try:
            _record(found, line, count, intake)
        except WavetuneError as error:
            intake.account.refuse(line, str(error), count)
    counts.clear()


def _record(found: tuple[tuple[bytes, bytes], ...], line: int, count: int, intake: Intake) -> None:
    names = [name for name, _ in found]
    for needed in _NEEDED:
        if names.count(needed) != 1:
            state = "is missing: the line is cut" if needed not in names else "stands twice: two lines in one?"
            raise WorkloadError(f"{needed.decode()} {state}")
    parts = {word.decode("utf-8", "replace"): _pairs(body) for word, body in found}
    compute = {name.lower(): value for name, value in parts["computeDesc"].items()}
    a, b, d = (_Matrix(name, parts[name]) for name in ("Adesc", "Bdesc", "Ddesc"))
    c_type = cuda_type("Cdesc type", parts["Cdesc"]["type"]) if "type" in parts.get("Cdesc", {}) else d.type
    transposes = {name: _transposition(name, compute.get(name, "OP_N")) for name in ("transa", "transb")}
    m, n = d.rows, d.columns
    k = a.rows if transposes["transa"] != "N" else a.columns
    expected = {
        "Adesc": ((k, m) if transposes["transa"] != "N" else (m, k), a),
        "Bdesc": ((n, k) if transposes["transb"] != "N" else (k, n), b),
    }
    for name, (sizes, matrix) in expected.items():
        if (matrix.rows, matrix.columns) != sizes:
            have = f"{matrix.rows} x {matrix.columns}"
            raise WorkloadError(
                f"{name} is {have}, but D is {m} x {n} and k = {k}: it should be {sizes[0]} x {sizes[1]}"
            )
    if len({a.batch, b.batch, d.batch}) > 1:
        raise WorkloadError(f"batches of A, B and D differ: {a.batch}, {b.batch}, {d.batch}")
    bias, activation = _epilogue(compute)
    blas = blas_kind(
        trans_a=transposes["transa"], trans_b=transposes["transb"], a_type=a.type, b_type=b.type, c_type=c_type,
        d_type=d.type, compute=cuda_compute(compute.get("computetype", "")), is_batched=d.batch > 1, bias=bias,
        activation=activation, scale_a=_scale(compute, "a"), scale_b=_scale(compute, "b"),
    )  # fmt: skip
    if "smcounttarget" in compute:
        intake.account.provenance.setdefault("SMs", compute["smcounttarget"])
    is_empty = not (m and n and k)
    reason = "" if is_empty else size_error(m=m, n=n, k=k, batch=d.batch)
    reason = reason or ("" if is_empty else blas.stride_error(m, n, k, a.ld, b.ld, d.ld))
    if reason:
        raise WorkloadError(reason)
    intake.account.recognised += count
    if is_empty:
        intake.account.empty += count
        return
    alignment = blas.alignment(m, n, k, a.ld, b.ld, d.ld)
    key = replace(blas.kind, m=n, n=m, k=k, batch=d.batch, alignment=alignment)
    intake.record(key, line, count, _extra(parts))


class _Matrix:
    """One matrix layout."""

    __slots__ = ("batch", "columns", "ld", "rows", "type")

    def __init__(self, name: str, pairs: dict[str, str]) -> None:
        for needed in ("type", "rows", "cols", "ld"):
            if needed not in pairs:
                raise WorkloadError(f"{name} has no {needed}: the line is cut")
        self.type = cuda_type(f"{name} type", pairs["type"])
        self.rows, self.columns, self.ld = (integer(f"{name} {key}", pairs[key]) for key in ("rows", "cols", "ld"))
        lower = {key.lower(): value for key, value in pairs.items()}
        self.batch = next((integer(f"{name} {key}", lower[key]) for key in _BATCH_KEYS if key in lower), 1)
        order = lower.get("order", "ORDER_COL")
        if not order.endswith("ORDER_COL") and order != "COL":
            raise WorkloadError(f"{name} has order {order}: only column-major layouts are understood")


def _pairs(body: bytes) -> dict[str, str]:
    words = body.decode("utf-8", "replace").split()
    return {name: value for name, equals, value in (word.partition("=") for word in words) if equals}


def _transposition(name: str, value: str) -> str:
    letter = value.removeprefix("OP_")
    if letter not in ("N", "T", "C"):
        raise WorkloadError(f"unknown {name} {value!r}; known: OP_N, OP_T, OP_C")
    return letter


def _epilogue(compute: dict[str, str]) -> tuple[bool, str]:
    words = compute.get("epilogue", "EPILOGUE_DEFAULT").removeprefix("EPILOGUE_").lower().split("_")
    others = [word for word in words if word not in ("bias", "default")]
    return "bias" in words, "+".join(others) or "none"


def _scale(compute: dict[str, str], matrix: str) -> str:
    if f"{matrix}scalemode" in compute:
        return cuda_scale(compute[f"{matrix}scalemode"])
    return "tensor" if compute.get(f"{matrix}scalepointer", "null") == "set" else "none"


def _extra(parts: dict[str, dict[str, str]]) -> dict[str, Any]:
    """Keep the algorithm, and every key that no rule here reads."""
    extra: dict[str, Any] = {}
    for name, pairs in parts.items():
        known = _COMPUTE_KEYS if name == "computeDesc" else _DESCRIPTOR_KEYS if name.endswith("desc") else set()
        unknown = {
            key: value for key, value in pairs.items() if key.lower() not in known and value not in ("null", "set")
        }
        if unknown:
            extra[name] = unknown
    return extra
