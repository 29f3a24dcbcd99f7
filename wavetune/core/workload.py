"""What a program runs: problems with call counts, in one file format.

A workload is a JSON document ``{"schema_version": 1, "problems": [{"m": .., "n": .., "k": .., "count": ..}, ..]}``, or
a CSV file with at least the columns ``m, n, k``; the fields are those of `wavetune.core.workload_entry`. Either may be
gzip.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from wavetune.core.problem import GemmProblem
from wavetune.core.strict_json import json_error, load_json
from wavetune.core.whole_file import describe_os_error, replacing
from wavetune.core.workload_entry import ENTRY_FIELDS, WorkloadEntry, WorkloadKey
from wavetune.core.workload_table import FUSED_EXPERTS, PLAIN, SIZES, plain_columns, table_kind, why_not_plain
from wavetune.errors import WavetuneError, WorkloadError

SCHEMA_VERSION = 1

_GZIP = b"\x1f\x8b"
_UTF_16 = "iconv -f UTF-16 -t UTF-8 {path} > utf8.txt"
_FOREIGN = (
    (b"BZh", "packed by bzip2", "bunzip2 -k {path}"),
    (b"\xfd7zXZ\0", "packed by xz", "unxz -k {path}"),
    (b"\x28\xb5\x2f\xfd", "packed by zstd", "unzstd {path}"),
    (b"PK\x03\x04", "a zip archive or a spreadsheet", "unzip {path}, or save the sheet as CSV"),
    (codecs.BOM_UTF16_LE, "text in UTF-16", _UTF_16),
    (codecs.BOM_UTF16_BE, "text in UTF-16", _UTF_16),
)
_OF_LOGS = "Logs: `wavetune workload import`"
_BOOLEANS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
_INTEGER_COLUMNS = (*SIZES, "count", "batch", "heads", "kv_heads", "alignment")
_BOOLEAN_COLUMNS = ("bias", "is_causal")
_TEXT_COLUMNS = (
    "operation", "dtype", "layout", "layout_a", "dtype_b", "dtype_c", "dtype_d", "compute", "activation", "scale",
    "swizzle",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Workload:
    """Calls of a program, every key once.

    Parameters
    ----------
    entries : tuple of WorkloadEntry
        In the order of first appearance. Entries of one key become one.
    """

    entries: tuple[WorkloadEntry, ...] = ()

    def __post_init__(self) -> None:
        merged: dict[WorkloadKey, WorkloadEntry] = {}
        for entry in self.entries:
            known = merged.get(entry.key)
            merged[entry.key] = entry if known is None else known.merged(entry)
        object.__setattr__(self, "entries", tuple(merged.values()))

    @property
    def calls(self) -> int:
        """Calls of all entries together."""
        return sum(entry.count for entry in self.entries)

    @classmethod
    def from_problems(cls, problems: Iterable[tuple[GemmProblem, int]]) -> Workload:
        """Return the workload of GEMMs and their call counts."""
        return cls(tuple(WorkloadEntry.from_problem(problem, count) for problem, count in problems))

    def gemm_problems(self) -> list[tuple[GemmProblem, int]]:
        """Return the plain GEMMs that a configuration can be chosen for, with call counts, in order.

        Calls that differ only in what a `GemmProblem` does not know (bias, activation, ...) are added up. Batched and
        grouped products, attention, transposed A and types that no kernel computes are left out.
        """
        counts: dict[GemmProblem, int] = {}
        for entry in self.entries:
            problem = entry.key.gemm_problem()
            if problem is not None:
                counts[problem] = counts.get(problem, 0) + entry.count
        return list(counts.items())

    def document(self) -> dict[str, Any]:
        """Return the workload as a JSON document."""
        return {"schema_version": SCHEMA_VERSION, "problems": [entry.document() for entry in self.entries]}

    def write(self, path: str | Path) -> None:
        """Write the JSON document, one problem a line; gzip if the name ends in ``.gz``. Replaces the file at once.

        Raises
        ------
        WorkloadError
            If the file cannot be written.
        """
        write_problems(path, (json.dumps(entry.document(), allow_nan=False) for entry in self.entries))

    @classmethod
    def read(cls, path: str | Path, *, dtype: str = "bf16", layout: str = "nk") -> Workload:
        """Read a workload, JSON or CSV, plain or gzip.

        Parameters
        ----------
        dtype, layout : str
            Of problems that do not say.

        Returns
        -------
        Workload
            Never empty. Columns of a CSV file that a workload does not have are ignored; capitals make no difference.
            Tables of other tools, which may be column-major, are refused: `wavetune.core.workload_table`.

        Raises
        ------
        WorkloadError
            If the file cannot be read, or holds a problem that nothing can compute; names file and line or entry.
        """
        text = _read_text(Path(path))
        if not text.strip():
            raise WorkloadError(
                f"{path}: the file is empty; expected a workload in JSON, or CSV with the columns m,n,k"
            )
        defaults = {"dtype": dtype, "layout": layout}
        numbered = problems_of_text(path, text) if text.lstrip()[:1] in ("{", "[") else _csv_problems(path, text)
        entries = []
        for place, problem in numbered:
            try:
                entries.append(WorkloadEntry.from_document({**defaults, **problem}))
            except WavetuneError as error:
                raise WorkloadError(f"{place}: {error}") from None
        if not entries:
            raise WorkloadError(f"{path}: no shapes; add lines of m,n,k")
        return cls(tuple(entries))


def write_problems(path: str | Path, problems: Iterable[str]) -> None:
    """Write a workload from the JSON texts of its problems, however many; see `Workload.write`.

    Raises
    ------
    WorkloadError
        If the file cannot be written.
    """
    try:
        with (
            replacing(path) as place,
            place.open("wb") as raw,
            _text_writer(raw, Path(path).suffix == ".gz") as file,
        ):
            file.write(f'{{\n  "schema_version": {SCHEMA_VERSION},\n  "problems": [')
            separator = "\n"
            for problem in problems:
                file.write(f"{separator}    {problem}")
                separator = ",\n"
            file.write("\n  ]\n}\n")
    except OSError as error:
        raise WorkloadError(describe_os_error(path, error)) from None


@contextmanager
def _text_writer(raw: IO[bytes], compressed: bool) -> Iterator[IO[str]]:
    if compressed:
        # Without name and time, equal workloads are equal files.
        with gzip.GzipFile("", "wb", fileobj=raw, mtime=0) as packed, io.TextIOWrapper(packed, "utf-8") as text:
            yield text
    else:
        with io.TextIOWrapper(raw, "utf-8") as text:
            yield text


def _read_text(path: Path) -> str:
    try:
        data = path.read_bytes()
        foreign = foreign_bytes(data, path)
        if foreign:
            raise WorkloadError(f"{path}: cannot read: {foreign}")
        return (gzip.decompress(data) if data.startswith(_GZIP) else data).decode("utf-8-sig")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        expected = "expected a workload in JSON, or CSV with the columns m,n,k"
        raise WorkloadError(f"{path}: cannot read ({reason}); {expected}") from None


def foreign_bytes(data: bytes, path: str | Path) -> str:
    """Say what a file is, by its first bytes, if it is neither text in UTF-8 nor gzip; empty if it may be either."""
    for start, what, advice in _FOREIGN:
        if data.startswith(start):
            return f"this is {what}; convert it: {advice.format(path=path)}"
    return ""


def problems_of_text(path: str | Path, text: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield where a problem stands in a JSON document, and the problem's fields, unchecked.

    Raises
    ------
    WorkloadError
        If the text is no workload; names the file.
    """
    try:
        document = load_json(text)
    except ValueError as error:
        # Logs may begin as JSON does.
        raise WorkloadError(f"{path}:{getattr(error, 'lineno', 1)}: {json_error(error)}. {_OF_LOGS}") from None
    problems = document.get("problems") if isinstance(document, dict) else None
    if not isinstance(problems, list):
        raise WorkloadError(f'{path}: no workload; expected {{"problems": [..]}}. {_OF_LOGS}')
    version = document.get("schema_version", SCHEMA_VERSION)
    if type(version) is not int or not 1 <= version <= SCHEMA_VERSION:
        raise WorkloadError(f"{path}: schema_version {version!r} is not {SCHEMA_VERSION}; written by a newer wavetune?")
    for number, problem in enumerate(problems, start=1):
        place = f"{path}: problem {number}"
        if not isinstance(problem, dict):
            raise WorkloadError(f"{place}: must be an object with m, n and k, got {problem!r}")
        yield place, problem


def _csv_problems(path: str | Path, text: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield file and line of a row, and the row's problem."""
    rows = csv.reader(io.StringIO(text, newline=""), skipinitialspace=True)
    try:
        header = _plain_header(path, next(rows, []))
        for cells in rows:
            if any(cell.strip() for cell in cells):
                place = f"{path}:{rows.line_num}"
                try:
                    problem = problem_of_cells(header, cells)
                except WorkloadError as error:
                    raise WorkloadError(f"{place}: {error}") from None
                yield place, problem
    except csv.Error as error:
        raise WorkloadError(f"{path}:{rows.line_num}: no CSV: {error}") from None


def _plain_header(path: str | Path, cells: Sequence[str]) -> list[str]:
    kind = table_kind(cells, path)
    if not kind:
        names = [cell.strip().lower() for cell in cells]
        missing = next(name for name in SIZES if name not in names)
        raise WorkloadError(f"{path}:1: no column {missing!r}; the first line must name the columns m,n,k. {_OF_LOGS}")
    if kind != PLAIN:
        advice = "" if kind == FUSED_EXPERTS else f". Read it with `wavetune workload import {path}`"
        raise WorkloadError(f"{path}:1: {why_not_plain(kind, cells)}{advice}")
    try:
        return plain_columns(cells)
    except WorkloadError as error:
        raise WorkloadError(f"{path}:1: {error}") from None


def problem_of_cells(header: Sequence[str], cells: Sequence[str]) -> dict[str, Any]:
    """Turn a CSV row into the fields of a problem; columns that a workload does not have are left out.

    Raises
    ------
    WorkloadError
        If a cell does not hold what its column needs.
    """
    row = {name: cell.strip() for name, cell in zip(header, cells, strict=False) if name in ENTRY_FIELDS}
    problem: dict[str, Any] = {}
    for name in _INTEGER_COLUMNS:
        if not row.get(name) and name not in SIZES:
            continue
        try:
            problem[name] = int(row.get(name, ""))
        except ValueError:
            names = ",".join(SIZES) if name in SIZES else name
            raise WorkloadError(f"{names} must be integers, got {list(cells)}") from None
    for name in _BOOLEAN_COLUMNS:
        if row.get(name):
            problem[name] = _BOOLEANS.get(row[name].lower(), row[name])
    problem |= {name: row[name] for name in _TEXT_COLUMNS if row.get(name)}
    if row.get("groups"):
        try:
            problem["groups"] = json.loads(row["groups"])
        except ValueError:
            raise WorkloadError(f"groups must be a JSON list, got {row['groups']!r}") from None
    return problem
