"""Recognizing rows and weights in memory, against every element's address."""

from itertools import product

from hypothesis import example, given
from hypothesis import strategies as st

from wavetune.launch.strides import row_stride, weight_storage

SIZES = st.integers(1, 4)
STRIDES = st.sampled_from([0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 48])


def addresses(shape: tuple[int, ...], strides: tuple[int, ...]) -> list[int]:
    """Return the offset of every element in row-major order."""
    return [sum(i * s for i, s in zip(index, strides, strict=True)) for index in product(*map(range, shape))]


def matrix(rows: int, columns: int, stride: int) -> list[int]:
    """Return the offsets of a matrix with adjacent columns."""
    return [row * stride + column for row in range(rows) for column in range(columns)]


@given(st.lists(st.tuples(SIZES, STRIDES), min_size=1, max_size=4))
@example([(3, 8), (1, 0), (4, 1)])
@example([(2, 12), (3, 4), (4, 1)])
@example([(4, 0), (3, 1)])
def test_rows_are_where_the_elements_are(axes: list[tuple[int, int]]) -> None:
    """The stride that is found reproduces every address; where none is found, none does without overlap."""
    shape, strides = (tuple(values) for values in zip(*axes, strict=True))
    columns, found = shape[-1], row_stride(shape, strides)
    rows, actual = len(addresses(shape, strides)) // columns, addresses(shape, strides)
    if found is not None:
        assert found >= columns
        assert actual == matrix(rows, columns, found)
    else:
        assert all(actual != matrix(rows, columns, stride) for stride in range(columns, 200))


@given(st.tuples(SIZES, SIZES), st.tuples(STRIDES, STRIDES))
@example((1, 4), (4, 1))
@example((4, 1), (1, 1))
def test_weights_are_recognized(shape: tuple[int, int], strides: tuple[int, int]) -> None:
    """Either way of storing B reproduces its addresses; anything else is neither."""
    k, n = shape
    found = weight_storage(shape, strides)
    as_kn, as_nk = addresses((k, n), strides), addresses((n, k), strides[::-1])
    if found is None:
        assert all(as_kn != matrix(k, n, stride) for stride in range(n, 100))
        assert all(as_nk != matrix(n, k, stride) for stride in range(k, 100))
    else:
        layout, stride = found
        assert (as_kn if layout == "kn" else as_nk) == (
            matrix(k, n, stride) if layout == "kn" else matrix(n, k, stride)
        )


def test_the_usual_weights() -> None:
    """A linear layer's weight, a row-major one, and vectors, whose long rows count."""
    assert weight_storage((64, 32), (1, 64)) == ("nk", 64)
    assert weight_storage((64, 32), (1, 72)) == ("nk", 72)
    assert weight_storage((64, 32), (32, 1)) == ("kn", 32)
    assert weight_storage((64, 32), (2, 128)) is None
    assert weight_storage((64, 1), (1, 1)) == ("nk", 64)
    assert weight_storage((1, 32), (32, 1)) == ("kn", 32)
