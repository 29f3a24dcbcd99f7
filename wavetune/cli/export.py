"""``wavetune export``: the tables' answers for a workload as files of other programs."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from wavetune.cli.live import make_folder
from wavetune.cli.options import ArchOption, DtypeOption, JsonOption, LayoutOption, NumSmsOption, refuse_overwriting
from wavetune.cli.output import emit_json, note
from wavetune.core.whole_file import describe_os_error, write_whole
from wavetune.core.workload import Workload
from wavetune.errors import WorkloadError
from wavetune.runtime.device import resolve_device
from wavetune.workloads.export_formats import CAPTURE_SIZES, EXPORT_FORMATS, OVERRIDE, SERVER_FORMATS

if TYPE_CHECKING:
    from wavetune.workloads.export_parts import Export

MARGIN = 0.02
"""As of a live measurement: below, timings do not tell two configurations apart (`wavetune.runtime.settings`)."""

UNTUNED = "tunableop-untuned"
"""The format that holds shapes alone: it needs no tables, and no GPU."""


def export_command(
    workload: Annotated[
        Path,
        typer.Argument(
            metavar="WORKLOAD", show_default=False,
            help="Workload: JSON, or CSV. For hipblaslt-override: what hipblaslt-bench printed.",
        ),
    ],
    format: Annotated[
        str, typer.Option("--format", metavar="NAME", help=f"One of: {', '.join(EXPORT_FORMATS)}.", show_default=False)
    ],
    out: Annotated[
        Path,
        typer.Option("--out", metavar="FILE", help="Where to write; for servers a folder, a file each layer."),
    ],
    arch: ArchOption = None,
    num_sms: NumSmsOption = None,
    dtype: DtypeOption = "bf16",
    layout: LayoutOption = "nk",
    margin: Annotated[
        float,
        typer.Option(
            "--margin", metavar="SHARE", min=0.0, max=1.0,
            help="Write the default where the predicted choice saves less than this share of its time.",
        ),
    ] = MARGIN,
    capture_sizes: Annotated[
        str | None,
        typer.Option(
            "--capture-sizes", metavar="LIST", show_default=False,
            help="Token counts of the rows of vllm and sglang, or 'workload' for those of the workload. Default: "
            f"{', '.join(map(str, CAPTURE_SIZES))}.",
        ),
    ] = None,
    device_name: Annotated[
        str,
        typer.Option(
            "--device-name", metavar="NAME", help="GPU in file names of vllm and sglang. Default: the driver's name.",
            show_default=False,
        ),
    ] = "",
    as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Write the answers for a workload as another program reads them; latencies are predicted unless measured."""
    from wavetune.workloads.exporting import check_format, export_untuned, export_workload

    check_format(format)
    refuse_overwriting(out, [workload])
    for option, value in (("--capture-sizes", capture_sizes), ("--device-name", device_name or None)):
        if value is not None and format not in SERVER_FORMATS:
            raise typer.BadParameter(f"{option} is for {' and '.join(SERVER_FORMATS)}; leave it out for {format}")
    sizes = CAPTURE_SIZES if capture_sizes is None else _sizes(capture_sizes)
    if format == OVERRIDE:
        from wavetune.cli.convert import write_override

        # Not of the tables' answers: the command line says so by refusing everything but bench output.
        write_override(workload, out, as_json=as_json)
        return
    read = Workload.read(workload, dtype=dtype, layout=layout)
    if format == UNTUNED:
        export = export_untuned(read)
    else:
        device = resolve_device(arch, num_sms)
        export = export_workload(read, format, device, margin=margin, capture_sizes=sizes, device_name=device_name)
    paths = _write(export, out)
    for reason, count in export.left_out.items():
        note(f"left out: {count} of {len(read.entries)} entries: {reason}")
    if format == "aiter-triton":
        note("waves_per_eu, matrix_instr_nonkdim, kpack and cache_modifier are those of AITER's own file for gfx942")
    if as_json:
        emit_json(_document(export, paths, format))
        return
    for path in paths:
        typer.echo(path)
    pinned = "" if format == UNTUNED else f", {export.pinned} pinned to the default (less than {margin:.1%} better)"
    note(f"{export.rows} {'row' if export.rows == 1 else 'rows'}{pinned}")
    if not math.isnan(export.kernel_cost):
        note(
            f"the configurations that its kernel can run take {export.kernel_cost:.2%} more time than the model's best "
            "ones (predicted, by count)"
        )
    for layer in export.layers:
        cost = layer.bucketing
        note(
            f"N={layer.n} K={layer.k}: the row that is taken costs {cost.regret:.2%} over {cost.calls:,} calls "
            f"(predicted, by count; worst {cost.worst:.1%} at M={cost.worst_m}); that only its kernel's configurations "
            f"are taken costs {cost.kernel_cost:.2%}"
        )


def _sizes(text: str) -> tuple[int, ...]:
    if text == "workload":
        return ()
    try:
        sizes = tuple(int(word) for word in text.split(","))
    except ValueError:
        sizes = ()
    if not sizes or min(sizes) < 1 or len(set(sizes)) < len(sizes):
        raise typer.BadParameter(f"--capture-sizes must be different token counts, like 1,8,64, got {text!r}")
    return sizes


def _write(export: Export, out: Path) -> list[str]:
    paths = {(out / name if name else out): text for name, text in export.files.items()}
    if "" not in export.files:
        make_folder(out)
    for path, text in paths.items():
        try:
            write_whole(path, text)
        except OSError as error:
            raise WorkloadError(describe_os_error(path, error)) from None
    return [str(path) for path in paths]


def _document(export: Export, paths: list[str], format: str) -> dict[str, Any]:
    return {
        "format": format,
        "files": paths,
        "rows": export.rows,
        "pinned": export.pinned,
        "left_out": dict(export.left_out),
        "kernel_cost": export.kernel_cost,
        "layers": [
            {
                "n": layer.n, "k": layer.k, "pinned": layer.pinned, "calls": layer.bucketing.calls,
                "regret": layer.bucketing.regret, "worst": layer.bucketing.worst, "worst_m": layer.bucketing.worst_m,
                "kernel_cost": layer.bucketing.kernel_cost,
            }
            for layer in export.layers
        ],
    }  # fmt: skip
