"""Attention problems: what they refuse, and that a key stands for one problem."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wavetune.core.attention_problem import (
    HEAD_DIMS,
    AttentionDecodeProblem,
    AttentionProblem,
    spaced_lengths,
    spread_of,
)
from wavetune.core.config import ATTENTION, ATTENTION_DECODE
from wavetune.core.problem import Problem
from wavetune.errors import ProblemError, ProblemTypeError

LENGTHS = st.lists(st.integers(0, 5000), min_size=1, max_size=20).filter(any)


@pytest.mark.parametrize(
    ("fields", "error", "word"),
    [
        ({"q_lengths": ()}, ProblemError, "q_lengths is empty"),
        ({"q_lengths": 5}, ProblemTypeError, "q_lengths"),
        ({"q_lengths": (4, -1)}, ProblemError, r"q_lengths\[1\]"),
        ({"q_lengths": (4, 1.5)}, ProblemTypeError, r"q_lengths\[1\]"),
        ({"q_lengths": (4, True)}, ProblemTypeError, "boolean"),
        ({"kv_lengths": (4, 5)}, ProblemError, "kv_lengths must have 1"),
        ({"heads": 0}, ProblemError, "heads must be positive"),
        ({"heads": 6, "kv_heads": 4}, ProblemError, "kv_heads must divide heads"),
        ({"head_dim": 80}, ProblemError, "head_dim must be one of 64, 96, 128, 256"),
        ({"window": -1}, ProblemError, "window"),
        ({"is_causal": 1}, ProblemTypeError, "is_causal"),
        ({"dtype": "fp9"}, ProblemError, "fp9"),
    ],
)
def test_errors_name_the_field(fields: dict[str, object], error: type[Exception], word: str) -> None:
    """Each impossible field is refused by name."""
    with pytest.raises(error, match=word):
        AttentionProblem(**{"q_lengths": (8,), **fields})


@pytest.mark.parametrize(
    ("fields", "word"),
    [({"kv_lengths": ()}, "empty"), ({"page_size": 0}, "page_size"), ({"heads": 3, "kv_heads": 2}, "divide")],
)
def test_decode_errors_name_the_field(fields: dict[str, object], word: str) -> None:
    """Each impossible field is refused by name."""
    with pytest.raises(ProblemError, match=word):
        AttentionDecodeProblem(**{"kv_lengths": (8,), **fields})


def test_defaults_and_derived_facts() -> None:
    """Keys are as many as queries; unequal lengths are packed; heads share keys evenly."""
    problem = AttentionProblem((3, 5), heads=8, kv_heads=2)
    assert problem.kv_lengths == (3, 5)
    assert problem.is_packed
    assert not AttentionProblem((5, 5)).is_packed
    assert (problem.group, problem.layout) == (4, "d128")
    assert AttentionProblem((0, 0), (3, 3)).is_empty
    assert not AttentionProblem((1,), (0,)).is_empty
    assert isinstance(problem, Problem)
    assert isinstance(AttentionDecodeProblem((0,)), Problem)


@given(LENGTHS)
def test_a_key_is_its_own_summary(lengths: list[int]) -> None:
    """The problem that a key stands for has that very key, so measurements are found again."""
    dims = AttentionProblem(tuple(lengths), heads=4, kv_heads=2, head_dim=64, window=9).dims
    assert len(dims) == len(ATTENTION.dims)
    assert AttentionProblem.from_dims(dims, "fp16", "d64").dims == dims
    dims = AttentionDecodeProblem(tuple(lengths), heads=4, kv_heads=2, page_size=32).dims
    assert len(dims) == len(ATTENTION_DECODE.dims)
    assert AttentionDecodeProblem.from_dims(dims).dims == dims


@given(LENGTHS)
def test_a_spread_keeps_the_sum(lengths: list[int]) -> None:
    """Evenly spaced lengths have nearly the mean of those they stand for, unless most are less than half as long."""
    batch, longest, mean = len(lengths), max(lengths), sum(lengths) / len(lengths)
    spaced = spaced_lengths(batch, longest, spread_of(lengths))
    assert max(spaced) == longest
    if batch == 1 or mean >= 0.5 * longest:
        # A percent of spread is half a percent of the mean; rounding down costs up to one token a sequence.
        assert abs(sum(spaced) / batch - mean) <= 0.005 * longest + 1


def test_spaced_lengths_are_not_sorted() -> None:
    """Launch order must not depend on the order of lengths; the shortest is as short as it should be."""
    lengths = spaced_lengths(16, 1000, 40)
    assert sorted(lengths) == [1000 - 400 * rank // 15 for rank in range(15, -1, -1)]
    assert lengths not in (tuple(sorted(lengths)), tuple(sorted(lengths, reverse=True)))
    with pytest.raises(ProblemError, match="spread"):
        spaced_lengths(4, 10, 101)


def test_keys_are_checked() -> None:
    """Too few sizes, or a layout that is no head dimension."""
    with pytest.raises(ProblemError, match="8 sizes"):
        AttentionProblem.from_dims((1, 2, 3))
    with pytest.raises(ProblemError, match="7 sizes"):
        AttentionDecodeProblem.from_dims((1, 2, 3))
    with pytest.raises(ProblemError, match="unknown layout 'nk'"):
        AttentionProblem.from_dims((1, 8, 8, 0, 1, 1, 1, 0), layout="nk")
    for head_dim in HEAD_DIMS:
        assert AttentionProblem.from_dims((1, 8, 8, 0, 1, 1, 1, 0), layout=f"d{head_dim}").head_dim == head_dim
