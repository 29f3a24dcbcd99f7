"""The mapping of grouped GEMM against a count of tiles, one by one."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wavetune.core.arch import find_arch
from wavetune.core.config import GROUPED_GEMM, KernelConfig
from wavetune.core.grouped_problem import GroupedGemmProblem
from wavetune.errors import ProblemError
from wavetune.mapping.grouped_gemm import (
    launched_tile_rows,
    map_grouped_gemm,
    widest_groups,
    widest_problem,
)
from wavetune.mapping.grouped_shape import GroupedShaper, grouped_mapping
from wavetune.mapping.source_digest import mapping_digest

H200 = find_arch("h200")
SIZES = st.lists(st.one_of(st.just(0), st.integers(0, 40), st.integers(0, 3000)), min_size=1, max_size=24)
BLOCKS = st.sampled_from([16, 32, 64, 128, 256])


@st.composite
def configs(draw: st.DrawFn) -> KernelConfig:
    """Draw a configuration."""
    return GROUPED_GEMM.config(
        {
            "block_m": draw(BLOCKS), "block_n": draw(BLOCKS), "block_k": draw(BLOCKS),
            "schedule": draw(st.sampled_from(["tile", "persistent"])), "group_m": draw(st.sampled_from([1, 4, 8])),
            "num_warps": 4, "num_stages": 3, "load": "tma",
        }
    )  # fmt: skip


def count_tiles(problem: GroupedGemmProblem, config: KernelConfig) -> tuple[set[tuple[int, int, int]], set[int]]:
    """Walk over every element of the result; return the tiles that hold one, and the experts whose weight is read."""
    block_m, block_n = int(config["block_m"]), int(config["block_n"])
    tiles, experts = set(), set()
    for expert, size in enumerate(problem.group_sizes):
        for row, column in itertools.product(range(size), range(0, problem.n, 8)):
            tiles.add((expert, row // block_m, column // block_n))
            experts.add(expert)
    return tiles, experts


@settings(max_examples=60, deadline=None)
@given(SIZES, st.integers(1, 60), st.integers(1, 5000), configs())
def test_counts_equal_a_walk_over_the_result(sizes: list[int], n: int, k: int, config: KernelConfig) -> None:
    """Tiles, active experts and bytes are those of the elements that exist."""
    problem = GroupedGemmProblem(tuple(sizes), 8 * n, k)
    if problem.is_empty:
        return
    tiles, experts = count_tiles(problem, config)
    mapping = map_grouped_gemm(problem, config, H200)
    assert mapping.grid_size == len(tiles)
    assert mapping.tile_rows == len({tile[:2] for tile in tiles})
    assert mapping.loop_trips * int(config["block_k"]) >= k > (mapping.loop_trips - 1) * int(config["block_k"])
    assert mapping.padded_rows >= problem.tokens > mapping.padded_rows - int(config["block_m"]) * len(experts)
    moved = problem.tokens * (k + problem.n) * 2 + len(experts) * problem.n * k * 2
    assert mapping.compulsory_bytes == moved
    assert mapping.flops == 2 * problem.tokens * problem.n * k


@settings(max_examples=100, deadline=None)
@given(SIZES, configs())
def test_a_launch_for_any_histogram_is_large_enough(sizes: list[int], config: KernelConfig) -> None:
    """No histogram of the same tokens and experts has more tiles than are launched, and the widest one has as many."""
    problem = GroupedGemmProblem(tuple(sizes), 512, 512)
    if problem.is_empty:
        return
    mapping = map_grouped_gemm(problem, config, H200)
    widest = map_grouped_gemm(widest_problem(problem), config, H200)
    assert mapping.grid_size <= mapping.launched_ctas == widest.grid_size == widest.launched_ctas
    assert widest_problem(problem).tokens == problem.tokens


def test_the_bound_is_reached_and_never_exceeded() -> None:
    """Against every histogram of a few tokens and experts."""
    for experts, tokens, block_m in itertools.product(range(1, 4), range(9), (1, 2, 3, 4)):
        most = max(
            sum(-(-size // block_m) for size in sizes)
            for sizes in itertools.product(range(tokens + 1), repeat=experts)
            if sum(sizes) == tokens
        )
        assert launched_tile_rows(experts, tokens, block_m) == most
        assert sum(-(-size // block_m) for size in widest_groups(experts, tokens)) == most


def test_skew_changes_the_grid_but_not_the_work() -> None:
    """The same total is 32 tile rows for one expert and 128 for as many; a model of totals cannot tell them apart."""
    config = GROUPED_GEMM.config({"block_m": 128, "block_n": 128, "block_k": 64, "num_warps": 4, "num_stages": 3})
    alone = map_grouped_gemm(GroupedGemmProblem((4096, *(0,) * 127), 512, 512), config, H200)
    even = map_grouped_gemm(GroupedGemmProblem((32,) * 128, 512, 512), config, H200)
    assert (alone.tile_rows, even.tile_rows) == (32, 128)
    assert alone.flops == even.flops
    assert even.compulsory_bytes - alone.compulsory_bytes == 127 * 512 * 512 * 2


def test_gated_weights_have_the_grid_of_plain_ones() -> None:
    """Half a tile of gate and half of up are as many tiles; the result has half the columns."""
    config = GROUPED_GEMM.config({"block_m": 64, "block_n": 128, "block_k": 64, "num_warps": 4, "num_stages": 3})
    for n in (2, 126, 128, 130, 1536):
        plain, gated = (
            map_grouped_gemm(GroupedGemmProblem((9, 70), n, 64, layout=layout), config, H200)
            for layout in ("nk", "gated")
        )
        assert plain.grid_size == gated.grid_size
        assert plain.compulsory_bytes - gated.compulsory_bytes == 79 * n


@settings(max_examples=60, deadline=None)
@given(SIZES, configs(), st.data())
def test_micro_fields_never_change_the_grid(sizes: list[int], config: KernelConfig, data: st.DataObject) -> None:
    """Changing any micro field leaves grid and trips as they are; that is what micro means."""
    problem = GroupedGemmProblem(tuple(sizes), 777, 1000)
    if problem.is_empty:
        return
    before = map_grouped_gemm(problem, config, H200)
    for name in GROUPED_GEMM.micro:
        values = [v for v in GROUPED_GEMM.words.get(name, (1, 2, 3, 4, 8, 16)) if v != config[name]]
        after = map_grouped_gemm(problem, config.replace(**{name: data.draw(st.sampled_from(values))}), H200)
        assert (after.grid_size, after.loop_trips) == (before.grid_size, before.loop_trips)


def test_weights_beyond_the_cache_are_read_again() -> None:
    """A second group of tile rows of one expert fetches what does not fit; another expert's first group does not."""
    config = GROUPED_GEMM.config(
        {"block_m": 64, "block_n": 128, "block_k": 64, "group_m": 2, "num_warps": 4, "num_stages": 3}
    )
    large = 2**13  # 134 MB, of which 0.85 of the 60 MiB cache survive
    reread = large * large * 2 - int(0.85 * H200.l2_bytes)
    for sizes, groups in (((128,), 0), ((129,), 1), ((128, 128), 0), ((129, 257), 1 + 2)):
        mapping = map_grouped_gemm(GroupedGemmProblem(sizes, large, large), config, H200)
        assert mapping.reread_bytes == groups * reread
    assert map_grouped_gemm(GroupedGemmProblem((4096,), 1024, 1024), config, H200).reread_bytes == 0


def test_nothing_to_map() -> None:
    """Without tokens or with a size of zero there are no tiles."""
    config = GROUPED_GEMM.config({"block_m": 64, "block_n": 128, "block_k": 64, "num_warps": 4, "num_stages": 3})
    for problem in (
        GroupedGemmProblem((0, 0), 64, 64),
        GroupedGemmProblem((1,), 0, 64),
        GroupedGemmProblem((1,), 64, 0),
    ):
        with pytest.raises(ProblemError, match="no tiles"):
            map_grouped_gemm(problem, config, H200)


@settings(max_examples=60, deadline=None)
@given(SIZES, configs(), st.sampled_from(["nk", "gated"]))
def test_keys_map_as_the_problems_they_stand_for(sizes: list[int], config: KernelConfig, layout: str) -> None:
    """The mapping by key, which models are bound to, and the shaper of the fit agree with the mapping of problems."""
    problem = GroupedGemmProblem(tuple(sizes), 5000, 7000, layout=layout).canonical()
    if problem.is_empty:
        return
    shape = map_grouped_gemm(problem, config, H200).launch_shape()
    assert GroupedShaper("bf16", layout, H200)(problem.dims, config) == shape
    key = dict(zip(GROUPED_GEMM.dims, problem.dims, strict=True))
    assert grouped_mapping("bf16", layout, H200).shape(key, config) == shape


def test_the_mapping_has_a_digest() -> None:
    """A model is bound to the very functions, element type and layout that it was fitted with."""
    digest = mapping_digest(grouped_mapping("bf16", "nk", H200))
    assert digest == mapping_digest(grouped_mapping("bf16", "nk", H200))
    assert digest != mapping_digest(grouped_mapping("bf16", "gated", H200))
