"""Accuracy against an exhaustive sweep small enough to compute by hand."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "runtime"))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "fit"))

from hand_made import EXACT_ONLY, PLAIN, POINTER, TMA, gemm_config, make_model
from synthetic_gpu import SyntheticGpu, fitted, held_out_problems

from wavetune.core.config import GEMM, KernelConfig
from wavetune.core.problem import GemmProblem
from wavetune.errors import MeasurementError
from wavetune.report.accuracy import evaluate_model
from wavetune.report.metrics import geometric_mean, rounded, summarise_efficiency, summarise_regret
from wavetune.runtime.model_file import Cell, ExactEntry, LaunchForm, ModelFile
from wavetune.store.record import CompiledConfig
from wavetune.store.table import MeasurementTable, sort_configs

OTHER = gemm_config(256, 64)
SHAPES = [(500, 4000, 4000), (1000, 4000, 4000), (2000, 4000, 4000)]


def sweep_of(rows: list[tuple[tuple[int, int, int], KernelConfig, float]], **changes: object) -> MeasurementTable:
    """Return a sweep of these rows."""
    configs = sort_configs([CompiledConfig(config, 64, 0, 30000) for config in {row[1] for row in rows}])
    position = {entry.config: index for index, entry in enumerate(configs)}
    fields = {
        "spec": GEMM,
        "dtype": "bf16",
        "layout": "nk",
        "configs": configs,
        "dims": np.array([row[0] for row in rows], dtype=np.int64).reshape(-1, 3),
        "config_index": np.array([position[row[1]] for row in rows], dtype=np.int64),
        "latency_us": np.array([row[2] for row in rows], dtype=np.float64),
        "exhaustive": np.ones(len(rows), dtype=np.bool_),
    }
    return MeasurementTable(**{**fields, **changes})  # type: ignore[arg-type]


@pytest.fixture
def model() -> ModelFile:
    """Return a model whose choice is known on every shape: POINTER, TMA, and TMA without a cell's help."""
    forms = (LaunchForm(POINTER, 3, 80, 50000, PLAIN), LaunchForm(TMA, 1, 180, 98304, PLAIN))
    cells = {(9, 12, 12): Cell((0,), (0, 0)), (10, 12, 12): Cell((1,), (0, 0)), (11, 12, 12): Cell((1,), (0, 0))}
    return make_model(forms=forms, default_index=0, micro=(), cells=cells, exact={})


@pytest.fixture
def sweep() -> MeasurementTable:
    """Return three shapes: chosen best, chosen 1.25 times slower, chosen not measured."""
    return sweep_of(
        [
            (SHAPES[0], POINTER, 10.0), (SHAPES[0], TMA, 40.0), (SHAPES[0], OTHER, 12.0),
            (SHAPES[1], POINTER, 20.0), (SHAPES[1], TMA, 25.0), (SHAPES[1], OTHER, 80.0),
            (SHAPES[2], POINTER, 30.0), (SHAPES[2], OTHER, 15.0),
        ]
    )  # fmt: skip


def test_a_sweep_by_hand(model: ModelFile, sweep: MeasurementTable) -> None:
    """Every figure of a small sweep is what a hand computes."""
    report = evaluate_model(model, sweep)
    assert [result.dims for result in report.results] == SHAPES
    assert [result.choice for result in report.results] == [POINTER, TMA, TMA]
    assert [result.best for result in report.results] == [POINTER, POINTER, OTHER]
    assert [result.best_us for result in report.results] == [10.0, 20.0, 15.0]
    assert [result.measured_us for result in report.results][:2] == [10.0, 25.0]
    assert report.unmeasured == 1
    assert math.isnan(report.results[2].efficiency)
    assert report.efficiency.geomean == pytest.approx(math.sqrt(0.8))
    assert report.efficiency.min == pytest.approx(0.8)
    assert report.efficiency.p5 == pytest.approx(0.81)
    assert (report.regret.mean, report.regret.max) == (pytest.approx(0.125), pytest.approx(0.25))
    # The best of both modelled configurations; unknown on the third shape, where the choice itself was not measured.
    assert report.top3_efficiency == 1.0
    assert [report.known(name) for name in ("measured_us", "top3_us", "top8_us")] == [2, 2, 2]
    assert math.isnan(report.results[2].top3_us)
    assert report.default_efficiency.geomean == pytest.approx(0.5 ** (1 / 3))
    assert report.sources == {"nearest": 3}
    assert [result.dims for result in report.worst] == [SHAPES[1], SHAPES[0]]


def test_prediction_errors_are_judged_near_the_best(model: ModelFile, sweep: MeasurementTable) -> None:
    """Only modelled configurations within 1.5 times the best count in the error."""
    from wavetune.core.arch import find_arch
    from wavetune.runtime.chooser import GemmChooser

    chooser = GemmChooser(model, find_arch(model.arch))
    near = [(0, POINTER, 10.0), (1, POINTER, 20.0), (1, TMA, 25.0)]
    errors = [abs(chooser.predict(GemmProblem(*SHAPES[i]))[config] / us - 1) for i, config, us in near]
    report = evaluate_model(model, sweep)
    assert report.mape_near_best == pytest.approx(np.mean(errors))
    missed = [abs(result.predicted_us / result.measured_us - 1) for result in report.results]
    assert report.mape_chosen == pytest.approx(np.nanmean(missed))


def test_json_has_the_documented_keys(model: ModelFile, sweep: MeasurementTable) -> None:
    """The report as plain data has every key that users were promised."""
    document = json.loads(json.dumps(evaluate_model(model, sweep).to_dict(GEMM.dims)))
    assert document["shapes"] == 3
    assert set(document["efficiency"]) == {"geomean", "p5", "min"}
    assert set(document["regret"]) == {"mean", "p95", "max"}
    assert {
        "top3_efficiency",
        "top8_efficiency",
        "mape_chosen",
        "mape_near_best",
        "unmeasured",
        "sources",
        "worst",
    } <= set(document)
    worst = document["worst"][0]
    assert (worst["m"], worst["n"], worst["k"]) == SHAPES[1]
    assert (worst["efficiency"], worst["measured_us"], worst["best_us"]) == (0.8, 25.0, 20.0)
    assert worst["choice"]["block_m"] == 128
    assert worst["best"]["block_m"] == 64
    assert worst["predicted_us"] > 0


def test_the_best_of_the_top_is_unknown_without_all_of_it() -> None:
    """Where one of the first three was not measured, three others of the ranking are no stand-in for them."""
    fit, gpu = fitted(), SyntheticGpu()
    problems = held_out_problems(12, seed=4)
    dims, columns = gpu.sweep(problems)
    latency_us = gpu.latency_us(dims, columns).tolist()
    rows = zip(map(tuple, dims.tolist()), columns.tolist(), latency_us, strict=True)
    whole = sweep_of([(sizes, gpu.configs[column].config, us) for sizes, column, us in rows])
    chooser = fit.chooser()
    second = {tuple(d): chooser.rank(GemmProblem(*d))[1].config for d in problems[:5].tolist()}
    configs = [whole.configs[index].config for index in whole.config_index]
    kept = np.array([second.get(tuple(d)) != c for d, c in zip(whole.dims.tolist(), configs, strict=True)])
    report = evaluate_model(fit.file, whole.select(kept))
    assert [report.known(name) for name in ("measured_us", "top3_us", "top8_us")] == [12, 7, 7]
    assert {r.dims for r in report.results if math.isnan(r.top3_us)} == set(second)
    document = report.to_dict(GEMM.dims)
    assert (document["judged"], document["top3_judged"], document["top8_judged"]) == (12, 7, 7)


def test_exact_answers_count_only_if_asked(model: ModelFile, sweep: MeasurementTable) -> None:
    """The exact table is off unless asked: held-out accuracy must not be looked up."""
    forms = (*model.forms, LaunchForm(OTHER, 2, 64, 30000, None))
    cheating = replace(model, forms=forms, exact={SHAPES[2]: ExactEntry(2, 15.0), SHAPES[1]: ExactEntry(0, 20.0)})
    assert evaluate_model(cheating, sweep).sources == {"nearest": 3}
    with_exact = evaluate_model(cheating, sweep, with_exact=True)
    assert with_exact.sources == {"exact": 2, "nearest": 1}
    assert with_exact.efficiency.min == 1.0
    assert with_exact.unmeasured == 0


def test_a_choice_that_the_sweep_never_measured_is_unmeasured(model: ModelFile) -> None:
    """A chosen configuration that is in no row of the sweep counts as unmeasured on every shape."""
    report = evaluate_model(model, sweep_of([(shape, OTHER, 10.0) for shape in SHAPES]))
    assert report.unmeasured == 3
    assert math.isnan(report.efficiency.geomean)
    assert report.worst == ()


@pytest.mark.parametrize(
    ("changes", "word"), [({"dtype": "fp16"}, "dtype"), ({"layout": "kn"}, "layout"), ({"spec": "other"}, "kernel")]
)
def test_a_sweep_of_something_else_is_refused(
    model: ModelFile, sweep: MeasurementTable, changes: dict[str, object], word: str
) -> None:
    """A sweep of another kernel, dtype or layout is refused by name."""
    if "spec" in changes:
        changes = {"spec": replace(GEMM, name="conv")}
    with pytest.raises(MeasurementError, match=f"the model is for {word}"):
        evaluate_model(model, replace(sweep, **changes))


def test_an_empty_sweep_is_refused(model: ModelFile, sweep: MeasurementTable) -> None:
    """A sweep without rows says nothing and is refused."""
    with pytest.raises(MeasurementError, match="no measurements"):
        evaluate_model(model, sweep.select(np.zeros(len(sweep), dtype=np.bool_)))


def test_more_tries_never_hurt() -> None:
    """On a full sweep, the best of eight is no worse than of three, nor that than the answer alone."""
    fit = fitted()
    gpu = SyntheticGpu()
    problems = held_out_problems(60, seed=9)
    dims, columns = gpu.sweep(problems)
    table = MeasurementTable(
        GEMM,
        "bf16",
        "nk",
        gpu.configs,
        dims,
        columns,
        gpu.latency_us(dims, columns),
        np.ones(len(dims), dtype=np.bool_),
    )
    report = evaluate_model(fit.file, table)
    assert report.unmeasured == 0
    assert report.efficiency.geomean <= report.top3_efficiency + 1e-9
    assert report.top3_efficiency <= report.top8_efficiency <= 1.0
    assert report.efficiency.geomean > 0.98
    assert report.default_efficiency.geomean < report.efficiency.geomean
    assert report.mape_near_best < 0.02
    assert report.regret.mean >= 1.0 / report.efficiency.geomean - 1.0


def test_metrics_of_nothing_are_nan() -> None:
    """Means over no problems are NaN, not an error and not zero."""
    nothing = np.array([])
    assert math.isnan(geometric_mean(nothing))
    assert all(math.isnan(value) for value in rounded(summarise_efficiency(nothing)).values())
    assert all(math.isnan(value) for value in rounded(summarise_regret(nothing)).values())


def test_metrics_by_hand() -> None:
    """Efficiency and regret of three values."""
    efficiency = np.array([1.0, 0.5, 0.8])
    assert summarise_efficiency(efficiency).geomean == pytest.approx(0.4 ** (1 / 3))
    assert summarise_regret(efficiency).mean == pytest.approx((0 + 1 + 0.25) / 3)
    assert summarise_regret(efficiency).max == pytest.approx(1.0)
    assert EXACT_ONLY not in (POINTER, TMA)
