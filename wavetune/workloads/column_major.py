"""From a row-major key to the column-major arguments of BLAS: the way back of `wavetune.workloads.blas`."""

from __future__ import annotations

from dataclasses import dataclass

from wavetune.core.problem import CONTIGUOUS
from wavetune.core.workload_entry import WorkloadKey
from wavetune.errors import WorkloadError

_PRODUCTS = ("gemm", "batched_gemm")


@dataclass(frozen=True, slots=True)
class ColumnMajor:
    """A dense column-major product ``D = op(A) op(B)``.

    Parameters
    ----------
    trans_a, trans_b : {"N", "T"}
        What op is.
    m, n, k : int
        Sizes, column-major: n counts tokens.
    lda, ldb, ldd : int
        Leading dimensions of dense operands.
    """

    trans_a: str
    trans_b: str
    m: int
    n: int
    k: int
    lda: int
    ldb: int
    ldd: int

    @classmethod
    def of(cls, key: WorkloadKey) -> ColumnMajor:
        """Exchange the operands of a product.

        Raises
        ------
        WorkloadError
            If this is no plain or batched product of dense operands, stored as they are.
        """
        if key.operation not in _PRODUCTS:
            raise WorkloadError(f"the format has no {key.operation}")
        if key.swizzle != "none":
            raise WorkloadError("the format does not say that operands are pre-shuffled")
        if key.alignment != CONTIGUOUS:
            raise WorkloadError("a workload keeps the alignment of padded operands, not their leading dimensions")
        trans_a = "T" if key.layout == "nk" else "N"
        trans_b = "N" if key.layout_a == "mk" else "T"
        m, n, k = key.n, key.m, key.k
        return cls(trans_a, trans_b, m, n, k, k if trans_a == "T" else m, n if trans_b == "T" else k, m)


def vendor_name(element: str, names: dict[str, str]) -> str:
    """Return how a library spells an element type.

    Raises
    ------
    WorkloadError
        If it has no such type.
    """
    try:
        return names[element]
    except KeyError:
        raise WorkloadError(f"the format has no type {element}") from None
