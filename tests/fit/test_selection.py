"""Choosing survivors, and the sample that they are chosen on."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from wavetune.fit.selection import broad_sample, greedy_cover
from wavetune.fit.solver import fit_form


def test_greedy_cover_takes_the_best_first_and_stops_when_nothing_is_left() -> None:
    """The configuration that helps most comes first; one that never wins never comes."""
    latency = np.array([[1.0, 2.0, 3.0, 3.1], [1.0, 2.0, 3.0, 3.1], [4.0, 1.0, 3.0, 3.1], [9.0, 9.0, 3.0, 3.1]])
    assert greedy_cover(latency, np.ones(4), 10)[-1] != 3
    assert set(greedy_cover(latency, np.ones(4), 10)) == {0, 1, 2}
    assert greedy_cover(latency, np.array([0.0, 0.0, 0.0, 1.0]), 10) == [2]
    assert greedy_cover(latency, np.ones(4), 2, first=(3,))[0] == 3


def test_greedy_cover_survives_what_was_not_measured() -> None:
    """NaN and infinity never win."""
    latency = np.array([[np.nan, 2.0], [np.inf, 1.0]])
    assert greedy_cover(latency, np.ones(2), 2) == [1]


@given(st.integers(0, 1000))
def test_the_broad_sample_is_realistic_and_repeatable(seed: int) -> None:
    """Problems are within range and the same for the same seed."""
    ranges = [(1, 8192), (64, 30000), (128, 20000)]
    sample = broad_sample(ranges, 50, seed)
    assert np.array_equal(sample, broad_sample(ranges, 50, seed))
    for column, (low, high) in zip(sample.T, ranges, strict=True):
        assert column.min() >= low
        assert column.max() <= high


@given(st.lists(st.floats(0.01, 10.0), min_size=3, max_size=3), st.integers(0, 100))
def test_a_form_recovers_its_coefficients(coefficients: list[float], seed: int) -> None:
    """Clean rows give the coefficients back, also when a tenth of them are much too slow."""
    rng = np.random.default_rng(seed)
    terms = rng.uniform(1.0, 100.0, (120, 3))
    truth = np.array(coefficients)
    latency = terms @ truth
    found = fit_form(terms, latency, np.ones(120), np.full(terms.shape[1], np.inf))
    np.testing.assert_allclose(terms @ found, latency, rtol=1e-6)
    latency[::10] *= 4.0
    robust = fit_form(terms, latency, np.ones(120), np.full(terms.shape[1], np.inf))
    assert (robust >= 0).all()
    assert np.median(np.abs(terms @ robust / (terms @ truth) - 1.0)) < 0.05


@given(st.floats(0.05, 0.95), st.integers(0, 100))
def test_a_coefficient_stays_below_its_bound(share: float, seed: int) -> None:
    """With a bound below the truth the others make up for the coefficient; a loose bound changes nothing."""
    rng = np.random.default_rng(seed)
    terms = rng.uniform(1.0, 100.0, (120, 3))
    truth = np.array([1.0, 2.0, 3.0])
    latency = terms @ truth
    bounded = fit_form(terms, latency, np.ones(120), np.array([np.inf, 2.0 * share, np.inf]))
    assert bounded[1] <= 2.0 * share * (1 + 1e-9)
    assert bounded[0] + bounded[2] > 4.0
    loose = fit_form(terms, latency, np.ones(120), np.array([np.inf, 2.0 / share, np.inf]))
    np.testing.assert_allclose(loose, truth, rtol=1e-6)
