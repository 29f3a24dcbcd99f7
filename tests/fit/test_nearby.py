"""Evidence from nearby measurements: what it changes, and what it must leave alone."""

from __future__ import annotations

import numpy as np
import pytest

from wavetune.fit.nearby import DOUBT, NearbyEvidence

PROBLEMS = np.array([[64, 4096, 4096], [1024, 4096, 4096], [64, 11008, 4096]])
ALL, NONE = 0, 1


def evidence_of(residual: float, weight: float = 1.0, n_configs: int = 2) -> NearbyEvidence:
    """Return evidence for the first configuration on every problem, and for no other."""
    rows = len(PROBLEMS)
    index = np.full(rows, ALL)
    return NearbyEvidence(PROBLEMS, index, np.full(rows, residual), np.full(rows, weight), n_configs)


def factors(evidence: NearbyEvidence, dims: tuple[int, ...], **options: float) -> np.ndarray:
    """Return the log factor of every configuration on one problem."""
    factor: np.ndarray = evidence.log_factors(np.array([dims]), **options)[0]
    return factor


def test_doubt_falls_with_the_distance_from_measurements() -> None:
    """An unmeasured configuration is doubted most where another one is known best, and not at all far from both."""
    doubts = [factors(evidence_of(0.0), (m, 4096, 4096))[NONE] for m in (64, 90, 130, 200)]
    assert doubts == sorted(doubts, reverse=True)
    assert doubts[0] == pytest.approx(DOUBT / 2.0, rel=0.1)
    assert factors(evidence_of(0.0), (1 << 20, 64, 64))[NONE] == pytest.approx(0.0, abs=1e-6)


def test_the_best_known_configuration_is_predicted_as_it_is() -> None:
    """Doubt is relative: without residuals the prediction of what was measured does not move."""
    assert factors(evidence_of(0.0), (64, 4096, 4096))[ALL] == 0.0


def test_where_all_were_measured_alike_nothing_is_doubted() -> None:
    """A complete sweep ranks by what it measured."""
    dims = np.repeat(PROBLEMS, 3, axis=0)
    index = np.tile(np.arange(3), len(PROBLEMS))
    evidence = NearbyEvidence(dims, index, np.zeros(len(dims)), np.ones(len(dims)), 3)
    assert np.all(factors(evidence, (80, 5000, 4096)) == 0.0)


def test_residuals_are_shrunk_towards_none() -> None:
    """One measurement counts half, many count almost whole, and far away none counts."""
    once = factors(evidence_of(0.2), (64, 4096, 4096), doubt=0.0)[ALL]
    often = factors(evidence_of(0.2, weight=50.0), (64, 4096, 4096), doubt=0.0)[ALL]
    assert 0.5 * 0.2 <= once < 0.6 * 0.2
    assert 0.95 * 0.2 < often < 0.2
    assert abs(factors(evidence_of(0.2), (1 << 20, 64, 64), doubt=0.0)[ALL]) < 1e-6


def test_disturbed_rows_are_no_evidence() -> None:
    """A row of weight 0 changes nothing."""
    assert np.all(factors(evidence_of(0.5, weight=0.0), (64, 4096, 4096)) == 0.0)


def test_plans_rank_without_doubt() -> None:
    """What to measure next is what is expected to be fast, known or not."""
    assert factors(evidence_of(0.0), (64, 4096, 4096), doubt=0.0)[NONE] == 0.0
