"""TMA descriptors of the GEMM family's matrices."""

from __future__ import annotations

from typing import Any

from triton.tools.tensor_descriptor import TensorDescriptor

MAX_TMA_BOX = 256
"""Elements of one side of a TMA box (CUDA driver API, cuTensorMapEncodeTiled)."""


def matrix_descriptor(tensor: Any, rows: int, columns: int) -> TensorDescriptor:
    """Describe boxes of ``rows`` x ``columns`` of a matrix with unit stride along its rows."""
    return TensorDescriptor(tensor, list(tensor.shape), [tensor.stride(0), 1], [rows, columns])
