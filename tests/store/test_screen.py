"""Disturbed rows are found, and clean ones left alone."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from wavetune.store.screen import MIN_WEIGHT, screen_rows

N_PROBLEMS, N_CONFIGS = 14, 330
FloatArray = npt.NDArray[np.float64]


@pytest.fixture
def sweep() -> dict[str, npt.NDArray[np.generic]]:
    """Make a clean sweep, problem by problem, and a model that is off by config, by problem and at random."""
    rng = np.random.default_rng(7)
    problem, config = (part.ravel() for part in np.indices((N_PROBLEMS, N_CONFIGS)))
    truth = rng.uniform(10, 200, N_PROBLEMS)[problem] * rng.uniform(1, 4, N_CONFIGS)[config]
    wrong = rng.normal(0, 0.1, N_CONFIGS)[config] + rng.normal(0, 0.15, N_PROBLEMS)[problem]
    wrong = wrong + rng.standard_t(4, len(truth)) * 0.03
    return {
        "latency_us": truth * np.exp(rng.normal(0, 0.015, len(truth))),
        "predicted_us": truth * np.exp(wrong),
        "config_index": config,
        "problem_index": problem,
    }


def test_a_clean_sweep_keeps_nearly_all_its_weight(sweep: dict[str, FloatArray]) -> None:
    """A clean sweep keeps nearly all its weight."""
    screening = screen_rows(**sweep)
    assert screening.disturbed.mean() < 0.004
    assert screening.weights.mean() > 0.99
    assert np.all((screening.weights >= MIN_WEIGHT) & (screening.weights <= 1.0))


@pytest.mark.parametrize("factor", [1.3, 2.0, 7.0])
@pytest.mark.parametrize(
    ("start", "length"), [(690, 150), (1290, 40), (0, 30), (N_PROBLEMS * N_CONFIGS - 20, 20), (990, 180)]
)
def test_a_planted_stall_is_found_with_its_factor(
    sweep: dict[str, FloatArray], start: int, length: int, factor: float
) -> None:
    """A planted stall is found with its factor."""
    rows = np.zeros(len(sweep["latency_us"]), dtype=bool)
    rows[start : start + length] = True
    sweep["latency_us"] = np.where(rows, factor, 1.0) * sweep["latency_us"]
    screening = screen_rows(**sweep)
    assert screening.disturbed[rows].mean() > (0.8 if factor < 1.5 else 0.95)
    assert screening.disturbed[~rows].mean() < 0.006
    assert screening.weights[rows].mean() < 0.2
    worst = screening.problems[0]
    assert worst.problem in set(sweep["problem_index"][rows])
    assert worst.factor == pytest.approx(factor, rel=0.2)
    assert sum(entry.rows for entry in screening.problems) == screening.disturbed.sum()


def test_a_problem_that_was_stalled_from_end_to_end_is_found(sweep: dict[str, FloatArray]) -> None:
    """A problem that was stalled from end to end is found."""
    rows = sweep["problem_index"] == 3
    sweep["latency_us"] = np.where(rows, 5.0, 1.0) * sweep["latency_us"]
    screening = screen_rows(**sweep)
    assert screening.disturbed[rows].mean() > 0.9
    assert screening.disturbed[~rows].mean() < 0.006


def test_a_run_needs_less_evidence_than_a_single_row(sweep: dict[str, FloatArray]) -> None:
    """A run needs less evidence than a single row."""
    run, alone = slice(500, 540), 1500
    factors = np.ones(len(sweep["latency_us"]))
    factors[run] = factors[alone] = 1.22
    weights = screen_rows(**{**sweep, "latency_us": sweep["predicted_us"] * factors}).weights
    assert weights[alone] > weights[run].mean()


def test_fast_rows_are_never_blamed(sweep: dict[str, FloatArray]) -> None:
    """Fast rows are never blamed."""
    sweep["latency_us"] = sweep["latency_us"].copy()
    sweep["latency_us"][600:650] /= 3.0
    screening = screen_rows(**sweep)
    assert np.all(screening.weights[600:650] == 1.0)
    assert screening.disturbed.mean() < 0.004


def test_the_same_rows_give_the_same_answer_and_stay_unchanged(sweep: dict[str, FloatArray]) -> None:
    """The same rows give the same answer and stay unchanged."""
    before = sweep["latency_us"].copy()
    first, second = screen_rows(**sweep), screen_rows(**sweep)
    assert np.array_equal(first.weights, second.weights)
    assert np.array_equal(before, sweep["latency_us"])


@pytest.mark.parametrize("n_rows", [0, 1, 3])
def test_few_rows_are_no_problem(n_rows: int) -> None:
    """Few rows are no problem."""
    index = np.zeros(n_rows, dtype=np.int64)
    screening = screen_rows(np.full(n_rows, 10.0), np.full(n_rows, 10.0), index, index)
    assert screening.weights == pytest.approx(np.ones(n_rows), abs=0.01)
    assert screening.problems == ()
