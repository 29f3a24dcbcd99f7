"""Scales of fp8 operands: their shapes, random ones, and what the operands mean with them.

A stored element times its scale is the number that it stands for. Scales are fp32 matrices: a row for each row of the
operand (or one for all), a column for each block of k (or one for all). ``(1, 1)`` is a scale for the tensor,
``(m, 1)`` one for each row of A, and with blocks of 128 A has ``(m, ceil(k / 128))`` scales and B
``(ceil(n / 128), ceil(k / 128))``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from wavetune.core.dtype import find_dtype
from wavetune.core.problem import GemmProblem
from wavetune.mapping.gemm import ceil_div

SCALE_MODES = ("tensor", "row")
"""How scales that do not change along k may be spread; both are one kernel, and A and B may differ."""

SPREAD = 64.0
"""Standard deviation of random stored elements: a quantised activation fills e4m3's range, up to 448."""

ScaleShapes = tuple[tuple[int, int], tuple[int, int]]


def scale_shapes(problem: GemmProblem, mode: str = "row") -> ScaleShapes:
    """Return the shapes of A's and B's scales.

    Parameters
    ----------
    problem : GemmProblem
        Of a scaled dtype. One with scales in blocks ignores ``mode``.
    mode : {"tensor", "row"}, default="row"
        See `SCALE_MODES`.
    """
    block = find_dtype(problem.dtype).scale_block
    if block:
        blocks_k = ceil_div(problem.k, block)
        return (problem.m, blocks_k), (ceil_div(problem.n, block), blocks_k)
    return ((1, 1), (1, 1)) if mode == "tensor" else ((problem.m, 1), (problem.n, 1))


def scale_strides(scale: Any) -> tuple[int, int]:
    """Return the elements from one row's scale to the next, 0 if all share one, and from one block's to the next."""
    return (scale.stride(0) if scale.shape[0] > 1 else 0), scale.stride(1)


def random_scales(problem: GemmProblem, mode: str, generator: Any) -> tuple[Any, Any]:
    """Return scales of random operands, see `uniform_scales`."""
    return uniform_scales(scale_shapes(problem, mode), problem.k, generator)


def uniform_scales(shapes: Sequence[tuple[int, ...]], k: int, generator: Any) -> tuple[Any, Any]:
    """Return scales of two operands, between a half and three halves of what makes results of size 1 of random ones."""
    import torch

    scales = []
    for shape, size in zip(shapes, (1.0, max(k, 1) ** -0.5), strict=True):
        scale = torch.empty(shape, dtype=torch.float32, device=generator.device)
        scales.append(scale.uniform_(0.5 * size / SPREAD, 1.5 * size / SPREAD, generator=generator))
    return scales[0], scales[1]


def fill_random(tensor: Any, generator: Any) -> None:
    """Fill an fp8 tensor with normal numbers; torch has no random fp8, so they are rounded from bf16, in parts."""
    import torch

    flat = tensor.view(-1) if tensor.is_contiguous() else None
    if flat is None:
        noise = torch.empty(tensor.shape, dtype=torch.bfloat16, device=tensor.device)
        tensor.copy_(noise.normal_(std=SPREAD, generator=generator))
        return
    part = 1 << 26
    noise = torch.empty(min(part, flat.numel()), dtype=torch.bfloat16, device=tensor.device)
    for start in range(0, flat.numel(), part):
        piece = flat[start : start + part]
        piece.copy_(noise[: piece.numel()].normal_(std=SPREAD, generator=generator))


def dequantise(stored: Any, scale: Any, scale_block: int) -> Any:
    """Return what a stored operand stands for, in float64.

    Parameters
    ----------
    stored : Tensor of shape (rows, k)
        fp8 elements.
    scale : Tensor of shape (1, 1), (rows, 1), (rows, blocks) or (row blocks, blocks)
        Its scales.
    scale_block : int
        Elements in a block; 0 without blocks.
    """
    rows, k = stored.shape
    scale = scale.double()
    if scale_block:
        if scale.shape[0] != rows:
            scale = scale.repeat_interleave(scale_block, 0)[:rows]
        scale = scale.repeat_interleave(scale_block, 1)[:, :k]
    return stored.double() * scale
