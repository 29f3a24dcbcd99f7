"""Grouped problems: what they accept, what they are summarized to, and the histograms that keys stand for."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wavetune.core.grouped_problem import GroupedGemmProblem, spread_groups
from wavetune.core.problem import Problem
from wavetune.core.routing import LIKELY, UNIFORM, Routing, sample_groups
from wavetune.errors import ProblemError, ProblemTypeError


@pytest.mark.parametrize(
    ("sizes", "error", "words"),
    [
        ((), ProblemError, "no expert"),
        ((3, -1), ProblemError, r"group_sizes\[1\] must not be negative, got -1"),
        ((3, 1.0), ProblemTypeError, r"group_sizes\[1\] must be an integer, got 1.0"),
        ((True, 1), ProblemTypeError, r"group_sizes\[0\] must be an integer, got the boolean"),
        ((1, None), ProblemTypeError, r"group_sizes\[1\]"),
        ("12", ProblemTypeError, "sequence of integers"),
        (7, ProblemTypeError, "sequence of integers"),
        ((2**30, 2**30), ProblemError, "sum to at most"),
        ((2**31,), ProblemError, r"group_sizes\[0\] must be at most|sum to at most"),
    ],
)
def test_wrong_group_sizes_are_named(sizes: object, error: type[Exception], words: str) -> None:
    """Each mistake names the element and its value."""
    with pytest.raises(error, match=words):
        GroupedGemmProblem(sizes, 64, 64)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"n": -1}, "n must not be negative"),
        ({"k": 2**31}, "k must be at most"),
        ({"dtype": "bf17"}, "unknown dtype"),
        ({"layout": "kn"}, "unknown layout 'kn' of grouped_gemm; known: nk, gated"),
        ({"layout": "gated", "n": 63}, "n must be even"),
        ({"alignment": 3}, "alignment must be one of"),
    ],
)
def test_wrong_options_are_named(fields: dict[str, object], words: str) -> None:
    """Each mistake names the argument."""
    with pytest.raises(ProblemError, match=words):
        GroupedGemmProblem(**{"group_sizes": (1, 2), "n": 64, "k": 64, **fields})  # type: ignore[arg-type]


def test_a_problem_is_a_value() -> None:
    """NumPy sizes and lists are taken; equal problems are equal and hash alike; nothing can be changed."""
    problem = GroupedGemmProblem((4, 0, 10), 1536, 2048)
    same = GroupedGemmProblem(list(np.array([4, 0, 10])), np.int32(1536), 2048, "torch.bfloat16")  # type: ignore[arg-type]
    assert isinstance(problem, Problem)
    assert problem == same
    assert hash(problem) == hash(same)
    assert problem.dims == (3, 14, 2, 10, 1536, 2048)
    assert (problem.kernel, problem.alignment, problem.out_columns) == ("grouped_gemm", 16, 1536)
    assert GroupedGemmProblem((4, 0, 10), 1536, 2048, layout="gated").out_columns == 768
    with pytest.raises(AttributeError):
        problem.n = 3  # type: ignore[misc]


def test_alignment_follows_from_rows_of_k() -> None:
    """Rows of x and of w are k elements; n does not matter."""
    assert GroupedGemmProblem((1,), 7, 8).alignment == 16
    assert GroupedGemmProblem((1,), 8, 7).alignment == 2
    assert GroupedGemmProblem((1,), 8, 64, alignment=4).alignment == 4


@pytest.mark.parametrize("sizes", [(0, 0), (0,)])
def test_no_tokens_is_empty(sizes: tuple[int, ...]) -> None:
    """Nothing to launch without tokens, columns or a sum."""
    assert GroupedGemmProblem(sizes, 64, 64).is_empty
    assert GroupedGemmProblem((1,), 0, 64).is_empty
    assert GroupedGemmProblem((1,), 64, 0).is_empty
    assert not GroupedGemmProblem((1, *sizes), 64, 64).is_empty


@given(st.lists(st.one_of(st.just(0), st.integers(0, 30), st.integers(0, 10_000)), min_size=1, max_size=300))
def test_keys_keep_their_counts(sizes: list[int]) -> None:
    """The groups of a key have its experts, tokens, active experts and largest one, so a key stands for itself."""
    problem = GroupedGemmProblem(tuple(sizes), 64, 64)
    canonical = problem.canonical()
    assert canonical.dims == problem.dims
    assert canonical.canonical() == canonical
    assert GroupedGemmProblem.from_dims(problem.dims) == canonical


@pytest.mark.parametrize(
    "counts",
    [(4, 10, 5, 3), (4, 10, 2, 4), (4, 2, 3, 1), (4, 10, 3, 9), (0, 0, 0, 0), (4, 3, 0, 0), (4, 0, 0, 1)],
)
def test_impossible_keys_are_refused(counts: tuple[int, int, int, int]) -> None:
    """No histogram has these counts."""
    with pytest.raises(ProblemError, match="active"):
        spread_groups(*counts)


def test_a_key_needs_its_six_sizes() -> None:
    """The error says how many there are."""
    with pytest.raises(ProblemError, match="6 sizes"):
        GroupedGemmProblem.from_dims((1, 2, 3))


@pytest.mark.parametrize("routing", LIKELY, ids=str)
def test_keys_stand_for_their_histograms(routing: Routing) -> None:
    """Tile rows of the stand-in are within 30 % of those of a drawn histogram, on average within 12 %."""
    misses = []
    for experts, tokens, block_m in (
        (128, 256, 16),
        (128, 4096, 64),
        (32, 4096, 64),
        (256, 65536, 128),
        (8, 4096, 128),
    ):
        for seed in range(4):
            drawn = sample_groups(routing, experts, tokens, seed)
            standing = GroupedGemmProblem(drawn, 64, 64).canonical().group_sizes
            rows, stood = (sum(-(-size // block_m) for size in sizes) for sizes in (drawn, standing))
            misses.append(abs(stood / rows - 1.0))
    assert np.mean(misses) < 0.12
    assert np.max(misses) < 0.3


@pytest.mark.parametrize("routing", LIKELY, ids=str)
def test_drawn_histograms_hold_all_tokens(routing: Routing) -> None:
    """Sizes sum to the tokens, none is negative, equal seeds give equal histograms, others do not."""
    drawn = sample_groups(routing, 64, 1000, 5)
    assert len(drawn) == 64
    assert sum(drawn) == 1000
    assert min(drawn) >= 0
    assert drawn == sample_groups(routing, 64, 1000, 5)
    assert drawn != sample_groups(routing, 64, 1000, 6)


def test_uniform_routing_has_the_moments_of_a_multinomial() -> None:
    """Mean and variance of an expert's tokens, few and many."""
    for experts, tokens, n_draws in ((8, 16, 3000), (4, 4000, 500)):
        drawn = np.array([sample_groups(UNIFORM, experts, tokens, seed) for seed in range(n_draws)])
        mean, variance = tokens / experts, tokens / experts * (1 - 1 / experts)
        assert drawn.mean(axis=0) == pytest.approx(mean, rel=0.05)
        assert drawn.var(axis=0).mean() == pytest.approx(variance, rel=0.08)


def test_skew_grows_with_the_exponent_and_falls_with_the_concentration() -> None:
    """The busiest expert says so."""

    def busiest(routing: Routing) -> float:
        return float(np.mean([max(sample_groups(routing, 64, 4096, seed)) for seed in range(8)]))

    assert busiest(UNIFORM) < busiest(Routing("zipf", 0.5)) < busiest(Routing("zipf", 1.0))
    assert busiest(Routing("dirichlet", 3.0)) < busiest(Routing("dirichlet", 0.3)) < busiest(Routing("dirichlet", 0.03))


def test_a_token_goes_to_an_expert_once() -> None:
    """With one token and eight experts of it, eight experts get one each, however popular one is."""
    drawn = sample_groups(Routing("zipf", 2.0), 128, 8, 0, most=1)
    assert sorted(drawn)[-9:] == [0, *(1,) * 8]
    assert sample_groups(Routing("zipf", 3.0), 4, 12, 0, most=3) == (3, 3, 3, 3)
    with pytest.raises(ProblemError, match="cannot take"):
        sample_groups(UNIFORM, 4, 13, 0, most=3)


@pytest.mark.parametrize(("law", "strength"), [("poisson", 1.0), ("zipf", -0.1), ("dirichlet", 0.0), ("zipf", np.nan)])
def test_impossible_laws_are_refused(law: str, strength: float) -> None:
    """The error names the law or its strength."""
    with pytest.raises(ProblemError, match="routing"):
        Routing(law, strength)
