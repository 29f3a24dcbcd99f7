"""Numbers of a report: every table is also a CSV file and a part of its JSON."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

Value = int | float | str | bool | None


@dataclass(frozen=True)
class DataTable:
    """A named table.

    Parameters
    ----------
    name : str
        Stem of its CSV file.
    title : str
        What it holds, a sentence.
    columns : tuple of str
        Names with units, as `latency_us`.
    rows : tuple of tuple
        One value for each column.
    """

    name: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Value, ...], ...]

    def __len__(self) -> int:
        return len(self.rows)

    def column(self, name: str) -> list[Any]:
        """Return the values of a column."""
        index = self.columns.index(name)
        return [row[index] for row in self.rows]

    def records(self) -> list[dict[str, Any]]:
        """Return the rows as dictionaries."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]


def make_table(name: str, title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> DataTable:
    """Build a table; NumPy values become Python's, and NaN becomes None, which CSV and JSON both can say."""
    return DataTable(name, title, tuple(columns), tuple(tuple(_plain(value) for value in row) for row in rows))


def _plain(value: Any) -> Value:
    plain: Value = value.item() if hasattr(value, "item") else value
    # Only NaN differs from itself.
    return None if isinstance(plain, float) and plain != plain else plain
