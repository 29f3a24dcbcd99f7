"""In which order a GEMM configuration sums a row: what makes two results equal bit by bit.

An element of C is summed trip by trip, block_k products at a time, by one matrix instruction after another; nothing
else of a configuration (warps' rows, stages, loads, the order of tiles, persistence) changes the sum. So two
configurations that split k into one part, cut it into the same blocks and use the same instruction agree, whatever m.
"""

from __future__ import annotations

from wavetune.core.arch import ArchSpec
from wavetune.core.config import KernelConfig, KernelSpec

WARPGROUP_ROWS = 64
"""Rows of one warpgroup instruction (PTX ISA, wgmma.mma_async); a kernel whose tile has fewer rows, but as many
columns, computes the transpose."""

ReductionOrder = tuple[int | str, ...]
"""Equal for configurations that sum in the same order."""


def computes_transpose(config: KernelConfig, arch: ArchSpec) -> bool:
    """Whether the kernel of a configuration multiplies B by A, so that the instruction's columns are rows of C."""
    return arch.has_tma and int(config["block_m"]) < WARPGROUP_ROWS <= int(config["block_n"])


def reduction_order(config: KernelConfig, arch: ArchSpec) -> ReductionOrder | None:
    """Return what decides the order in which a row of C is summed; None if k is split over CTAs.

    Parameters
    ----------
    config : KernelConfig
        A complete GEMM configuration.
    arch : ArchSpec
        Decides the matrix instruction: ``mma`` of 16 x 8 before compute capability 9.0 and for tiles under 64 rows and
        columns, ``wgmma`` of 64 x N from then on. Where the rule of another architecture is not known here, the whole
        tile and the warps count.
    """
    if config["split_k"] != 1:
        return None
    block_m, block_n, block_k = (int(config[name]) for name in ("block_m", "block_n", "block_k"))
    if arch.target in ("sm_80", "sm_86", "sm_89"):
        return block_k, "mma"
    num_warps = int(config["num_warps"])
    if arch.target != "sm_90":
        return block_k, "tile", block_m, block_n, num_warps
    if max(block_m, block_n) < WARPGROUP_ROWS:
        return block_k, "mma"
    swapped = computes_transpose(config, arch)
    rows, columns = (block_n, block_m) if swapped else (block_m, block_n)
    # A width that is no power of two is computed in two parts, the larger one first. Warps that find no rows of their
    # own share the columns.
    parts = [1 << (columns.bit_length() - 1)]
    if parts[0] != columns:
        parts.append(columns - parts[0])
    sharing = max(num_warps * 16 // rows, 1)
    return block_k, "wgmma.transposed" if swapped else "wgmma", *(max(part // sharing, 8) for part in parts)


def is_deterministic(config: KernelConfig, spec: KernelSpec) -> bool:
    """Whether two runs of a configuration give the same bits: not if its family marks a field's word as atomic."""
    return all(config.get(name) not in words for name, words in spec.atomics.items())
