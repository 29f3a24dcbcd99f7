"""``wavetune workload``: what a program runs, from logs to lists of problems."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from wavetune.cli.options import JsonOption, refuse_overwriting
from wavetune.cli.workload_edit import merge_command, show_command, split_command
from wavetune.cli.workload_record import record_command

workload_app = typer.Typer(
    no_args_is_help=True, help="Workloads: read from logs, record, deduplicate, show, merge and split."
)

FilesArgument = Annotated[
    list[str], typer.Argument(metavar="FILE...", help="Files, plain or gzip; - is standard input.", show_default=False)
]
OutOption = Annotated[
    Path | None, typer.Option("--out", metavar="FILE", help="Write the workload here, as JSON.", show_default=False)
]
FormatOption = Annotated[
    str, typer.Option("--format", metavar="NAME", help="Format of the files; told by content, if not named.")
]
StrictOption = Annotated[bool, typer.Option("--strict", help="Stop with an error where a line is bad.")]


@workload_app.command("import")
def import_command(
    files: FilesArgument,
    format: FormatOption = "auto",
    out: OutOption = None,
    strict: StrictOption = False,
    dtype: Annotated[
        str, typer.Option("--dtype", metavar="NAME", help="Element type of problems that do not say.")
    ] = "bf16",
    layout: Annotated[str, typer.Option("--layout", metavar="NAME", help="Layout of problems that do not say.")] = "nk",
    device: Annotated[
        str,
        typer.Option(
            "--device", metavar="NAME", help="Of tuned files, take the rows of this GPU, or number of compute units."
        ),
    ] = "",
    hidden_size: Annotated[
        int, typer.Option("--hidden-size", metavar="N", min=0, help="Of the model, for fused-experts files.")
    ] = 0,
    experts_per_token: Annotated[
        int, typer.Option("--experts-per-token", metavar="N", min=0, help="Of the model, for fused-experts files.")
    ] = 0,
    as_json: JsonOption = False,
) -> None:
    """Read logs and tables of other tools into one workload.

    Formats: hipBLASLt logs (masks 32, 64, 128), hipblaslt-bench output and tuning files, cuBLASLt logs, PyTorch
    TunableOp, AITER, vLLM and SGLang, QuickTune, CSV, JSON lines, workloads.
    """
    refuse_overwriting(out, files)
    from wavetune.cli.workload_view import show_import
    from wavetune.workloads.importing import import_files
    from wavetune.workloads.intake import ImportOptions

    options = ImportOptions(dtype, layout, device, hidden_size, experts_per_token)
    with import_files(files, format=format, options=options, strict=strict) as imported:
        show_import(imported, out, as_json, listed=out is None)


@workload_app.command("dedupe")
def dedupe_command(
    files: FilesArgument,
    exact_lines: Annotated[
        bool, typer.Option("--exact-lines", help="Compare lines as bytes, as QuickTune does, and print each once.")
    ] = False,
    format: FormatOption = "auto",
    out: OutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Count calls that mean the same once: same operation, sizes, layouts, types, bias, activation and scaling.

    Solution indices, iteration counts, pointers and blanks make no difference, except with --exact-lines.
    """
    if exact_lines:
        if format != "auto":
            raise typer.BadParameter("--exact-lines knows no formats")
        from wavetune.cli.workload_view import print_exact_lines

        print_exact_lines(files, out, as_json)
        return
    refuse_overwriting(out, files)
    from wavetune.cli.workload_view import show_import
    from wavetune.workloads.importing import import_files

    with import_files(files, format=format) as imported:
        show_import(imported, out, as_json, listed=True)


workload_app.command("record", context_settings={"allow_interspersed_args": False})(record_command)
workload_app.command("show")(show_command)
workload_app.command("merge")(merge_command)
workload_app.command("split")(split_command)
