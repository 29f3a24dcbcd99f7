"""Counts of any number of byte strings in bounded memory."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

from wavetune.errors import WorkloadError

MAX_KEYS_IN_MEMORY = 200_000
"""Distinct keys that are counted in memory; then they move to a temporary file."""

_FULL_BATCHES = 8
"""Batches that the file takes before keys which came several times are added up. Adding up sorts, which is slow."""

_COLUMNS = "key BLOB, count INTEGER, line INTEGER, text TEXT"
# Beside a lone MIN, SQLite takes other columns from the row that has the minimum.
_SUMS = "SELECT key, SUM(count) AS count, MIN(line) AS line, text FROM counted GROUP BY key"


class CountedKeys:
    """A counter of byte strings, each with the line and the text that it was first seen with.

    Keys beyond the limit go to a temporary SQLite database, which SQLite keeps in memory as long as it is small. They
    are appended, and sorted by SQLite at the end: keeping them sorted takes twice as long.

    Parameters
    ----------
    limit : int, default=MAX_KEYS_IN_MEMORY
        Keys to count in memory.
    """

    def __init__(self, limit: int = MAX_KEYS_IN_MEMORY) -> None:
        self.limit = limit
        # Key to count, first line and its text. The garbage collector forgets tuples of such, and lists not.
        self._counted: dict[bytes, tuple[int, int, str]] = {}
        self._rows_in_file = 0
        self._rows_allowed = _FULL_BATCHES * limit
        self._is_indexed = False
        # An empty name is a private temporary file, deleted when it is closed.
        self._database = sqlite3.connect("", isolation_level=None)
        self._execute(
            "PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; PRAGMA cache_size = -16384;"
            f"CREATE TABLE counted ({_COLUMNS})"
        )

    def close(self) -> None:
        """Delete the temporary file."""
        self._database.close()

    @property
    def is_empty(self) -> bool:
        """Whether nothing was counted."""
        return not self._counted and not self._rows_in_file

    def add(self, key: bytes, line: int, count: int = 1, text: str = "") -> None:
        """Count a key. Lines may not decrease; of line and text the first are kept."""
        counted = self._counted
        known = counted.get(key)
        if known is not None:
            counted[key] = (known[0] + count, known[1], known[2])
            return
        counted[key] = (count, line, text)
        if len(counted) >= self.limit:
            self._spill()

    def find(self, key: bytes) -> tuple[int, str] | None:
        """Return the line and the text that a key was first seen with, or None."""
        # What is in the file was there before what is in memory.
        if self._rows_in_file:
            if not self._is_indexed:
                self._execute("CREATE INDEX by_key ON counted (key, line)")
                self._is_indexed = True
            query = "SELECT line, text FROM counted WHERE key = ? ORDER BY line LIMIT 1"
            row = self._database.execute(query, (key,)).fetchone()
            if row is not None:
                return row[0], row[1]
        known = self._counted.get(key)
        return None if known is None else known[1:]

    def rows(self) -> Iterator[tuple[bytes, int, str]]:
        """Yield every key with its count and text, in the order of keys."""
        self._spill()
        previous, total, first_text = None, 0, ""
        for key, count, text in self._database.execute("SELECT key, count, text FROM counted ORDER BY key, line"):
            if key == previous:
                total += count
                continue
            if previous is not None:
                yield previous, total, first_text
            previous, total, first_text = key, count, text
        if previous is not None:
            yield previous, total, first_text

    def rows_by_line(self) -> Iterator[tuple[bytes, int, str]]:
        """Yield every key with its count and text, in the order of first lines."""
        self._spill()
        yield from self._database.execute(f"SELECT key, count, text FROM ({_SUMS}) ORDER BY line")

    def _spill(self) -> None:
        rows = [(key, *value) for key, value in self._counted.items()]
        self._counted.clear()
        self._rows_in_file += len(rows)
        try:
            self._database.execute("BEGIN")
            self._database.executemany("INSERT INTO counted VALUES (?, ?, ?, ?)", rows)
            self._database.execute("COMMIT")
            if self._rows_in_file > self._rows_allowed:
                self._add_up()
        except sqlite3.Error as error:
            raise self._no_room(error) from None

    def _add_up(self) -> None:
        self._execute(
            f"CREATE TABLE sums ({_COLUMNS}); INSERT INTO sums {_SUMS}; DROP TABLE counted; "
            "ALTER TABLE sums RENAME TO counted"
        )
        self._is_indexed = False
        (self._rows_in_file,) = self._database.execute("SELECT COUNT(*) FROM counted").fetchone()
        # Twice as many as there are keys: each row is then added up a few times at most.
        self._rows_allowed = max(_FULL_BATCHES * self.limit, 2 * self._rows_in_file)

    def _execute(self, script: str) -> None:
        try:
            self._database.executescript(script)
        except sqlite3.Error as error:
            raise self._no_room(error) from None

    def _no_room(self, error: sqlite3.Error) -> WorkloadError:
        advice = "SQLITE_TMPDIR names its folder"
        return WorkloadError(f"cannot keep counts in a temporary file ({error}); {advice}")
