"""``wavetune choose``: one answer, and why. Imports neither numpy nor rich unless a table is asked for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from wavetune.cli.options import ArchOption, JsonOption, KernelOption
from wavetune.cli.output import emit_json, format_sizes, format_us, note, show, spell_config, two_columns
from wavetune.core.arch import find_arch
from wavetune.core.dtype import find_dtype
from wavetune.core.problem import CONTIGUOUS, GemmProblem
from wavetune.errors import NoModelError
from wavetune.runtime.choose import explain_choice
from wavetune.runtime.chooser import Choice, GemmChooser, Source
from wavetune.runtime.codec import read_model

_DEFAULT_DTYPE, _DEFAULT_LAYOUT = "bf16", "nk"

_MEANING = {
    Source.EXACT: "this problem was measured",
    Source.NEAREST: "inside the measured range: the candidates of its cell decide",
    Source.MODEL: "beyond the measured range: all forms decide",
    Source.DEFAULT: "no modelled configuration is legal here: the default",
    Source.EMPTY: "a size is zero: nothing to launch",
}


def choose_command(
    m: Annotated[int, typer.Argument(help="Rows of A: tokens.", show_default=False)],
    n: Annotated[int, typer.Argument(help="Columns of B: output features.", show_default=False)],
    k: Annotated[int, typer.Argument(help="Columns of A: input features.", show_default=False)],
    arch: ArchOption = None,
    kernel: KernelOption = "gemm",
    dtype: Annotated[
        str | None,
        typer.Option("--dtype", metavar="NAME", help="Element type. Default: bf16, or the model file's."),
    ] = None,
    layout: Annotated[
        str | None,
        typer.Option("--layout", metavar="NAME", help="Storage of B, nk or kn. Default: nk, or the model file's."),
    ] = None,
    alignment: Annotated[
        int,
        typer.Option(
            "--alignment",
            metavar="BYTES",
            help="All base addresses and leading strides divide by this; 0: contiguous operands.",
        ),
    ] = CONTIGUOUS,
    model: Annotated[
        Path | None,
        typer.Option("--model", metavar="FILE", help="Ask this model file instead of the installed ones."),
    ] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Show the reasons: waves, tail, runner-up, source.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Choose the launch configuration for the product of A (m by k) and B (k by n)."""
    if model is not None:
        choice = _ask_file(model, (m, n, k), arch, kernel, dtype, layout, alignment)
    else:
        choice = explain_choice(
            m, n, k, kernel=kernel, dtype=dtype or _DEFAULT_DTYPE, layout=layout or _DEFAULT_LAYOUT,
            alignment=alignment, arch=arch,
        )  # fmt: skip
    if as_json:
        emit_json(_document(choice))
    elif explain:
        show(two_columns(_reasons(choice, (m, n, k))))
    else:
        if choice.source is Source.EMPTY:
            note("a size is zero: there is nothing to launch; this is the default configuration")
        typer.echo(spell_config(choice.config))


def _ask_file(
    path: Path,
    sizes: tuple[int, int, int],
    arch: str | None,
    kernel: str,
    dtype: str | None,
    layout: str | None,
    alignment: int,
) -> Choice:
    model = read_model(path)
    wanted = {
        "arch": find_arch(arch).name if arch else model.arch,
        "kernel": kernel,
        "dtype": find_dtype(dtype).name if dtype else model.dtype,
        "layout": layout or model.layout,
    }
    for name, value in wanted.items():
        if getattr(model, name) != value:
            raise NoModelError(f"{path} is a model for {name} {getattr(model, name)}, not {value}")
    problem = GemmProblem(*sizes, dtype=model.dtype, layout=model.layout, alignment=alignment)
    return GemmChooser(model, find_arch(model.arch)).explain(problem)


def _document(choice: Choice) -> dict[str, Any]:
    return {
        "config": dict(choice.config),
        "source": choice.source.value,
        "latency_us": choice.latency_us,
        "grid_size": choice.grid_size,
        "loop_trips": choice.loop_trips,
        "waves": choice.waves,
        "tail_ctas": choice.tail_ctas,
        "runner_up": dict(choice.runner_up) if choice.runner_up is not None else None,
        "margin": choice.margin,
        "table": choice.table,
    }


def _reasons(choice: Choice, sizes: tuple[int, int, int]) -> Iterator[tuple[str, str]]:
    yield "problem", format_sizes(sizes)
    yield "config", spell_config(choice.config)
    yield "source", f"{choice.source.value}: {_MEANING[choice.source]}"
    if choice.source is not Source.EMPTY:
        verb = "measured" if choice.source is Source.EXACT else "predicted"
        yield "latency", f"{format_us(choice.latency_us)} us {verb}"
        yield "grid", f"{choice.grid_size:,} CTAs, {choice.loop_trips:,} loop trips each"
        yield "waves", f"{choice.waves:,}, {choice.tail_ctas:,} CTAs in the last one"
        if choice.runner_up is not None:
            yield "runner-up", f"{spell_config(choice.runner_up)}"
            yield "margin", f"{choice.margin:+.1%} predicted latency of the runner-up"
    yield "table", choice.table
