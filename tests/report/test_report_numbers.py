"""The tables of a report agree with each other, with the runtime, and with a known truth."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from made_up_report import anchors, held_out_sweep, made_up_document, made_up_inputs, table_of
from synthetic_gpu import SyntheticGpu

from wavetune.core.arch import find_arch
from wavetune.core.dtype import find_dtype
from wavetune.core.problem import GemmProblem
from wavetune.core.shorthand import describe_config
from wavetune.errors import MeasurementError, ReportError
from wavetune.report.accuracy import evaluate_model
from wavetune.report.breakdown import disturbed_rows
from wavetune.report.datatable import make_table
from wavetune.report.decisions import regret_distribution, regret_map
from wavetune.report.document import build_document
from wavetune.report.evidence import Coverage, Seen, classify, coverage_of, describe_evidence
from wavetune.report.noise import replay_noise
from wavetune.report.predictions import predict_sweep
from wavetune.report.staircase import form_latency
from wavetune.report.strata import STRATIFICATIONS
from wavetune.report.summary import describe_choices
from wavetune.runtime.chooser import GemmChooser

H200 = find_arch("h200")


def test_headline_is_that_of_the_evaluation() -> None:
    """Efficiency, regret and error of the page are those of `evaluate_model`, with the exact table off."""
    inputs, document = made_up_inputs(), made_up_document()
    report = evaluate_model(inputs.model, inputs.sweep)
    head = document.facts["headline"]
    assert head["efficiency"]["geomean"] == pytest.approx(report.efficiency.geomean, abs=1e-5)
    assert head["regret"]["max"] == pytest.approx(report.regret.max, abs=1e-5)
    assert head["mape_near_best"] == pytest.approx(report.mape_near_best)
    assert head["mape_chosen"] == pytest.approx(report.mape_chosen)
    assert "exact" not in head["sources"]
    assert head["top1_rate"] <= head["top3_rate"] <= head["top8_rate"] <= 1.0
    assert head["efficiency"]["geomean"] <= head["top3_efficiency"] <= head["top8_efficiency"] <= 1.0
    assert head["top8_efficiency"] <= head["held_efficiency"] + 1e-9
    assert head["decision_us"] > 0


def test_the_rate_against_the_default_by_hand() -> None:
    """A choice within 1 % of the default is no slower than it; the shapes table lets everybody count again."""
    rows = made_up_document().tables["shapes"].records()
    slower = [row["measured_us"] > 1.01 * row["default_us"] for row in rows]
    assert made_up_document().facts["headline"]["never_slower_rate"] == pytest.approx(1.0 - np.mean(slower))
    hits = [row["top3_us"] <= 1.01 * row["best_us"] for row in rows]
    assert made_up_document().facts["headline"]["top3_rate"] == pytest.approx(np.mean(hits))


def test_document_is_json_and_complete() -> None:
    """Every table and fact survives strict JSON, and rows have the columns that they claim."""
    document = made_up_document()
    plain = json.loads(json.dumps(document.to_dict(), allow_nan=False))
    assert set(plain["tables"]) == set(document.tables)
    for name, table in document.tables.items():
        assert all(len(row) == len(table.columns) for row in table.rows), name
        assert len(plain["tables"][name]["rows"]) == len(table)
    for name in (
        "shapes",
        "strata",
        "residuals",
        "regret",
        "predictions",
        "decisions",
        "worst",
        "staircase",
        "surface",
    ):
        assert len(document.tables[name]), name


def test_values_of_a_table_are_plain() -> None:
    """NumPy values become Python's, and NaN becomes None."""
    table = make_table("t", "", ("a", "b", "c"), [(np.int64(3), np.float64("nan"), np.bool_(True))])
    assert table.rows == ((3, None, True),)
    assert [type(value) for value in table.rows[0]] == [int, type(None), bool]
    assert table.records() == [{"a": 3, "b": None, "c": True}]
    assert table.column("a") == [3]


def test_predictions_are_those_of_the_runtime() -> None:
    """Each row's prediction is the chooser's, and each problem has one choice."""
    inputs = made_up_inputs()
    predictions = predict_sweep(inputs.model, inputs.sweep)
    chooser = GemmChooser(inputs.model, H200, use_exact=False)
    for row in range(0, len(predictions), 97):
        m, n, k = predictions.problems[predictions.problem[row]].tolist()
        config = inputs.model.forms[predictions.form[row]].config
        assert predictions.predicted_us[row] == pytest.approx(chooser.predict(GemmProblem(m, n, k))[config])
        assert predictions.is_choice[row] == (chooser.choose(GemmProblem(m, n, k)) == config)
        assert predictions.points.m[row] == m
    assert predictions.is_choice.sum() == len(predictions.problems)
    assert np.all(predictions.best_us <= predictions.measured_us)
    assert np.all(predictions.best_held_us >= np.array([row["best_us"] for row in _shapes()]) - 1e-9)


def _shapes() -> list[dict[str, float]]:
    return made_up_document().tables["shapes"].records()


@pytest.mark.parametrize("name", STRATIFICATIONS)
def test_every_row_is_in_one_band(name: str) -> None:
    """Bands are complete, begin beyond the end of the one before, and are as many as their labels."""
    stratification = STRATIFICATIONS[name]
    points = predict_sweep(made_up_inputs().model, made_up_inputs().sweep).points
    dtype = find_dtype("bf16")
    band, value = stratification.band(points, H200, dtype), stratification.feature(points, H200, dtype)
    assert len(stratification.labels) == len(stratification.edges) + 1
    assert band.min() >= 0
    assert band.max() < len(stratification.labels)
    for index, edge in enumerate(stratification.edges):
        assert np.array_equal(band <= index, value <= edge)


def test_strata_of_one_kind_add_up_to_all_shapes() -> None:
    """The shapes of the bands of each look are all the shapes."""
    rows = made_up_document().tables["strata"].records()
    for name in STRATIFICATIONS:
        assert sum(row["shapes"] for row in rows if row["stratum"] == name) == rows[0]["shapes"]


def test_residuals_know_a_model_that_is_right() -> None:
    """On the GPU that the model was fitted to, errors are the noise of the readings: a percent or two."""
    for row in made_up_document().tables["residuals"].records():
        assert row["p5"] <= row["q1"] <= row["median"] <= row["q3"] <= row["p95"]
        assert abs(row["median"]) < 0.03
        assert row["mape"] < 0.05


def test_the_distribution_of_regret_counts_every_shape() -> None:
    """Each method's curve climbs to one in as many steps as there are shapes."""
    table = regret_distribution(evaluate_model(made_up_inputs().model, made_up_inputs().sweep).results)
    for method in ("choice", "best of top 3", "default"):
        rows = [row for row in table.records() if row["method"] == method]
        assert len(rows) == len(_shapes())
        assert rows[-1]["share_of_shapes"] == 1.0
        assert [row["regret"] for row in rows] == sorted(row["regret"] for row in rows)
        assert rows[0]["regret"] >= 0.0


def test_the_map_of_regret_by_hand() -> None:
    """A shape is in the octave that ends at or above its sizes, and a cell shows its worst."""
    results = evaluate_model(made_up_inputs().model, made_up_inputs().sweep).results
    cells = {(row["m_octave"], row["n_octave"]): row for row in regret_map(results).records()}
    assert sum(row["shapes"] for row in cells.values()) == len(results)
    for row in _shapes():
        (cell,) = [cell for (m, n), cell in cells.items() if m / 2 < row["m"] <= max(m, 1) and n / 2 < row["n"] <= n]
        assert cell["worst_regret"] >= row["regret"] - 1e-12


def test_the_decision_map_asks_the_runtime() -> None:
    """Every row of the decision map is what the runtime chooses there."""
    chooser = GemmChooser(made_up_inputs().model, H200, use_exact=False)
    rows = made_up_document().tables["decisions"].records()
    for row in rows[::37]:
        assert row["config"] == describe_config(chooser.choose(GemmProblem(row["m"], row["n"], row["k"])))


def test_the_curve_is_the_form_on_square_grids() -> None:
    """Where a square grid is a real problem, the curve is what the runtime predicts for it."""
    model = made_up_inputs().model
    chooser = GemmChooser(model, H200, use_exact=False)
    for index, form in enumerate(model.forms[: model.n_modelled]):
        block_m, block_n, block_k, split_k = (
            int(form.config[name]) for name in ("block_m", "block_n", "block_k", "split_k")
        )
        side, trips = np.array([1, 4, 9, 23]), np.array([4, 16, 64, 5])
        grid, loops = (side**2 * split_k).astype(float), trips.astype(float)
        curve = form_latency(model, index, grid, loops)
        for s, t, latency in zip(side.tolist(), trips.tolist(), curve.tolist(), strict=True):
            problem = GemmProblem(s * block_m, s * block_n, t * block_k * split_k)
            assert latency == pytest.approx(chooser.predict(problem)[form.config], rel=1e-9)


def test_measured_points_lie_on_the_curve() -> None:
    """The drawn points are described by the form: they come from a GPU that follows it."""
    rows = made_up_document().tables["wave_points"].records()
    errors = [abs(row["predicted_us"] / row["measured_us"] - 1.0) for row in rows]
    assert len(rows) > 100
    assert np.mean(errors) < 0.03


def test_noise_is_what_a_repeat_says_of_the_best() -> None:
    """Without noise a replayed best is best; with noise it loses something on some shapes."""
    clean = held_out_sweep()
    assert set(replay_noise(clean, clean).column("regret")) == {0.0}
    noisy = replay_noise(held_out_sweep(noise=0.02, seed=1), held_out_sweep(noise=0.02, seed=2)).column("regret")
    assert min(noisy) == 0.0
    assert 0.0 < np.mean(noisy) < 0.05


def test_noise_needs_common_shapes_only() -> None:
    """A repeat of a few finalists is enough; shapes of the repeat alone are left out."""
    sweep = held_out_sweep()
    finalists = sweep.select((sweep.config_index < 4) & (sweep.dims[:, 0] > 100))
    foreign = replace(finalists, dims=finalists.dims + 1)
    table = replay_noise(sweep, finalists)
    assert 0 < len(table) < len(_shapes())
    assert set(table.column("configs")) == {4}
    assert len(replay_noise(sweep, foreign)) == 0


def test_stalls_are_found_and_clean_rows_are_not() -> None:
    """A run of slowed rows is found on the shapes where it happened, and nothing is found without one."""
    model, sweep = made_up_inputs().model, held_out_sweep(noise=0.01, seed=3)
    assert sum(disturbed_rows(predict_sweep(model, sweep)).column("rows")) < 0.002 * len(sweep)
    slowed = sweep.latency_us.copy()
    slowed[200:240] *= 2.5
    found = disturbed_rows(predict_sweep(model, replace(sweep, latency_us=slowed)))
    stalled = {tuple(dims) for dims in sweep.dims[200:240].tolist()}
    largest = found.records()[0]
    assert (largest["m"], largest["n"], largest["k"]) in stalled
    assert largest["slowdown"] == pytest.approx(2.5, rel=0.2)
    assert sum(found.column("rows")) >= 25


def test_what_was_fitted_is_not_held_out() -> None:
    """Shapes are told apart by what the fit knew of them: by file, by rows, or by the exact table."""
    model = made_up_inputs().model
    (m, n, k), *_ = model.exact
    shapes = [(m, n, k), (m + 1, n, k), (m, n + 64, k + 64)]
    assert classify(model, shapes) == [Seen.FITTED, Seen.KNOWN_LAYER, Seen.NEW_LAYER]
    assert classify(model, shapes, fitted={(7, n + 64, k + 64)}) == [Seen.NEW_LAYER, Seen.NEW_LAYER, Seen.KNOWN_LAYER]
    known = replace(model, provenance={"files": [{"name": "a.csv", "sha256": "ab"}]})
    assert classify(known, shapes, ["ab"]) == [Seen.FITTED] * 3
    assert classify(replace(model, exact={}), shapes) == [Seen.UNKNOWN] * 3


@pytest.mark.parametrize(
    ("seen", "held_out", "words"),
    [
        ([Seen.NEW_LAYER] * 3, True, "none of the 3 shapes was part of the fit. The exact table was off"),
        ([Seen.NEW_LAYER, Seen.KNOWN_LAYER], True, "1 of them new m of a known (n, k)"),
        ([Seen.FITTED, Seen.NEW_LAYER], False, "1 of 2 shapes were part of the fit"),
        ([Seen.FITTED] * 2, False, "All 2 shapes were part of the fit"),
        ([Seen.UNKNOWN, Seen.FITTED], False, "does not say"),
    ],
)
def test_the_page_says_how_far_to_trust_it(seen: list[Seen], held_out: bool, words: str) -> None:
    """Only a sweep without any fitted shape counts as held out."""
    verdict, text = describe_evidence(seen)
    assert verdict is held_out
    assert words in text


def test_a_sweep_of_few_configurations_is_not_taken_for_exhaustive() -> None:
    """The best of a few need not be the best: the report says so, and says nothing of a sweep that has them all."""
    assert "configurations" not in made_up_document().facts["evidence"]["text"]
    inputs = made_up_inputs()
    few = inputs.sweep.select(inputs.sweep.config_index < 6)
    facts = build_document(replace(inputs, sweep=few)).facts["evidence"]
    assert facts["configs_per_shape"] == 6
    assert "6 or fewer of" in facts["text"]
    assert Coverage(5, 10).describe() == ""
    assert Coverage(4, 10).describe() != ""


def test_the_page_counts_the_shapes_whose_top_was_measured() -> None:
    """A sweep of few configurations has the first three of the ranking on some shapes only, if on any."""
    inputs = made_up_inputs()
    few = inputs.sweep.select(np.arange(len(inputs.sweep)) % 3 > 0)
    facts = build_document(replace(inputs, sweep=few)).facts
    judged, shapes = facts["headline"]["top3_judged"], facts["headline"]["shapes"]
    assert judged < shapes
    assert f"with the top 3 (on {judged} of {shapes} shapes)" in dict(describe_choices(facts))["if measured"]


def test_what_the_model_holds_counts_as_something_to_choose_from() -> None:
    """A sweep of nothing but the model's pick on each shape is not exhaustive, however few configurations it has."""
    inputs = made_up_inputs()
    configs = [form.config for form in inputs.model.forms]
    one = inputs.sweep.restrict({configs[0]})
    assert coverage_of(one, inputs.model) == Coverage(1, len(configs))
    assert coverage_of(inputs.sweep, inputs.model).is_exhaustive


def test_a_report_needs_a_model_and_a_sweep_only() -> None:
    """Without points, repeat and facts there is a report all the same, without the pictures that need them."""
    inputs = made_up_inputs()
    document = build_document(replace(inputs, points=None, fitted=None, repeat=None, calibration={}))
    assert not {"staircase", "surface", "noise"} & set(document.tables)
    assert document.facts["noise"] is None
    assert document.facts["evidence"]["held_out"]


def test_a_sweep_of_unknown_configurations_judges_nothing() -> None:
    """Where no choice was measured, there is nothing to report, and the error says what to measure."""
    gpu = SyntheticGpu()
    held = {form.config for form in made_up_inputs().model.forms}
    foreign = [index for index, entry in enumerate(gpu.configs) if entry.config not in held]
    if not foreign:
        pytest.skip("the model holds every configuration of the synthetic GPU")
    sweep = held_out_sweep()
    unknown = sweep.select(np.isin(sweep.config_index, foreign))
    with pytest.raises(MeasurementError, match="--all-configs"):
        build_document(replace(made_up_inputs(), sweep=unknown))


def test_other_kernel_families_are_refused() -> None:
    """A model of another family is refused by name before anything is judged."""
    other = replace(made_up_inputs().model, kernel="conv")
    with pytest.raises(ReportError, match="this one is for conv"):
        build_document(replace(made_up_inputs(), model=other))


def test_points_alone_make_a_table() -> None:
    """The wave-structured points of the synthetic GPU are read as points, not as a sweep."""
    points = anchors()
    assert not points.exhaustive.any()
    again = table_of(points.dims, points.config_index, points.latency_us, exhaustive=False)
    assert len(predict_sweep(made_up_inputs().model, again)) > 1000
