"""PyTorch TunableOp: result files with their validators, and files of untuned operations."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from wavetune.core.workload_entry import WorkloadKey
from wavetune.errors import WavetuneError, WorkloadError
from wavetune.workloads.bench_options import integer
from wavetune.workloads.blas import EXCHANGED, BlasKind, blas_kind
from wavetune.workloads.intake import Intake, size_error
from wavetune.workloads.source import LineSource
from wavetune.workloads.table_rows import latency_us
from wavetune.workloads.vendor_types import TUNABLEOP_TYPES

US_PER_MS = 1000.0
"""Times of result files are milliseconds."""

NO_COUNTS = "the format has no call counts: every shape counts once"

_OPERATIONS = {
    "Gemm": "gemm",
    "GemmAndBias": "bias",
    "GemmStridedBatched": "batched",
    "ScaledGemm": "scaled",
}
_TYPE_NAMES = "|".join(sorted(TUNABLEOP_TYPES, key=len, reverse=True))
_OPERATION = re.compile(rf"(\w+?)TunableOp_((?:{_TYPE_NAMES})(?:_(?:{_TYPE_NAMES}))*)_([NTC])([NTC])")
_PARAMETERS = re.compile(
    r"([ntc])([ntc])_(\d+)_(\d+)_(\d+)(?:_B_(\d+))?(?:_ld_(\d+)_(\d+)_(\d+))?(?:_rw_([01]))?(?:_bias_(None|\w+?))?(_.*)?"
)
_LOOKS_LIKE_A_ROW = re.compile(r"\w+TunableOp_")
_GPU = "GCN_ARCH_NAME"


def read_tunableop(source: LineSource, intake: Intake) -> None:
    """Read rows of either kind of file."""
    account = intake.account
    rejection = ""
    is_elsewhere = False
    for number, line in source.lines():
        account.read = number
        if line.startswith("Validator,"):
            rejection = _validate(line, number, intake) or rejection
            is_elsewhere = intake.origins.is_elsewhere(_gpu(account.provenance.get(_GPU, "")))
            continue
        if _LOOKS_LIKE_A_ROW.match(line) is None:
            continue
        if is_elsewhere:
            account.leave(_gpu(account.provenance.get(_GPU, "")))
            continue
        try:
            if rejection:
                raise WorkloadError(rejection)
            # What TunableOp appends with BLAS_LOG has commas of its own.
            operation, comma, rest = line.partition(",")
            if not comma:
                raise WorkloadError("an operation without parameters: the row is cut")
            parameters, *result = rest.split(",", 3)
            key, unknown = _key(operation, parameters)
            if key is None:
                account.empty += 1
                account.recognised += 1
            elif intake.row(key, number, _result(result) | unknown, chooses_again=True):
                account.recognised += 1
        except WavetuneError as error:
            account.refuse(number, str(error))
    account.note(EXCHANGED)
    account.note(NO_COUNTS)


def _validate(line: str, number: int, intake: Intake) -> str:
    """Take a validator line; returns why the rows that follow are refused, if they are."""
    account = intake.account
    cells = line.split(",", 2)
    if len(cells) != 3 or not cells[1] or not cells[2]:
        account.refuse(number, "a validator is Validator,KEY,VALUE: the line is cut")
        return ""
    account.recognised += 1
    name, value = cells[1], cells[2].strip()
    account.provenance[name] = value
    if name == _GPU:
        name, value = "GPU", _gpu(value)
        if intake.origins.is_elsewhere(value):
            return ""
    try:
        intake.origins.agree({name: value}, f"{account.path}:{number}")
    except WorkloadError as error:
        return str(error)
    return ""


def _gpu(value: str) -> str:
    """Return an architecture without its features."""
    return value.partition(":")[0]


def _key(operation: str, parameters: str) -> tuple[WorkloadKey | None, dict[str, str]]:
    """Return the key, None if a size is zero, and parameters that no rule here reads."""
    kind, sizes, rest = _parse(operation, parameters)
    unknown = {"parameters": rest} if rest else {}
    m, n, k, batch = sizes[:4]
    if not (m and n and k and batch):
        return None, unknown
    reason = size_error(m=m, n=n, k=k, batch=batch)
    alignment = 0
    if not reason and len(sizes) == 7:
        reason = kind.stride_error(m, n, k, *sizes[4:])
        alignment = kind.alignment(m, n, k, *sizes[4:])
    if reason:
        raise WorkloadError(reason)
    return replace(kind.kind, m=n, n=m, k=k, batch=batch, alignment=alignment), unknown


def _parse(operation: str, parameters: str) -> tuple[BlasKind, tuple[int, ...], str]:
    """Return the product; m, n, k, batch and, where given, the leading dimensions of A, B and D; and what is left."""
    named = _OPERATION.fullmatch(operation)
    if named is None or named[1] not in _OPERATIONS:
        known = ", ".join(f"{name}TunableOp" for name in _OPERATIONS)
        raise WorkloadError(f"unknown operation or type {operation!r}; known: {known} of {', '.join(TUNABLEOP_TYPES)}")
    found = _PARAMETERS.fullmatch(parameters)
    if found is None:
        raise WorkloadError(f"parameters must be like tn_M_N_K_ld_LDA_LDB_LDC, got {parameters!r}")
    trans_a, trans_b, m, n, k, batch, lda, ldb, ldc, row_wise, bias, rest = found.groups()
    if (trans_a.upper(), trans_b.upper()) != (named[3], named[4]):
        raise WorkloadError(f"{operation} and {parameters} disagree about transposition")
    form = _OPERATIONS[named[1]]
    if (form == "batched") != (batch is not None):
        raise WorkloadError(f"{operation} {'lacks' if form == 'batched' else 'has'} a batch: {parameters!r}")
    spelled = re.findall(_TYPE_NAMES, named[2])
    types = [TUNABLEOP_TYPES[name] for name in spelled]
    a_type, b_type, d_type = types if len(types) == 3 else (types[0], types[0], "")
    scale = "none" if form != "scaled" else "row" if row_wise == "1" else "tensor"
    kind = blas_kind(
        trans_a=named[3], trans_b=named[4], a_type=a_type, b_type=b_type, c_type=d_type, d_type=d_type,
        compute="tf32" if "tf32" in spelled else "", is_batched=form == "batched",
        bias=form == "bias" or (bias is not None and bias != "None"), scale_a=scale, scale_b=scale,
    )  # fmt: skip
    sizes = [integer(name, value) for name, value in (("M", m), ("N", n), ("K", k), ("B", batch or "1"))]
    if lda is not None:
        sizes += [integer(name, value) for name, value in (("lda", lda), ("ldb", ldb), ("ldc", ldc))]
    return kind, tuple(sizes), rest or ""


def _result(cells: list[str]) -> dict[str, Any]:
    """Return what was chosen; nothing in a file of untuned operations."""
    if not cells or cells[0].startswith("BLAS_PARAMS"):
        return {}
    if not cells[0]:
        raise WorkloadError("a row with no solution: the row is cut")
    extra: dict[str, Any] = {"solution": cells[0]}
    if len(cells) > 1 and not cells[1].startswith("BLAS_PARAMS"):
        extra["latency_us"] = latency_us(cells[1], US_PER_MS)
    return extra
