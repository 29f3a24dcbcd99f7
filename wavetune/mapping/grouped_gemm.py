"""Grouped GEMM: the tokens of each expert and a configuration to tiles, trips and bytes.

One CTA computes ``block_m`` tokens of one expert times ``block_n`` rows of its weight; a tile never crosses from one
expert to the next. So what counts is not the number of tokens but their histogram: 4096 tokens are 32 tile rows of 128
if one expert gets them all, and 128 if each of 128 experts gets 32. Experts without tokens cost nothing, and the weight
of every other one must be read.

A launch that is captured in a graph cannot know the histogram. It holds CTAs for the worst one, `widest_groups`, and
those beyond the last tile end at once.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import lru_cache

from wavetune.core.arch import ArchSpec
from wavetune.core.config import KernelConfig
from wavetune.core.dtype import find_dtype
from wavetune.core.grouped_problem import GroupedGemmProblem
from wavetune.errors import ProblemError
from wavetune.mapping.gemm import ceil_div, reread_bytes
from wavetune.mapping.kernel_mapping import LaunchShape


@dataclass(frozen=True, slots=True)
class GroupedGemmMapping:
    """What one launch asks of the GPU.

    Parameters
    ----------
    grid_size : int
        Tiles that are computed: tile rows of all experts times tile columns.
    launched_ctas : int
        CTAs that a launch must hold if it does not know the histogram; the surplus over ``grid_size`` ends at once. A
        persistent kernel launches no more than are resident.
    loop_trips : int
        Trips of the main loop in each tile.
    tile_rows, tiles_n : int
        Tile rows of all experts together, tile columns.
    longest_rows : int
        Tile rows of the busiest expert: they share a weight, and a cache line of it is read by all of them.
    compulsory_bytes : int
        The tokens, the weights of experts that have some, and the result, each moved once.
    reread_bytes : int
        Weight bytes that later groups of an expert's tile rows fetch from DRAM again, see `wavetune.mapping.gemm`.
    padded_rows : int
        Rows that are computed, tokens and what fills the last tile row of each expert.
    flops : int
        Multiply-adds of tokens, counted as two.
    """

    grid_size: int
    launched_ctas: int
    loop_trips: int
    tile_rows: int
    tiles_n: int
    longest_rows: int
    compulsory_bytes: int
    reread_bytes: int
    padded_rows: int
    flops: int

    def launch_shape(self) -> LaunchShape:
        """Return the counts that the model of any kernel is made of."""
        moved = self.compulsory_bytes + self.reread_bytes
        return LaunchShape(self.grid_size, self.loop_trips, self.grid_size * self.loop_trips, moved)


def map_grouped_gemm(problem: GroupedGemmProblem, config: KernelConfig, arch: ArchSpec) -> GroupedGemmMapping:
    """Map a grouped GEMM to what the GPU sees.

    Parameters
    ----------
    problem : GroupedGemmProblem
        Must not be empty.
    config : KernelConfig
        A complete configuration. Micro fields change bytes at most, never grid or trips.
    arch : ArchSpec
        Gives the cache that re-reads are counted against.

    Returns
    -------
    GroupedGemmMapping
        ``grid_size <= launched_ctas``, equal for the histogram of `widest_groups`.

    Raises
    ------
    ProblemError
        If there are no tokens or a size is zero: there is nothing to map.
    """
    if problem.is_empty:
        raise ProblemError(f"a grouped problem without tokens, or with a size of zero, has no tiles: {problem.dims}")
    block_m, block_n, block_k = (int(config[name]) for name in ("block_m", "block_n", "block_k"))
    n, k = problem.n, problem.k
    rows, longest = tile_rows(problem.group_sizes, block_m)
    tiles_n = ceil_div(n, block_n)
    return GroupedGemmMapping(
        grid_size=rows * tiles_n,
        launched_ctas=launched_tile_rows(problem.experts, problem.tokens, block_m) * tiles_n,
        loop_trips=ceil_div(k, block_k),
        tile_rows=rows,
        tiles_n=tiles_n,
        longest_rows=longest,
        compulsory_bytes=grouped_bytes(problem),
        reread_bytes=grouped_reread_bytes(problem, block_m, int(config["group_m"]), arch.l2_bytes),
        padded_rows=rows * block_m,
        flops=2 * problem.tokens * n * k,
    )


@lru_cache(maxsize=4096)
def tile_rows(group_sizes: tuple[int, ...], block_m: int) -> tuple[int, int]:
    """Return the tile rows of all experts together, and of the busiest one."""
    rows = [-(-size // block_m) for size in group_sizes]
    return sum(rows), max(rows)


def launched_tile_rows(experts: int, tokens: int, block_m: int) -> int:
    """Return the most tile rows that any histogram of these tokens has.

    Every active expert has one for its first token; after that, ``block_m`` tokens are needed for one more.
    """
    active = min(experts, tokens)
    return active + (tokens - active) // block_m


def widest_groups(experts: int, tokens: int) -> tuple[int, ...]:
    """Return a histogram with the most tile rows for any ``block_m``: a token for each expert, the rest for one."""
    active = min(experts, tokens)
    if active == 0:
        return (0,) * experts
    return (tokens - active + 1, *(1,) * (active - 1), *(0,) * (experts - active))


def widest_problem(problem: GroupedGemmProblem) -> GroupedGemmProblem:
    """Return the problem that a launch must be prepared for if it may not know the histogram."""
    return replace(problem, group_sizes=widest_groups(problem.experts, problem.tokens))


def grouped_bytes(problem: GroupedGemmProblem) -> int:
    """Return the bytes of tokens, weights of active experts, and the result, each moved once."""
    element = find_dtype(problem.dtype)
    inputs = problem.tokens * problem.k + problem.active * problem.n * problem.k
    return inputs * element.input_bytes + problem.tokens * problem.out_columns * element.output_bytes


def grouped_reread_bytes(problem: GroupedGemmProblem, block_m: int, group_m: int, l2_bytes: int) -> int:
    """Return the weight bytes that later groups of an expert's tile rows fetch from DRAM again."""
    n, k, input_bytes = problem.n, problem.k, find_dtype(problem.dtype).input_bytes
    # Nothing is read again where a weight fits in the cache, whatever the histogram.
    if not reread_bytes(n, k, 2, 1, input_bytes, l2_bytes):
        return 0
    heights = Counter(-(-size // block_m) for size in problem.group_sizes if size)
    return sum(
        count * reread_bytes(n, k, height, group_m, input_bytes, l2_bytes) for height, count in heights.items()
    )  # fmt: skip
