"""A SQLite file that survives being killed: opening, migrating, writing, and errors that say what to do."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

from wavetune.errors import StoreError

APPLICATION_ID = 0x77617665
"""``wave`` in the header of the file: tells a store from any other SQLite database."""

MIGRATIONS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        "measurements, configurations and environment",
        (
            "CREATE TABLE environment (field TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
            """CREATE TABLE configs (
                id INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, fields TEXT NOT NULL,
                num_regs INTEGER, num_spills INTEGER, smem_bytes INTEGER)""",
            """CREATE TABLE problems (
                id INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, kernel TEXT NOT NULL, dims TEXT NOT NULL,
                dtype TEXT NOT NULL, layout TEXT NOT NULL, alignment INTEGER NOT NULL)""",
            """CREATE TABLE measurements (
                id INTEGER PRIMARY KEY, problem INTEGER NOT NULL REFERENCES problems,
                config INTEGER NOT NULL REFERENCES configs, stratum TEXT NOT NULL, status TEXT NOT NULL,
                latency_us REAL, spread_us REAL, rounds INTEGER NOT NULL, method TEXT NOT NULL, detail TEXT NOT NULL,
                UNIQUE (problem, config, stratum),
                CHECK ((status = 'ok') = (latency_us IS NOT NULL AND latency_us > 0)))""",
        ),
    ),
)
"""Named steps, applied in order; the schema version of a file is the number of steps it has had."""


WAL_RETRY_S = 0.01
"""Pause before the switch to write-ahead logging is tried again."""


class StoreConnection:
    """One connection to a store file. All writes go through `transaction`.

    Parameters
    ----------
    path : path
        Created if missing, in a folder that exists.
    busy_timeout_s : float, default=10.0
        How long to wait for another process that writes.

    Raises
    ------
    StoreError
        If the file cannot be opened, is no store, or is from a newer schema.
    """

    def __init__(self, path: str | Path, busy_timeout_s: float = 10.0) -> None:
        self.path = str(path)
        if not Path(path).absolute().parent.is_dir():
            raise StoreError(f"{self.path}: the folder does not exist; create it or choose another place")
        try:
            # isolation_level=None: transactions are only those that `transaction` begins.
            self._sqlite = sqlite3.connect(self.path, timeout=busy_timeout_s, isolation_level=None)
        except sqlite3.Error as error:
            raise self._explain(error) from error
        try:
            with self._explained():
                self._check_file()
                self._sqlite.execute("PRAGMA foreign_keys = ON")
                self._enter_wal(busy_timeout_s)
                # A commit reaches the disk before it is reported: survives a power cut, not only a kill.
                self._sqlite.execute("PRAGMA synchronous = FULL")
            self._migrate()
        except BaseException:
            self.close()
            raise

    def _enter_wal(self, busy_timeout_s: float) -> None:
        """Switch to write-ahead logging; SQLite does not wait by itself when two processes create the file at once."""
        deadline = time.monotonic() + busy_timeout_s
        while True:
            try:
                self._sqlite.execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError as error:
                is_busy = (getattr(error, "sqlite_errorcode", 0) & 0xFF) == sqlite3.SQLITE_BUSY
                if not is_busy or time.monotonic() > deadline:
                    raise
                time.sleep(WAL_RETRY_S)

    def close(self) -> None:
        """Close the connection. Nothing is lost: every batch was committed when it was recorded."""
        with contextlib.suppress(sqlite3.Error):
            self._sqlite.close()

    def query(self, sql: str, arguments: tuple[object, ...] = ()) -> list[tuple[object, ...]]:
        """Read rows.

        Raises
        ------
        StoreError
            If the file cannot be read.
        """
        with self._explained():
            return self._sqlite.execute(sql, arguments).fetchall()

    @contextlib.contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Write all or nothing: the one way to change a store.

        Raises
        ------
        StoreError
            If the disk is full, the file read-only or another process holds it. What was committed before stays.
        """
        with self._explained():
            self._sqlite.execute("BEGIN IMMEDIATE")
            try:
                yield self._sqlite
                self._sqlite.execute("COMMIT")
            except BaseException:
                # A full disk may have rolled back already.
                if self._sqlite.in_transaction:
                    self._sqlite.execute("ROLLBACK")
                raise

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise self._explain(error) from error

    def _explain(self, error: sqlite3.Error) -> StoreError:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        fixes = {
            sqlite3.SQLITE_FULL: "the disk is full; free space and run again, recorded batches are kept",
            sqlite3.SQLITE_BUSY: "another process holds the store; wait for it or stop it, then run again",
            sqlite3.SQLITE_LOCKED: "another process holds the store; wait for it or stop it, then run again",
            sqlite3.SQLITE_READONLY: "the file or its folder is read-only; make it writable or choose another place",
            sqlite3.SQLITE_CANTOPEN: "cannot open the file; check that it and its folder can be read and written",
            sqlite3.SQLITE_NOTADB: "not a measurement store; choose another file",
            sqlite3.SQLITE_CORRUPT: "the file is damaged; restore a copy or start a new store",
            sqlite3.SQLITE_IOERR: "reading or writing failed; check the disk and its free space, then run again",
        }
        return StoreError(f"{self.path}: {fixes.get(code, 'unexpected database error')} (SQLite: {error})")

    def _pragma(self, name: str) -> int:
        return int(self._sqlite.execute(f"PRAGMA {name}").fetchone()[0])

    def _check_file(self) -> None:
        """Refuse another program's database before anything in it is changed."""
        # One snapshot: another process may be creating the store between two looks.
        self._sqlite.execute("BEGIN")
        has_tables = self._sqlite.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] > 0
        application_id, version = self._pragma("application_id"), self._pragma("user_version")
        self._sqlite.execute("COMMIT")
        if application_id != APPLICATION_ID and (has_tables or application_id or version):
            raise StoreError(
                f"{self.path}: a database of another program, not a measurement store; choose another file"
            )
        if version > len(MIGRATIONS):
            raise StoreError(
                f"{self.path}: schema version {version} is newer than this wavetune knows ({len(MIGRATIONS)}); "
                "update wavetune or start a new store"
            )

    def _migrate(self) -> None:
        with self._explained():
            version = self._pragma("user_version")
        if version == len(MIGRATIONS):
            if not os.access(self.path, os.W_OK):
                raise StoreError(f"{self.path}: the file is read-only; make it writable or copy it")
            return
        with self.transaction() as sqlite:
            # Again inside the lock: another process may have migrated meanwhile.
            for _, statements in MIGRATIONS[self._pragma("user_version") :]:
                for statement in statements:
                    sqlite.execute(statement)
            sqlite.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            sqlite.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")
