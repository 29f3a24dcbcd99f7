"""What is to be computed, independent of how."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable

from wavetune.core.dtype import find_dtype
from wavetune.errors import ProblemError, ProblemTypeError

MAX_DIMENSION = 2**31 - 1
"""Largest supported dimension: kernels take sizes as signed 32-bit integers."""

GEMM_LAYOUTS = ("nk", "kn")
"""Storage of B: ``nk`` is the weight of a linear layer (row-major [n, k]), ``kn`` is row-major [k, n]."""

ALIGNMENTS = (16, 8, 4, 2, 1)
"""Alignment classes in bytes: the largest that divides every base pointer and leading stride."""


CONTIGUOUS = 0
"""In place of an alignment class: that of contiguous operands."""


@runtime_checkable
class Problem(Protocol):
    """Anything a configuration can be chosen for."""

    @property
    def kernel(self) -> str:
        """Name of the kernel family."""
        ...

    @property
    def dtype(self) -> str:
        """Short name of the element type."""
        ...

    @property
    def dims(self) -> tuple[int, ...]:
        """Sizes, in the order of the family's table keys."""
        ...

    @property
    def layout(self) -> str:
        """Storage of the operands, or what else a model is made for; part of a table's key."""
        ...

    @property
    def alignment(self) -> int:
        """Bytes that pointers and strides divide by; 0 where it does not matter."""
        ...

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to launch."""
        ...


def check_dimension(name: str, value: object) -> int:
    """Return ``value`` as an int.

    NumPy integers are accepted; booleans, floats, strings and ``None`` are not.

    Raises
    ------
    ProblemTypeError
        If ``value`` is not an integer.
    ProblemError
        If ``value`` is negative or beyond `MAX_DIMENSION`.
    """
    if isinstance(value, bool) or type(value).__name__ in ("bool_", "bool"):
        raise ProblemTypeError(f"{name} must be an integer, got the boolean {value!r}")
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise ProblemTypeError(f"{name} must be an integer, got {value!r} of type {type(value).__name__}") from None
    if number < 0:
        raise ProblemError(f"{name} must not be negative, got {number}")
    if number > MAX_DIMENSION:
        raise ProblemError(f"{name} must be at most {MAX_DIMENSION} (2**31 - 1), got {number}")
    return number


def check_positive(name: str, value: object) -> int:
    """Return a positive integer.

    Raises
    ------
    ProblemError, ProblemTypeError
        If ``value`` is something else; names ``name``.
    """
    number = check_dimension(name, value)
    if number == 0:
        raise ProblemError(f"{name} must be positive, got 0")
    return number


@dataclass(frozen=True, slots=True)
class GemmProblem:
    """C[m, n] = A[m, k] B[k, n], accumulated in fp32.

    Parameters
    ----------
    m, n, k : int
        Sizes in ``[0, 2**31)``. For a linear layer m counts tokens, n output and k input features.
    dtype : str, default="bf16"
        Element type of A and B.
    layout : {"nk", "kn"}, default="nk"
        Storage of B, see `GEMM_LAYOUTS`.
    alignment : {0, 16, 8, 4, 2, 1}, default=0
        Alignment class in bytes, see `ALIGNMENTS`. TMA needs 16. With 0, that of contiguous operands whose base
        pointers are aligned to 16: what the rows of A, B and C divide by.

    Raises
    ------
    ProblemTypeError, ProblemError
        If a size is not an integer in range, or an option is unknown.
    """

    kernel: ClassVar[str] = "gemm"

    m: int
    n: int
    k: int
    dtype: str = "bf16"
    layout: str = "nk"
    alignment: int = CONTIGUOUS

    def __post_init__(self) -> None:
        for name in ("m", "n", "k"):
            object.__setattr__(self, name, check_dimension(name, getattr(self, name)))
        object.__setattr__(self, "dtype", find_dtype(self.dtype).name)
        if self.layout not in GEMM_LAYOUTS:
            raise ProblemError(f"unknown layout {self.layout!r}; known: {', '.join(GEMM_LAYOUTS)}")
        if type(self.alignment) is not int or self.alignment not in (CONTIGUOUS, *ALIGNMENTS):
            raise ProblemError(f"alignment must be one of {ALIGNMENTS} bytes, or 0, got {self.alignment!r}")
        if self.alignment == CONTIGUOUS:
            object.__setattr__(self, "alignment", self._contiguous_alignment())

    def _contiguous_alignment(self) -> int:
        element = find_dtype(self.dtype)
        b_row = self.k if self.layout == "nk" else self.n
        rows = (self.k * element.input_bytes, b_row * element.input_bytes, self.n * element.output_bytes)
        return next(bytes_ for bytes_ in ALIGNMENTS if all(row % bytes_ == 0 for row in rows))

    @property
    def dims(self) -> tuple[int, int, int]:
        """``(m, n, k)``."""
        return (self.m, self.n, self.k)

    @property
    def is_empty(self) -> bool:
        """True if a size is zero; with k = 0 the launcher still fills C with zeros."""
        return 0 in (self.m, self.n, self.k)
