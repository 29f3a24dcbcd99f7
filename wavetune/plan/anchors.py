"""Wave-structured points of one configuration: where its latency changes form.

Problem sizes are chosen backwards, from the grid and loop trips that the point is to have.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from wavetune.core.arch import ArchSpec
from wavetune.core.config import KernelConfig
from wavetune.core.dtype import DType
from wavetune.mapping.gemm import ceil_div
from wavetune.store.record import CompiledConfig
from wavetune.waves.occupancy import ctas_per_sm

MAX_K = 32768
"""Longest loop of an anchor, elements of k."""

SIZE_MULTIPLE = 8
"""n and k are multiples of 8 elements, 16 bytes of bf16, so that TMA configurations are legal; k of fp8 of 16."""

EDGE_TRIPS = 16
"""Loop trips of the points that vary the grid."""

SUB_WAVES = (0.25, 0.5, 0.75)
"""Fractions of a wave in which some SMs are idle."""

WAVE_EDGES = (1, 2, 3, 4, 6)
"""Full waves: a point exactly there, and for the first three one with a CTA more."""

LOOP_WIDTHS = (0.5, 1.0, 2.5)
"""Grids, in waves, at which the loop is varied."""

ASPECTS = (1 / 64, 1 / 8, 8.0, 64.0)
"""Ratio m / n of the problem; the edges use 1."""

CACHE_RATIOS = (0.5, 2.0, 4.0)
"""Weight bytes over last-level cache bytes: inside, beyond and far beyond it."""

STRATA = ("wave-edge", "loop", "ragged", "cache", "aspect")


@dataclass(frozen=True, slots=True)
class Anchor:
    """A problem size and the reason why it is measured."""

    dims: tuple[int, int, int]
    stratum: str


def tiles_for(grid_size: int, tile_aspect: float, *, at_least: bool) -> tuple[int, int]:
    """Choose tile counts whose product is nearest to a grid size, from one side, at about an aspect.

    Parameters
    ----------
    grid_size : int
        Wanted tiles, at least 1.
    tile_aspect : float
        Wanted ``tiles_m / tiles_n``.
    at_least : bool
        Whether the product may only exceed ``grid_size``, or only fall short of it.

    Returns
    -------
    tuple of int
        ``(tiles_m, tiles_n)``.
    """
    ideal = (grid_size * tile_aspect) ** 0.5
    best, best_cost = (1, grid_size), float("inf")
    # Within a factor of four of the aspect; a closer grid is worth more than a closer aspect.
    for tiles_m in range(max(1, int(ideal / 2)), max(1, min(grid_size, int(ideal * 2) + 1)) + 1):
        tiles_n = ceil_div(grid_size, tiles_m) if at_least else grid_size // tiles_m
        if tiles_n == 0:
            continue
        miss = abs(tiles_m * tiles_n - grid_size) / grid_size
        distance = max(tiles_m / ideal, ideal / tiles_m) - 1.0
        if (cost := 20.0 * miss + distance) < best_cost:
            best, best_cost = (tiles_m, tiles_n), cost
    return best


def loop_anchors(block_k: int, split_k: int) -> list[int]:
    """Return loop trips at powers of two, up to the trips that `MAX_K` needs."""
    longest = max(MAX_K // (block_k * split_k), 1)
    trips = [2**power for power in range(longest.bit_length()) if 2**power < longest]
    return [*trips, longest]


def gemm_anchors(compiled: CompiledConfig, arch: ArchSpec, dtype: DType) -> list[Anchor]:
    """Return the anchors of a configuration, the most telling of each stratum first.

    Strata take turns, so any prefix is balanced. No size is there twice.
    """
    config = compiled.config
    width = arch.num_sms * ctas_per_sm(
        arch, num_warps=_field(config, "num_warps"), num_regs=compiled.num_regs, smem_bytes=compiled.smem_bytes
    )
    queues = [
        list(_wave_edges(config, width)),
        list(_loops(config, width)),
        list(_ragged(config, width, max(SIZE_MULTIPLE, 16 // dtype.input_bytes))),
        list(_cache(config, arch, dtype)),
        list(_aspects(config, width)),
    ]
    anchors: dict[tuple[int, int, int], Anchor] = {}
    for turn in range(max(map(len, queues))):
        for stratum, queue in zip(STRATA, queues, strict=True):
            if turn < len(queue):
                anchors.setdefault(queue[turn], Anchor(queue[turn], stratum))
    return list(anchors.values())


def _field(config: KernelConfig, name: str) -> int:
    return int(config[name])


def _dims(
    config: KernelConfig, grid_size: float, trips: int, aspect: float = 1.0, *, at_least: bool = False
) -> tuple[int, int, int]:
    """Return sizes of whole tiles for a grid and a loop; ``aspect`` is m / n in elements."""
    block_m, block_n, block_k, split_k = (_field(config, name) for name in ("block_m", "block_n", "block_k", "split_k"))
    trips = min(trips, loop_anchors(block_k, split_k)[-1])
    tiles = grid_size / split_k
    units = max(math.ceil(tiles) if at_least else math.floor(tiles), 1)
    tiles_m, tiles_n = tiles_for(units, aspect * block_n / block_m, at_least=at_least)
    return tiles_m * block_m, tiles_n * block_n, trips * block_k * split_k


def _wave_edges(config: KernelConfig, width: int) -> Iterator[tuple[int, int, int]]:
    for full_waves in WAVE_EDGES[:3]:
        yield _dims(config, full_waves * width, EDGE_TRIPS)
        yield _dims(config, full_waves * width + 1, EDGE_TRIPS, at_least=True)
    for waves in (*SUB_WAVES, *WAVE_EDGES[3:]):
        yield _dims(config, waves * width, EDGE_TRIPS)


def _loops(config: KernelConfig, width: int) -> Iterator[tuple[int, int, int]]:
    trips = loop_anchors(_field(config, "block_k"), _field(config, "split_k"))
    for index in _ends_then_middles(len(trips)):
        for waves in LOOP_WIDTHS if trips[index] > 1 else LOOP_WIDTHS[:2]:
            yield _dims(config, waves * width, trips[index])


def _ends_then_middles(n_items: int) -> list[int]:
    """Order positions so that every prefix is spread over the whole range: last, first, middle, quarters."""
    order = dict.fromkeys([n_items - 1, 0])
    parts = 2
    while len(order) < n_items:
        order |= dict.fromkeys(round(part * (n_items - 1) / parts) for part in range(1, parts))
        parts *= 2
    return list(order)


def _ragged(config: KernelConfig, width: int, k_multiple: int) -> Iterator[tuple[int, int, int]]:
    """Tiles that are partly outside: in m where one token or one too many makes them so, and in n and k."""
    block_m, block_n, block_k, split_k = (_field(config, name) for name in ("block_m", "block_n", "block_k", "split_k"))
    k_unit = block_k * split_k
    longest = loop_anchors(block_k, split_k)[-1]
    for m in (1, block_m + 1, 7, block_m - 1):
        tiles_n = max(int(1.5 * width / split_k) // ceil_div(m, block_m), 1)
        yield m, tiles_n * block_n, min(EDGE_TRIPS, longest) * k_unit
        yield m, max(tiles_n // 4, 1) * block_n, min(4 * EDGE_TRIPS, longest) * k_unit
    m, n, k = _dims(config, 1.5 * width, EDGE_TRIPS)
    for m_cut, n_cut, k_cut in ((3, 8, k_multiple), (block_m // 2, block_n // 2, block_k // 2)):
        yield m - m_cut, max(n - n_cut, SIZE_MULTIPLE), max(k - k_cut, k_multiple)


def _cache(config: KernelConfig, arch: ArchSpec, dtype: DType) -> Iterator[tuple[int, int, int]]:
    """Weights against the last-level cache, read by one group of tile rows and by three."""
    block_m, block_n, block_k, split_k = (_field(config, name) for name in ("block_m", "block_n", "block_k", "split_k"))
    k_unit = block_k * split_k
    k = max(8192 // k_unit, 1) * k_unit
    for ratio in CACHE_RATIOS:
        n = max(round(ratio * arch.l2_bytes / (dtype.input_bytes * k * block_n)), 1) * block_n
        yield block_m, n, k
        yield 3 * _field(config, "group_m") * block_m, n, k


def _aspects(config: KernelConfig, width: int) -> Iterator[tuple[int, int, int]]:
    for waves, trips in ((2.0, 32), (0.6, 64)):
        for aspect in ASPECTS:
            yield _dims(config, waves * width, trips, aspect)
