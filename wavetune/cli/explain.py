"""``wavetune explain``: why this configuration, in words, beside its nearest rivals."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from wavetune.cli.options import ArchOption, JsonOption
from wavetune.cli.output import describe_config, emit_json, format_sizes, format_us, show, spell_config, two_columns
from wavetune.core.arch import ArchSpec, find_arch
from wavetune.core.problem import CONTIGUOUS, GemmProblem
from wavetune.report.anatomy import LaunchAnatomy, dissect
from wavetune.report.reasons import compare_launches, describe_launch, group_terms
from wavetune.runtime.choose import explain_choice
from wavetune.runtime.chooser import Choice, GemmChooser, Source
from wavetune.runtime.codec import read_model

if TYPE_CHECKING:
    from rich.table import Table

BAR_COLUMNS = 28
"""Width of the bar of the slowest candidate shown."""

EQUAL = 0.0005
"""Predictions this near are told as equal: they would print as 0.0 %."""

_EIGHTHS = " ▏▎▍▌▋▊▉█"


@dataclass(frozen=True)
class _Explanation:
    """An answer, taken apart.

    ``launch`` is None if the model does not hold the answer (a measurement or a setting named it); ``candidates`` are
    the best by prediction, the chosen one among them if it has a form.
    """

    arch: ArchSpec
    problem: GemmProblem
    choice: Choice
    launch: LaunchAnatomy | None
    candidates: tuple[LaunchAnatomy, ...]


def explain_command(
    m: Annotated[int, typer.Argument(help="Rows of A: tokens.", show_default=False)],
    n: Annotated[int, typer.Argument(help="Columns of B: output features.", show_default=False)],
    k: Annotated[int, typer.Argument(help="Columns of A: input features.", show_default=False)],
    arch: ArchOption = None,
    dtype: Annotated[str | None, typer.Option("--dtype", metavar="NAME", help="Element type. Default: bf16.")] = None,
    layout: Annotated[
        str | None, typer.Option("--layout", metavar="NAME", help="Storage of B, nk or kn. Default: nk.")
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
    top: Annotated[int, typer.Option("--top", min=1, help="Candidates to compare.")] = 5,
    as_json: JsonOption = False,
) -> None:
    """Explain the choice for one product of A (m by k) and B (k by n) in words, beside its nearest rivals."""
    if model is not None and (arch or dtype or layout):
        raise typer.BadParameter("--model names the GPU, the dtype and the layout itself; leave those options out")
    found = _explain((m, n, k), arch, dtype or "bf16", layout or "nk", alignment, model, top)
    if as_json:
        emit_json(_document(found) if isinstance(found, _Explanation) else _empty_document(found))
    elif isinstance(found, _Explanation):
        show(*_view(found))
    elif found.source is Source.EMPTY:
        show(f"{format_sizes((m, n, k))}: a size is zero, there is nothing to launch")
    else:
        show(f"{spell_config(found.config)}\n{found.source.value}, from {found.table}; no model explains it")


def _explain(
    sizes: tuple[int, int, int],
    arch: str | None,
    dtype: str,
    layout: str,
    alignment: int,
    model: Path | None,
    top: int,
) -> _Explanation | Choice:
    """Ask, and take the answer apart; an empty problem has only the answer."""
    if model is None:
        choice = explain_choice(*sizes, dtype=dtype, layout=layout, alignment=alignment, arch=arch)
        if choice.source is Source.EMPTY or not choice.model:
            return choice
        # The public answer names its file; a second read costs less than a second way to find it.
        file = read_model(choice.model)
    else:
        file = read_model(model)
        choice = GemmChooser(file, find_arch(file.arch)).explain(
            GemmProblem(*sizes, dtype=file.dtype, layout=file.layout, alignment=alignment)
        )
        if choice.source is Source.EMPTY:
            return choice
    gpu, num_sms = find_arch(file.arch), choice.num_sms
    problem = GemmProblem(*sizes, dtype=file.dtype, layout=file.layout, alignment=alignment)
    ranked = [entry.config for entry in GemmChooser(file, gpu, num_sms, use_exact=False).rank(problem)]
    shown = list(dict.fromkeys([*ranked[:top], choice.config])) if choice.config in ranked else ranked[:top]
    is_held = any(form.config == choice.config for form in file.forms)
    return _Explanation(
        arch=gpu,
        problem=problem,
        choice=choice,
        launch=dissect(file, gpu, problem, choice.config, num_sms) if is_held else None,
        candidates=tuple(dissect(file, gpu, problem, config, num_sms) for config in shown),
    )


def _view(found: _Explanation) -> Iterator[Any]:
    choice, problem = found.choice, found.problem
    verb = "measured" if choice.source in (Source.EXACT, Source.MEASURED) else "predicted"
    scaled = f", {choice.num_sms} of its SMs" if choice.is_scaled else ""
    head = [
        ("problem", f"{format_sizes(problem.dims)}, {problem.dtype} {problem.layout} on {found.arch.name}{scaled}"),
        ("config", spell_config(choice.config)),
        ("latency", f"{format_us(choice.latency_us)} us {verb}"),
        ("source", f"{choice.source.value}, from {choice.table}"),
    ]
    yield two_columns(head)
    yield ""
    yield two_columns(_reasons(found))
    if found.candidates:
        yield ""
        yield _chart(found.candidates, choice)


def _reasons(found: _Explanation) -> Iterator[tuple[str, str]]:
    if found.launch is None:
        yield "form", "the model does not hold this configuration: it cannot say why it is fast"
        return
    yield from describe_launch(found.launch, found.arch)
    if not found.launch.terms_us:
        yield "form", "the model knows this configuration from measurements only: it has no terms to explain it"
        return
    rival = next((entry for entry in found.candidates if entry.config != found.choice.config), None)
    if rival is None:
        return
    slower = rival.latency_us / found.launch.latency_us - 1.0
    verdict = f"{slower:+.1%}" if abs(slower) >= EQUAL else "equally fast"
    # Inside the measured range the few candidates of a cell decide; one that can win there seldom may be left out.
    aside = ", but is no candidate of this cell" if slower < 0 and found.choice.source is Source.NEAREST else ""
    text = f"{describe_config(rival.config)} is predicted {verdict}{aside}: {compare_launches(found.launch, rival)}"
    yield "rival", text


def _chart(candidates: Sequence[LaunchAnatomy], choice: Choice) -> Table:
    from wavetune.cli.output import data_table

    numeric = ("us", "waves", "last full")
    table = data_table("candidate", *numeric, "predicted latency", right=numeric)
    longest = max(entry.latency_us for entry in candidates)
    for entry in candidates:
        chosen = entry.config == choice.config
        table.add_row(
            describe_config(entry.config), format_us(entry.latency_us), f"{entry.waves.waves:,}",
            f"{entry.tail_fill:.0%}", _bar(entry.latency_us / longest), style="bold" if chosen else "",
        )  # fmt: skip
    return table


def _bar(share: float) -> str:
    eighths = round(share * BAR_COLUMNS * 8)
    return ("█" * (eighths // 8) + _EIGHTHS[eighths % 8]).rstrip()


def _document(found: _Explanation) -> dict[str, Any]:
    return {
        "problem": {
            "m": found.problem.m, "n": found.problem.n, "k": found.problem.k, "dtype": found.problem.dtype,
            "layout": found.problem.layout, "alignment": found.problem.alignment, "arch": found.arch.name,
        },
        "source": found.choice.source.value,
        "latency_us": found.choice.latency_us,
        "table": found.choice.table,
        "reasons": dict(_reasons(found)),
        "launch": _launch_document(found.launch) if found.launch is not None else None,
        "candidates": [_launch_document(entry) for entry in found.candidates],
    }  # fmt: skip


def _empty_document(choice: Choice) -> dict[str, Any]:
    return {"source": choice.source.value, "table": choice.table, "reasons": {}, "launch": None, "candidates": []}


def _launch_document(launch: LaunchAnatomy) -> dict[str, Any]:
    mapping = launch.mapping
    return {
        "config": dict(launch.config),
        "predicted_us": launch.latency_us if not math.isnan(launch.latency_us) else None,
        "terms_us": dict(launch.terms_us),
        "groups_us": group_terms(launch),
        "correction": launch.factor,
        "tiles": [mapping.tiles_m, mapping.tiles_n],
        "grid_size": mapping.grid_size,
        "loop_trips": mapping.loop_trips,
        "ctas_per_sm": launch.form.ctas_per_sm,
        "wave_width": launch.waves.width,
        "waves": launch.waves.waves,
        "tail_ctas": launch.waves.tail_ctas,
        "padding": launch.padding,
        "compulsory_bytes": mapping.compulsory_bytes,
        "reread_bytes": mapping.reread_bytes,
        "workspace_bytes": mapping.workspace_bytes,
        "compute_us": launch.compute_us,
        "memory_us": launch.memory_us,
    }
