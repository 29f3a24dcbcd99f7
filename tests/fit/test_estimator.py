"""The estimator's contract: scikit-learn's conventions, properties of every prediction, agreement with the runtime."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from synthetic_gpu import ARCH, SyntheticGpu, fitted
from threadpoolctl import threadpool_info, threadpool_limits

from wavetune.core.dtype import find_dtype
from wavetune.core.problem import GemmProblem
from wavetune.errors import ConfigError, FitError
from wavetune.fit.encoding import decode_matrix, encode_table, feature_columns
from wavetune.fit.model import WaveLatencyModel
from wavetune.fit.points import GemmGeometry
from wavetune.fit.selection import N_FALLBACKS, greedy_cover
from wavetune.runtime.codec import encode_model
from wavetune.store.table import MeasurementTable
from wavetune.tables.build import build_model_file

# Sizes up to a million, so that the work of the largest still fits in the 64-bit integers of the fit.
SIZES = st.one_of(st.integers(1, 300), st.integers(1, 2**20))
DIMS = st.tuples(SIZES, SIZES, SIZES)


@pytest.fixture(scope="module")
def small_table() -> MeasurementTable:
    """Return the anchors and five realistic problems."""
    table = SyntheticGpu().table(seed=5)[0]
    kept = ~table.exhaustive | np.isin(table.dims[:, 1] * 100_000 + table.dims[:, 2], [409604096, 204802048])
    return table.select(kept)


def small_model() -> WaveLatencyModel:
    """Return an unfitted estimator with few cells."""
    return WaveLatencyModel(n_configs=6, bound_log2=0.0)


def all_forms(dims: np.ndarray) -> np.ndarray:
    """Return every form's latency, survivor or not, shape (n_problems, n_configs)."""
    model = fitted().model
    geometry = GemmGeometry(model.configs_, ARCH, find_dtype("bf16"))
    terms = geometry.grid(dims).terms().reshape(len(dims), len(model.configs_), -1)
    return (terms * model.coefficients_).sum(axis=2)


def test_parameters_are_those_of_scikit_learn() -> None:
    """Cloning, getting and setting parameters round-trip, and fitting changes none of them."""
    model = WaveLatencyModel(n_configs=20, bound_log2=1.5, random_state=4)
    copy = clone(model)
    assert copy is not model
    assert copy.get_params() == model.get_params()
    assert copy.set_params(n_configs=17) is copy
    assert (copy.n_configs, model.n_configs) == (17, 20)
    assert "n_configs=17" in repr(copy)
    with pytest.raises(ValueError, match="no_such_parameter"):
        copy.set_params(no_such_parameter=1)
    fit = fitted().model
    assert fit.get_params() == WaveLatencyModel(n_configs=18).get_params()
    assert fit.n_features_in_ == len(feature_columns(fit.spec))


@pytest.mark.parametrize("method", ["predict", "predict_problems", "predict_undistilled", "is_measured_range"])
def test_an_unfitted_estimator_says_so(method: str) -> None:
    """Asking an unfitted estimator raises scikit-learn's error."""
    with pytest.raises(NotFittedError):
        getattr(WaveLatencyModel(), method)(np.ones((1, 3)))


def test_equal_rows_give_equal_bits(small_table: MeasurementTable) -> None:
    """Two fits of the same rows agree to the bit, and their files to the byte."""
    first, second = (small_model().fit_table(small_table) for _ in range(2))
    assert first.coefficients_.tobytes() == second.coefficients_.tobytes()
    assert first.survivors_ == second.survivors_
    assert first.screening_ is not None
    assert second.screening_ is not None
    assert first.screening_.weights.tobytes() == second.screening_.weights.tobytes()
    files = [encode_model(build_model_file(m, small_table, provenance={})) for m in (first, second)]
    assert files[0] == files[1]


def test_a_fit_computes_on_one_thread(small_table: MeasurementTable, monkeypatch: pytest.MonkeyPatch) -> None:
    """The order in which threads add up would move last digits, and a tie between configurations with them."""
    threads: list[set[int]] = []

    def cover(*args: object) -> list[int]:
        threads.append({library["num_threads"] for library in threadpool_info()})
        return greedy_cover(*args)

    monkeypatch.setattr("wavetune.fit.model.greedy_cover", cover)
    with threadpool_limits(2):
        small_model().fit_table(small_table)
        assert {2} == {library["num_threads"] for library in threadpool_info()}
    assert threads
    assert all(counts == {1} for counts in threads)


def test_fit_takes_a_matrix_or_a_table(small_table: MeasurementTable) -> None:
    """Fitting X and y equals fitting the table that they encode."""
    anchors = small_table.select(~small_table.exhaustive)
    by_table = small_model().fit_table(anchors)
    by_matrix = small_model().fit(encode_table(anchors).tolist(), anchors.latency_us.tolist())
    assert by_matrix.coefficients_.tobytes() == by_table.coefficients_.tobytes()
    assert by_matrix.score(encode_table(anchors), anchors.latency_us) > 0.99


def test_weights_count(small_table: MeasurementTable) -> None:
    """Spoiled rows of no weight do no harm; with full weight they do."""
    anchors = small_table.select(~small_table.exhaustive)
    spoiled = np.arange(len(anchors)) % 5 < 3
    x, truth = encode_table(anchors), SyntheticGpu().latency_us(anchors.dims, anchors.config_index)
    latency = np.where(spoiled, 3.0 * anchors.latency_us, anchors.latency_us)
    weighted = small_model().fit(x, latency, sample_weight=np.where(spoiled, 1e-9, 1.0)).predict(x)
    unweighted = small_model().fit(x, latency).predict(x)
    assert np.median(np.abs(weighted / truth - 1.0)) < 0.02
    assert np.median(np.abs(unweighted / truth - 1.0)) > 0.05


def test_x_round_trips(small_table: MeasurementTable) -> None:
    """A table's X decodes to its sizes and configurations."""
    x = encode_table(small_table)
    assert x.shape == (len(small_table), len(feature_columns(small_table.spec)))
    dims, configs, index = decode_matrix(x, small_table.spec)
    assert np.array_equal(dims, small_table.dims)
    assert configs == small_table.configs
    assert np.array_equal(index, small_table.config_index)


@settings(max_examples=60)
@given(DIMS)
def test_predictions_are_positive(dims: tuple[int, int, int]) -> None:
    """No form and no corrected prediction is zero or negative, whatever the size."""
    problem = np.array([dims])
    assert (all_forms(problem) > 0).all()
    assert (fitted().model.predict_problems(problem) > 0).all()


@settings(max_examples=150)
@given(DIMS, st.integers(0, 2), st.integers(1, 5000))
def test_more_work_is_never_faster(dims: tuple[int, int, int], axis: int, more: int) -> None:
    """The form of every configuration never falls when a size grows."""
    larger = list(dims)
    larger[axis] += more
    before, after = all_forms(np.array([dims, larger]))
    assert (after >= before * (1 - 1e-12)).all()


def test_coefficients_are_never_negative() -> None:
    """Every coefficient is finite and not negative, also with stalls and a deviation."""
    for fit in (fitted(), fitted(stalls=14), fitted(deviation=0.2)):
        assert np.isfinite(fit.model.coefficients_).all()
        assert (fit.model.coefficients_ >= 0).all()


@pytest.mark.parametrize("deviation", [0.0, 0.2])
def test_estimator_and_runtime_agree(deviation: float) -> None:
    """The encoded file predicts what the estimator predicts to 1e-6, inside and outside of cells."""
    fit = fitted(deviation=deviation)
    model, chooser = fit.model, fit.chooser()
    rng = np.random.default_rng(11)
    inside = np.exp2(rng.uniform(0, 13, (150, 3))).astype(np.int64)
    outside = np.exp2(rng.uniform(0, 20, (150, 3))).astype(np.int64)
    problems = np.vstack([inside, outside])
    assert 50 < model.is_measured_range(problems).sum() < 250
    survivors = [model.configs_[index] for index in model.survivors_]
    table = MeasurementTable(
        model.spec, "bf16", "nk", tuple(survivors), np.repeat(problems, len(survivors), axis=0),
        np.tile(np.arange(len(survivors)), len(problems)), np.ones(len(problems) * len(survivors)),
        np.zeros(len(problems) * len(survivors), dtype=np.bool_),
    )  # fmt: skip
    by_matrix = model.predict(encode_table(table)).reshape(len(problems), -1)
    np.testing.assert_allclose(by_matrix, model.predict_problems(problems), rtol=1e-12)
    for dims, expected in zip(problems.tolist(), by_matrix, strict=True):
        predicted = chooser.predict(GemmProblem(*dims))
        assert [predicted[entry.config] for entry in survivors] == pytest.approx(expected, rel=1e-6)


def test_configurations_that_do_not_survive_are_predicted_by_their_form() -> None:
    """Predictions of a configuration outside the tables are those of its form."""
    fit = fitted()
    lost = [index for index in range(len(fit.gpu.configs)) if index not in fit.model.survivors_]
    assert lost
    rows = fit.table.select(np.isin(fit.table.config_index, lost))
    form = all_forms(rows.dims)[np.arange(len(rows)), rows.config_index]
    np.testing.assert_allclose(fit.model.predict(encode_table(rows)), form, rtol=1e-12)


def test_the_measured_range_is_where_cells_are() -> None:
    """A problem is in range within the bound of a measured one, and the runtime's source says the same."""
    fit = fitted()
    model = fit.model
    assert model.is_measured_range(fit.table.dims).all()
    rng = np.random.default_rng(5)
    problems = np.exp2(rng.uniform(0, 20, (300, 3))).astype(np.int64)
    octave = np.array([[int(size - 1).bit_length() for size in dims] for dims in problems.tolist()])
    measured = np.array(
        sorted({tuple(int(s - 1).bit_length() for s in dims) for dims in model.measured_dims_.tolist()})
    )
    distance = np.abs(octave[:, None, :] - measured[None]).max(axis=2).min(axis=1)
    in_range = model.is_measured_range(problems)
    assert np.array_equal(in_range, distance <= model.bound_log2)
    assert 0 < in_range.sum() < len(problems)
    chooser = fit.chooser()
    for dims, expected in zip(problems.tolist()[:100], in_range.tolist(), strict=False):
        assert (chooser.explain(GemmProblem(*dims)).source == "nearest") == expected


def test_wrong_columns_are_refused(small_table: MeasurementTable) -> None:
    """X with a missing column is refused with the names of all columns."""
    with pytest.raises(FitError, match="block_m, block_n"):
        small_model().fit(encode_table(small_table)[:, :-1], small_table.latency_us)


def test_fractions_are_refused(small_table: MeasurementTable) -> None:
    """A value that is not a whole number is refused with its column."""
    x = encode_table(small_table)
    x[5, feature_columns(small_table.spec).index("block_n")] = 63.5
    with pytest.raises(FitError, match="block_n"):
        small_model().fit(x, small_table.latency_us)


def test_an_unknown_word_is_refused(small_table: MeasurementTable) -> None:
    """A schedule number that no schedule has is refused with its column."""
    x = encode_table(small_table)
    x[5, feature_columns(small_table.spec).index("schedule")] = 9
    with pytest.raises(FitError, match="schedule"):
        small_model().fit(x, small_table.latency_us)


@pytest.mark.parametrize("bad", [0.0, -1.0])
def test_latencies_must_be_positive(small_table: MeasurementTable, bad: float) -> None:
    """A latency of zero or below is refused."""
    latency = small_table.latency_us.copy()
    latency[3] = bad
    with pytest.raises(FitError, match="positive"):
        small_model().fit(encode_table(small_table), latency)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_latencies_must_be_finite(small_table: MeasurementTable, bad: float) -> None:
    """A latency that is not a number is refused."""
    latency = small_table.latency_us.copy()
    latency[3] = bad
    with pytest.raises(ValueError, match=r"NaN|infinity"):
        small_model().fit(encode_table(small_table), latency)


def test_x_and_y_must_be_of_one_length(small_table: MeasurementTable) -> None:
    """A missing latency is refused."""
    with pytest.raises(ValueError, match="inconsistent"):
        small_model().fit(encode_table(small_table), small_table.latency_us[:-1])


def test_too_few_rows_are_refused(small_table: MeasurementTable) -> None:
    """Seven rows a configuration are too few for any form."""
    few = np.concatenate([np.flatnonzero(small_table.config_index == c)[:7] for c in range(len(small_table.configs))])
    with pytest.raises(FitError, match="rows"):
        small_model().fit_table(small_table.select(few))


def test_configurations_with_too_few_rows_are_left_out(small_table: MeasurementTable) -> None:
    """A configuration with too few rows is named and left out; the others are fitted, and predicting it is an error."""
    anchors = small_table.select(~small_table.exhaustive)
    rows = np.concatenate([np.flatnonzero(anchors.config_index != 4), np.flatnonzero(anchors.config_index == 4)[:7]])
    model = small_model().fit_table(anchors.select(rows))
    assert model.too_few_rows_ == (anchors.configs[4],)
    assert anchors.configs[4] not in model.configs_
    assert len(model.configs_) == len(anchors.configs) - 1
    with pytest.raises(ConfigError, match="not among"):
        model.predict(encode_table(anchors.select(anchors.config_index == 4)))


@pytest.mark.parametrize("parameters", [{"n_configs": 0}, {"bound_log2": -1.0}])
def test_impossible_parameters_are_refused(small_table: MeasurementTable, parameters: dict[str, float]) -> None:
    """Parameters out of range are refused when fitting."""
    with pytest.raises(FitError, match=next(iter(parameters))):
        WaveLatencyModel(**parameters).fit_table(small_table)


@pytest.mark.parametrize("n_configs", [1, 5])
def test_survivors_are_as_many_as_asked(small_table: MeasurementTable, n_configs: int) -> None:
    """As many survive as asked for, and a few for unaligned operands; in table order, the default among them."""
    anchors = small_table.select(~small_table.exhaustive)
    model = WaveLatencyModel(n_configs=n_configs, bound_log2=0.0).fit_table(anchors)
    loads = [model.configs_[index].config.load for index in model.survivors_]
    assert n_configs <= len(loads) <= n_configs + N_FALLBACKS
    assert {entry.config.load for entry in model.configs_} == {"pointer", "tma"}
    assert loads.count("tma") <= n_configs
    assert loads.count("pointer") >= 1
    assert list(model.survivors_) == sorted(set(model.survivors_))
    assert model.default_ in model.survivors_


def test_cells_can_be_restricted(small_table: MeasurementTable) -> None:
    """Cells made for some problems only answer those, as the full table would."""
    anchors = small_table.select(~small_table.exhaustive)
    full = small_model().fit_table(anchors)
    wanted = anchors.dims[:3]
    part = WaveLatencyModel(n_configs=6, bound_log2=0.0, cell_dims=wanted).fit_table(anchors)
    assert part.is_measured_range(wanted).all()
    assert len(part.lattice_.cells) <= 3 < len(full.lattice_.cells)
    np.testing.assert_array_equal(part.predict_problems(wanted), full.predict_problems(wanted))
