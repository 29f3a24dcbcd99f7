"""How tensors lie in memory, as far as the GEMM kernels care: rows of adjacent elements, evenly spaced."""

from __future__ import annotations

from collections.abc import Sequence


def row_stride(shape: Sequence[int], strides: Sequence[int]) -> int | None:
    """See a tensor as a matrix of its last axis, all others together being rows.

    Parameters
    ----------
    shape, strides : sequence of int
        Of a tensor without empty axes, in elements.

    Returns
    -------
    int or None
        Elements from one row to the next; the length of a row, if there is only one. None if rows are not evenly
        spaced, overlap, or their elements are not adjacent: then only a copy is such a matrix.
    """
    columns = shape[-1]
    if columns > 1 and strides[-1] != 1:
        return None
    step, expected = 0, 0
    for size, stride in zip(reversed(shape[:-1]), reversed(strides[:-1]), strict=True):
        if size == 1:
            continue
        if not step:
            if stride < columns:
                return None
            step = expected = stride
        elif stride != expected:
            return None
        expected *= size
    return step or columns


def weight_storage(shape: Sequence[int], strides: Sequence[int]) -> tuple[str, int] | None:
    """Recognize how B [k, n] is stored.

    Parameters
    ----------
    shape, strides : sequence of two int
        Of B, without empty axes, in elements.

    Returns
    -------
    (layout, leading stride) or None
        ``"kn"`` for row-major B, ``"nk"`` for the transpose view of a row-major [n, k]; None if it is neither. A vector
        is stored both ways, and counts as the one whose rows are long.
    """
    k, n = shape
    as_kn = row_stride((k, n), tuple(strides))
    as_nk = row_stride((n, k), tuple(reversed(strides)))
    if as_nk is not None and (k > 1 or as_kn is None):
        return "nk", as_nk
    return None if as_kn is None else ("kn", as_kn)
