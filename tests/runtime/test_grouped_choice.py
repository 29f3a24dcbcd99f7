"""Choosing for grouped GEMM: by histogram, by what is likely, for both projections together."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import wavetune
from wavetune.core.arch import find_arch
from wavetune.core.config import GROUPED_GEMM, KernelConfig
from wavetune.core.grouped_problem import GroupedGemmProblem, spread_groups
from wavetune.core.routing import Routing
from wavetune.errors import MissError, NoModelError, ProblemError
from wavetune.mapping.grouped_gemm import map_grouped_gemm
from wavetune.mapping.grouped_shape import grouped_mapping
from wavetune.mapping.kernel_mapping import KernelProblem
from wavetune.mapping.source_digest import mapping_digest
from wavetune.runtime.choice import Source
from wavetune.runtime.family_file import FamilyFile, FamilyForm, family_file_name, write_family
from wavetune.runtime.family_forms import form_latency_us
from wavetune.runtime.grouped_choice import (
    RoutingPrior,
    choose_grouped_gemm,
    choose_grouped_gemm_config,
    choose_grouped_gemm_for_graph,
    least_expected_regret,
    rank_grouped_gemm,
)
from wavetune.runtime.grouped_forms import SURPLUS_CTA_US, GroupedForms
from wavetune.runtime.grouped_pair import PairChoice, choose_grouped_gemm_pair

H200 = find_arch("h200")


def make_form(
    block_m: int, block_n: int, resident: int, trip_us: float, *, schedule: str = "tile", load: str = "tma"
) -> FamilyForm:
    """Return a form that is bound by the matrix unit and by memory."""
    config = GROUPED_GEMM.config(
        {
            "block_m": block_m, "block_n": block_n, "block_k": 64, "schedule": schedule, "num_warps": 4,
            "num_stages": 3, "load": load,
        }
    )  # fmt: skip
    return FamilyForm(config, resident, 64, 65536, (3.0, 0.4, 0.02, trip_us, 0.05, trip_us / 2, 0.01, 0.015, 0.22))


FORMS = (
    make_form(16, 64, 4, 0.05),
    make_form(64, 128, 2, 0.16),
    make_form(128, 128, 2, 0.25),
    make_form(128, 256, 1, 0.42, schedule="persistent"),
    make_form(64, 64, 3, 0.2, load="pointer"),
)
MEASURED = GroupedGemmProblem(spread_groups(128, 4096, 100, 300), 1536, 2048)


def make_model(layout: str = "nk", **changes: object) -> FamilyFile:
    """Return a model of made-up forms."""
    model = FamilyFile(
        kernel="grouped_gemm", dtype="bf16", layout=layout, dims=GROUPED_GEMM.dims, arch=H200.name, num_sms=132,
        mapping_digest=mapping_digest(grouped_mapping("bf16", layout, H200)), forms=FORMS, default_index=2,
        exact={MEASURED.dims: (4, 55.0)},
        fit_range={
            "experts": (4, 256), "tokens": (1, 131072), "active": (1, 256), "largest": (1, 16384), "n": (256, 14336),
            "k": (128, 7168),
        },
    )  # fmt: skip
    return replace(model, **changes)  # type: ignore[arg-type]


@pytest.fixture
def models(tmp_path: Path) -> Iterator[Path]:
    """Answer from a folder that holds a model of plain weights."""
    write_family(make_model(), tmp_path / H200.name / family_file_name("grouped_gemm", "bf16", "nk"))
    wavetune.configure(models=[tmp_path], arch="nvidia-h200")
    wavetune.clear_caches()
    yield tmp_path
    wavetune.configure(models=None, arch=None)
    wavetune.clear_caches()


@pytest.fixture
def nothing_shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the models that come with the package."""
    monkeypatch.setattr("wavetune.runtime.locate._PACKAGE", tmp_path / "nowhere" / "wavetune")


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.one_of(st.just(0), st.integers(0, 40), st.integers(0, 3000)), min_size=1, max_size=40),
    st.sampled_from([64, 1000, 1536, 14336]),
    st.sampled_from([64, 72, 768, 7168]),
    st.sampled_from([132, 66]),
    st.sampled_from(["nk", "gated"]),
)
def test_fast_forms_equal_the_definitions(sizes: list[int], n: int, k: int, num_sms: int, layout: str) -> None:
    """What is shared between forms changes no prediction."""
    problem = GroupedGemmProblem(tuple(sizes), n, k, layout=layout)
    if problem.is_empty:
        return
    forms = GroupedForms(make_model(layout), num_sms)
    expected = [
        form_latency_us(form, map_grouped_gemm(problem, form.config, H200).launch_shape(), num_sms) for form in FORMS
    ]
    assert forms.latencies(problem, range(len(FORMS))) == pytest.approx(expected, rel=1e-12)
    unknown = forms.latencies(problem, range(len(FORMS)), is_known=False)
    for form, known_us, unknown_us in zip(FORMS, expected, unknown, strict=True):
        mapping = map_grouped_gemm(problem, form.config, H200)
        surplus = mapping.launched_ctas - mapping.grid_size if form.config["schedule"] == "tile" else 0
        assert unknown_us == pytest.approx(known_us + SURPLUS_CTA_US * surplus / num_sms, rel=1e-12)


@pytest.mark.usefixtures("models")
def test_the_histogram_decides_and_not_the_total() -> None:
    """The same 4096 tokens get a flat tile where they are spread, and a tall one where one expert has them all."""
    spread = choose_grouped_gemm_config((16,) * 256, 1536, 2048)
    skewed = choose_grouped_gemm_config((4096, *(0,) * 255), 1536, 2048)
    assert (spread["block_m"], skewed["block_m"]) == (16, 128)


@pytest.mark.usefixtures("models")
def test_choices_are_the_fastest_legal_forms() -> None:
    """The first of the ranking, whose order is that of the predictions; pointer loads alone for unaligned weights."""
    problem = GroupedGemmProblem((5, 0, 700, 64), 1536, 2048)
    ranked = rank_grouped_gemm(problem)
    assert [entry.latency_us for entry in ranked] == sorted(entry.latency_us for entry in ranked)
    assert {entry.config for entry in ranked} == {form.config for form in FORMS}
    choice = choose_grouped_gemm(problem)
    assert (choice.config, choice.latency_us) == (ranked[0].config, ranked[0].latency_us)
    assert choice.source is Source.NEAREST
    assert choose_grouped_gemm(problem) is choice
    odd = GroupedGemmProblem((5, 0, 700, 64), 1536, 2047)
    assert [entry.config["load"] for entry in rank_grouped_gemm(odd)] == ["pointer"]
    far = GroupedGemmProblem((5, 0, 700, 64), 10**6, 2048)
    assert choose_grouped_gemm(far).source is Source.MODEL
    assert choose_grouped_gemm(GroupedGemmProblem((0, 0), 64, 64)).source is Source.EMPTY


@pytest.mark.usefixtures("models", "nothing_shipped")
def test_a_measured_key_answers_for_its_own_histogram_only() -> None:
    """Another histogram was not measured, nor another number of SMs, nor a layout that plain weights stand in for."""
    assert choose_grouped_gemm(MEASURED).source is Source.EXACT
    assert choose_grouped_gemm(MEASURED).config == FORMS[4].config
    turned = replace(MEASURED, group_sizes=MEASURED.group_sizes[::-1])
    assert turned.dims == MEASURED.dims
    assert choose_grouped_gemm(turned).source is Source.NEAREST
    assert choose_grouped_gemm(MEASURED, num_sms=66).source is Source.MODEL
    assert choose_grouped_gemm(replace(MEASURED, layout="gated")).source is Source.MODEL


@pytest.mark.usefixtures("nothing_shipped")
def test_weights_have_a_model_of_their_own_or_borrow_one(models: Path) -> None:
    """Plain weights answer for gated ones, and bf16 for fp16, until there is a nearer model."""
    assert choose_grouped_gemm_config((300, 2), 1536, 2048, dtype="fp16", layout="gated") in {
        form.config for form in FORMS
    }
    assert choose_grouped_gemm_config((300, 2), 1536, 2048, layout="gated") in {form.config for form in FORMS}
    only = make_model("gated", forms=FORMS[1:2], default_index=0, exact={})
    write_family(only, models / H200.name / family_file_name("grouped_gemm", "bf16", "gated"))
    wavetune.clear_caches()
    for dtype in ("bf16", "fp16"):
        assert choose_grouped_gemm_config((300, 2), 1536, 2048, dtype=dtype, layout="gated") == FORMS[1].config


@pytest.mark.usefixtures("models")
def test_without_a_model_there_is_no_answer() -> None:
    """The error says what is missing."""
    with pytest.raises(NoModelError, match="no model of grouped_gemm for fp8_fast and nk on nvidia-h200"):
        choose_grouped_gemm_config((1, 2), 64, 64, dtype="fp8_fast")
    with pytest.raises(NoModelError, match="on nvidia-a100"):
        choose_grouped_gemm_config((1, 2), 64, 64, arch="a100")


def test_a_model_of_another_mapping_is_passed_over(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Forms mean nothing under other counts; nothing else answers where no other model is found."""
    monkeypatch.setattr("wavetune.runtime.locate._PACKAGE", tmp_path / "nowhere" / "wavetune")
    stale = make_model(mapping_digest="sha256:0")
    write_family(stale, models / H200.name / family_file_name("grouped_gemm", "bf16", "nk"))
    wavetune.clear_caches()
    with pytest.raises(NoModelError):
        choose_grouped_gemm_config((1, 2), 64, 64)
    assert "mapping_digest" in caplog.text


def test_least_expected_regret() -> None:
    """The column that is never far behind, not the one that is often best; the reported latency is its mean."""
    column, latency_us = least_expected_regret([[1.0, 1.2, 9.0], [10.0, 6.0, 5.0], [1.0, 1.1, 1.0]])
    assert (column, latency_us) == (1, pytest.approx(8.3 / 3))


@pytest.mark.usefixtures("models")
def test_a_graph_gets_what_is_least_regretted_over_the_prior() -> None:
    """Equal to evaluating every form on every histogram of the prior, surplus CTAs included."""
    prior = RoutingPrior((Routing("zipf", 0.0), Routing("zipf", 1.5)), samples=3)
    for tokens, experts in ((8, 128), (1024, 128), (16384, 64)):
        forms = GroupedForms(make_model())
        regrets = [0.0] * len(FORMS)
        for sizes in prior.histograms(experts, tokens):
            assert (len(sizes), sum(sizes)) == (experts, tokens)
            problem = GroupedGemmProblem(sizes, 1536, 2048)
            latencies = forms.latencies(problem, range(len(FORMS)), is_known=False)
            regrets = [r + us / min(latencies) for r, us in zip(regrets, latencies, strict=True)]
        expected = FORMS[min(range(len(FORMS)), key=regrets.__getitem__)].config
        assert choose_grouped_gemm_for_graph(tokens, experts, 1536, 2048, prior=prior) == expected
    assert choose_grouped_gemm_for_graph(0, 8, 1536, 2048)["load"] in ("tma", "pointer")


def test_a_prior_respects_the_experts_of_a_token() -> None:
    """One token with eight experts gives eight of them one row each."""
    assert all(sorted(sizes)[-8:] == [1] * 8 for sizes in RoutingPrior().histograms(64, 8, top_k=8))
    assert max(max(sizes) for sizes in RoutingPrior().histograms(64, 800, top_k=8)) <= 100
    assert RoutingPrior(seed=1).histograms(64, 800) != RoutingPrior().histograms(64, 800)


def separate(sizes: tuple[int, ...]) -> tuple[KernelConfig, KernelConfig]:
    """Return what both projections get if nothing is shared."""
    return (
        choose_grouped_gemm_config(sizes, 1536, 2048, layout="gated"),
        choose_grouped_gemm_config(sizes, 7168, 64),
    )


@pytest.mark.usefixtures("models")
@pytest.mark.parametrize("sizes", [(40,) * 16, (100, 0, 3, 1000), (1,) * 64])
def test_pairs_weigh_the_preparation(sizes: tuple[int, ...]) -> None:
    """Free preparation leaves each its best, an infinite price forces one height, and the sum never falls."""

    def pair(align_us: float) -> PairChoice:
        return choose_grouped_gemm_pair(sizes, (1536, 2048), (7168, 64), align_us=align_us)

    free = pair(0.0)
    assert (free.up, free.down) == separate(sizes)
    forced = pair(math.inf)
    assert forced.is_shared
    assert forced.up["block_m"] == forced.down["block_m"]
    before = free.latency_us
    for align_us in (0.5, 2.0, 10.0, 1e6):
        choice = pair(align_us)
        assert choice.is_shared == (choice.up["block_m"] == choice.down["block_m"])
        assert choice.latency_us >= before
        before = choice.latency_us
    assert (choice.up, choice.down) == (forced.up, forced.down)


@pytest.mark.usefixtures("models")
def test_a_pair_differs_where_that_pays() -> None:
    """There are sizes whose projections want different heights, and a price from which they share one."""
    sizes = (90,) * 24
    apart = [choose_grouped_gemm_pair(sizes, (256, 7168), (7168, 64), align_us=price) for price in (0.0, 1e9)]
    assert [choice.is_shared for choice in apart] in ([False, True], [True, True])
    with pytest.raises(ProblemError, match="align_us"):
        choose_grouped_gemm_pair(sizes, (256, 7168), (7168, 64), align_us=-1.0)
    with pytest.raises(ProblemError, match="align_us"):
        choose_grouped_gemm_pair(sizes, (256, 7168), (7168, 64), align_us=math.nan)


@pytest.mark.usefixtures("models")
def test_choose_answers_for_grouped_problems() -> None:
    """The general functions ask the family; what it cannot promise or was not measured is an error."""
    problem = GroupedGemmProblem((5, 0, 700, 64), 1536, 2048)
    assert wavetune.choose(problem) == choose_grouped_gemm_config(problem.group_sizes, 1536, 2048)
    assert wavetune.rank_configs(problem) == rank_grouped_gemm(problem)
    assert wavetune.choose(problem, numerics="deterministic", on_miss="error") == wavetune.choose(problem)
    with pytest.raises(MissError, match="beyond what was measured"):
        wavetune.choose(GroupedGemmProblem((5, 0, 700, 64), 10**6, 2048), on_miss="error")
    with pytest.raises(NoModelError, match="for every batch"):
        wavetune.choose(problem, numerics="batch_invariant")
    with pytest.raises(NoModelError, match="KernelProblem"):
        wavetune.choose(KernelProblem("somebody's", (1,), "bf16"))
