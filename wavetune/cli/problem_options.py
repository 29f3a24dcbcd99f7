"""The sizes of a problem of any kernel family, as options: what belongs to another family is refused by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Annotated

import typer

from wavetune.cli.options import layout_of
from wavetune.cli.parsing import INTEGER, integer
from wavetune.core.attention_problem import head_dim_of
from wavetune.core.grouped_problem import GroupedGemmProblem
from wavetune.core.problem import CONTIGUOUS, GemmProblem, Problem
from wavetune.errors import NoModelError
from wavetune.runtime.attention_choice import attention_problem, decode_problem

SizesArgument = Annotated[
    list[int] | None,
    typer.Argument(
        metavar="[M] N K",
        parser=integer,
        help="gemm: rows of A (tokens), output features, input features. grouped_gemm: N K of each expert's weight.",
        show_default=False,
    ),
]
GroupSizesOption = Annotated[
    str | None,
    typer.Option("--group-sizes", metavar="M,M,..", help="grouped_gemm: tokens of each expert.", show_default=False),
]
QLenOption = Annotated[
    str | None,
    typer.Option(
        "--q-len", metavar="N[,N..]", help="attention: queries of every sequence, or of each.", show_default=False
    ),
]
KvLenOption = Annotated[
    str | None,
    typer.Option(
        "--kv-len", metavar="N[,N..]",
        help="attention, attention_decode: keys of every sequence, or of each. Default: --q-len.",
        show_default=False,
    ),
]  # fmt: skip
AlignmentOption = Annotated[
    int,
    typer.Option(
        "--alignment", metavar="BYTES",
        help="gemm, grouped_gemm: all base addresses and leading strides divide by this; 0: contiguous operands.",
    ),
]  # fmt: skip
BatchOption = Annotated[
    int | None,
    typer.Option(
        "--batch", metavar="N", help="attention, attention_decode: sequences. Default: 1.", show_default=False
    ),
]
HeadsOption = Annotated[
    int | None,
    typer.Option("--heads", metavar="N", help="attention, attention_decode: query heads.", show_default=False),
]
KvHeadsOption = Annotated[
    int | None,
    typer.Option(
        "--kv-heads", metavar="N",
        help="attention, attention_decode: key and value heads. Default: as many as query heads.",
        show_default=False,
    ),
]  # fmt: skip
HeadDimOption = Annotated[
    int | None,
    typer.Option(
        "--head-dim",
        metavar="N",
        help="attention, attention_decode: elements of a head. Default: 128.",
        show_default=False,
    ),
]
CausalOption = Annotated[
    bool | None, typer.Option("--causal", help="attention: queries see no later keys.", show_default=False)
]
WindowOption = Annotated[
    int | None,
    typer.Option(
        "--window",
        metavar="N",
        help="attention, attention_decode: only keys nearer than this are seen.",
        show_default=False,
    ),
]
PageSizeOption = Annotated[
    int | None,
    typer.Option(
        "--page-size", metavar="N", help="attention_decode: tokens of a page of the cache. Default: 16.",
        show_default=False,
    ),
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class ProblemSizes:
    """What the options of a command said; None where they said nothing."""

    group_sizes: str | None = None
    q_len: str | None = None
    kv_len: str | None = None
    batch: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None
    causal: bool | None = None
    window: int | None = None
    page_size: int | None = None


_ATTENTION = ("kv_len", "batch", "heads", "kv_heads", "head_dim", "window")
OPTIONS_OF: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "gemm": (),
        "grouped_gemm": ("group_sizes",),
        "attention": ("q_len", "causal", *_ATTENTION),
        "attention_decode": ("page_size", *_ATTENTION),
    }
)
"""Options that each family has; the others are refused."""

_SIZES_OF = {"gemm": "M N K", "grouped_gemm": "N K"}


def problem_of_options(
    kernel: str,
    sizes: Sequence[int] | None,
    options: ProblemSizes,
    *,
    dtype: str,
    layout: str | None,
    alignment: int = CONTIGUOUS,
) -> Problem:
    """Return the problem that a command line describes.

    Raises
    ------
    BadParameter
        If an argument is missing, or belongs to another family.
    NoModelError
        If the family has no choices.
    ProblemError, ProblemTypeError
        If a size is impossible.
    """
    if kernel not in OPTIONS_OF:
        raise NoModelError(f"no model answers for kernel {kernel!r}; known: {', '.join(OPTIONS_OF)}")
    given = {entry.name: getattr(options, entry.name) for entry in fields(options)}
    given = {name: value for name, value in given.items() if value is not None}
    for name in given:
        if name not in OPTIONS_OF[kernel]:
            raise typer.BadParameter(f"{_flag(name)} is not a size of {kernel}")
    wanted = _SIZES_OF.get(kernel, "")
    if len(sizes or ()) != len(wanted.split()):
        says = f"takes {wanted}" if wanted else "takes options, no sizes"
        raise typer.BadParameter(f"{kernel} {says}, got {' '.join(map(str, sizes or ())) or 'nothing'}")
    if kernel == "gemm":
        m, n, k = sizes or ()
        return GemmProblem(m, n, k, dtype, layout_of(kernel, layout), alignment)
    if kernel == "grouped_gemm":
        n, k = sizes or ()
        groups = _numbers("group_sizes", _required(given, "group_sizes", kernel))
        return GroupedGemmProblem(groups, n, k, dtype, layout_of(kernel, layout), alignment)
    if alignment != CONTIGUOUS:
        raise typer.BadParameter(f"--alignment is for gemm and grouped_gemm; {kernel} takes contiguous heads")
    if layout is not None:
        head_dim = head_dim_of(layout)
        if given.setdefault("head_dim", head_dim) != head_dim:
            raise typer.BadParameter(f"--head-dim {given['head_dim']} contradicts the layout {layout}")
    _required(given, "heads", kernel)
    for name in ("q_len", "kv_len"):
        if name in given:
            numbers = _numbers(name, given[name])
            given[name] = numbers[0] if len(numbers) == 1 else numbers
    first = "q_len" if kernel == "attention" else "kv_len"
    _required(given, first, kernel)
    make = attention_problem if kernel == "attention" else decode_problem
    problem: Problem = make(given.pop(first), dtype=dtype, **given)
    return problem


def _required(given: Mapping[str, object], name: str, kernel: str) -> str:
    if name not in given:
        raise typer.BadParameter(f"{kernel} needs {_flag(name)}")
    return str(given[name])


def _numbers(name: str, text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in str(text).split(",")]
    for place, part in enumerate(parts, start=1):
        if not INTEGER.fullmatch(part):
            # Lists may have thousands of numbers: the wrong one is named alone.
            number = f" as number {place} of {len(parts):,}" if len(parts) > 1 else ""
            raise typer.BadParameter(f"{_flag(name)} takes integers separated by commas, got {part[:40]!r}{number}")
    return tuple(map(int, parts))


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
