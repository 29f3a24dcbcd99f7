"""TMA descriptors of the GEMM family's matrices."""

from __future__ import annotations

from typing import Any

from triton.tools.tensor_descriptor import TensorDescriptor

from wavetune.core.config import KernelConfig
from wavetune.mapping.legality import MAX_TMA_BOX as MAX_TMA_BOX
from wavetune.mapping.legality import column_parts


def matrix_descriptor(tensor: Any, rows: int, columns: int) -> TensorDescriptor:
    """Describe boxes of ``rows`` x ``columns`` of a matrix with unit stride along its rows."""
    return TensorDescriptor(tensor, list(tensor.shape), [tensor.stride(0), 1], [rows, columns])


def input_descriptors(a: Any, b: Any, layout: str, config: KernelConfig) -> tuple[TensorDescriptor, ...]:
    """Describe the tiles of A, and of B as stored; a tile of two parts has a box of B for each."""
    block_k = int(config["block_k"])
    tile_a = matrix_descriptor(a, int(config["block_m"]), block_k)
    if layout == "nk":
        return (tile_a, *(matrix_descriptor(b, width, block_k) for width in _parts(config)))
    return (tile_a, *(matrix_descriptor(b, block_k, width) for width in _parts(config)))


def output_descriptors(out: Any, config: KernelConfig) -> tuple[TensorDescriptor, ...]:
    """Describe what one store of the epilogue writes; a tile of two parts has a box for each."""
    block_m, split = int(config["block_m"]), int(config["epilogue_split"])
    return tuple(matrix_descriptor(out, block_m, width // split) for width in _parts(config))


def _parts(config: KernelConfig) -> tuple[int, ...]:
    width, rest = column_parts(int(config["block_n"]))
    return (width, rest) if rest else (width,)
