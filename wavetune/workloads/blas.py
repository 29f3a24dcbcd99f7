"""From BLAS, which is column-major, to row-major m (tokens), n (features) and k.

A linear layer ``Y[tokens, out] = X[tokens, in] W[out, in]^T`` is for BLAS the product ``D = op(A) op(B)`` with A = W,
B = X, m = out and n = tokens: operands change places, and their types, scales and layouts with them.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

from wavetune.core.dtype import DTYPES, find_dtype
from wavetune.core.problem import ALIGNMENTS, CONTIGUOUS
from wavetune.core.workload_entry import WorkloadKey
from wavetune.errors import WorkloadError
from wavetune.workloads.vendor_types import both_scales

EXCHANGED = "sizes are column-major: m and n exchanged, so that m counts tokens"
"""What an account says about every file of this kind."""


@dataclass(frozen=True, slots=True)
class BlasKind:
    """A column-major product without its sizes.

    Parameters
    ----------
    transposes_a, transposes_b : bool
        Whether op is a transposition.
    kind : WorkloadKey
        The row-major product, all sizes 1.
    checks_strides : bool
        False where the library ignores leading dimensions (pre-shuffled operands).
    """

    transposes_a: bool
    transposes_b: bool
    kind: WorkloadKey
    checks_strides: bool = True

    def stride_error(self, m: int, n: int, k: int, lda: int, ldb: int, ldd: int) -> str:
        """Say why leading dimensions contradict column-major sizes; empty if they do not.

        A leading dimension is at least the rows of its matrix, and does not matter where there is a single column. If
        m and n exchanged would make every matrix dense, and they are not, then the sizes are row-major.
        """
        if not self.checks_strides:
            return ""
        given = f"lda={lda} ldb={ldb} ldd={ldd}"
        strides = (lda, ldb, ldd)
        if strides != self._rows(m, n, k) and strides == self._rows(n, m, k) and 1 not in (m, n):
            return f"{given} fit m={n} n={m}, not m={m} n={n}: sizes in row-major order?"
        columns = (m if self.transposes_a else k, k if self.transposes_b else n, n)
        fits = zip(strides, self._rows(m, n, k), columns, strict=True)
        if all(stride >= rows or column == 1 for stride, rows, column in fits):
            return ""
        return f"{given} are too small for m={m} n={n} k={k}: the sizes are wrong, or in another order"

    def _rows(self, m: int, n: int, k: int) -> tuple[int, int, int]:
        """Return the rows of A, B and D as they are stored: the leading dimensions of dense matrices."""
        return (k if self.transposes_a else m, n if self.transposes_b else k, m)

    def alignment(self, m: int, n: int, k: int, lda: int, ldb: int, ldd: int) -> int:
        """Return the alignment class of padded operands, `CONTIGUOUS` if padding does not change it."""
        if self.kind.dtype not in DTYPES or not self.checks_strides:
            return CONTIGUOUS
        element = find_dtype(self.kind.dtype)
        a_rows, b_rows, _ = self._rows(m, n, k)
        # Nobody strides over a single column.
        padded = [max(lda, a_rows), max(ldb, b_rows) if n > 1 else b_rows, max(ldd, m) if n > 1 else m]
        sizes = (element.input_bytes, element.input_bytes, element.output_bytes)
        of_strides, dense = (
            _class_of([rows * size for rows, size in zip(counts, sizes, strict=True)])
            for counts in (padded, [a_rows, b_rows, m])
        )
        return CONTIGUOUS if of_strides == dense else of_strides


def blas_kind(
    *, trans_a: str, trans_b: str, a_type: str, b_type: str, c_type: str = "", d_type: str = "", compute: str = "",
    is_batched: bool = False, is_grouped: bool = False, bias: bool = False, activation: str = "none",
    scale_a: str = "none", scale_b: str = "none", swizzles_a: bool = False, swizzles_b: bool = False,
) -> BlasKind:  # fmt: skip
    """Turn the arguments of a column-major product into the row-major one.

    Parameters
    ----------
    trans_a, trans_b : {"N", "T", "C"}
        As BLAS has them.
    a_type, b_type, c_type, d_type, compute : str
        Element types by their short names; empty for what B implies.

    Raises
    ------
    WorkloadError
        If a transposition is unknown.
    """
    for name, value in (("transA", trans_a), ("transB", trans_b)):
        if value not in ("N", "T", "C"):
            raise WorkloadError(f"{name} must be N, T or C, got {value!r}")
    transposes_a, transposes_b = trans_a != "N", trans_b != "N"
    swizzle = f"{'a' if swizzles_b else ''}{'b' if swizzles_a else ''}"
    kind = WorkloadKey(
        1, 1, 1, "grouped_gemm" if is_grouped else "batched_gemm" if is_batched else "gemm", b_type,
        "nk" if transposes_a else "kn", "km" if transposes_b else "mk", dtype_b=a_type, dtype_c=c_type, dtype_d=d_type,
        compute=compute, bias=bias, activation=activation, scale=both_scales(scale_b, scale_a),
        swizzle=swizzle or "none",
    )  # fmt: skip
    return BlasKind(transposes_a, transposes_b, kind, not swizzle)


def _class_of(strides: list[int]) -> int:
    common = gcd(*strides)
    return next(size for size in ALIGNMENTS if common % size == 0)
