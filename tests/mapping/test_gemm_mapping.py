"""From sizes and a configuration to tiles, trips and bytes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wavetune.core.arch import find_arch
from wavetune.core.config import GEMM, KernelConfig
from wavetune.core.problem import GemmProblem
from wavetune.errors import ProblemError
from wavetune.mapping.gemm import (
    ceil_div,
    compulsory_bytes,
    loop_trips,
    map_gemm,
    reread_bytes,
    reusable_l2_bytes,
    workspace_bytes,
)

H200 = find_arch("h200")
sizes = st.integers(1, 100_000)
blocks = st.sampled_from([16, 32, 64, 128, 160, 256])


@st.composite
def gemm_configs(draw: st.DrawFn) -> KernelConfig:
    """Draw a configuration of any schedule."""
    split_k = draw(st.integers(1, 8))
    return GEMM.config(
        {
            "block_m": draw(blocks), "block_n": draw(blocks), "block_k": draw(st.sampled_from([32, 64, 128])),
            "split_k": split_k, "schedule": "split_k" if split_k > 1 else draw(st.sampled_from(["tile", "persistent"])),
            "group_m": draw(st.integers(1, 32)), "num_warps": draw(st.sampled_from([4, 8])),
            "num_stages": draw(st.integers(2, 6)),
        }
    )  # fmt: skip


@given(m=sizes, n=sizes, k=sizes, config=gemm_configs())
def test_tiles_cover_the_result_and_trips_cover_k(m: int, n: int, k: int, config: KernelConfig) -> None:
    """Tiles cover the result and trips cover k."""
    mapping = map_gemm(GemmProblem(m, n, k), config, H200)
    assert 0 <= mapping.tiles_m * config.block_m - m < config.block_m
    assert 0 <= mapping.tiles_n * config.block_n - n < config.block_n
    covered = mapping.loop_trips * config.split_k * config.block_k
    assert 0 <= covered - k < config.split_k * config.block_k
    assert mapping.grid_size == mapping.tiles_m * mapping.tiles_n * config.split_k
    assert mapping.flops == 2 * m * n * k


@given(
    m=sizes, n=sizes, k=sizes, config=gemm_configs(), group_m=st.integers(1, 64), num_warps=st.integers(1, 16),
    num_stages=st.integers(1, 8), load=st.sampled_from(["pointer", "tma"]), epilogue_split=st.integers(1, 4),
)  # fmt: skip
def test_micro_fields_never_change_grid_or_trips(
    m: int, n: int, k: int, config: KernelConfig, **micro: int | str
) -> None:
    """Micro fields never change grid or trips."""
    assert set(micro) == set(GEMM.micro)
    problem = GemmProblem(m, n, k)
    before, after = map_gemm(problem, config, H200), map_gemm(problem, config.replace(**micro), H200)
    for name in ("grid_size", "loop_trips", "tiles_m", "tiles_n", "compulsory_bytes", "workspace_bytes", "flops"):
        assert getattr(before, name) == getattr(after, name)


@given(dims=st.lists(st.tuples(sizes, sizes, sizes), min_size=1, max_size=8), config=gemm_configs())
def test_the_formulas_agree_on_integers_and_on_arrays(dims: list[tuple[int, int, int]], config: KernelConfig) -> None:
    """The formulas agree on integers and on arrays."""
    m, n, k = np.array(dims, dtype=np.int64).T
    tiles_m = ceil_div(m, config.block_m)
    mappings = [map_gemm(GemmProblem(*row), config, H200) for row in dims]
    trips = loop_trips(k, config.block_k, config.split_k)
    assert trips.tolist() == [mapping.loop_trips for mapping in mappings]
    assert compulsory_bytes(m, n, k, 2, 2).tolist() == [mapping.compulsory_bytes for mapping in mappings]
    rereads = reread_bytes(n, k, tiles_m, config.group_m, 2, H200.l2_bytes)
    assert rereads.tolist() == [mapping.reread_bytes for mapping in mappings]
    assert workspace_bytes(m, n, config.split_k).tolist() == [mapping.workspace_bytes for mapping in mappings]


def test_a_worked_example() -> None:
    """The figures of a Llama-3-8B down projection, counted by hand."""
    config = GEMM.config(
        {"block_m": 128, "block_n": 128, "block_k": 64, "split_k": 4, "schedule": "split_k", "group_m": 8,
         "num_warps": 8, "num_stages": 3}
    )  # fmt: skip
    mapping = map_gemm(GemmProblem(300, 4096, 14336), config, H200)
    assert (mapping.tiles_m, mapping.tiles_n, mapping.grid_size, mapping.loop_trips) == (3, 32, 384, 56)
    assert mapping.compulsory_bytes == 2 * (300 * 14336 + 4096 * 14336 + 300 * 4096)
    assert mapping.workspace_bytes == 8 * 300 * 4096 * 4
    assert mapping.reread_bytes == 0


def test_weights_beyond_the_cache_are_read_again_by_each_group() -> None:
    """Weights beyond the cache are read again by each group."""
    config = GEMM.config({"block_m": 64, "block_n": 128, "block_k": 64, "group_m": 2, "num_warps": 4, "num_stages": 3})
    weight_bytes = 28672 * 8192 * 2
    one_group, three_groups = (map_gemm(GemmProblem(m, 28672, 8192), config, H200) for m in (128, 384))
    assert one_group.reread_bytes == 0
    assert three_groups.reread_bytes == 2 * (weight_bytes - reusable_l2_bytes(H200.l2_bytes))


@pytest.mark.parametrize("dims", [(0, 1, 1), (1, 0, 1), (1, 1, 0)])
def test_an_empty_problem_has_no_mapping(dims: tuple[int, int, int]) -> None:
    """An empty problem has no mapping."""
    config = GEMM.config({"block_m": 64, "block_n": 128, "block_k": 64, "group_m": 2, "num_warps": 4, "num_stages": 3})
    with pytest.raises(ProblemError, match="no tiles"):
        map_gemm(GemmProblem(*dims), config, H200)
