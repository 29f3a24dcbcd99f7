"""QuickTune's columns for a key: column-major sizes, leading dimensions and types."""

from __future__ import annotations

from wavetune.core.workload_entry import WorkloadKey
from wavetune.errors import WorkloadError
from wavetune.workloads.column_major import ColumnMajor, vendor_name
from wavetune.workloads.vendor_types import HIPBLASLT_TYPES

KEY_COLUMNS = ("m", "n", "k", "lda", "ldb", "ldc", "ldd", "a_type", "b_type", "c_type", "d_type")
"""What QuickTune says of a product, in its order."""

RESULT_COLUMNS = (
    *KEY_COLUMNS, "count", "baseline_latency(us)", "baseline_solution_idx", "tuned_latency(us)", "tuned_solution_idx",
    "baseline/tuned", "status",
)  # fmt: skip
"""Header of ``tuning_result.csv``."""

_NAMES = {element: name for name, element in HIPBLASLT_TYPES.items()}

# The order in which transpositions are told from leading dimensions; the first that fits is taken.
_TOLD = (("T", "N"), ("N", "N"), ("T", "T"), ("N", "T"))


def key_cells(key: WorkloadKey) -> dict[str, int | str]:
    """Return the cells of `KEY_COLUMNS`.

    Raises
    ------
    WorkloadError
        If they do not say all of the key: QuickTune knows sizes, leading dimensions and types.
    """
    blas = ColumnMajor.of(key)
    plain = WorkloadKey(
        key.m, key.n, key.k, "gemm", key.dtype, key.layout, key.layout_a, key.dtype_b, key.dtype_c, key.dtype_d
    )
    if plain != key:
        raise WorkloadError("the format does not say batches, bias, activation, scales or accumulation")
    for trans_a, trans_b in _TOLD:
        dense = (blas.k if trans_a == "T" else blas.m, blas.n if trans_b == "T" else blas.k)
        if dense == (blas.lda, blas.ldb):
            if (trans_a, trans_b) != (blas.trans_a, blas.trans_b):
                raise WorkloadError(f"leading dimensions {dense} of this size do not tell its layout")
            break
    sizes = (blas.m, blas.n, blas.k, blas.lda, blas.ldb, blas.ldd, blas.ldd)
    types = [vendor_name(name, _NAMES) for name in (key.dtype_b, key.dtype, key.dtype_c, key.dtype_d)]
    return dict(zip(KEY_COLUMNS, [*sizes, *types], strict=True))


def ratio_cell(baseline_us: float, tuned_us: float) -> str:
    """Return the cell ``baseline/tuned``."""
    return f"{baseline_us / tuned_us:.2%}"
