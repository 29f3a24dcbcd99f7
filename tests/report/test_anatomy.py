"""A launch taken apart adds up to what the runtime predicts."""

from __future__ import annotations

import math

import pytest
from hand_made import EXACT_ONLY, POINTER, SPLIT, TMA, gemm_config, make_model
from made_up_report import held_out_sweep, made_up_inputs

from wavetune.core.arch import find_arch
from wavetune.core.problem import GemmProblem
from wavetune.errors import ConfigError, ProblemError
from wavetune.report.anatomy import dissect
from wavetune.report.reasons import TERM_GROUPS, compare_launches, describe_launch, explain_miss, group_terms
from wavetune.runtime.chooser import GemmChooser
from wavetune.runtime.model_file import LaunchForm
from wavetune.waves.terms import TERMS

H200 = find_arch("h200")
SIZES = [(1, 4096, 4096), (300, 4000, 3000), (512, 4096, 4096), (2048, 28672, 4096), (8192, 57344, 8192)]


@pytest.mark.parametrize("sizes", SIZES)
def test_terms_add_up_to_the_prediction(sizes: tuple[int, int, int]) -> None:
    """The terms of every modelled configuration, in a cell and beyond, sum to the runtime's latency."""
    model = made_up_inputs().model
    problem = GemmProblem(*sizes)
    predicted = GemmChooser(model, H200).predict(problem)
    assert len(predicted) == model.n_modelled
    for config, latency_us in predicted.items():
        launch = dissect(model, H200, problem, config)
        assert launch.latency_us == pytest.approx(latency_us, rel=1e-9)
        assert sum(group_terms(launch).values()) == pytest.approx(latency_us, rel=1e-9)


def test_groups_hold_every_term_once() -> None:
    """No term of the model is left out of the words, none is counted twice."""
    assert sorted(name for names in TERM_GROUPS.values() for name in names) == sorted(TERMS)


def test_geometry_by_hand() -> None:
    """Tiles, padding and tail of one launch are what a hand counts."""
    launch = dissect(make_model(), H200, GemmProblem(500, 4000, 4096), POINTER)
    assert (launch.mapping.tiles_m, launch.mapping.tiles_n) == (8, 63)
    assert launch.waves.width == 3 * 132
    assert launch.waves.waves == 2
    assert launch.waves.tail_ctas == 504 - 396
    assert launch.tail_fill == pytest.approx(108 / 396)
    assert launch.padding == pytest.approx(1.0 - 500 * 4000 / (512 * 4032))
    assert launch.memory_us == pytest.approx((500 * 4096 + 4000 * 4096 + 500 * 4000) * 2 / 4.8e6)
    assert launch.compute_us == pytest.approx(2 * 500 * 4000 * 4096 / 989.4e6)


def test_a_configuration_without_a_form_has_a_geometry_but_no_prediction() -> None:
    """What only the exact table holds, or nothing holds, is described without a latency."""
    problem, other = GemmProblem(512, 4096, 4096), gemm_config(256, 64)
    launch = dissect(make_model(), H200, problem, EXACT_ONLY)
    assert math.isnan(launch.latency_us)
    assert group_terms(launch) == {}
    assert "time" not in dict(describe_launch(launch, H200))
    with pytest.raises(ConfigError, match="does not hold"):
        dissect(make_model(), H200, problem, other)
    assert dissect(make_model(), H200, problem, other, form=LaunchForm(other, 1, 64, 0, None)).waves.waves == 1


def test_an_empty_problem_is_refused() -> None:
    """There is nothing to take apart where a size is zero."""
    with pytest.raises(ProblemError, match="no tiles"):
        dissect(make_model(), H200, GemmProblem(0, 64, 64), POINTER)


def test_words_say_the_numbers() -> None:
    """The sentences hold the grid, the waves, the tail, the trips, the splits and the bytes."""
    words = dict(describe_launch(dissect(make_model(), H200, GemmProblem(500, 4000, 4096), POINTER), H200))
    assert words["tiles"].startswith("504 tiles of 64 x 64 (8 x 63)")
    assert words["waves"] == "504 CTAs in 2 waves of up to 396 (3 on each of 132 SMs); the last holds 108: 27% full"
    assert words["loop"] == "each CTA runs 64 trips of 64 along k"
    assert "split-k" not in words
    assert "arithmetic bounds it" in words["bytes"]
    split = dict(describe_launch(dissect(make_model(), H200, GemmProblem(16, 4096, 4096), SPLIT), H200))
    assert split["split-k"].startswith("k is cut in 4: 4 times the CTAs")
    assert "memory bounds it" in split["bytes"]
    large = dict(describe_launch(dissect(make_model(), H200, GemmProblem(8192, 57344, 8192), TMA), H200))
    assert "fetched again" in large["bytes"]
    assert "power limit" in large["clock"]


def test_tiles_that_fit_are_said_to_fit() -> None:
    """No padding is told where there is none."""
    words = dict(describe_launch(dissect(make_model(), H200, GemmProblem(512, 4096, 4096), POINTER), H200))
    assert words["tiles"].endswith("they fit the problem exactly")


def test_a_difference_names_the_largest_part_first() -> None:
    """Two launches are told apart by the parts of their time, and are alike to themselves."""
    model, problem = make_model(), GemmProblem(512, 4096, 4096)
    ours, theirs = (dissect(model, H200, problem, config) for config in (TMA, POINTER))
    text = compare_launches(ours, theirs)
    change = {label: group_terms(theirs)[label] - group_terms(ours)[label] for label in group_terms(ours)}
    largest = max(change, key=lambda label: abs(change[label]))
    assert text.startswith(f"{largest} {change[largest]:+.1f} us")
    assert compare_launches(ours, ours) == "no difference in any term"
    assert compare_launches(ours, dissect(model, H200, problem, EXACT_ONLY)) == ""


def test_a_miss_says_what_was_mispredicted() -> None:
    """Words of a miss: how far each prediction was off, and whether the model could have answered right."""
    model, problem = make_model(), GemmProblem(512, 4096, 4096)
    choice, best, unheld = (dissect(model, H200, problem, config) for config in (TMA, POINTER, EXACT_ONLY))
    text = explain_miss(choice, choice.latency_us * 2, best, best.latency_us / 1.25)
    assert text.startswith("The choice was predicted 50% too fast, the fastest 25% too slow.")
    assert "Going from the choice to the fastest, the model expects" in text
    text = explain_miss(choice, choice.latency_us, unheld, 10.0, 11.0)
    assert "predicted right (+0.0%)" in text
    assert "not among the configurations that the model holds" in text
    assert "The best of those is 10.0% slower" in text
    assert "no form" in explain_miss(unheld, 1.0, best, 1.0)


def test_the_synthetic_sweep_is_fully_explained() -> None:
    """Every configuration of the sweep that the model holds can be taken apart on every shape."""
    model = made_up_inputs().model
    for sizes in held_out_sweep().problems()[0][:5].tolist():
        problem = GemmProblem(*sizes)
        for config in GemmChooser(model, H200).predict(problem):
            launch = dissect(model, H200, problem, config)
            assert 0.0 <= launch.padding < 1.0
            assert 0.0 < launch.occupied <= 1.0
            assert launch.tail_fill <= 1.0
