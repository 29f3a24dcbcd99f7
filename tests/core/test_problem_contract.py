"""What a problem accepts."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wavetune.core.dtype import DTYPES, find_dtype
from wavetune.core.problem import MAX_DIMENSION, GemmProblem, Problem, check_dimension
from wavetune.errors import ProblemError, ProblemTypeError


@given(value=st.integers(0, MAX_DIMENSION))
def test_every_size_a_kernel_can_take_is_accepted_unchanged(value: int) -> None:
    """Every size a kernel can take is accepted unchanged."""
    assert check_dimension("m", value) == value


@pytest.mark.parametrize("kind", [np.int8, np.int32, np.int64, np.uint16, np.uint64])
def test_numpy_integers_become_python_ints(kind: type[np.integer]) -> None:
    """NumPy integers become python ints."""
    problem = GemmProblem(kind(7), kind(8), kind(16))
    assert problem == GemmProblem(7, 8, 16)
    assert all(type(size) is int for size in problem.dims)


@pytest.mark.parametrize("position", [0, 1, 2])
@pytest.mark.parametrize("value", [True, False, np.True_, 2.0, np.float32(2), "2", None, 2 + 0j, [2], np.array([2, 3])])
def test_what_is_no_integer_is_a_type_error(value: object, position: int) -> None:
    """What is no integer is a type error."""
    dims: list[object] = [1, 2, 3]
    GemmProblem(*dims)  # an equal problem that was answered before changes nothing
    dims[position] = value
    with pytest.raises(ProblemTypeError, match="mnk"[position]) as caught:
        GemmProblem(*dims)
    assert isinstance(caught.value, TypeError)


@pytest.mark.parametrize("value", [-1, -(2**40), 2**31, 2**63, 2**100, np.int64(-5), np.uint64(2**63)])
def test_sizes_out_of_range_are_value_errors(value: int) -> None:
    """Sizes out of range are value errors."""
    with pytest.raises(ProblemError, match=f"n must.*{int(value)}") as caught:
        GemmProblem(1, value, 3)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize(
    ("dims", "is_empty"), [((0, 1, 1), True), ((1, 0, 1), True), ((1, 1, 0), True), ((1, 1, 1), False)]
)
def test_zero_is_an_answer_not_an_error(dims: tuple[int, int, int], is_empty: bool) -> None:
    """Zero is an answer not an error."""
    assert GemmProblem(*dims).is_empty is is_empty


@pytest.mark.parametrize("name", list(DTYPES))
def test_every_spelling_of_a_dtype_is_the_same_problem(name: str) -> None:
    """Every spelling of a dtype is the same problem."""
    for spelling in (name, *DTYPES[name].aliases):
        assert GemmProblem(1, 2, 3, dtype=spelling) == GemmProblem(1, 2, 3, dtype=name)


@pytest.mark.parametrize("name", ["bf1", "bf16 ", "bfloat", "", "BF16", None, 16, ["bf16"]])
def test_dtypes_are_matched_exactly(name: object) -> None:
    """Dtypes are matched exactly."""
    with pytest.raises(ProblemError, match="unknown dtype"):
        find_dtype(name)  # type: ignore[arg-type]


@pytest.mark.parametrize("options", [{"layout": "n"}, {"layout": "nkk"}, {"alignment": 3}, {"alignment": 32}])
def test_unknown_options_are_refused(options: dict[str, object]) -> None:
    """Unknown options are refused."""
    with pytest.raises(ProblemError):
        GemmProblem(1, 2, 3, **options)  # type: ignore[arg-type]


def test_a_gemm_problem_is_a_problem() -> None:
    """A GEMM problem is a problem."""
    problem = GemmProblem(1, 2, 3)
    assert isinstance(problem, Problem)
    assert (problem.kernel, problem.dims) == ("gemm", (1, 2, 3))


def test_problems_that_differ_in_an_option_are_different_keys() -> None:
    """Problems that differ in an option are different keys."""
    problems = {GemmProblem(1, 2, 3, layout=layout, alignment=a) for layout in ("nk", "kn") for a in (16, 8)}
    assert len(problems) == 4
