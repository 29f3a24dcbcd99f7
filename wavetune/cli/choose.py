"""``wavetune choose``: one answer, and why. Imports neither numpy nor rich unless a table is asked for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from wavetune.cli.options import ArchOption, JsonOption, KernelOption, NumericsOption, NumSmsOption, OnMissOption
from wavetune.cli.output import emit_json, format_sizes, format_us, note, show, spell_config, two_columns
from wavetune.core.arch import find_arch
from wavetune.core.dtype import find_dtype
from wavetune.core.problem import CONTIGUOUS, GemmProblem
from wavetune.errors import NoModelError
from wavetune.runtime.choice import Choice, Source
from wavetune.runtime.choose import explain_choice
from wavetune.runtime.chooser import GemmChooser
from wavetune.runtime.codec import read_model
from wavetune.runtime.device import resolve_device
from wavetune.runtime.numerics import check_numerics

_DEFAULT_DTYPE, _DEFAULT_LAYOUT = "bf16", "nk"

_MEANING = {
    Source.EXACT: "this problem was measured, or is pinned",
    Source.MEASURED: "measured just now",
    Source.NEAREST: "inside the measured range: the candidates of its cell decide",
    Source.MODEL: "beyond the measured range: all forms decide",
    Source.DEFAULT: "the policy wants the default, or no modelled configuration is legal here",
    Source.EMPTY: "a size is zero: nothing to launch",
    Source.FORCED: "WAVETUNE_FORCE_CONFIG names it",
}
_SCALED = "on part of the measured GPU: all forms decide, with the waves that are there"


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
    num_sms: NumSmsOption = None,
    numerics: NumericsOption = "any",
    on_miss: OnMissOption = None,
    model: Annotated[
        Path | None,
        typer.Option("--model", metavar="FILE", help="Ask this model file alone, without settings and stored choices."),
    ] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Show the reasons: waves, tail, runner-up, source.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Choose the launch configuration for the product of A (m by k) and B (k by n)."""
    if model is not None:
        if on_miss is not None:
            raise typer.BadParameter("--model asks one file, which has no miss policy; leave --on-miss out")
        check_numerics(numerics)
        choice = _ask_file(model, (m, n, k), arch, kernel, dtype, layout, alignment, num_sms, numerics)
    else:
        choice = explain_choice(
            m, n, k, kernel=kernel, dtype=dtype or _DEFAULT_DTYPE, layout=layout or _DEFAULT_LAYOUT,
            alignment=alignment, arch=arch, num_sms=num_sms, numerics=numerics, on_miss=on_miss,
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
    num_sms: int | None,
    numerics: str,
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
    device = resolve_device(model.arch, num_sms)
    return GemmChooser(model, device.arch, num_sms, numerics=numerics).explain(problem)


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
        "num_sms": choice.num_sms,
        "is_scaled": choice.is_scaled,
        "model": choice.model,
    }


def _reasons(choice: Choice, sizes: tuple[int, int, int]) -> Iterator[tuple[str, str]]:
    yield "problem", format_sizes(sizes)
    yield "config", spell_config(choice.config)
    is_scaled = choice.is_scaled and choice.source is Source.MODEL
    yield "source", f"{choice.source.value}: {_SCALED if is_scaled else _MEANING[choice.source]}"
    if choice.source is not Source.EMPTY:
        verb = "measured" if choice.source in (Source.EXACT, Source.MEASURED) else "predicted"
        yield "latency", f"{format_us(choice.latency_us)} us {verb}"
        yield "grid", f"{choice.grid_size:,} CTAs, {choice.loop_trips:,} loop trips each"
        if choice.waves:
            yield "waves", f"{choice.waves:,}, {choice.tail_ctas:,} CTAs in the last one"
        if choice.runner_up is not None:
            yield "runner-up", f"{spell_config(choice.runner_up)}"
            yield "margin", f"{choice.margin:+.1%} predicted latency of the runner-up"
    if choice.is_scaled:
        yield "SMs", f"{choice.num_sms}, predictions scaled from the whole GPU"
    yield "table", choice.table
