"""``wavetune workload show | merge | split``: workloads in, workloads out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wavetune.cli.options import JsonOption
from wavetune.cli.output import data_table, emit_json, note, show
from wavetune.core.workload import Workload
from wavetune.core.workload_entry import WorkloadEntry
from wavetune.errors import WorkloadError

if TYPE_CHECKING:
    from wavetune.workloads.importing import ImportedWorkload

SPLITS: dict[str, Callable[[WorkloadEntry], str]] = {
    "class": lambda entry: entry.key.size_class,
    "operation": lambda entry: entry.key.operation,
    "dtype": lambda entry: entry.key.dtype,
}
"""What a workload can be split by."""


def show_command(
    files: Annotated[
        list[str],
        typer.Argument(metavar="FILE...", help="Workloads, or anything that import reads.", show_default=False),
    ],
    top: Annotated[int, typer.Option("--top", metavar="N", min=1, help="Problems to list.")] = 20,
    as_json: JsonOption = False,
) -> None:
    """Show what is in a workload: decode, small and prefill calls, and the problems with the most work."""
    from wavetune.cli.workload_view import print_workload, require_whole, workload_summary

    with _imported(files) as imported:
        workload = imported.workload()
    if as_json:
        emit_json({**workload_summary(workload), "problems": [entry.document() for entry in workload.entries]})
    else:
        print_workload(workload, top)
    require_whole(imported.damages)


def merge_command(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Workloads, JSON or CSV.", show_default=False)],
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Where to write; else stdout.", show_default=False)
    ] = None,
) -> None:
    """Add workloads up: counts of equal problems are added, sources kept."""
    from wavetune.workloads.source import named_twice

    if twice := named_twice(files):
        raise typer.BadParameter(f"the file {twice} is named twice; its calls would count twice")
    entries: list[WorkloadEntry] = []
    for path in files:
        read = Workload.read(path).entries
        note(f"{path}: {len(read)} problems, {sum(entry.count for entry in read):,} calls")
        entries += (_with_source(entry, str(path)) for entry in read)
    merged = Workload(tuple(entries))
    if out is None:
        emit_json(merged.document())
        return
    merged.write(out)
    note(f"wrote {out}: {len(merged.entries)} problems, {merged.calls:,} calls")


def split_command(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A workload, JSON or CSV.", show_default=False)],
    by: Annotated[str, typer.Option("--by", metavar="WHAT", help=f"One of: {', '.join(SPLITS)}.")] = "class",
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FOLDER", help="Where to write. Default: beside the file.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Split a workload into files: decode, small and prefill, or by operation or dtype."""
    if by not in SPLITS:
        raise typer.BadParameter(f"cannot split by {by!r}; known: {', '.join(SPLITS)}")
    workload = Workload.read(file)
    parts: dict[str, list[WorkloadEntry]] = {}
    for entry in workload.entries:
        parts.setdefault(SPLITS[by](entry), []).append(entry)
    folder = out if out is not None else file.parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise WorkloadError(f"{folder}: cannot make this folder ({error.strerror or error})") from None
    stem = file.name.removesuffix(".gz").rpartition(".")[0] or file.name
    written = []
    for name, entries in sorted(parts.items()):
        part = Workload(tuple(entries))
        path = folder / f"{stem}-{name}.json"
        part.write(path)
        written.append({by: name, "problems": len(part.entries), "calls": part.calls, "file": str(path)})
    if as_json:
        emit_json(written)
        return
    table = data_table(by, "problems", "calls", "file", right=("problems", "calls"))
    for row in written:
        table.add_row(str(row[by]), f"{row['problems']:,}", f"{row['calls']:,}", str(row["file"]))
    show(table)


def _with_source(entry: WorkloadEntry, name: str) -> WorkloadEntry:
    if entry.sources:
        return entry
    return WorkloadEntry(entry.key, entry.count, {name: entry.count}, entry.extra)


def _imported(files: list[str]) -> ImportedWorkload:
    from wavetune.workloads.importing import import_files

    imported = import_files(files)
    for account in imported.files:
        for reason in account.reasons():
            note(f"{account.path}:{reason.first_line}: {reason.reason} ({reason.count} lines)")
    return imported
