"""The attention mapping against tiles counted one by one, and its schedule against a simulated one."""

import heapq

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wavetune.core.arch import find_arch
from wavetune.core.attention_problem import AttentionDecodeProblem, AttentionProblem
from wavetune.core.config import ATTENTION, ATTENTION_DECODE, KernelConfig
from wavetune.core.floor_sum import floor_sum
from wavetune.errors import ProblemError
from wavetune.mapping.attention import (
    IN_ORDER,
    LONGEST_FIRST,
    attention_flops,
    block_trips,
    decode_workspace_size,
    map_attention,
    map_attention_decode,
    row_tile,
    row_tiles,
    scheduled_trips,
    sequence_trips,
    streams_per_group,
    visible_pairs,
)
from wavetune.mapping.attention_shape import (
    attention_decode_mapping,
    attention_mapping,
    attention_shaper,
    map_problem,
)

H200 = find_arch("h200")


def make_config(**fields: object) -> KernelConfig:
    """Complete a prefill configuration."""
    base = {"block_m": 128, "block_n": 64, "order": IN_ORDER, "masking": "edges", "num_warps": 8, "num_stages": 2}
    return ATTENTION.config({**base, **fields})


def make_decode_config(**fields: object) -> KernelConfig:
    """Complete a decode configuration."""
    return ATTENTION_DECODE.config({"block_n": 64, "splits": 1, "num_warps": 4, "num_stages": 3, **fields})


def sees(query: int, key: int, q_len: int, kv_len: int, is_causal: bool, window: int) -> bool:
    """Say whether a query sees a key."""
    position = query + kv_len - q_len
    return (not is_causal or key <= position) and (not window or abs(position - key) < window)


def count_tiles(q_len: int, kv_len: int, is_causal: bool, window: int, block_m: int, block_n: int) -> list[int]:
    """Count, for each block of queries, the tiles in which something is seen."""
    return [
        sum(
            any(
                sees(query, key, q_len, kv_len, is_causal, window)
                for query in range(start, min(start + block_m, q_len))
                for key in range(first, min(first + block_n, kv_len))
            )
            for first in range(0, kv_len, block_n)
        )
        for start in range(0, q_len, block_m)
    ]


@given(
    st.integers(1, 60), st.integers(0, 60), st.booleans(), st.sampled_from([0, 1, 3, 10, 70]),
    st.sampled_from([4, 8, 16]), st.sampled_from([4, 8, 16]),
)  # fmt: skip
def test_trips_are_the_tiles_with_something_to_see(
    q_len: int, kv_len: int, is_causal: bool, window: int, block_m: int, block_n: int
) -> None:
    """Counted one by one: tiles of every block, their sum, the longest, and the visible pairs."""
    tiles = count_tiles(q_len, kv_len, is_causal, window, block_m, block_n)
    trips = [block_trips(i, q_len, kv_len, is_causal, window, block_m, block_n) for i in range(len(tiles))]
    assert trips == tiles
    assert sequence_trips(q_len, kv_len, is_causal, window, block_m, block_n) == (sum(tiles), max(tiles))
    pairs = sum(sees(query, key, q_len, kv_len, is_causal, window) for query in range(q_len) for key in range(kv_len))
    assert visible_pairs(q_len, kv_len, is_causal, window) == pairs


@given(st.integers(0, 40), st.integers(1, 20), st.integers(0, 60), st.integers(0, 60))
def test_floor_sums(count: int, divisor: int, step: int, first: int) -> None:
    """The fast sum is the plain one."""
    assert floor_sum(count, divisor, step, first) == sum((first + i * step) // divisor for i in range(count))


def test_a_batch_is_the_sum_of_its_sequences() -> None:
    """Ragged lengths, one of them zero: active CTAs, trips, bytes and FLOPs add up; the grid is padded."""
    problem = AttentionProblem((300, 0, 128, 65), (300, 0, 500, 65), 6, 2, 64, True)
    mapping = map_attention(problem, make_config(block_m=64))
    parts = [
        map_attention(AttentionProblem((q,), (k,), 6, 2, 64, True), make_config(block_m=64))
        for q, k in ((300, 300), (128, 500), (65, 65))
    ]
    assert mapping.active_ctas == sum(part.grid_size for part in parts) == 6 * (5 + 2 + 2)
    assert mapping.grid_size == 6 * 4 * 5
    assert mapping.total_trips == sum(part.total_trips for part in parts)
    assert mapping.longest_trips == max(part.longest_trips for part in parts)
    assert mapping.compulsory_bytes == sum(part.compulsory_bytes for part in parts)
    assert parts[0].compulsory_bytes == 2 * 64 * (2 * 300 * 6 + 2 * 300 * 2)
    assert attention_flops(AttentionProblem((300,), (300,), 6, 2, 64, True)) == 4 * 64 * 6 * (300 * 301 // 2)
    with pytest.raises(ProblemError, match="without queries"):
        map_attention(AttentionProblem((0, 0)), make_config())


@pytest.mark.parametrize("name", ATTENTION.micro)
def test_micro_fields_do_not_change_the_mapping(name: str) -> None:
    """What compiles does not change what is launched."""
    config = make_config()
    changed = config.replace(**{name: "separate" if name == "masking" else 2 * int(config[name])})
    problem = AttentionProblem((1000, 500), is_causal=True)
    assert map_attention(problem, changed) == map_attention(problem, config)


@pytest.mark.parametrize("splits", [1, 2, 3, 7])
def test_decode_counts(splits: int) -> None:
    """Grid, trips and the CTAs that have keys, counted split by split."""
    problem = AttentionDecodeProblem((0, 1, 640, 700), 20, 1)
    mapping = map_attention_decode(problem, make_decode_config(splits=splits))
    trips = [0, 1, 10, 11]
    per_split = [-(-count // splits) for count in trips]
    parts = [
        max(min(each, count - i * each), 0)
        for count, each in zip(trips, per_split, strict=True)
        for i in range(splits)
    ]  # fmt: skip
    assert mapping.grid_size == len(parts)
    assert mapping.total_trips == sum(parts)
    assert mapping.longest_trips == max(parts)
    assert mapping.active_ctas == (len(parts) if splits == 1 else sum(part > 0 for part in parts))
    assert mapping.workspace_bytes == 8 * decode_workspace_size(problem, splits)


def test_a_window_shortens_a_decode() -> None:
    """Only trips that hold visible keys count, and only their bytes."""
    problem = AttentionDecodeProblem((1000,), 8, 8, 128, window=100)
    mapping = map_attention_decode(problem, make_decode_config())
    assert mapping.longest_trips == 2  # 900 is in the trip from 896, 999 in that from 960
    assert mapping.compulsory_bytes == 128 * (8 * 4 + 2 * 100 * 8 * 2) + 4 * 7


def test_query_heads_fill_rows() -> None:
    """Sixteen rows at least, as many tiles as heads need."""
    assert [(row_tile(group), row_tiles(group)) for group in (1, 16, 17, 64, 71)] == [
        (16, 1), (16, 1), (32, 1), (64, 1), (64, 2)
    ]  # fmt: skip


def test_groups_of_streams_fit_the_cache() -> None:
    """Heads that share keys stay together; long sequences come one head at a time."""
    short = AttentionProblem((1024,), heads=32, kv_heads=8)
    assert streams_per_group(short, H200) % 4 == 0
    assert streams_per_group(short, H200) // 4 * 2 * 1024 * 128 * 2 <= H200.l2_bytes
    assert streams_per_group(AttentionProblem((2**20,), heads=32, kv_heads=8), H200) == 4


def simulate(trips: list[int], num_sms: int) -> int:
    """Hand out CTAs in order to whichever SM is free first; return when the last is done."""
    free = [0] * num_sms
    for length in trips:
        heapq.heapreplace(free, free[0] + length)
    return max(free)


@pytest.mark.parametrize(("length", "heads"), [(4096, 32), (8192, 16), (8192, 64), (2048, 128)])
@pytest.mark.parametrize("order", [IN_ORDER, LONGEST_FIRST])
def test_scheduled_trips_are_those_of_list_scheduling(order: str, length: int, heads: int) -> None:
    """Causal blocks of one head after another within 5 %, longest first within 3 %, for several waves of CTAs."""
    config = make_config(order=order)
    problem = AttentionProblem((length,), heads=heads, is_causal=True)
    blocks = range(length // 128)
    one = [block_trips(block, length, length, True, 0, 128, 64) for block in blocks]
    launched = one * heads if order == IN_ORDER else sorted(one * heads, reverse=True)
    shape = map_attention(problem, config).launch_shape()
    assert shape.total_trips == sum(launched)
    ratio = scheduled_trips(shape, order, H200.num_sms) / simulate(launched, H200.num_sms)
    assert abs(ratio - 1.0) < (0.05 if order == IN_ORDER else 0.03)


def test_keys_map_like_their_problems() -> None:
    """The functions of a key agree with the problem that it stands for, and differ by head dimension."""
    cases = (
        (attention_mapping, AttentionProblem((900, 700, 500), (), 8, 2, dtype="fp16"), make_config()),
        (attention_decode_mapping, AttentionDecodeProblem((900, 64), 8, 2, dtype="fp16"), make_decode_config(splits=2)),
    )
    for mapping_of, problem, config in cases:
        mapping = mapping_of("fp16", "d128")
        key_problem = type(problem).from_dims(problem.dims, "fp16")
        shape = mapping.shape(dict(zip(mapping.dims, problem.dims, strict=True)), config)
        assert shape == map_problem(key_problem, config).launch_shape()
        assert attention_shaper(problem.kernel, "fp16", "d128")(problem.dims, config) == shape
        wide = attention_shaper(problem.kernel, "fp16", "d256")(problem.dims, config)
        assert wide.moved_bytes > shape.moved_bytes
        assert wide.total_trips == shape.total_trips
