"""Disturbed rows are found, and clean ones left alone."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from wavetune.store.screen import MIN_WEIGHT, MISTAKE_WEIGHT, screen_rows

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
        # An octave apart: the problems are alike, as those of a sweep are.
        "dims": np.stack([2**problem, np.full_like(problem, 4096), np.full_like(problem, 1024)], axis=1),
    }


def rows_of(sweep: dict[str, npt.NDArray[np.generic]], problem: int) -> npt.NDArray[np.bool_]:
    """Return the rows of a problem of the sweep."""
    rows: npt.NDArray[np.bool_] = sweep["dims"][:, 0] == 2**problem
    return rows


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
    assert worst.dims in set(map(tuple, sweep["dims"][rows].tolist()))
    assert worst.factor == pytest.approx(factor, rel=0.2)
    assert sum(entry.rows for entry in screening.problems) == screening.disturbed.sum()


def test_a_problem_that_was_stalled_from_end_to_end_is_found(sweep: dict[str, FloatArray]) -> None:
    """A problem that was stalled from end to end is found."""
    rows = rows_of(sweep, 3)
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
    screening = screen_rows(np.full(n_rows, 10.0), np.full(n_rows, 10.0), index, np.ones((n_rows, 3), dtype=np.int64))
    assert screening.weights == pytest.approx(np.ones(n_rows), abs=0.01)
    assert screening.problems == ()


@pytest.mark.parametrize("factor", [9.0, 20.0, 1000.0])
def test_rows_slower_than_any_stall_are_found_and_count_for_nothing(
    sweep: dict[str, FloatArray], factor: float
) -> None:
    """A tenth of the rows in another unit is reported with its factor, and has next to no weight."""
    rows = np.random.default_rng(5).random(len(sweep["latency_us"])) < 0.1
    sweep["latency_us"] = np.where(rows, factor, 1.0) * sweep["latency_us"]
    screening = screen_rows(**sweep)
    assert screening.disturbed[rows].mean() > 0.95
    assert screening.disturbed[~rows].mean() < 0.01
    assert np.median(screening.weights[rows]) == MISTAKE_WEIGHT
    assert screening.problems[0].factor == pytest.approx(factor, rel=0.2)


def test_stalls_of_similar_problems_are_no_proof_of_each_other(sweep: dict[str, FloatArray]) -> None:
    """Three similar problems that were stalled from end to end are three stalls."""
    rows = rows_of(sweep, 3) | rows_of(sweep, 4) | rows_of(sweep, 5)
    sweep["latency_us"] = np.where(rows, 5.0, 1.0) * sweep["latency_us"]
    screening = screen_rows(**sweep)
    assert screening.disturbed[rows].mean() > 0.9
    assert screening.disturbed[~rows].mean() < 0.006


SLOW = np.random.default_rng(11).random(N_CONFIGS) < 0.3


def test_configurations_that_are_slow_on_similar_problems_are_not_disturbed(sweep: dict[str, FloatArray]) -> None:
    """What a third of the configurations do on three similar problems alike is the kernels' doing."""
    alike = [rows_of(sweep, problem) for problem in (2, 5, 9)]
    for doublings, problem in enumerate(alike):
        # As far from each other as other problems are, and further from those.
        sweep["dims"][problem] = (2**20, 4096 * 2**doublings, 1024)
    rows = SLOW[sweep["config_index"]] & np.any(alike, axis=0)
    sweep["latency_us"] = np.where(rows, 1.8, 1.0) * sweep["latency_us"]
    screening = screen_rows(**sweep)
    assert not screening.disturbed[rows].any()
    assert screening.weights[rows].min() == 1.0


@pytest.mark.parametrize("repeats_alike", [True, False])
def test_a_second_reading_tells_a_slow_problem_from_a_stall(
    sweep: dict[str, FloatArray], repeats_alike: bool
) -> None:  # fmt: skip
    """A problem that reads slow again is slow; one that reads faster the second time was disturbed the first time."""
    first = rows_of(sweep, 3)
    again = {name: values[first] for name, values in sweep.items()}
    sweep["latency_us"] = np.where(first, 1.8, 1.0) * sweep["latency_us"]
    if repeats_alike:
        again["latency_us"] = sweep["latency_us"][first]
    both = {name: np.concatenate([values, again[name]]) for name, values in sweep.items()}
    found = screen_rows(**both).disturbed[: len(first)][first].mean()
    assert found == 0.0 if repeats_alike else found > 0.9
