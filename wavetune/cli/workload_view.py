"""What the workload verbs print."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from wavetune.cli.output import data_table, format_sizes, note, show
from wavetune.core.whole_file import describe_os_error, replacing
from wavetune.core.workload import Workload, write_problems
from wavetune.core.workload_entry import SIZE_CLASSES, WorkloadEntry, WorkloadKey
from wavetune.errors import WorkloadError

if TYPE_CHECKING:
    from rich.table import Table

    from wavetune.workloads.importing import ImportedWorkload

LISTED = 20
"""Problems in a table, unless more are asked for."""

_LABELS = {
    "layout_a": "A", "dtype_b": "B", "dtype_d": "D", "compute": "accumulates in", "activation": "", "scale": "scale",
    "swizzle": "shuffled", "alignment": "alignment",
}  # fmt: skip

_CHUNK = 4096
"""Texts that are printed together: one write for each would be slow."""


def show_import(imported: ImportedWorkload, out: Path | None, as_json: bool, *, listed: bool) -> None:
    """Account for an import on stderr, write it, and print it: as JSON, or as a list if that is wanted.

    Raises
    ------
    WorkloadError
        If it cannot be written; or, at the end, if a file could not be read to its end.
    """
    for account in imported.files:
        for line in account.lines():
            note(line)
    if out is not None:
        write_problems(out, imported.problem_texts())
        note(f"wrote {out}")
    if as_json:
        emit_import(imported)
    elif listed:
        print_import(imported)
    require_whole(imported.damages)


def require_whole(damages: Sequence[str]) -> None:
    """End with an error, once what could be read is out, if files could not be read to their end."""
    if damages:
        raise WorkloadError(f"{'; '.join(damages)}: what comes behind is missing in the result; get the whole file")


def emit_import(imported: ImportedWorkload) -> None:
    """Print an import as JSON, problem by problem: there may be millions."""
    rest = {"lines": imported.lines, "files": [account.document() for account in imported.files]}
    problems = separated(imported.problem_texts(), ",\n    ")
    for chunk in chunks(chain(['{\n  "problems": [\n    '], problems, ["\n  ],\n"])):
        typer.echo(chunk, nl=False)
    typer.echo(json.dumps(rest, indent=2, allow_nan=False)[2:])


def print_import(imported: ImportedWorkload) -> None:
    """Print the problems with the most calls, and how many there are."""
    largest, keys, calls = imported.largest(LISTED)
    typer.echo(f"{calls:,} calls, {keys:,} different problems" + (f"; the first {LISTED}:" if keys > LISTED else ":"))
    show(problem_table(largest, calls))


def print_exact_lines(files: Sequence[str], out: Path | None, as_json: bool) -> None:
    """Print or write different lines; how many there are goes to stderr."""
    from wavetune.workloads.exact_lines import ExactLines

    with ExactLines(files) as lines:
        different = 0

        def texts() -> Iterator[str]:
            nonlocal different
            for count, line in lines.counted():
                different += 1
                text = line.decode("utf-8", "replace")
                yield json.dumps({"count": count, "line": text}) if as_json else f"{text}\n"

        parts: Iterator[str] = texts()
        if as_json:
            parts = chain(['{"lines": [\n'], separated(parts, ",\n"), ["\n]}\n"])
        if out is None:
            for chunk in chunks(parts):
                typer.echo(chunk, nl=False)
        else:
            try:
                with replacing(out) as place, place.open("w", encoding="utf-8", newline="") as file:
                    file.writelines(parts)
            except OSError as error:
                raise WorkloadError(describe_os_error(out, error)) from None
        note(f"{lines.read:,} lines, {lines.ignored:,} ignored, {different:,} different")
        require_whole(lines.damages)


def workload_summary(workload: Workload) -> dict[str, Any]:
    """Return calls, problems and arithmetic by size class, as JSON."""
    flops = sum(entry.count * entry.key.flops for entry in workload.entries)
    classes = {}
    for name in SIZE_CLASSES:
        entries = [entry for entry in workload.entries if entry.key.size_class == name]
        work = sum(entry.count * entry.key.flops for entry in entries)
        classes[name] = {
            "problems": len(entries),
            "calls": sum(entry.count for entry in entries),
            "share_of_flops": work / flops if flops else 0.0,
        }
    return {"calls": workload.calls, "different_problems": len(workload.entries), "classes": classes}


def print_workload(workload: Workload, top: int) -> None:
    """Print classes, then the problems with the most work."""
    summary = workload_summary(workload)
    table = data_table("class", "problems", "calls", "flops", right=("problems", "calls", "flops"))
    for name, row in summary["classes"].items():
        table.add_row(name, f"{row['problems']:,}", f"{row['calls']:,}", f"{row['share_of_flops']:.1%}")
    table.add_row("all", f"{len(workload.entries):,}", f"{workload.calls:,}", "100.0%")
    show(table)
    typer.echo()
    ordered = sorted(workload.entries, key=lambda entry: -entry.count * entry.key.flops)
    show(problem_table(ordered[:top], workload.calls))
    if len(ordered) > top:
        typer.echo(f"and {len(ordered) - top:,} more")


def problem_table(entries: Iterable[WorkloadEntry], calls: int) -> Table:
    """Arrange problems, with their share of all calls."""
    table = data_table(
        "calls", "share", "class", "operation", "m x n x k", "dtype", "B", "and", right=("calls", "share")
    )
    for entry in entries:
        key = entry.key
        table.add_row(
            f"{entry.count:,}", f"{entry.count / calls:.1%}", key.size_class, key.operation,
            format_sizes((key.m, key.n, key.k)), key.dtype, key.layout, describe_rest(key),
        )  # fmt: skip
    return table


def describe_rest(key: WorkloadKey) -> str:
    """Describe what of a key is not plain."""
    plain = WorkloadKey(1, 1, 1, dtype=key.dtype)
    words = []
    if key.groups:
        words.append(f"{len(key.groups)} groups, largest {max(m for m, _, _ in key.groups)} rows")
    elif key.batch > 1:
        words.append(f"batch {key.batch}")
    if key.operation == "attention":
        words.append(f"{key.heads}/{key.kv_heads} heads" + (" causal" if key.is_causal else ""))
    if key.bias:
        words.append("bias")
    for name, label in _LABELS.items():
        value = getattr(key, name)
        if value != getattr(plain, name):
            words.append(f"{label} {value}".strip())
    return ", ".join(words)


def separated(texts: Iterable[str], separator: str) -> Iterator[str]:
    """Yield texts with a separator between them."""
    texts = iter(texts)
    yield from islice(texts, 1)
    for text in texts:
        yield separator
        yield text


def chunks(texts: Iterable[str]) -> Iterator[str]:
    """Yield many texts at a time, joined."""
    texts = iter(texts)
    while chunk := "".join(islice(texts, _CHUNK)):
        yield chunk
