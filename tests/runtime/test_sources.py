"""Where answers come from, on a model small enough to know every one."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hand_made import EXACT_ONLY, FAST, PLAIN, POINTER, SPLIT, TMA, gemm_config, make_model

from wavetune.core.arch import find_arch
from wavetune.core.problem import GemmProblem
from wavetune.errors import NoModelError
from wavetune.mapping.gemm import map_gemm
from wavetune.runtime.chooser import GemmChooser
from wavetune.runtime.model_file import Cell, ExactEntry, LaunchForm, ModelFile
from wavetune.waves.geometry import wave_geometry

H200 = find_arch("nvidia-h200")


def chooser(model: ModelFile, **options: object) -> GemmChooser:
    """Return a chooser on the H200."""
    return GemmChooser(model, H200, **options)


def test_a_measured_problem_is_exact(model: ModelFile) -> None:
    """A problem of the exact table is answered from it, also with a configuration that has no form."""
    choice = chooser(model).explain(GemmProblem(512, 4096, 4096))
    assert (choice.source, choice.config, choice.latency_us) == ("exact", EXACT_ONLY, 33.25)
    assert choice.runner_up in (POINTER, TMA, SPLIT)
    mapping = map_gemm(GemmProblem(512, 4096, 4096), EXACT_ONLY, H200)
    waves = wave_geometry(mapping.grid_size, 4, 132)
    assert (choice.grid_size, choice.loop_trips) == (mapping.grid_size, mapping.loop_trips)
    assert (choice.waves, choice.tail_ctas) == (waves.waves, waves.tail_ctas)


def test_exact_answers_can_be_turned_off(model: ModelFile) -> None:
    """Without the exact table the cell answers."""
    choice = chooser(model, use_exact=False).explain(GemmProblem(512, 4096, 4096))
    assert choice.source == "nearest"
    assert choice.config in (POINTER, TMA)


def test_the_exact_table_is_for_full_alignment(model: ModelFile) -> None:
    """What was measured aligned does not answer for unaligned operands."""
    choice = chooser(model).explain(GemmProblem(512, 4096, 4096, alignment=8))
    assert choice.source == "nearest"
    assert choice.config in (POINTER, SPLIT)


def test_the_cells_candidates_decide(model: ModelFile) -> None:
    """Inside a cell only its candidates can win, whatever the other forms say."""
    assert chooser(model).explain(GemmProblem(16, 4096, 4096)).config == SPLIT
    for candidate in range(3):
        alone = replace(model, cells={(9, 12, 12): Cell((candidate,), (0, 0, 0))})
        choice = chooser(alone).explain(GemmProblem(500, 4000, 4000))
        assert (choice.source, choice.config) == ("nearest", model.forms[candidate].config)


def test_the_correction_decides_between_candidates(model: ModelFile) -> None:
    """The cell's factors turn the order of candidates around, and enter the prediction."""
    problem = GemmProblem(500, 4000, 4000)
    plain = chooser(replace(model, cells={(9, 12, 12): Cell((1, 2), (0, 0, 0))})).explain(problem)
    assert plain.runner_up is not None
    winner = [form.config for form in model.forms].index(plain.config)
    worse = tuple(900 if index == winner else 0 for index in range(3))
    turned = chooser(replace(model, cells={(9, 12, 12): Cell((1, 2), worse)})).explain(problem)
    assert {turned.config, plain.config} == {POINTER, TMA}
    slower = chooser(replace(model, cells={(9, 12, 12): Cell((winner,), worse)})).explain(problem)
    assert slower.config == plain.config
    assert slower.latency_us == pytest.approx(plain.latency_us * math.exp(0.9), rel=1e-12)


def test_a_problem_without_a_cell_is_answered_by_all_forms(model: ModelFile) -> None:
    """Beyond the cells the smallest form wins, and the source says that it was never measured near there."""
    problem = GemmProblem(100_000, 512, 512)
    answer = chooser(model).explain(problem)
    predictions = chooser(model).predict(problem)
    assert answer.source == "model"
    assert answer.config == min(predictions, key=predictions.__getitem__)
    assert answer.latency_us == predictions[answer.config]


def test_octaves_end_at_powers_of_two(model: ModelFile) -> None:
    """A cell holds the sizes above one power of two up to the next."""
    ask = chooser(model, use_exact=False)
    sources = {m: ask.explain(GemmProblem(m, 4096, 4096)).source for m in (256, 257, 512, 513)}
    assert sources == {256: "model", 257: "nearest", 512: "nearest", 513: "model"}


@pytest.mark.parametrize("alignment", [8, 4, 2, 1])
@pytest.mark.parametrize("dims", [(512, 4096, 4096), (300, 4096, 4096), (4096, 8192, 8192), (16, 4096, 4096)])
def test_tma_is_never_chosen_below_its_alignment(model: ModelFile, dims: tuple[int, int, int], alignment: int) -> None:
    """Below 16 bytes no answer and no runner-up loads with TMA, however fast it is."""
    fastest_by_far = replace(
        model, forms=(*model.forms[:2], model.forms[2]._replace(coefficients=(0.01,) * 10), model.forms[3])
    )
    ask = chooser(fastest_by_far)
    problem = GemmProblem(*dims, alignment=alignment)
    assert ask.choose(problem)["load"] == "pointer"
    choice = ask.explain(problem)
    assert choice.config == ask.choose(problem)
    assert choice.runner_up is None or choice.runner_up["load"] == "pointer"
    assert all(entry.config["load"] == "pointer" for entry in ask.rank(problem))
    assert ask.choose(GemmProblem(4096, 8192, 8192)) == TMA


def test_the_default_answers_where_nothing_modelled_is_legal() -> None:
    """With forms of TMA only, an unaligned problem gets the file's legal default, and the source says so."""
    forms = (LaunchForm(TMA, 1, 180, 98304, FAST), LaunchForm(POINTER, 3, 80, 50000, None))
    model = make_model(forms=forms, default_index=1, micro=(), cells={}, exact={})
    choice = chooser(model).explain(GemmProblem(100, 4096, 4096, alignment=2))
    assert (choice.source, choice.config, choice.runner_up) == ("default", POINTER, None)
    assert math.isnan(choice.latency_us)
    assert chooser(model).explain(GemmProblem(100, 4096, 4096)).source == "model"


def test_an_illegal_default_is_never_answered() -> None:
    """Where the default is illegal too, another legal configuration answers; with none it is an error, not a launch."""
    forms = (LaunchForm(TMA, 1, 180, 98304, FAST), LaunchForm(POINTER, 3, 80, 50000, None))
    bare = {"micro": (), "cells": {}, "exact": {}, "default_index": 0}
    problem = GemmProblem(100, 4096, 4096, alignment=2)
    assert chooser(make_model(forms=forms, **bare)).explain(problem).config == POINTER
    with pytest.raises(NoModelError, match="TMA needs 16-byte alignment"):
        chooser(make_model(forms=forms[:1], **bare)).choose(problem)
    with pytest.raises(NoModelError, match="no configuration is legal"):
        chooser(make_model(forms=forms[:1], **bare)).explain(problem)


@pytest.mark.parametrize("k", [1, 64, 65, 191, 192, 193, 256, 4096])
def test_a_split_needs_as_many_trips(k: int) -> None:
    """A configuration that splits k four ways is only chosen with four trips, however fast it is."""
    splitting = LaunchForm(SPLIT, 6, 40, 30000, (0.01,) * 10)
    forms = (splitting, LaunchForm(POINTER, 3, 80, 50000, PLAIN))
    cell = (4, 12, (k - 1).bit_length())
    for cells in ({}, {cell: Cell((0,), (0, 0))}, {cell: Cell((0, 1), (0, 0))}):
        ask = chooser(make_model(forms=forms, micro=(), cells=cells, exact={}))
        problem = GemmProblem(16, 4096, k)
        assert ask.choose(problem) == ask.explain(problem).config == (SPLIT if k > 192 else POINTER)
        assert ask.explain(problem).source == ("nearest" if cells else "model")


def test_an_empty_problem_gets_the_default(model: ModelFile) -> None:
    """With nothing to launch the answer is the default configuration."""
    choice = chooser(model).explain(GemmProblem(0, 4096, 4096))
    assert (choice.source, choice.config) == ("empty", POINTER)


def test_margin_is_the_runner_ups_disadvantage(model: ModelFile) -> None:
    """The margin compares the predictions of runner-up and choice."""
    ask = chooser(model)
    problem = GemmProblem(100_000, 512, 512)
    choice = ask.explain(problem)
    first, second = ask.rank(problem)[:2]
    assert (choice.config, choice.runner_up) == (first.config, second.config)
    assert choice.margin == pytest.approx(second.latency_us / first.latency_us - 1)


def test_a_lone_configuration_has_no_runner_up() -> None:
    """With one configuration there is no second."""
    model = make_model(forms=(LaunchForm(POINTER, 3, 80, 50000, PLAIN),), default_index=0, micro=(), cells={}, exact={})
    choice = chooser(model).explain(GemmProblem(5, 5, 5))
    assert (choice.runner_up, choice.margin) == (None, math.inf)


def test_fewer_sms_make_narrower_waves(model: ModelFile) -> None:
    """A launch that may use part of the GPU has more waves and is slower."""
    problem = GemmProblem(100_000, 512, 512)
    whole, half = chooser(model).explain(problem), chooser(model, num_sms=66).explain(problem)
    assert half.latency_us > whole.latency_us
    mapping = map_gemm(problem, half.config, H200)
    resident = next(form.ctas_per_sm for form in model.forms if form.config == half.config)
    assert half.waves == -(-mapping.grid_size // (66 * resident))


def test_the_first_of_equal_configurations_wins() -> None:
    """Ties are broken by table order, in the choice as in the ranking."""
    twins = (LaunchForm(gemm_config(64, 64), 3, 80, 50000, PLAIN), LaunchForm(
        gemm_config(64, 64, load="tma"), 3, 80, 50000, PLAIN))  # fmt: skip
    for cells in ({}, {(6, 6, 6): Cell((0, 1), (0, 0))}):
        ask = chooser(make_model(forms=twins, default_index=0, micro=(), cells=cells, exact={}))
        problem = GemmProblem(64, 64, 64)
        assert ask.choose(problem) == twins[0].config == ask.rank(problem)[0].config


def test_the_exact_table_beats_the_cell() -> None:
    """An exact answer wins even where the cell would choose another configuration."""
    model = make_model(exact={(512, 4096, 4096): ExactEntry(0, 99.0)})
    choice = chooser(model).explain(GemmProblem(512, 4096, 4096))
    assert (choice.source, choice.config) == ("exact", SPLIT)
    assert choice.margin < 0
