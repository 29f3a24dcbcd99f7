"""Files of untuned operations for PyTorch's TunableOp, as `torch.cuda.tunable.tune_gemm_in_file` reads them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from wavetune.core.workload_entry import WorkloadKey
from wavetune.errors import WorkloadError
from wavetune.workloads.column_major import ColumnMajor, vendor_name
from wavetune.workloads.vendor_types import TUNABLEOP_TYPES

# TF32 is a way of multiplying, told from the accumulator below.
_NAMES = {element: name for name, element in TUNABLEOP_TYPES.items() if name != "tf32"}


def untuned_row(key: WorkloadKey) -> str:
    """Return the line of one operation.

    Raises
    ------
    WorkloadError
        If the format cannot say all of the key; names what it lacks.
    """
    blas = ColumnMajor.of(key)
    is_batched = key.operation == "batched_gemm"
    is_scaled = key.scale != "none"
    name = "tf32" if (key.dtype, key.compute) == ("fp32", "tf32") else vendor_name(key.dtype, _NAMES)
    said: dict[str, Any] = {
        "layout": key.layout,
        "layout_a": key.layout_a,
        "batch": key.batch,
        "operation": key.operation,
    }
    if is_scaled:
        operation, types, said = _scaled(key, is_batched, said)
    elif is_batched:
        operation, types = "GemmStridedBatched", name
    else:
        operation, types = ("GemmAndBias" if key.bias else "Gemm"), name
        said["bias"] = key.bias
    if name == "tf32":
        said["compute"] = "tf32"
    said_key = WorkloadKey(key.m, key.n, key.k, dtype=key.dtype, **said)
    if said_key != key:
        raise WorkloadError(f"the format does not say {_difference(key, said_key)}")
    if key.bias and not is_scaled and blas.trans_a == blas.trans_b:
        raise WorkloadError("TunableOp adds a bias only where one of both operands is transposed")
    layout = f"{blas.trans_a}{blas.trans_b}"
    batch = f"_B_{key.batch}" if is_batched else ""
    scaling = ""
    if is_scaled:
        bias = vendor_name(key.dtype_d, _NAMES) if key.bias else "None"
        scaling = f"_rw_{int(key.scale == 'row')}_bias_{bias}"
    sizes = f"{blas.m}_{blas.n}_{blas.k}{batch}_ld_{blas.lda}_{blas.ldb}_{blas.ldd}"
    return f"{operation}TunableOp_{types}_{layout},{layout.lower()}_{sizes}{scaling}"


def _scaled(key: WorkloadKey, is_batched: bool, said: dict[str, Any]) -> tuple[str, str, dict[str, Any]]:
    if is_batched:
        raise WorkloadError("the format has no scaled batches")
    if key.scale not in ("tensor", "row"):
        raise WorkloadError(f"the format has scales of a tensor or of rows, not {key.scale}")
    if (key.layout, key.layout_a) != ("nk", "mk"):
        raise WorkloadError("scaled products are those of a linear layer there: layouts mk and nk")
    if not (key.dtype.startswith("fp8") and key.dtype_b.startswith("fp8")):
        raise WorkloadError(f"scaled products are of fp8 there, not of {key.dtype} and {key.dtype_b}")
    # A of BLAS is our B.
    types = "_".join(vendor_name(name, _NAMES) for name in (key.dtype_b, key.dtype, key.dtype_d))
    more = {"dtype_b": key.dtype_b, "dtype_d": key.dtype_d, "scale": key.scale, "bias": key.bias}
    return "ScaledGemm", types, said | more


def _difference(key: WorkloadKey, said: WorkloadKey) -> str:
    names = ("dtype_b", "dtype_c", "dtype_d", "compute", "bias", "activation", "scale", "operation")
    for name in names:
        value = getattr(key, name)
        if replace(said, **{name: value}) != said:
            return f"{name} {value}"
    return "all of it"
