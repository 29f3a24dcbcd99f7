"""``wavetune models``: which models there are, what is in them, whether they are whole."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from wavetune.cli.model_view import family_document, model_document, model_entry, print_family, print_model
from wavetune.cli.options import JsonOption
from wavetune.cli.output import data_table, emit_json, show
from wavetune.core.arch import find_arch
from wavetune.errors import ArchError, ModelFileError, NoModelError
from wavetune.runtime.codec import read_model
from wavetune.runtime.family_file import is_family_file, read_family
from wavetune.runtime.locate import all_model_files, model_folders

models_app = typer.Typer(no_args_is_help=True, help="List, show and verify model files.")


@models_app.command("list")
def list_command(as_json: JsonOption = False) -> None:
    """List the model files that can be found, in search order."""
    entries = [model_entry(path) for path in all_model_files()]
    if as_json:
        emit_json(entries)
        return
    if not entries:
        raise NoModelError(_nothing_found())
    table = data_table(
        "arch", "kernel", "dtype", "layout", "configs", "exact", "held out", "created", "file",
        right=("configs", "exact", "held out"),
    )  # fmt: skip
    for entry in entries:
        if entry["error"]:
            table.add_row("damaged", "", "", "", "", "", "", "", entry["error"], style="red")
            continue
        held_out = entry["held_out_efficiency"]
        table.add_row(
            entry["arch"], entry["kernel"], entry["dtype"], entry["layout"], str(entry["configs"]),
            str(entry["exact"]), f"{held_out:.1%}" if held_out is not None else "-", entry["created"] or "-",
            entry["path"],
        )  # fmt: skip
    show(table)


@models_app.command("show")
def show_command(
    model: Annotated[str, typer.Argument(help="A model file, or ARCH/KERNEL-DTYPE as in h200/gemm-bf16.")],
    as_json: JsonOption = False,
) -> None:
    """Show where a model comes from, its accuracy and its configurations."""
    path = find_model(model)
    if is_family_file(path):
        family = read_family(path)
        if as_json:
            emit_json(family_document(family))
        else:
            print_family(family)
        return
    file = read_model(path)
    document = model_document(file)
    if as_json:
        emit_json(document)
        return
    print_model(file, document)


@models_app.command("verify")
def verify_command(
    files: Annotated[
        list[Path] | None, typer.Argument(help="Model files. Default: every one that can be found.", show_default=False)
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Check schema, digest and every field of model files; exits 3 if one is damaged."""
    paths = list(files or all_model_files())
    if not paths:
        raise NoModelError(_nothing_found())
    entries = [model_entry(path) for path in paths]
    damaged = [entry for entry in entries if entry["error"]]
    if as_json:
        emit_json(
            [{"path": e["path"], "ok": not e["error"], "digest": e["digest"], "error": e["error"]} for e in entries]
        )
    else:
        for entry in entries:
            typer.echo(entry["error"] if entry["error"] else f"{entry['path']}: ok, {entry['digest']}")
    if damaged:
        raise ModelFileError(f"{len(damaged)} of {len(entries)} model files cannot be used")


def find_model(name: str) -> Path:
    """Find a model file by path, or by ``ARCH/KERNEL-DTYPE`` in the searched folders.

    Raises
    ------
    NoModelError
        If there is none.
    """
    if Path(name).is_file():
        return Path(name)
    folder, _, stem = name.partition("/")
    try:
        folder = find_arch(folder).name
    except ArchError:
        folder = ""
    for path in all_model_files():
        if folder and path.parent.name == folder and path.name in (stem, f"{stem}.json"):
            return path
    found = ", ".join(f"{path.parent.name}/{path.stem}" for path in all_model_files()) or "none"
    raise NoModelError(f"no model {name!r}: neither a file nor one of those found: {found}")


def _nothing_found() -> str:
    folders = ", ".join(map(str, model_folders())) or "no folder"
    return f"no model file found in {folders}; make one with `wavetune calibrate`, or set WAVETUNE_MODELS"
