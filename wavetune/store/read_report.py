"""What reading measurement files kept, merged and skipped: nothing is lost silently."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class SkippedRows:
    """Rows of one file that were left out for one reason.

    Parameters
    ----------
    reason : str
        What is wrong with them.
    rows : int
        How many.
    first_line : int
        Line of the first; the header is line 1.
    """

    reason: str
    rows: int
    first_line: int


@dataclass(frozen=True, slots=True)
class FileReport:
    """One file: ``rows_read == rows_kept + rows_merged + rows_skipped``.

    Parameters
    ----------
    path : str
        As it was given.
    sha256 : str
        Digest of the file's bytes, hexadecimal.
    rows_read : int
        Data rows of the file; blank lines are not rows.
    rows_kept : int
        Rows of the table.
    rows_merged : int
        Repeated readings that went into the median of a kept row.
    skipped : tuple of SkippedRows
        By first line.
    """

    path: str
    sha256: str
    rows_read: int
    rows_kept: int
    rows_merged: int
    skipped: tuple[SkippedRows, ...] = ()

    @property
    def rows_skipped(self) -> int:
        """Rows left out, all reasons together."""
        return sum(entry.rows for entry in self.skipped)

    def lines(self) -> list[str]:
        """Describe the file in a line, and every reason for skipping in one more."""
        merged = f", {self.rows_merged} repeated readings merged" if self.rows_merged else ""
        text = [f"{self.path}: {self.rows_kept} of {self.rows_read} rows{merged}, {self.rows_skipped} skipped"]
        text += [f"{self.path}:{entry.first_line}: {entry.rows} rows skipped: {entry.reason}" for entry in self.skipped]
        return text


@dataclass(frozen=True, slots=True)
class ReadReport:
    """All files of one read, in order."""

    files: tuple[FileReport, ...] = ()

    @property
    def digests(self) -> dict[str, str]:
        """File path to sha256 digest."""
        return {entry.path: entry.sha256 for entry in self.files}

    @property
    def rows_read(self) -> int:
        """Data rows of all files."""
        return sum(entry.rows_read for entry in self.files)

    @property
    def rows_kept(self) -> int:
        """Rows of the table."""
        return sum(entry.rows_kept for entry in self.files)

    @property
    def rows_skipped(self) -> int:
        """Rows left out."""
        return sum(entry.rows_skipped for entry in self.files)

    def lines(self) -> list[str]:
        """Describe every file, for people."""
        return [line for entry in self.files for line in entry.lines()]


@dataclass(slots=True)
class SkipLog:
    """Collects skipped rows by reason while a file is read."""

    lines_by_reason: dict[str, list[int]] = field(default_factory=dict)

    def add(self, reason: str, line: int) -> None:
        """Note one row."""
        self.lines_by_reason.setdefault(reason, []).append(line)

    def entries(self) -> tuple[SkippedRows, ...]:
        """Return the reasons, by first line."""
        entries = [SkippedRows(reason, len(lines), min(lines)) for reason, lines in self.lines_by_reason.items()]
        return tuple(sorted(entries, key=lambda entry: (entry.first_line, entry.reason)))
