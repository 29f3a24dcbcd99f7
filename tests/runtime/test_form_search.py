"""The search with bounds, and the hot path, give what computing everything in full gives, bit by bit."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hand_made import PLAIN, gemm_config, make_model
from hypothesis import given
from hypothesis import strategies as st

import wavetune
from wavetune.core.arch import find_arch
from wavetune.core.config import KernelConfig
from wavetune.core.problem import GemmProblem
from wavetune.runtime.chooser import GemmChooser
from wavetune.runtime.codec import read_model
from wavetune.runtime.form_search import MAX_HINTS, FormSearch
from wavetune.runtime.gemm_forms import GemmForms
from wavetune.runtime.hot_path import HotPath
from wavetune.runtime.misses import MissList, ResolverKey
from wavetune.runtime.model_file import Cell, LaunchForm, ModelFile
from wavetune.waves.terms import TERMS

H200 = find_arch("nvidia-h200")
SIZES = st.one_of(st.integers(1, 500), st.integers(1, 2**17), st.integers(1, 2**20))
BLOCKS = st.sampled_from([16, 32, 64, 96, 128, 192, 256])
COEFFICIENTS = st.lists(st.one_of(st.just(0.0), st.floats(1e-3, 10.0)), min_size=len(TERMS), max_size=len(TERMS))
CONFIGS = st.builds(
    lambda m, n, k, split, group: gemm_config(m, n, split_k=split).replace(block_k=k, group_m=group),
    BLOCKS, BLOCKS, st.sampled_from([16, 64, 256]), st.sampled_from([1, 1, 1, 2, 7, 16]), st.sampled_from([1, 8]),
)  # fmt: skip


def cell_of(dims: tuple[int, int, int]) -> tuple[int, int, int]:
    """Return the octaves of sizes."""
    m, n, k = ((size - 1).bit_length() for size in dims)
    return m, n, k


def log_uniform(rng: random.Random, low: float, high: float) -> int:
    """Draw a size that is as likely in every octave."""
    return int(2 ** rng.uniform(low, high))


@given(
    st.lists(st.tuples(CONFIGS, st.integers(1, 8), COEFFICIENTS), min_size=1, max_size=8),
    st.lists(st.tuples(SIZES, SIZES, SIZES), min_size=1, max_size=6),
    st.sampled_from([132, 100, 1]),
)
def test_bounds_exclude_nothing_that_could_win(
    drawn: list[tuple[KernelConfig, int, list[float]]], shapes: list[tuple[int, int, int]], num_sms: int
) -> None:
    """Whatever the coefficients, index and latency are those of all forms computed in full; asked again, too."""
    forms = tuple(LaunchForm(config, resident, 32, 0, tuple(c)) for config, resident, c in drawn)
    model = make_model(forms=forms, default_index=0, micro=(), cells={}, exact={})
    evaluator = GemmForms(model, H200, num_sms)
    search = FormSearch(evaluator)
    for dims in shapes * 2:
        assert search.fastest(*dims, cell_of(dims)) == evaluator.fastest(*dims, evaluator.all_entries)


@pytest.mark.parametrize("num_sms", [132, 60])
def test_the_shipped_forms_are_searched_exactly(shipped_path: Path, num_sms: int) -> None:
    """On thousands of shapes from a token to beyond every layer, nothing but time is saved."""
    model, rng = read_model(shipped_path), random.Random(1)
    evaluator = GemmForms(model, H200, num_sms)
    search = FormSearch(evaluator)
    for _ in range(4000):
        dims = (log_uniform(rng, 0, 17), log_uniform(rng, 3, 17), log_uniform(rng, 3, 17))
        assert search.fastest(*dims, cell_of(dims)) == evaluator.fastest(*dims, evaluator.all_entries)


def test_of_equal_forms_the_first_wins_whatever_was_asked_before() -> None:
    """Where a search begins depends on earlier answers; its answer does not."""
    twins = tuple(
        LaunchForm(gemm_config(64, 64, load=load).replace(group_m=group), 3, 80, 50000, PLAIN)
        for load in ("tma", "pointer")
        for group in (4, 8)
    )
    odd = LaunchForm(gemm_config(256, 256), 1, 80, 50000, tuple(c * 3 for c in PLAIN))
    model = make_model(forms=(odd, *twins), default_index=0, micro=(), cells={}, exact={})
    evaluator = GemmForms(model, H200, 132)
    search = FormSearch(evaluator)
    rng = random.Random(2)
    for _ in range(300):
        dims = (log_uniform(rng, 0, 9), log_uniform(rng, 0, 9), log_uniform(rng, 0, 9))
        # One cell for all, so that hints are as bad as they get.
        assert search.fastest(*dims, (0, 0, 0)) == evaluator.fastest(*dims, evaluator.all_entries)
        assert search.fastest(*dims, (0, 0, 0))[0] in (0, 1)


def test_hints_are_bounded(model: ModelFile) -> None:
    """Shapes of ever new cells do not make the search grow."""
    search = FormSearch(GemmForms(model, H200, 132))
    for number in range(MAX_HINTS + 10):
        search.fastest(5, 5, 5, (number, 0, 0))
    assert len(search._hints) <= MAX_HINTS


@pytest.mark.parametrize("num_sms", [132, 66])
def test_the_hot_path_is_the_chooser(shipped_path: Path, num_sms: int) -> None:
    """The flattened path gives configuration and source of the readable one, in and beyond the cells."""
    model, rng = read_model(shipped_path), random.Random(3)
    chooser = GemmChooser(model, H200, num_sms)
    misses = MissList(ResolverKey("gemm", "bf16", "nk", H200.name, num_sms, "any"))
    path = HotPath(chooser, {}, misses)
    assert path.safe_side >= 2**17
    sources = set()
    for _ in range(3000):
        dims = (log_uniform(rng, 0, 17), log_uniform(rng, 3, 17), log_uniform(rng, 3, 17))
        config, source = chooser.choose_modelled(GemmProblem(*dims, alignment=16))
        assert path.choose(*dims) == config
        assert path.source_of(*dims) == source
        sources.add(source)
    assert sources == ({"nearest", "model"} if num_sms == 132 else {"model"})


def test_where_every_candidate_splits_too_much_the_others_answer() -> None:
    """A cell whose candidates are all illegal for a short k does not make the hot path fail."""
    wide = LaunchForm(gemm_config(16, 64, split_k=16), 6, 40, 30000, (0.01,) * 10)
    plain = LaunchForm(gemm_config(64, 64), 3, 80, 50000, PLAIN)
    for cells in ({}, {(4, 12, 7): bare_cell((0,), 2)}):
        model = make_model(forms=(wide, plain), default_index=1, micro=(), cells=cells, exact={})
        chooser = GemmChooser(model, H200)
        path = HotPath(chooser, {}, MissList(ResolverKey("gemm", "bf16", "nk", H200.name, 132, "any")))
        for k in (100, 128):
            assert path.choose(16, 4096, k) == plain.config == chooser.choose(GemmProblem(16, 4096, k, alignment=16))


def bare_cell(candidates: tuple[int, ...], n_forms: int) -> Cell:
    """Return a cell without corrections."""
    return Cell(candidates, (0,) * n_forms)


def test_public_answers_are_those_of_the_slow_way() -> None:
    """A first call, a repeated one, one through `explain_choice` and one with rare options agree."""
    rng = random.Random(4)
    for _ in range(200):
        dims = (log_uniform(rng, 0, 15), 8 * log_uniform(rng, 3, 14), 8 * log_uniform(rng, 3, 14))
        answers = [wavetune.choose_config(*dims, arch="h200") for _ in range(2)]
        answers.append(wavetune.explain_choice(*dims, arch="h200").config)
        answers.append(wavetune.choose_config(*dims, arch="h200", on_miss="model"))
        answers.append(wavetune.choose_config(*dims, arch="h200", num_sms=132, numerics="deterministic"))
        answers.append(wavetune.choose(GemmProblem(*dims), arch="h200"))
        assert len(set(answers)) == 1
