"""From a fitted model to tables: exact, nearest, micro and default."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "fit"))

from synthetic_gpu import fitted, realistic_problems

from wavetune.core.config import GEMM
from wavetune.core.problem import GemmProblem
from wavetune.tables.build import DIGITS, build_model_file
from wavetune.tables.exact import MIN_CONFIGS, SURVIVOR_MARGIN, best_measured
from wavetune.tables.micro import _at_anchors


def test_forms_are_the_survivors_first() -> None:
    """The file holds the survivors in order with their coefficients, then what only the exact table needs."""
    fit = fitted()
    survivors = [fit.model.configs_[index] for index in fit.model.survivors_]
    assert fit.file.n_modelled == len(survivors)
    assert [form.config for form in fit.file.forms[: len(survivors)]] == [entry.config for entry in survivors]
    assert all(form.coefficients is None for form in fit.file.forms[len(survivors) :])
    for form, index in zip(fit.file.forms, fit.model.survivors_, strict=False):
        np.testing.assert_allclose(form.coefficients, fit.model.coefficients_[index], rtol=10.0 ** (1 - DIGITS))
        assert (form.num_regs, form.smem_bytes) == (fit.gpu.configs[index].num_regs, fit.gpu.configs[index].smem_bytes)
        assert form.ctas_per_sm == fit.gpu.geometry.ctas_per_sm[index]


def test_the_default_is_the_models() -> None:
    """The default of the file is the default of the model."""
    fit = fitted()
    assert fit.file.forms[fit.file.default_index].config == fit.model.configs_[fit.model.default_].config


def test_measured_problems_fill_the_exact_table() -> None:
    """Every exhaustively measured problem is in the exact table with a configuration within the margin of its best."""
    fit = fitted()
    sweep = fit.table.select(fit.table.exhaustive)
    problems, latency = sweep.latency_matrix()
    assert {tuple(dims) for dims in problems.tolist()} == set(fit.file.exact)
    assert len(fit.file.exact) == len(realistic_problems())
    for dims, measured in zip(problems.tolist(), latency, strict=True):
        entry = fit.file.exact[tuple(dims)]
        of_entry = measured[fit.gpu.index_of(fit.file.forms[entry.config_index].config)]
        assert entry.latency_us == pytest.approx(of_entry, abs=6e-4)
        assert of_entry <= measured.min() * (1 + SURVIVOR_MARGIN)
        choice = fit.chooser(use_exact=True).explain(GemmProblem(*dims)) if dims[0] == 100 else None
        assert choice is None or (choice.source, choice.latency_us) == ("exact", entry.latency_us)


def test_fit_range_and_cells_come_from_measured_problems() -> None:
    """The fit range spans the measured sizes, and each measured problem has a cell."""
    fit = fitted()
    for axis, name in enumerate(GEMM.dims):
        assert fit.file.fit_range[name] == (fit.table.dims[:, axis].min(), fit.table.dims[:, axis].max())
    for dims in fit.table.dims[::50].tolist():
        assert tuple((size - 1).bit_length() for size in dims) in fit.file.cells
    assert fit.file.bound_log2 == fit.model.bound_log2
    assert (fit.file.layout, fit.file.dtype, fit.file.num_sms) == ("nk", "bf16", 132)


def test_candidates_are_never_much_slower_than_the_best_survivor() -> None:
    """Choosing among a cell's candidates loses less than half a percent to choosing among all survivors."""
    fit = fitted(deviation=0.2)
    chooser = fit.chooser()
    rng = np.random.default_rng(2)
    losses = []
    for dims in np.exp2(rng.uniform((0, 9, 9), (12, 14, 14), (300, 3))).astype(int).tolist():
        choice = chooser.explain(GemmProblem(*dims))
        if choice.source == "nearest":
            losses.append(choice.latency_us / chooser.rank(GemmProblem(*dims))[0].latency_us - 1.0)
    assert len(losses) > 200
    assert np.mean(losses) < 0.005
    assert min(losses) >= 0.0


def test_the_micro_table_covers_every_surviving_macro_configuration() -> None:
    """Each surviving macro configuration has its choice at increasing loop anchors, among its own launch forms."""
    fit = fitted()
    macros = {GEMM.macro_of(form.config) for form in fit.file.forms[: fit.file.n_modelled]}
    assert {choice.macro for choice in fit.file.micro} == macros
    assert len(fit.file.micro) == len(macros)
    for choice in fit.file.micro:
        assert list(choice.loop_trips) == sorted(set(choice.loop_trips))
        assert len(choice.loop_trips) == len(choice.config_index) >= 1
        for index in choice.config_index:
            assert GEMM.macro_of(fit.file.forms[index].config) == choice.macro


def test_provenance_and_accuracy_are_kept() -> None:
    """What is said about the data is stored as it is."""
    fit = fitted()
    file = build_model_file(fit.model, fit.table, provenance={"who": "me"}, accuracy={"geomean": 0.99})
    assert (file.provenance, file.accuracy) == ({"who": "me"}, {"geomean": 0.99})


def test_wave_structured_points_are_never_exact() -> None:
    """Without realistic problems the exact table is empty."""
    fit = fitted()
    assert best_measured(fit.table.select(~fit.table.exhaustive), {}) == {}


def test_a_survivor_within_the_margin_is_preferred() -> None:
    """A configuration outside the survivors enters the exact table only if it is faster by more than the margin."""
    fit = fitted()
    sweep = fit.table.select(fit.table.exhaustive & (fit.table.dims == (100, 4096, 4096)).all(axis=1))
    latency = np.full(len(sweep), 100.0)
    survivor, outsider = 2, 5
    survivors = {sweep.configs[survivor].config: 0}
    for gap, expected in ((0.005, survivor), (0.02, outsider)):
        latency[sweep.config_index == survivor] = 50.0
        latency[sweep.config_index == outsider] = 50.0 / (1.0 + gap)
        table = replace(sweep, latency_us=latency.copy())
        ((index, latency_us),) = best_measured(table, survivors).values()
        assert index == expected
        assert latency_us == latency[sweep.config_index == expected][0]


def test_a_problem_with_few_configurations_has_no_known_best() -> None:
    """A problem that was measured with fewer configurations than needed is not exact."""
    fit = fitted()
    sweep = fit.table.select(fit.table.exhaustive & (fit.table.dims == (100, 4096, 4096)).all(axis=1))
    assert best_measured(sweep.select(np.arange(MIN_CONFIGS - 1)), {}) == {}
    assert len(best_measured(sweep.select(np.arange(MIN_CONFIGS)), {})) == 1


def test_micro_choices_are_the_fastest_around_each_anchor() -> None:
    """Each loop anchor has the form that is fastest on average near it; anchors without a change are left out."""
    trips = np.array([1, 1, 4, 4, 16, 16, 64, 64])
    latency = np.log(np.array([[2.0, 1.0]] * 4 + [[1.0, 2.0]] * 2 + [[3.0, 1.0], [1.0, 1.1]]))
    assert _at_anchors(trips, latency) == ((1, 16, 64), (1, 0, 1))
