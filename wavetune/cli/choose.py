"""``wavetune choose``: one answer, and why. Imports neither numpy nor rich unless a table is asked for."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from wavetune.cli.ask import describe_latency, describe_problem, explain_from_file, explain_problem, open_model
from wavetune.cli.options import (
    ArchOption,
    FamilyLayoutOption,
    JsonOption,
    KernelOption,
    NumericsOption,
    NumSmsOption,
    OnMissOption,
)
from wavetune.cli.output import emit_json, note, show, spell_config, two_columns
from wavetune.cli.problem_options import (
    AlignmentOption,
    BatchOption,
    CausalOption,
    GroupSizesOption,
    HeadDimOption,
    HeadsOption,
    KvHeadsOption,
    KvLenOption,
    PageSizeOption,
    ProblemSizes,
    QLenOption,
    SizesArgument,
    WindowOption,
    problem_of_options,
)
from wavetune.core.config import WALKING_SCHEDULES
from wavetune.core.problem import CONTIGUOUS, GemmProblem, Problem
from wavetune.runtime.choice import Choice, Source
from wavetune.runtime.numerics import check_numerics

_DEFAULT_DTYPE = "bf16"

_MEANING = {
    Source.EXACT: "this problem was measured",
    Source.MEASURED: "measured just now",
    Source.NEAREST: "inside the measured range: the candidates of its cell decide",
    Source.MODEL: "beyond the measured range: all forms decide",
    Source.DEFAULT: "the policy wants the default, or no modelled configuration is legal here",
    Source.EMPTY: "a size is zero: nothing to launch",
    Source.FORCED: "WAVETUNE_FORCE_CONFIG names it",
}
_NEAREST_FORMS = "inside the measured range: all forms decide"
"""Of a kernel family: it has forms, and no cells that hold candidates."""

_PINNED = "this problem is pinned"
_STAND_IN = "nothing of this dtype and layout was measured: all forms of those that stand in decide"
_SCALED = "on part of the measured GPU: all forms decide, with the waves that are there"


def choose_command(
    sizes: SizesArgument = None,
    arch: ArchOption = None,
    kernel: KernelOption = "gemm",
    dtype: Annotated[
        str | None,
        typer.Option("--dtype", metavar="NAME", help="Element type. Default: bf16, or the model file's."),
    ] = None,
    layout: FamilyLayoutOption = None,
    alignment: AlignmentOption = CONTIGUOUS,
    num_sms: NumSmsOption = None,
    numerics: NumericsOption = "any",
    on_miss: OnMissOption = None,
    model: Annotated[
        Path | None,
        typer.Option("--model", metavar="FILE", help="Ask this model file alone, without settings and stored choices."),
    ] = None,
    group_sizes: GroupSizesOption = None,
    q_len: QLenOption = None,
    kv_len: KvLenOption = None,
    batch: BatchOption = None,
    heads: HeadsOption = None,
    kv_heads: KvHeadsOption = None,
    head_dim: HeadDimOption = None,
    causal: CausalOption = None,
    window: WindowOption = None,
    page_size: PageSizeOption = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Show the reasons: waves, tail, runner-up, source.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Choose the launch configuration for one problem: a product of A (m by k) and B (k by n), or another family's."""
    options = ProblemSizes(
        group_sizes, q_len, kv_len, batch, heads, kv_heads, head_dim, causal, window, page_size
    )  # fmt: skip
    if model is not None:
        if on_miss is not None:
            raise typer.BadParameter("--model asks one file, which has no miss policy; leave --on-miss out")
        file = open_model(model, arch, kernel, dtype, layout)
        problem = problem_of_options(kernel, sizes, options, dtype=file.dtype, layout=file.layout, alignment=alignment)
        choice = explain_from_file(file, problem, num_sms, check_numerics(numerics))
    else:
        problem = problem_of_options(
            kernel, sizes, options, dtype=dtype if dtype is not None else _DEFAULT_DTYPE, layout=layout,
            alignment=alignment,
        )  # fmt: skip
        choice = explain_problem(problem, arch=arch, num_sms=num_sms, numerics=numerics, on_miss=on_miss)
    if as_json:
        emit_json(_document(choice))
    elif explain:
        show(two_columns(_reasons(choice, problem)))
    else:
        if choice.source is Source.EMPTY:
            note("a size is zero: there is nothing to launch; this is the default configuration")
        typer.echo(spell_config(choice.config))


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
        "is_measured": choice.is_measured,
        "is_stand_in": choice.is_stand_in,
    }


def _meaning(choice: Choice, problem: Problem) -> str:
    if choice.source is Source.EXACT and not choice.is_measured:
        return _PINNED
    if choice.source is Source.MODEL and choice.is_scaled:
        return _SCALED
    if choice.source is Source.MODEL and choice.is_stand_in:
        return _STAND_IN
    if choice.source is Source.NEAREST and not isinstance(problem, GemmProblem):
        return _NEAREST_FORMS
    return _MEANING[choice.source]


def _reasons(choice: Choice, problem: Problem) -> Iterator[tuple[str, str]]:
    yield "problem", describe_problem(problem)
    yield "config", spell_config(choice.config)
    yield "source", f"{choice.source.value}: {_meaning(choice, problem)}"
    if choice.source is not Source.EMPTY:
        yield "latency", describe_latency(choice)
        units = "tiles" if choice.config.get("schedule") in WALKING_SCHEDULES else "CTAs"
        yield "grid", f"{choice.grid_size:,} {units}, {choice.loop_trips:,} loop trips each"
        if choice.waves:
            yield "waves", f"{choice.waves:,}, {choice.tail_ctas:,} {units} in the last one"
        if choice.runner_up is not None:
            yield "runner-up", f"{spell_config(choice.runner_up)}"
            if not math.isnan(choice.margin):
                yield "margin", f"{choice.margin:+.1%} predicted latency of the runner-up"
    if choice.is_scaled:
        yield "SMs", f"{choice.num_sms}, predictions scaled from the whole GPU"
    yield "table", choice.table
