"""``wavetune report``: a model's accuracy as a page, with every number beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from wavetune.cli.ask import open_model
from wavetune.cli.options import ArchOption, JsonOption, SkipBadRowsOption
from wavetune.cli.output import emit_json, show, two_columns, warn
from wavetune.cli.progress import watch
from wavetune.core.arch import find_arch
from wavetune.core.config import GEMM
from wavetune.core.dtype import find_dtype
from wavetune.errors import ArchError, NoModelError
from wavetune.runtime.device import resolve_arch
from wavetune.runtime.family_file import is_family_file
from wavetune.runtime.locate import model_file_name
from wavetune.runtime.model_file import ModelFile
from wavetune.runtime.settings import settings
from wavetune.runtime.sources import find_model

DEFAULT_ARCH = "nvidia-h200"
"""The GPU whose models and hold-out evidence ship with the package."""


def report_command(
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder for the page, its JSON and its CSV files.")],
    model: Annotated[
        Path | None,
        typer.Option(
            "--model", metavar="FILE", help="The model to judge. Default: the installed one.", show_default=False
        ),
    ] = None,
    oracle: Annotated[
        list[Path] | None,
        typer.Option(
            "--oracle",
            metavar="FILE...",
            help="Exhaustive sweeps to judge on. Default: the hold-out sweep that ships for the model.",
            show_default=False,
        ),
    ] = None,
    points: Annotated[
        list[Path] | None,
        typer.Option(
            "--points",
            metavar="FILE...",
            help="Wave-structured points for the staircase. Default: those the model was fitted to, if they are found.",
            show_default=False,
        ),
    ] = None,
    repeat: Annotated[
        Path | None,
        typer.Option(
            "--repeat",
            metavar="FILE",
            help="A second measurement of some of the sweep's shapes: how much of the regret is noise.",
            show_default=False,
        ),
    ] = None,
    arch: ArchOption = None,
    dtype: Annotated[
        str | None,
        typer.Option(
            "--dtype", metavar="NAME", help="Element type. Default: bf16, or the model file's.", show_default=False
        ),
    ] = None,
    layout: Annotated[
        str | None,
        typer.Option(
            "--layout", metavar="NAME", help="Storage of B: nk or kn. Default: nk, or the model file's.",
            show_default=False,
        ),
    ] = None,
    skip_bad_rows: SkipBadRowsOption = False,
    as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Write how good a GEMM model's choices are, where they fail and why: one page that works offline, JSON and CSV.

    The exact table is off: shapes count as never measured. Where shapes were part of the fit, the page says so.
    """
    path = model or _installed_model(arch, dtype or "bf16", layout or "nk")
    if is_family_file(path):
        raise NoModelError(f"{path} is no model of gemm; `wavetune evaluate --model {path} --oracle FILE` judges it")
    file = open_model(path, arch, GEMM.name, dtype, layout)
    assert isinstance(file, ModelFile)
    from wavetune.pipeline.report_inputs import ReportFiles, gather_inputs
    from wavetune.report.document import build_document
    from wavetune.report.render import write_report

    with watch() as observer:
        observer.begin("reading", 0)
        inputs = gather_inputs(file, ReportFiles(oracle or (), points or (), repeat, skip_bad_rows))
        observer.begin("judging", 0)
        document = build_document(inputs)
        observer.begin("writing", 0)
        written = write_report(document, out)
    facts = document.facts
    if not facts["evidence"]["held_out"]:
        warn(facts["evidence"]["text"])
    if as_json:
        emit_json({**facts, "written": [str(entry) for entry in written]})
    else:
        show(two_columns(_lines(facts, written)))


def _installed_model(arch: str | None, dtype: str, layout: str) -> Path:
    try:
        gpu = resolve_arch(arch)
    except ArchError:
        if arch is not None or settings().arch is not None:
            raise
        gpu = find_arch(DEFAULT_ARCH)
    model, refused = find_model(GEMM.name, find_dtype(dtype).name, layout, gpu.name)
    if model is None:
        for reason in refused:
            warn(reason)
        raise NoModelError(
            f"no model {gpu.name}/{model_file_name(GEMM.name, dtype, layout)} is installed; name one with --model"
        )
    return Path(model.path)


def _lines(facts: dict[str, Any], written: list[Path]) -> list[tuple[str, str]]:
    head = facts["headline"]
    efficiency, regret = head["efficiency"], head["regret"]
    unmeasured = f", {head['unmeasured']} choices not measured" if head["unmeasured"] else ""
    lines = [("model", f"{facts['model']['file']} on {facts['model']['arch']}")]
    lines += [("judged on", f"{head['shapes']} shapes{unmeasured}")]
    lines += [("", facts["evidence"]["text"])]
    if efficiency["geomean"] is not None:
        lines += [
            (
                "efficiency",
                f"geomean {efficiency['geomean']:.4f}   5th percentile {efficiency['p5']:.4f}   "
                f"min {efficiency['min']:.4f}",
            ),
            ("regret", f"mean {regret['mean']:.2%}   95th percentile {regret['p95']:.2%}   max {regret['max']:.2%}"),
        ]
    more = f" and {len(written) - 1} files of its numbers"
    return [*lines, ("wrote", f"{written[0]}{more}")]
