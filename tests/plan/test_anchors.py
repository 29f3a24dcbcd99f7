"""Wave-structured points."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wavetune.core.arch import find_arch
from wavetune.core.dtype import find_dtype
from wavetune.core.problem import GemmProblem
from wavetune.mapping.gemm import map_gemm
from wavetune.plan.anchors import CACHE_RATIOS, MAX_K, STRATA, gemm_anchors, loop_anchors, tiles_for
from wavetune.store.record import CompiledConfig
from wavetune.waves.occupancy import ctas_per_sm

H200 = find_arch("h200")
BF16 = find_dtype("bf16")


def width_of(entry: CompiledConfig) -> int:
    """Return the resident CTAs of a full wave."""
    resident = ctas_per_sm(H200, num_warps=entry.config.num_warps, num_regs=entry.num_regs, smem_bytes=entry.smem_bytes)
    return resident * H200.num_sms


@given(grid_size=st.integers(1, 20_000), aspect=st.floats(1e-3, 1e3), at_least=st.booleans())
def test_tiles_are_near_the_grid_from_the_wanted_side(grid_size: int, aspect: float, at_least: bool) -> None:
    """Tiles are near the grid from the wanted side."""
    tiles_m, tiles_n = tiles_for(grid_size, aspect, at_least=at_least)
    assert tiles_m >= 1
    assert tiles_n >= 1
    product = tiles_m * tiles_n
    assert product >= grid_size if at_least else product <= grid_size
    assert abs(product - grid_size) <= max(1, 0.2 * grid_size)


@pytest.mark.parametrize(("block_k", "split_k"), [(32, 1), (64, 1), (128, 6), (64, 3), (32768, 2)])
def test_loops_reach_from_one_trip_to_the_longest_k(block_k: int, split_k: int) -> None:
    """Loops reach from one trip to the longest k."""
    trips = loop_anchors(block_k, split_k)
    assert trips[0] == 1
    assert trips == sorted(set(trips))
    assert trips[-1] == max(MAX_K // (block_k * split_k), 1)
    assert all(b <= 2 * a for a, b in pairwise(trips))


def test_wave_edges_are_full_waves_and_one_cta_more(space: tuple[CompiledConfig, ...]) -> None:
    """Wave edges are full waves and one CTA more."""
    for entry in space:
        width = width_of(entry)
        grids = {
            map_gemm(GemmProblem(*anchor.dims), entry.config, H200).grid_size
            for anchor in gemm_anchors(entry, H200, BF16)
            if anchor.stratum == "wave-edge"
        }
        for waves in (1, 2, 3):
            # Split-k and aspect leave a little room.
            assert any(0.96 * waves * width <= grid <= waves * width for grid in grids)
            assert any(waves * width < grid <= 1.04 * waves * width + 8 for grid in grids)
        assert min(grids) <= 0.3 * width
        assert max(grids) >= 5.8 * width


def test_every_stratum_is_covered_early_and_no_size_twice(space: tuple[CompiledConfig, ...]) -> None:
    """Every stratum is covered early and no size twice."""
    for entry in space:
        anchors = gemm_anchors(entry, H200, BF16)
        assert len({anchor.dims for anchor in anchors}) == len(anchors)
        counts = Counter(anchor.stratum for anchor in anchors[:40])
        assert set(counts) == set(STRATA)
        assert min(counts.values()) >= 4


def test_anchors_have_long_loops_ragged_edges_and_weights_around_the_cache(space: tuple[CompiledConfig, ...]) -> None:
    """Anchors have long loops ragged edges and weights around the cache."""
    for entry in space:
        dims = [anchor.dims for anchor in gemm_anchors(entry, H200, BF16)[:48]]
        block_m = entry.config.block_m
        assert {1, 7, block_m - 1, block_m + 1} <= {m for m, _, _ in dims}
        assert 0.9 * MAX_K <= max(k for _, _, k in dims) <= MAX_K
        ratios = [n * k * 2 / H200.l2_bytes for _, n, k in dims]
        assert min(ratios) < CACHE_RATIOS[0]
        assert max(ratios) > 1.8
        assert any(
            m % block_m and n % entry.config.block_n and k % entry.config.block_k for m, n, k in dims if m > 2 * block_m
        )


def test_all_sizes_are_legal_for_tma(space: tuple[CompiledConfig, ...]) -> None:
    """All sizes are legal for TMA."""
    for entry in space:
        for anchor in gemm_anchors(entry, H200, BF16):
            m, n, k = anchor.dims
            assert m >= 1
            assert n > 0
            assert k > 0
            assert n % 8 == k % 8 == 0
