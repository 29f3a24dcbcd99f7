"""GEMM: (m, n, k) and a configuration to tiles, trips and bytes.

The formulas use only ``+ - * // >``, so the same functions serve Python ints (launch, runtime) and
NumPy integer arrays (fit): model and hardware cannot disagree.

One CTA computes a ``block_m x block_n`` tile in ``ceil(ceil(k / block_k) / split_k)`` trips; split-k
multiplies the grid and divides the loop. Tiles are visited in groups of ``group_m`` rows of tiles, a group
column by column, so a group reads its rows of A once and all of B. The next group reads B again: what does not
fit in the last-level cache comes from DRAM each time. That is ``reread_bytes``.
"""

from __future__ import annotations

from typing import Any

from wavetune.core.arch import ArchSpec
from wavetune.core.config import KernelConfig
from wavetune.core.dtype import find_dtype
from wavetune.core.problem import GemmProblem
from wavetune.errors import ProblemError
from wavetune.mapping.tile_mapping import TileMapping

REUSABLE_L2 = 0.85
"""Share of the last-level cache in which B survives until the next group: rows of A and C pass through as well.
Of 0.65, 0.8, 0.95, 1.1 and 1.3, 0.8 and 0.95 predict recorded H200 sweeps best (2026-11, 330 configurations)."""


def ceil_div(a: Any, b: Any) -> Any:
    """Return ``ceil(a / b)`` for positive integers or integer arrays."""
    return -(-a // b)


def positive_part(x: Any) -> Any:
    """Return ``max(x, 0)`` for numbers or arrays."""
    return x * (x > 0)


def loop_trips(k: Any, block_k: Any, split_k: Any) -> Any:
    """Return the main-loop trips of one CTA; the longest, where the splits are uneven."""
    return ceil_div(ceil_div(k, block_k), split_k)


def compulsory_bytes(m: Any, n: Any, k: Any, input_bytes: int, output_bytes: int) -> Any:
    """Return the bytes of A, B and C, each moved once."""
    return (m * k + n * k) * input_bytes + m * n * output_bytes


def reusable_l2_bytes(l2_bytes: int) -> int:
    """Return the bytes of B that can stay in the last-level cache from one group to the next."""
    return int(REUSABLE_L2 * l2_bytes)


def reread_bytes(n: Any, k: Any, tiles_m: Any, group_m: Any, input_bytes: int, l2_bytes: int) -> Any:
    """Return the bytes of B that later groups of tile rows must fetch from DRAM again."""
    return positive_part(n * k * input_bytes - reusable_l2_bytes(l2_bytes)) * (ceil_div(tiles_m, group_m) - 1)


def workspace_bytes(m: Any, n: Any, split_k: Any) -> Any:
    """Return the bytes of fp32 partial sums that split-k writes and the reduction reads; 0 without a split."""
    return 8 * m * n * split_k * (split_k > 1)


def map_gemm(problem: GemmProblem, config: KernelConfig, arch: ArchSpec) -> TileMapping:
    """Map a GEMM to what the GPU sees.

    Parameters
    ----------
    problem : GemmProblem
        Must not be empty.
    config : KernelConfig
        A complete GEMM configuration. Micro fields change bytes at most, never grid or trips.
    arch : ArchSpec
        Gives the cache that re-reads are counted against.

    Returns
    -------
    TileMapping
        ``grid_size = tiles_m * tiles_n * split_k`` and ``loop_trips * split_k * block_k >= k``.

    Raises
    ------
    ProblemError
        If a size is zero: there is nothing to map.
    """
    if problem.is_empty:
        raise ProblemError(f"an empty problem has no tiles: {problem}")
    block_m, block_n, block_k, split_k, group_m = (
        int(config[name]) for name in ("block_m", "block_n", "block_k", "split_k", "group_m")
    )
    m, n, k = problem.dims
    dtype = find_dtype(problem.dtype)
    tiles_m, tiles_n = ceil_div(m, block_m), ceil_div(n, block_n)
    return TileMapping(
        grid_size=tiles_m * tiles_n * split_k,
        loop_trips=loop_trips(k, block_k, split_k),
        tiles_m=tiles_m,
        tiles_n=tiles_n,
        compulsory_bytes=compulsory_bytes(m, n, k, dtype.input_bytes, dtype.output_bytes),
        reread_bytes=reread_bytes(n, k, tiles_m, group_m, dtype.input_bytes, arch.l2_bytes),
        workspace_bytes=workspace_bytes(m, n, split_k),
        flops=2 * m * n * k,
    )
