"""``wavetune models``: which models there are, what is in them, whether they are whole."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import Annotated

import typer

from wavetune.cli.model_view import family_document, model_document, model_entry, print_family, print_model
from wavetune.cli.options import JsonOption
from wavetune.cli.output import data_table, emit_json, show, warn
from wavetune.core.arch import find_arch
from wavetune.errors import ArchError, ModelFileError, NoModelError
from wavetune.runtime.any_model import read_any_model, read_found_model
from wavetune.runtime.family_file import FamilyFile
from wavetune.runtime.locate import all_model_files, model_folders, unusable_folders

models_app = typer.Typer(no_args_is_help=True, help="List, show and verify model files.")


@models_app.command("list")
def list_command(as_json: JsonOption = False) -> None:
    """List the model files that can be found, in search order."""
    _warn_of_folders()
    entries = [model_entry(path, read_found_model) for path in all_model_files()]
    if as_json:
        emit_json(entries)
        return
    if not entries:
        raise NoModelError(_nothing_found())
    # Paths are long: each folder has a line of its own, below it models by the name that `show` takes.
    for folder, found in groupby(entries, key=lambda entry: Path(entry["path"]).parent.parent):
        errors = []
        numeric = ("configs", "exact", "held out")
        table = data_table("model", *numeric, "created", right=numeric)
        for entry in found:
            path = Path(entry["path"])
            name = f"{path.parent.name}/{path.stem}"
            if entry["error"]:
                table.add_row(name, "", "", "", "damaged", style="red")
                errors.append(entry["error"])
                continue
            held_out = entry["held_out_efficiency"]
            table.add_row(
                name, str(entry["configs"]), str(entry["exact"]),
                f"{held_out:.1%}" if held_out is not None else "-", entry["created"] or "-",
            )  # fmt: skip
        typer.echo(folder)
        show(table)
        for error in errors:
            typer.echo(error)


@models_app.command("show")
def show_command(
    model: Annotated[str, typer.Argument(help="A model file, or ARCH/KERNEL-DTYPE as in h200/gemm-bf16.")],
    as_json: JsonOption = False,
) -> None:
    """Show where a model comes from, its accuracy and its configurations."""
    path = find_model(model)
    file = read_any_model(path)
    if isinstance(file, FamilyFile):
        if as_json:
            emit_json(family_document(file))
        else:
            print_family(file)
        return
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
    """Check schema, digest and every field of model files, and the place of those found; exits 3 if one is refused."""
    _warn_of_folders()
    if files:
        entries = [model_entry(path, read_any_model) for path in files]
    else:
        entries = [model_entry(path, read_found_model) for path in all_model_files()]
    if not entries:
        raise NoModelError(_nothing_found())
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


def _warn_of_folders() -> None:
    for complaint in unusable_folders():
        warn(complaint)


def _nothing_found() -> str:
    folders = ", ".join(map(str, model_folders())) or "no folder"
    return f"no model file found in {folders}; make one with `wavetune calibrate`, or set WAVETUNE_MODELS"
