"""Cells: octaves, samples inside them, candidates."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from wavetune.fit.lattice import (
    CANDIDATE_REGRET,
    MAX_CANDIDATES,
    cells_around,
    choose_candidates,
    octaves,
    sample_candidates,
    sample_corrections,
)

SIZES = st.integers(1, 2**31 - 1)


@given(st.lists(st.tuples(SIZES, SIZES, SIZES), min_size=1, max_size=20))
def test_octaves_are_bit_lengths(dims: list[tuple[int, int, int]]) -> None:
    """The octave of a size is the bit length of one less."""
    expected = [[(size - 1).bit_length() for size in row] for row in dims]
    assert octaves(np.array(dims)).tolist() == expected


@given(st.tuples(SIZES, SIZES, SIZES), st.integers(0, 3))
def test_cells_around_a_problem_are_within_the_bound(dims: tuple[int, int, int], bound: int) -> None:
    """Cells are those within the bound in every size, its own among them, none beyond 31 octaves."""
    cells = cells_around(np.array([dims]), float(bound))
    centre = octaves(np.array([dims]))
    assert (np.abs(cells - centre).max(axis=1) <= bound).all()
    assert (cells == centre).all(axis=1).any()
    assert cells.min() >= 0
    assert cells.max() <= 31
    spans = [min(c + bound, 31) - max(c - bound, 0) + 1 for c in centre[0].tolist()]
    assert len(cells) == np.prod(spans)


@given(st.tuples(*[st.integers(0, 31)] * 3))
def test_samples_lie_in_their_cell(cell: tuple[int, int, int]) -> None:
    """Every sample of a cell has the cell's octaves."""
    for samples in (sample_corrections(np.array([cell])), sample_candidates(np.array([cell]))):
        assert samples.shape[::2] == (1, 3)
        assert (octaves(samples[0]) == np.array(cell)).all()


def test_corrections_are_sampled_evenly() -> None:
    """Each size, and each pair of sizes, is at each of its two places equally often."""
    places = (sample_corrections(np.array([[10, 10, 10]]))[0] == 1024).astype(int)
    assert places.mean(axis=0).tolist() == [0.5, 0.5, 0.5]
    for first, second in ((0, 1), (0, 2), (1, 2)):
        assert sorted(map(tuple, places[:, [first, second]].tolist())) == [(0, 0), (0, 1), (1, 0), (1, 1)]


@given(arrays(np.float64, st.tuples(st.integers(1, 30), st.integers(1, 12)), elements=st.floats(1.0, 3.0)))
def test_candidates_cover_the_winners(latency_us: np.ndarray) -> None:
    """Candidates are few, sorted, and cover the cell's winners up to the tolerated regret unless there are too many."""
    chosen = choose_candidates(latency_us)
    assert list(chosen) == sorted(set(chosen))
    assert 1 <= len(chosen) <= MAX_CANDIDATES
    regret = (latency_us[:, list(chosen)].min(axis=1) / latency_us.min(axis=1) - 1.0).mean()
    assert regret <= CANDIDATE_REGRET or len(chosen) == min(MAX_CANDIDATES, latency_us.shape[1])
