"""Rows of CSV tables by column name."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from wavetune.errors import WavetuneError, WorkloadError
from wavetune.workloads.account import FileAccount
from wavetune.workloads.source import LineSource

_BOOLEANS = {"true": True, "1": True, "false": False, "0": False, "": False, "none": False}


def split_cells(line: str) -> list[str]:
    """Split a line at its commas, as CSV does.

    Raises
    ------
    WorkloadError
        If quotes do not match.
    """
    if '"' not in line:
        return [cell.strip() for cell in line.split(",")]
    try:
        return [cell.strip() for cell in next(csv.reader([line], strict=True, skipinitialspace=True), [])]
    except csv.Error as error:
        raise WorkloadError(f"no CSV: {error}") from None


def named_cells(header: Sequence[str], cells: Sequence[str]) -> dict[str, str]:
    """Return column to cell.

    Raises
    ------
    WorkloadError
        If the row has more or fewer cells than the header.
    """
    if len(cells) != len(header):
        raise WorkloadError(
            f"{len(cells)} cells under a header of {len(header)}: the row is cut, or of another version"
        )
    return dict(zip(header, cells, strict=True))


def read_named_rows(
    source: LineSource,
    account: FileAccount,
    columns: Callable[[list[str]], list[str]],
    explanation: str,
    take: Callable[[list[str], list[str], int], None],
) -> None:
    """Read rows under a header that may stand again and again; a bad row is counted with its reason.

    Parameters
    ----------
    source : LineSource
        The file.
    account : FileAccount
        Counts lines.
    columns : callable
        Takes the cells of a line; returns the names of its columns if it is a header, else nothing. Raises what makes
        it a header that cannot be read.
    explanation : str
        Said of values that come before any header.
    take : callable
        Takes header, cells and line number of a row; raises what makes the row bad.
    """
    header: list[str] = []
    for number, line in source.lines():
        account.read = number
        if not line.strip():
            continue
        try:
            # Cells with blanks or commas, such as a list of groups, are quoted.
            cells = split_cells(line)
            names = _columns(columns, cells, header)
            if names:
                header = names
                account.recognised += 1
                continue
            if not header:
                raise WorkloadError(f"values without their names: {explanation}")
            take(header, cells, number)
        except WavetuneError as error:
            account.refuse(number, str(error))


def _columns(columns: Callable[[list[str]], list[str]], cells: list[str], header: list[str]) -> list[str]:
    try:
        return columns(cells)
    except WorkloadError:
        # Rows under a header that is refused are refused, too.
        header.clear()
        raise


def true_or_false(name: str, cell: str) -> bool:
    """Read a cell that says yes or no.

    Raises
    ------
    WorkloadError
        If it says neither.
    """
    try:
        return _BOOLEANS[cell.lower()]
    except KeyError:
        raise WorkloadError(f"{name} must be True or False, got {cell!r}") from None


def plain_value(cell: str) -> Any:
    """Return a cell as a number if it is one, else as text."""
    for read in (int, float):
        try:
            number = read(cell)
        except ValueError:
            continue
        # JSON has no infinities.
        return number if abs(number) < 1e300 else cell
    return cell


def renamed(row: Mapping[str, str], names: Mapping[str, str]) -> dict[str, Any]:
    """Return the filled cells under their new names; other columns keep theirs."""
    return {names.get(name, name): plain_value(cell) for name, cell in row.items() if cell}


def latency_us(cell: str, unit_us: float = 1.0) -> float:
    """Read a time.

    Raises
    ------
    WorkloadError
        If it is no positive number.
    """
    try:
        value = float(cell) * unit_us
    except ValueError:
        value = -1.0
    if not 0 < value < float("inf"):
        raise WorkloadError(f"a latency must be a positive number, got {cell!r}")
    return round(value, 9)
