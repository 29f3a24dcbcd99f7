"""Import of any number of files into one workload."""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from types import TracebackType
from typing import Any

from wavetune.core.workload import Workload
from wavetune.core.workload_entry import WorkloadEntry
from wavetune.errors import WorkloadError
from wavetune.workloads.account import FileAccount
from wavetune.workloads.counted_keys import MAX_KEYS_IN_MEMORY
from wavetune.workloads.detect import FORMATS, READERS, detect_format
from wavetune.workloads.intake import ImportOptions, Intake, Origins
from wavetune.workloads.source import LineSource, named_twice
from wavetune.workloads.tally import CallRow, Tally


class ImportedWorkload:
    """What an import read. Close it, or use it as a context manager: it may hold a temporary file.

    Parameters
    ----------
    tally : Tally
        The calls.
    files : list of FileAccount
        One for each input, in order.
    """

    def __init__(self, tally: Tally, files: list[FileAccount]) -> None:
        self._tally = tally
        self.files = files

    def __enter__(self) -> ImportedWorkload:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._tally.close()

    def entries(self) -> Iterator[WorkloadEntry]:
        """Yield every key once, ordered by kind, then n, k and m."""
        return map(self._tally.entry, self._tally.rows())

    def largest(self, number: int) -> tuple[list[WorkloadEntry], int, int]:
        """Return the entries with the most calls, and the number of all keys and calls."""
        keys = calls = 0

        def counted(rows: Iterator[CallRow]) -> Iterator[CallRow]:
            nonlocal keys, calls
            for row in rows:
                keys += 1
                calls += row.calls
                yield row

        rows = heapq.nlargest(number, counted(self._tally.rows()), key=attrgetter("calls"))
        return [self._tally.entry(row) for row in rows], keys, calls

    def workload(self) -> Workload:
        """Return all of it in memory."""
        return Workload(tuple(self.entries()))

    def problem_texts(self) -> Iterator[str]:
        """Yield the JSON of every entry's `WorkloadEntry.document`: the same text, ten times as fast."""
        tally = self._tally
        rows = tally.plain_rows()
        if rows is None:
            yield from (json.dumps(tally.entry(row).document()) for row in tally.rows())
            return
        # But for numbers and extra, entries of one kind are the same text.
        frames: dict[tuple[int, int], tuple[str, str, str]] = {}
        for kind, n, k, m, batch, _, calls, extra in rows:
            frame = frames.get((kind, batch))
            if frame is None:
                frame = frames[kind, batch] = _frame(tally, kind, batch)
            start, middle, sources = frame
            end = f', "extra": {extra}}}' if extra else "}"
            yield f'{start}{m}, "n": {n}, "k": {k}{middle}{calls}{sources}{calls}}}{end}'

    @property
    def damages(self) -> list[str]:
        """Which files could not be read to their end, and why."""
        return [f"{account.path}: {account.damage}" for account in self.files if account.damage]

    @property
    def lines(self) -> dict[str, Any]:
        """Lines of all files as JSON: read, recognised, skipped, bad, and the first bad one."""
        place = None
        for account in self.files:
            if account.first_bad is not None:
                place = {
                    "file": account.path,
                    "line": account.first_bad.first_line,
                    "reason": account.first_bad.reason,
                }
                break
        totals = ("read", "recognised", "skipped", "bad")
        return {name: sum(getattr(account, name) for account in self.files) for name in totals} | {"first_bad": place}


def import_files(
    paths: Sequence[str | Path], *, format: str = "auto", options: ImportOptions | None = None, strict: bool = False,
    limit: int = MAX_KEYS_IN_MEMORY,
) -> ImportedWorkload:  # fmt: skip
    """Read files into one workload.

    Parameters
    ----------
    paths : sequence of path
        Files, plain or gzip; ``-`` is standard input.
    format : str, default="auto"
        One of `FORMATS`, for all files.
    options : ImportOptions, optional
        What files cannot say.
    strict : bool, default=False
        Whether a bad line is an error.
    limit : int, default=MAX_KEYS_IN_MEMORY
        Distinct keys to hold in memory.

    Raises
    ------
    WorkloadError
        If a file cannot be read, its format is not known, nothing in any of them is a problem, or, if strict, a line
        is bad.
    """
    if format not in FORMATS:
        raise WorkloadError(f"unknown format {format!r}; known: {', '.join(FORMATS)}")
    if twice := named_twice(paths):
        raise WorkloadError(f"{twice}: the file is named twice; its calls would count twice")
    options = options or ImportOptions()
    tally = Tally(limit)
    try:
        # Files have blanks in names of GPUs replaced.
        origins = Origins(options.device.replace(" ", "_"))
        sources: dict[str, list[int]] = {}
        files = [_import_file(path, format, options, strict, tally, origins, sources) for path in paths]
        if not tally.is_empty:
            return ImportedWorkload(tally, files)
        refused = next((f"; {f.path}:{f.first_bad.first_line}: {f.first_bad.reason}" for f in files if f.first_bad), "")
        empty = sum(account.empty for account in files)
        refused = refused or (f"; {empty:,} have a size of zero: there is nothing to compute" if empty else "")
        others = sorted({name for account in files for name in account.others})
        refused = refused or (f"; the rows are of other GPUs: {', '.join(others)}; see --device" if others else "")
        raise WorkloadError(f"no problem found in {', '.join(account.path for account in files)}{refused}")
    except BaseException:
        tally.close()
        raise


def _import_file(
    path: str | Path, format: str, options: ImportOptions, strict: bool, tally: Tally, origins: Origins,
    sources: dict[str, list[int]],
) -> FileAccount:  # fmt: skip
    with LineSource(path) as source:
        name = detect_format(source) if format == "auto" else format
        account = FileAccount(source.name, name)
        of_format = sources.setdefault(name, [])
        of_format.append(tally.add_source(source.name))
        intake = Intake(tally, account, of_format, options, origins)
        READERS[name](source, intake)
        if source.damage:
            # What was lost counts as one more line.
            account.damage = source.damage
            account.read += 1
            account.refuse(account.read, source.damage)
    if strict and account.first_bad is not None:
        raise WorkloadError(f"{account.path}:{account.first_bad.first_line}: {account.first_bad.reason}")
    return account


def _frame(tally: Tally, kind: int, batch: int) -> tuple[str, str, str]:
    """Return what stands before m, between k and the count, and before the count of the one source."""
    document = WorkloadEntry(replace(tally.kinds[kind], batch=batch)).document()
    operation = json.dumps(document.pop("operation"))
    for name in ("m", "n", "k", "count"):
        del document[name]
    (source,) = tally.sources
    return (
        f'{{"operation": {operation}, "m": ',
        f', {json.dumps(document)[1:-1]}, "count": ',
        f', "sources": {{{json.dumps(source)}: ',
    )
