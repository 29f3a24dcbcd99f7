"""``wavetune explain``: why this configuration, in words, beside its nearest rivals."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from wavetune.cli.ask import (
    describe_latency,
    describe_problem,
    explain_from_file,
    explain_problem,
    open_model,
)
from wavetune.cli.options import ArchOption, FamilyLayoutOption, JsonOption, KernelOption
from wavetune.cli.output import describe_config, emit_json, format_us, show, spell_config, two_columns
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
from wavetune.core.arch import ArchSpec, find_arch
from wavetune.core.config import KernelConfig, find_kernel_spec
from wavetune.core.problem import CONTIGUOUS, GemmProblem, Problem
from wavetune.report.anatomy import LaunchAnatomy, dissect
from wavetune.report.family_anatomy import FamilyAnatomy, dissect_family
from wavetune.report.reasons import compare_launches, describe_family_launch, describe_launch, group_terms
from wavetune.runtime.any_model import AnyModel, read_any_model
from wavetune.runtime.choice import Choice, RankedConfig, Source
from wavetune.runtime.chooser import GemmChooser
from wavetune.runtime.families import chooser_for
from wavetune.runtime.family_file import FamilyFile

if TYPE_CHECKING:
    from rich.table import Table

BAR_COLUMNS = 28
"""Width of the bar of the slowest candidate shown."""

EQUAL = 0.0005
"""Predictions this near are told as equal: they would print as 0.0 %."""

AnyLaunch = LaunchAnatomy | FamilyAnatomy

_EIGHTHS = " ▏▎▍▌▋▊▉█"


@dataclass(frozen=True)
class _Explanation:
    """An answer, taken apart.

    ``launch`` is None if the model does not hold the answer (a measurement or a setting named it); ``candidates`` are
    the best by prediction, the chosen one among them if it has a form.
    """

    arch: ArchSpec
    problem: Problem
    choice: Choice
    launch: AnyLaunch | None
    candidates: tuple[AnyLaunch, ...]


def explain_command(
    sizes: SizesArgument = None,
    arch: ArchOption = None,
    kernel: KernelOption = "gemm",
    dtype: Annotated[str | None, typer.Option("--dtype", metavar="NAME", help="Element type. Default: bf16.")] = None,
    layout: FamilyLayoutOption = None,
    alignment: AlignmentOption = CONTIGUOUS,
    model: Annotated[
        Path | None,
        typer.Option("--model", metavar="FILE", help="Ask this model file instead of the installed ones."),
    ] = None,
    top: Annotated[int, typer.Option("--top", min=1, help="Candidates to compare.")] = 5,
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
    as_json: JsonOption = False,
) -> None:
    """Explain the choice for one problem in words, beside its nearest rivals: a product, or another family's."""
    if model is not None and (arch is not None or dtype is not None or layout is not None):
        raise typer.BadParameter("--model names the GPU, the dtype and the layout itself; leave those options out")
    options = ProblemSizes(
        group_sizes, q_len, kv_len, batch, heads, kv_heads, head_dim, causal, window, page_size
    )  # fmt: skip
    file = open_model(model, None, kernel, None, None) if model is not None else None
    if file is not None:
        dtype, layout = file.dtype, file.layout
    problem = problem_of_options(
        kernel, sizes, options, dtype=dtype if dtype is not None else "bf16", layout=layout, alignment=alignment
    )
    found = _explain(problem, file, arch, top)
    if as_json:
        emit_json(_document(found) if isinstance(found, _Explanation) else _empty_document(found))
    elif isinstance(found, _Explanation):
        show(*_view(found))
    elif found.source is Source.EMPTY:
        show(f"{describe_problem(problem)}: a size is zero, there is nothing to launch")
    else:
        show(f"{spell_config(found.config)}\n{found.source.value}, from {found.table}; no model explains it")


def _explain(problem: Problem, model: AnyModel | None, arch: str | None, top: int) -> _Explanation | Choice:
    """Ask, and take the answer apart; an empty problem has only the answer."""
    choice = explain_problem(problem, arch=arch) if model is None else explain_from_file(model, problem)
    if choice.source is Source.EMPTY or not (model or choice.model):
        return choice
    # The public answer names its file; a second read costs less than a second way to find it.
    file = model if model is not None else read_any_model(Path(choice.model))
    gpu, num_sms = find_arch(file.arch), choice.num_sms
    ranking: list[RankedConfig]
    take_apart: Callable[[KernelConfig], AnyLaunch]
    if isinstance(file, FamilyFile):
        ranking = chooser_for(file, problem, num_sms, use_exact=False).rank(problem.dims)
        take_apart = partial(dissect_family, file, problem, num_sms=num_sms)
    else:
        assert isinstance(problem, GemmProblem)
        problem = GemmProblem(*problem.dims, dtype=file.dtype, layout=file.layout, alignment=problem.alignment)
        ranking = GemmChooser(file, gpu, num_sms, use_exact=False).rank(problem)
        take_apart = partial(dissect, file, gpu, problem, num_sms=num_sms)
    ranked = [entry.config for entry in ranking]
    shown = list(dict.fromkeys([*ranked[:top], choice.config])) if choice.config in ranked else ranked[:top]
    is_held = any(form.config == choice.config for form in file.forms)
    return _Explanation(
        arch=gpu,
        problem=problem,
        choice=choice,
        launch=take_apart(choice.config) if is_held else None,
        candidates=tuple(take_apart(config) for config in shown),
    )


def _view(found: _Explanation) -> Iterator[Any]:
    choice, problem = found.choice, found.problem
    scaled = f", {choice.num_sms} of its SMs" if choice.is_scaled else ""
    stand_in = (
        f", which stands in: nothing of {problem.dtype} {problem.layout} was measured" if choice.is_stand_in else ""
    )
    head = [
        ("problem", f"{describe_problem(problem)}, {problem.dtype} {problem.layout} on {found.arch.name}{scaled}"),
        ("config", spell_config(choice.config)),
        ("latency", describe_latency(choice)),
        ("source", f"{choice.source.value}, from {choice.table}{stand_in}"),
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
    if isinstance(found.launch, FamilyAnatomy):
        yield from describe_family_launch(found.launch)
    else:
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


def _chart(candidates: Sequence[AnyLaunch], choice: Choice) -> Table:
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
            **dict(zip(find_kernel_spec(found.problem.kernel).dims, found.problem.dims, strict=True)),
            "dtype": found.problem.dtype, "layout": found.problem.layout, "alignment": found.problem.alignment,
            "arch": found.arch.name,
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


def _launch_document(launch: AnyLaunch) -> dict[str, Any]:
    mapping = launch.mapping
    document: dict[str, Any] = {
        "config": dict(launch.config),
        "predicted_us": launch.latency_us if not math.isnan(launch.latency_us) else None,
        "terms_us": dict(launch.terms_us),
        "groups_us": group_terms(launch),
        "correction": launch.factor,
        "grid_size": mapping.grid_size,
        "loop_trips": mapping.loop_trips,
        "ctas_per_sm": launch.form.ctas_per_sm,
        "wave_width": launch.waves.width,
        "waves": launch.waves.waves,
        "tail_ctas": launch.waves.tail_ctas,
        "compute_us": launch.compute_us,
        "memory_us": launch.memory_us,
    }
    if isinstance(launch, FamilyAnatomy):
        return {**document, "total_trips": launch.mapping.total_trips, "moved_bytes": launch.mapping.moved_bytes}
    tiles = launch.mapping
    return {
        **document,
        "tiles": [tiles.tiles_m, tiles.tiles_n],
        "padding": launch.padding,
        "compulsory_bytes": tiles.compulsory_bytes,
        "reread_bytes": tiles.reread_bytes,
        "workspace_bytes": tiles.workspace_bytes,
    }
