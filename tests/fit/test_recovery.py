"""The fit finds the truth of a synthetic GPU, also through noise and stalls."""

from __future__ import annotations

import numpy as np
import pytest
from synthetic_gpu import Fitted, fitted, held_out_problems, realistic_problems

from wavetune.core.problem import GemmProblem

N_STALLS = 14
HELD_OUT = held_out_problems(400)
BEYOND = {
    "held-out layers": HELD_OUT,
    "unseen wave counts": np.array([(m, n, 4096) for m in (6000, 8192, 12000) for n in (9000, 20480, 40960)]),
    "loops four times longer": np.array([(m, n, 655_360) for m in (16, 200, 1024) for n in (768, 2048, 4096)]),
    "ragged edges": HELD_OUT + np.array([3, 5, 7]),
}


@pytest.fixture(scope="module", params=[0, N_STALLS], ids=["undisturbed", "stalled"])
def fit(request: pytest.FixtureRequest) -> Fitted:
    """Fit a GPU that no smooth deviation bends."""
    return fitted(stalls=request.param)


def efficiencies(fit: Fitted, problems: np.ndarray) -> np.ndarray:
    """Return best over chosen true latency for the runtime's choices."""
    chooser = fit.chooser()
    truth = fit.gpu.all_latencies(problems)
    chosen = [fit.gpu.index_of(chooser.choose(GemmProblem(*dims))) for dims in problems.tolist()]
    return truth.min(axis=1) / truth[np.arange(len(problems)), chosen]


def relative_errors(fit: Fitted, problems: np.ndarray) -> np.ndarray:
    """Return the relative prediction errors of the survivors, shape (n_problems, n_survivors)."""
    truth = fit.gpu.all_latencies(problems)[:, list(fit.model.survivors_)]
    return np.abs(fit.model.predict_problems(problems) / truth - 1.0)


@pytest.mark.parametrize("where", BEYOND)
def test_predictions_are_recovered(fit: Fitted, where: str) -> None:
    """Predictions are within 2 % of the truth in the median, inside and beyond what was measured."""
    errors = relative_errors(fit, BEYOND[where])
    assert np.median(errors) < 0.02
    assert np.median(errors, axis=0).max() < 0.05


def test_forms_are_recovered_for_every_configuration(fit: Fitted) -> None:
    """Also configurations that do not survive have forms within 2 % of the truth."""
    model, gpu = fit.model, fit.gpu
    assert model.configs_ == gpu.configs
    for index in range(len(gpu.configs)):
        rows = np.full(len(HELD_OUT), index)
        terms = gpu.geometry.points(HELD_OUT, rows).terms()
        assert np.median(np.abs(terms @ model.coefficients_[index] / gpu.latency_us(HELD_OUT, rows) - 1.0)) < 0.02


def test_true_winners_survive(fit: Fitted) -> None:
    """Every configuration that truly wins on 2 % of held-out layers survives, and survivors lose nothing."""
    truth = fit.gpu.all_latencies(HELD_OUT)
    wins = np.bincount(truth.argmin(axis=1), minlength=truth.shape[1]) / len(truth)
    assert set(np.flatnonzero(wins >= 0.02)) <= set(fit.model.survivors_)
    survivors = truth[:, list(fit.model.survivors_)].min(axis=1)
    assert np.exp(np.mean(np.log(truth.min(axis=1) / survivors))) > 0.999


def test_the_default_is_the_best_single_survivor(fit: Fitted) -> None:
    """The default loses at most 2 % to the configuration that is truly best alone on the measured layers."""
    truth = fit.gpu.all_latencies(realistic_problems())
    alone = np.exp(np.mean(np.log(truth.min(axis=1, keepdims=True) / truth), axis=0))
    assert fit.model.default_ in fit.model.survivors_
    assert alone[fit.model.default_] > 0.98 * alone.max()


def test_the_runtime_chooses_near_the_best(fit: Fitted) -> None:
    """Choices of the encoded and decoded file reach 98 % of the truth on layers that nobody measured."""
    efficiency = efficiencies(fit, HELD_OUT)
    assert np.exp(np.mean(np.log(efficiency))) >= 0.98
    assert np.percentile(efficiency, 5) >= 0.92


def test_stalled_rows_are_found_by_shape() -> None:
    """Planted stalls are reported: most rows, nothing else, under their shapes and with their slowdown."""
    fit = fitted(stalls=N_STALLS)
    screening = fit.model.screening_
    assert screening is not None
    planted = np.zeros(len(fit.table), dtype=np.bool_)
    planted[fit.stalls.rows] = True
    found = screening.disturbed
    assert (found & planted).sum() > 0.9 * planted.sum()
    assert (found & planted).sum() > 0.98 * found.sum()
    assert screening.weights[found].max() < 0.5
    reported = {entry.dims for entry in screening.problems}
    stalled = {tuple(dims) for dims in fit.table.dims[planted].tolist()}
    assert len(reported & stalled) > 0.9 * len(stalled)
    assert len(reported & stalled) > 0.95 * len(reported)
    assert sum(entry.rows for entry in screening.problems) == found.sum()
    factor = {tuple(fit.table.dims[row].tolist()): f for row, f in zip(fit.stalls.rows, fit.stalls.factor, strict=True)}
    worst = screening.problems[0]
    assert worst.factor == pytest.approx(factor[worst.dims], rel=0.5)


def test_undisturbed_rows_are_left_alone() -> None:
    """Without stalls, hardly a row is called disturbed."""
    screening = fitted().model.screening_
    assert screening is not None
    assert screening.disturbed.mean() < 0.002
    assert (screening.weights < 0.5).mean() < 0.002


def test_screening_is_worth_it() -> None:
    """A fit that does not screen is further from the truth than one that does."""
    fit = fitted(stalls=N_STALLS)
    params = {**fit.model.get_params(), "screen": False, "cell_dims": HELD_OUT}
    careless = type(fit.model)(**params).fit_table(fit.table)
    assert careless.screening_ is None
    truth = fit.gpu.all_latencies(HELD_OUT)[:, list(careless.survivors_)]
    error = np.median(np.abs(careless.predict_problems(HELD_OUT) / truth - 1.0))
    assert np.median(relative_errors(fit, HELD_OUT)) < error


def test_a_smooth_deviation_is_corrected() -> None:
    """What no form can express, the distilled correction takes up: predictions and choices beat the form alone."""
    fit = fitted(deviation=0.2)
    model = fit.model
    survivors = list(model.survivors_)
    truth = fit.gpu.all_latencies(HELD_OUT)
    columns = np.tile(survivors, len(HELD_OUT))
    terms = fit.gpu.geometry.points(np.repeat(HELD_OUT, len(survivors), axis=0), columns).terms()
    form = (terms * model.coefficients_[columns]).sum(axis=1).reshape(len(HELD_OUT), -1)
    near_best = truth[:, survivors] <= 1.5 * truth.min(axis=1, keepdims=True)
    corrected_error = np.median(np.abs(model.predict_problems(HELD_OUT) / truth[:, survivors] - 1.0)[near_best])
    form_error = np.median(np.abs(form / truth[:, survivors] - 1.0)[near_best])
    assert corrected_error < 0.8 * form_error
    by_form = truth[np.arange(len(HELD_OUT)), np.array(survivors)[form.argmin(axis=1)]]
    form_efficiency = np.exp(np.mean(np.log(truth.min(axis=1) / by_form)))
    efficiency = np.exp(np.mean(np.log(efficiencies(fit, HELD_OUT))))
    assert 1.0 - efficiency < 0.5 * (1.0 - form_efficiency)


def test_anchors_alone_are_enough_for_forms() -> None:
    """Without realistic rows there is no correction and no screening, and predictions are still right."""
    fit = fitted()
    anchors = fit.table.select(~fit.table.exhaustive)
    model = type(fit.model)(cell_dims=HELD_OUT).fit_table(anchors)
    assert model.correction_ is None
    assert model.screening_ is None
    assert not model.lattice_.correction_permille.any()
    truth = fit.gpu.all_latencies(HELD_OUT)[:, list(model.survivors_)]
    assert np.median(np.abs(model.predict_problems(HELD_OUT) / truth - 1.0)) < 0.02
