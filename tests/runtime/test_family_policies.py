"""Settings, miss policies and impossible arguments of the families that bring their own mapping, on shipped models."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

import wavetune
from wavetune.core.attention_problem import MAX_SEQUENCES, AttentionDecodeProblem, AttentionProblem
from wavetune.core.grouped_problem import MAX_EXPERTS, GroupedGemmProblem
from wavetune.core.problem import Problem
from wavetune.errors import MissError, NoModelError, ProblemError, ProblemTypeError
from wavetune.mapping.attention_shape import map_problem
from wavetune.runtime.attention_choice import find_model as find_attention
from wavetune.runtime.choice import Choice, Source
from wavetune.runtime.device import resolve_device
from wavetune.runtime.families import explain_of_family
from wavetune.runtime.grouped_choice import RoutingPrior, choose_grouped_gemm_for_graph
from wavetune.runtime.grouped_choice import find_model as find_grouped
from wavetune.runtime.grouped_pair import choose_grouped_gemm_pair

NEAR = (AttentionProblem((40,), heads=32, kv_heads=8), GroupedGemmProblem((12, 0, 7, 300), 4096, 4096))
FAR = (AttentionProblem((10**7,), heads=32, kv_heads=8), GroupedGemmProblem((10**8, 3), 4096, 4096))
EMPTY = (AttentionProblem((0,), heads=32, kv_heads=8), GroupedGemmProblem((0, 0), 4096, 4096))


@pytest.fixture(autouse=True)
def _h200() -> Iterator[None]:
    """Answer for the GPU whose models ship."""
    wavetune.configure(arch="h200")
    yield
    wavetune.configure(arch=None, disable=None, on_miss=None, force_config=None)


def default_of(problem: Problem) -> object:
    """Return the default configuration of the model that answers."""
    find = find_attention if isinstance(problem, AttentionProblem) else find_grouped
    model = find(problem, resolve_device(None, None))  # type: ignore[arg-type]
    return model.forms[model.default_index].config


def explain(problem: Problem, on_miss: str = "model") -> Choice:
    """Return an answer and its source."""
    return explain_of_family(problem, None, None, "any", on_miss)


@pytest.mark.parametrize("problem", NEAR)
def test_disabled_answers_the_default(problem: Problem) -> None:
    """As for a GEMM; without the setting these problems get something else."""
    assert wavetune.choose(problem) != default_of(problem)
    wavetune.configure(disable=True)
    assert wavetune.choose(problem) == default_of(problem)
    assert explain(problem).source is Source.DEFAULT
    if isinstance(problem, GroupedGemmProblem):
        assert choose_grouped_gemm_for_graph(319, 4, 4096, 4096) == default_of(problem)


@pytest.mark.parametrize("problem", NEAR)
def test_a_configuration_that_the_model_has_can_be_forced(problem: Problem) -> None:
    """Also a slow one, and by some of its fields; one that the model does not have, or of another kernel, is not."""
    free, slow = wavetune.choose(problem), wavetune.rank_configs(problem)[-1].config
    wavetune.configure(force_config=slow)
    assert wavetune.choose(problem) == slow != free
    assert explain(problem).source is Source.FORCED
    if isinstance(problem, GroupedGemmProblem):
        assert choose_grouped_gemm_for_graph(319, 4, 4096, 4096) == slow
    wavetune.configure(force_config={"block_m": slow["block_m"]})
    assert wavetune.choose(problem)["block_m"] == slow["block_m"]
    wavetune.configure(force_config={**slow, "block_m": 48})
    assert wavetune.choose(problem) == free
    wavetune.configure(force_config={"block_n": 32, "splits": 2, "num_warps": 4, "num_stages": 3})
    assert wavetune.choose(problem) == free
    assert wavetune.choose_config(512, 4096, 4096)["block_m"] > 1


@pytest.mark.parametrize("problem", FAR)
def test_beyond_the_measured_range_the_policy_decides(problem: Problem) -> None:
    """``default`` is a policy for families, too; the error names the sizes, and not every group."""
    assert explain(problem).source is Source.MODEL
    assert explain(problem, "default").source is Source.DEFAULT
    assert wavetune.choose(problem, on_miss="default") == default_of(problem)
    name = "q_len=10000000" if isinstance(problem, AttentionProblem) else "largest=100000000"
    with pytest.raises(MissError, match=name):
        wavetune.choose(problem, on_miss="error")


@pytest.mark.parametrize(
    ("measured", "fields"),
    [
        (GroupedGemmProblem((12, 0, 7, 300), 4096, 4096, layout="gated"), {"dtype": "fp16"}),
        (AttentionProblem((512, 700), heads=32, kv_heads=8, head_dim=64), {"dtype": "fp16"}),
        (AttentionDecodeProblem((512, 700), heads=32, kv_heads=8, head_dim=256), {"dtype": "fp16"}),
    ],
)
def test_what_a_stand_in_answers_was_not_measured(measured: Problem, fields: dict[str, str]) -> None:
    """fp16 without a model is beyond what was measured, whatever its sizes, and the answer of bf16's says why."""
    other = replace(measured, **fields)
    assert (explain(measured).source, explain(measured).is_stand_in) == (Source.NEAREST, False)
    assert (explain(other).source, explain(other).is_stand_in) == (Source.MODEL, True)
    with pytest.raises(MissError, match="stands in"):
        wavetune.choose(other, on_miss="error")
    assert wavetune.choose(other) == explain(other).config == wavetune.choose(measured)


@pytest.mark.parametrize(
    "problem",
    [
        AttentionProblem((2**31 - 1,) * 1000, heads=128, kv_heads=128),
        AttentionDecodeProblem((2**20,) * 2**12, heads=2**20, kv_heads=2**20),
        GroupedGemmProblem((2**30,), 2**31 - 2, 4096),
        GroupedGemmProblem((2**30,), 2**31 - 2, 4096, layout="gated"),
    ],
)
def test_a_grid_that_cannot_be_launched_is_no_answer(problem: Problem) -> None:
    """CUDA counts CTAs in 31 bits; every way to ask says so."""
    for ask in (wavetune.choose, explain):
        with pytest.raises(NoModelError, match=r"2\*\*31 - 1 CTAs"):
            ask(problem)
    assert wavetune.rank_configs(problem) == []


def test_only_grids_that_fit_are_answered() -> None:
    """Near the limit, tall tiles may be launched and low ones may not."""
    problem = AttentionProblem((2**24,) * 100, heads=128, kv_heads=128)
    ranked = wavetune.rank_configs(problem)
    assert all(map_problem(problem, entry.config).grid_size < 2**31 for entry in ranked)
    model = find_attention(problem, resolve_device(None, None))
    assert 0 < len(ranked) < len(model.forms)


@pytest.mark.parametrize(("near", "empty"), list(zip(NEAR, EMPTY, strict=True)))
def test_policies_leave_other_answers_alone(near: Problem, empty: Problem) -> None:
    """Inside the range all policies answer alike; nothing to launch gets the default configuration."""
    assert explain(near, "default") == explain(near) == explain(near, "error")
    assert explain(near).source is Source.NEAREST
    assert explain(empty, "error").source is Source.EMPTY
    assert wavetune.choose(empty) == default_of(empty)


def test_impossible_arguments_of_attention_are_named() -> None:
    """No keys for some queries, bytes, and more sequences than a slip of the finger should make."""
    choose = wavetune.choose_attention_config
    for lengths in ([], ()):
        with pytest.raises(ProblemError, match="kv_len is empty"):
            choose(64, lengths, heads=8)
    with pytest.raises(ProblemTypeError, match="q_len must be an integer"):
        choose(b"ab", heads=8)
    assert choose(np.array(64), heads=8) == choose(64, heads=8)
    with pytest.raises(ProblemError, match=r"batch must be at most 1,048,576"):
        choose(64, heads=8, batch=MAX_SEQUENCES + 1)
    with pytest.raises(ProblemError, match="batch must be at most"):
        AttentionProblem.from_dims((2**31 - 1, 64, 64, 0, 8, 8, 0, 0))


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"tokens": -1}, ProblemError, "tokens must not be negative"),
        ({"tokens": 1.5}, ProblemTypeError, "tokens must be an integer"),
        ({"experts": 0}, ProblemError, "experts must be positive"),
        ({"experts": "4"}, ProblemTypeError, "experts must be an integer"),
        ({"experts": MAX_EXPERTS + 1}, ProblemError, "experts must be at most"),
        ({"top_k": 0}, ProblemError, "top_k must be positive"),
        ({"top_k": "x"}, ProblemTypeError, "top_k must be an integer"),
        ({"prior": None}, ProblemTypeError, "prior must be a RoutingPrior"),
    ],
)
def test_impossible_arguments_for_a_graph_are_named(
    changes: dict[str, object], error: type[Exception], message: str
) -> None:
    """None of them is answered, and none ends in an error of Python's arithmetic."""
    arguments: dict[str, object] = {"tokens": 64, "experts": 8, "n": 64, "k": 64, **changes}
    with pytest.raises(error, match=message):
        choose_grouped_gemm_for_graph(**arguments)  # type: ignore[arg-type]


def test_impossible_arguments_of_groups_are_named() -> None:
    """Group sizes that are no sequence, weights that are no pair, prices that are no number, a prior of nothing."""
    for sizes in (None, 5, b"12"):
        with pytest.raises(ProblemTypeError, match="group_sizes must be a sequence"):
            wavetune.choose_grouped_gemm_config(sizes, 64, 64)  # type: ignore[arg-type]
    for up in (5, (1,), None):
        with pytest.raises(ProblemTypeError, match="up must be"):
            choose_grouped_gemm_pair([5, 6], up, (128, 128))  # type: ignore[arg-type]
    for price in ("x", None, True):
        with pytest.raises(ProblemTypeError, match="align_us must be a number"):
            choose_grouped_gemm_pair([5, 6], (256, 128), (128, 128), align_us=price)  # type: ignore[arg-type]
    with pytest.raises(ProblemError, match="samples must be positive"):
        RoutingPrior(samples=0)
    with pytest.raises(ProblemError, match="routings is empty"):
        RoutingPrior(routings=())
    with pytest.raises(ProblemError, match="experts must be at most"):
        GroupedGemmProblem.from_dims((2**31 - 1, 5, 5, 1, 64, 64))
