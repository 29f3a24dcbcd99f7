"""Attention: lengths and a configuration to CTAs, trips and bytes.

A CTA of the prefill kernel computes ``block_m`` queries of one head and walks over the keys that any of them sees,
``block_n`` at a time. Under a causal mask or a window CTAs differ in length, so besides the grid two counts matter: the
trips of all CTAs together, and those of the longest one. The device code derives its loop from the same formulas.

A CTA of the decode kernel walks over one of ``splits`` parts of the keys of one key and value head, for all the query
heads that share it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import lru_cache

from wavetune.core.arch import ArchSpec
from wavetune.core.attention_problem import AttentionDecodeProblem, AttentionProblem
from wavetune.core.config import KernelConfig
from wavetune.core.dtype import find_dtype
from wavetune.core.floor_sum import floor_sum
from wavetune.errors import ProblemError
from wavetune.mapping.kernel_mapping import LaunchShape

IN_ORDER = "in_order"
"""Blocks of a head one after another, first to last."""

LONGEST_FIRST = "longest_first"
"""The last blocks of many heads first: under a causal mask they are the longest."""

GROUP_L2_SHARE = 0.5
"""Share of the last-level cache that the keys and values of the heads in flight may fill. Not measured yet."""

ROW_TILES = (16, 32, 64)
"""Rows of a decode tile: query heads of one key and value head, padded; 16 is the least of a matrix instruction."""

MAX_REMEMBERED = 256
"""Problems whose bytes and trips are remembered: many configurations are mapped to each."""

ACCUMULATOR_BYTES = 4
"""Partial results of split keys are fp32."""


@dataclass(frozen=True, slots=True)
class AttentionMapping:
    """What one launch asks of the GPU.

    Parameters
    ----------
    grid_size : int
        Launched CTAs.
    active_ctas : int
        Those that compute something: packed sequences are launched as if all were as long as the longest.
    longest_trips : int
        Trips of the longest CTA.
    total_trips : int
        Trips of all CTAs together.
    compulsory_bytes : int
        Every input read once and the output written once.
    workspace_bytes : int
        Partial results written and read again where keys are split.
    flops : int
        Multiply-adds of visible pairs, counted as two.
    """

    grid_size: int
    active_ctas: int
    longest_trips: int
    total_trips: int
    compulsory_bytes: int
    workspace_bytes: int

    def launch_shape(self) -> LaunchShape:
        """Return the counts that the model of any kernel is made of; CTAs that do nothing are not work."""
        moved = self.compulsory_bytes + self.workspace_bytes
        return LaunchShape(self.active_ctas, self.longest_trips, self.total_trips, moved)


def map_attention(problem: AttentionProblem, config: KernelConfig) -> AttentionMapping:
    """Map a prefill problem.

    Parameters
    ----------
    problem : AttentionProblem
        Must not be empty.
    config : KernelConfig
        A complete configuration; micro fields change nothing.

    Returns
    -------
    AttentionMapping
        ``longest_trips <= total_trips <= active_ctas * longest_trips``.

    Raises
    ------
    ProblemError
        If there are no queries.
    """
    if problem.is_empty:
        raise ProblemError(f"a problem without queries has no tiles: {problem}")
    block_m, block_n = int(config["block_m"]), int(config["block_n"])
    active = longest = total = 0
    for (q_len, kv_len), count in Counter(zip(problem.q_lengths, problem.kv_lengths, strict=True)).items():
        blocks = -(-q_len // block_m)
        of_all, of_longest = sequence_trips(q_len, kv_len, problem.is_causal, problem.window, block_m, block_n)
        active += blocks * count
        total += of_all * count
        longest = max(longest, of_longest)
    return AttentionMapping(
        grid_size=launched_blocks(problem, block_m) * problem.heads,
        active_ctas=active * problem.heads,
        longest_trips=longest,
        total_trips=total * problem.heads,
        compulsory_bytes=attention_bytes(problem),
        workspace_bytes=0,
    )


def launched_blocks(problem: AttentionProblem, block_m: int) -> int:
    """Return the blocks of queries of one head that are launched, for all sequences together."""
    return len(problem.q_lengths) * -(-max(problem.q_lengths) // block_m)


def sequence_trips(
    q_len: int, kv_len: int, is_causal: bool, window: int, block_m: int, block_n: int
) -> tuple[int, int]:  # fmt: skip
    """Return the trips of all CTAs of one head of one sequence, and of the longest one."""
    blocks = -(-q_len // block_m)
    if blocks == 0:
        return 0, 0
    if not window:
        if not is_causal:
            trips = -(-kv_len // block_n)
            return blocks * trips, trips
        first = block_m + kv_len - q_len
        return _sum_of_ceilings(blocks, first, block_m, kv_len, block_n), -(-kv_len // block_n)
    trips_of = [block_trips(block, q_len, kv_len, is_causal, window, block_m, block_n) for block in range(blocks)]
    return sum(trips_of), max(trips_of)


def block_trips(
    block: int, q_len: int, kv_len: int, is_causal: bool, window: int, block_m: int, block_n: int
) -> int:  # fmt: skip
    """Return the trips of one CTA: from the first to the last tile in which one of its queries sees a key."""
    start, end = block * block_m, min((block + 1) * block_m, q_len)
    offset = kv_len - q_len
    low, high = 0, kv_len
    if is_causal:
        high = min(high, end + offset)
    if window:
        low = max(start + offset - window + 1, 0) // block_n * block_n
        high = min(high, end - 1 + offset + window)
    return max(-(-(high - low) // block_n), 0)


def _sum_of_ceilings(count: int, first: int, step: int, limit: int, divisor: int) -> int:
    """Return the sum of ``ceil(clip(first + i * step, 0, limit) / divisor)`` over i in [0, count)."""
    below = min(max(-(-(1 - first) // step), 0), count)  # those that are 0 or less
    inside = min(max(-(-(limit - first) // step), below), count) - below
    # ceil(x / d) = floor((x + d - 1) / d)
    clipped = (count - below - inside) * -(-limit // divisor)
    return clipped + floor_sum(inside, divisor, step, first + below * step + divisor - 1)


def visible_pairs(q_len: int, kv_len: int, is_causal: bool, window: int) -> int:
    """Return the pairs of a query and a key that it sees."""
    if not window:
        # Trips of tiles of one query and one key.
        return sequence_trips(q_len, kv_len, is_causal, 0, 1, 1)[0]
    ahead = 1 if is_causal else window

    def seen_before(reach: int) -> int:
        # Keys up to a distance from the diagonal, over all queries: those below clip(i + offset + reach, 0, kv_len).
        return _sum_of_ceilings(q_len, kv_len - q_len + reach, 1, kv_len, 1)

    return seen_before(ahead) - seen_before(1 - window)


def attention_flops(problem: AttentionProblem) -> int:
    """Return the floating-point operations on visible pairs: two products of ``head_dim`` multiply-adds each."""
    lengths = Counter(zip(problem.q_lengths, problem.kv_lengths, strict=True))
    pairs = sum(count * visible_pairs(*key, problem.is_causal, problem.window) for key, count in lengths.items())
    return 4 * problem.head_dim * problem.heads * pairs


def decode_flops(problem: AttentionDecodeProblem) -> int:
    """Return the floating-point operations on visible keys, counted as by `attention_flops`."""
    return 4 * problem.head_dim * problem.heads * sum(_visible_keys(problem))


@lru_cache(maxsize=MAX_REMEMBERED)
def attention_bytes(problem: AttentionProblem) -> int:
    """Return the bytes of Q, K, V and the result, each moved once."""
    element = find_dtype(problem.dtype)
    rows_in = sum(problem.q_lengths) * problem.heads + 2 * sum(problem.kv_lengths) * problem.kv_heads
    return problem.head_dim * (
        rows_in * element.input_bytes + sum(problem.q_lengths) * problem.heads * element.output_bytes
    )  # fmt: skip


def streams_per_group(problem: AttentionProblem, arch: ArchSpec) -> int:
    """Return the heads that `LONGEST_FIRST` walks at a time: as many as the cache holds keys and values of.

    A multiple of the query heads that share a key and value head, so that they run side by side.
    """
    head_bytes = 2 * max(problem.kv_lengths) * problem.head_dim * find_dtype(problem.dtype).input_bytes
    return problem.group * max(int(GROUP_L2_SHARE * arch.l2_bytes) // max(head_bytes, 1), 1)


def scheduled_trips(shape: LaunchShape, order: str, num_sms: int) -> float:
    """Return the trips until the last SM is done, one CTA at a time on each: what list scheduling comes to.

    In order, the longest CTA begins half its length before the end on average: ``total / SMs + longest / 2``. With the
    longest first, the short ones fill the gaps: ``max(longest, total / SMs)``.
    """
    mean = shape.total_trips / num_sms
    if order == LONGEST_FIRST:
        return max(float(shape.loop_trips), mean)
    return mean + shape.loop_trips / 2


def map_attention_decode(problem: AttentionDecodeProblem, config: KernelConfig) -> AttentionMapping:
    """Map a decode problem.

    Parameters
    ----------
    problem : AttentionDecodeProblem
        What to compute.
    config : KernelConfig
        A complete configuration; micro fields change nothing.

    Returns
    -------
    AttentionMapping
        ``grid_size`` is sequences times key and value heads times row tiles times splits.
    """
    block_n, splits = int(config["block_n"]), int(config["splits"])
    tiles = problem.kv_heads * row_tiles(problem.group)
    trips = all_decode_trips(problem, block_n)
    grid_size = len(trips) * tiles * splits
    return AttentionMapping(
        grid_size=grid_size,
        active_ctas=grid_size if splits == 1 else tiles * sum(_active_splits(count, splits) for count in trips),
        longest_trips=-(-max(trips) // splits),
        total_trips=sum(trips) * tiles,
        compulsory_bytes=decode_bytes(problem),
        workspace_bytes=2 * ACCUMULATOR_BYTES * decode_workspace_size(problem, splits),
    )


@lru_cache(maxsize=MAX_REMEMBERED)
def all_decode_trips(problem: AttentionDecodeProblem, block_n: int) -> tuple[int, ...]:
    """Return the trips over each sequence."""
    return tuple(decode_trips(length, problem.window, block_n) for length in problem.kv_lengths)


def decode_trips(kv_len: int, window: int, block_n: int) -> int:
    """Return the trips over the visible keys of one sequence, of all splits together."""
    first = max(kv_len - window, 0) // block_n if window else 0
    return -(-kv_len // block_n) - first


def row_tile(group: int) -> int:
    """Return the rows of a decode tile for this many query heads of a key and value head."""
    return next((rows for rows in ROW_TILES if group <= rows), ROW_TILES[-1])


def row_tiles(group: int) -> int:
    """Return the decode tiles that the query heads of a key and value head fill."""
    return -(-group // row_tile(group))


def most_decode_trips(problem: AttentionDecodeProblem, block_n: int) -> int:
    """Return the trips over the longest sequence, at least 1: no more splits than that can have work."""
    return max(decode_trips(max(problem.kv_lengths), problem.window, block_n), 1)


def decode_workspace_size(problem: AttentionDecodeProblem, splits: int) -> int:
    """Return the fp32 elements of partial results and their logsumexps; 0 without a split."""
    if splits == 1:
        return 0
    return len(problem.kv_lengths) * problem.heads * splits * (problem.head_dim + 1)


@lru_cache(maxsize=MAX_REMEMBERED)
def decode_bytes(problem: AttentionDecodeProblem) -> int:
    """Return the bytes of Q, the visible keys and values, the page table and the result, each moved once."""
    element = find_dtype(problem.dtype)
    keys = sum(_visible_keys(problem))
    rows = len(problem.kv_lengths) * problem.heads
    elements = rows * (element.input_bytes + element.output_bytes) + 2 * keys * problem.kv_heads * element.input_bytes
    return problem.head_dim * elements + 4 * -(-keys // problem.page_size)


def _visible_keys(problem: AttentionDecodeProblem) -> list[int]:
    return [min(length, problem.window) if problem.window else length for length in problem.kv_lengths]


def _active_splits(trips: int, splits: int) -> int:
    per_split = -(-trips // splits)
    return -(-trips // per_split) if per_split else 0
