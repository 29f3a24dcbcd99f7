"""``wavetune convert``: what other tools measured, as files that other tools read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from wavetune.cli.options import JsonOption, refuse_overwriting
from wavetune.cli.output import emit_json, note
from wavetune.core.whole_file import describe_os_error, write_whole
from wavetune.errors import WorkloadError

convert_app = typer.Typer(no_args_is_help=True, help="Turn what other tools measured into files that they read.")


@convert_app.command("bench-output")
def bench_output_command(
    log: Annotated[
        str, typer.Argument(metavar="LOG", help="What hipblaslt-bench printed, plain or gzip; - is standard input.")
    ],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="Where to write.")],
    git_version: Annotated[
        str, typer.Option("--git-version", metavar="HASH", help="Build of hipBLASLt, where LOG does not say.")
    ] = "",
    gpu_target: Annotated[
        str, typer.Option("--gpu-target", metavar="NAME", help="Like gfx942:sramecc+:xnack-, where LOG does not say.")
    ] = "",
    compute_units: Annotated[
        int, typer.Option("--compute-units", metavar="N", min=0, help="Of a GPU whose model is not known.")
    ] = 0,
    strict: Annotated[bool, typer.Option("--strict", help="Stop with an error where a line is bad.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Write a hipBLASLt override file from the output of hipblaslt-bench: the fastest solution of every problem.

    HIPBLASLT_TUNING_OVERRIDE_FILE=FILE uses it, with the same build of hipBLASLt on the same GPU.
    """
    refuse_overwriting(out, [log])
    write_override(
        log, out, git_version=git_version, gpu_target=gpu_target, compute_units=compute_units, strict=strict,
        as_json=as_json,
    )  # fmt: skip


def write_override(
    log: str | Path, out: Path, *, git_version: str = "", gpu_target: str = "", compute_units: int = 0,
    strict: bool = False, as_json: bool = False,
) -> None:  # fmt: skip
    """Convert and write, and say what was left out.

    Raises
    ------
    WorkloadError
        See `wavetune.workloads.hipblaslt_override.override_file`; or the file cannot be written.
    """
    from wavetune.workloads.hipblaslt_override import override_file
    from wavetune.workloads.source import LineSource

    with LineSource(log) as source:
        override = override_file(
            source, build=git_version, gpu=gpu_target, compute_units=compute_units, strict=strict
        )  # fmt: skip
    try:
        write_whole(out, override.text)
    except OSError as error:
        raise WorkloadError(describe_os_error(out, error)) from None
    for line in override.account.lines():
        note(line)
    for reason, count in override.left_out.items():
        note(f"left out: {count} problems: {reason}")
    if as_json:
        emit_json(
            {
                "format": "hipblaslt-override", "files": [str(out)], "rows": override.rows, "build": override.build,
                "gpu": override.gpu, "compute_units": override.compute_units, "left_out": dict(override.left_out),
                "lines": override.account.document(),
            }
        )  # fmt: skip
        return
    typer.echo(out)
    note(f"{override.rows} rows for build {override.build} on {override.gpu} with {override.compute_units} CUs")
