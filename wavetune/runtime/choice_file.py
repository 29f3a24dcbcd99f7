"""The SQLite file behind `wavetune.runtime.user_store`: opening, writing one row, and surviving what goes wrong.

Many processes share the file, any of them may be killed at any moment, and it lies in somebody's home, which may be a
network file system, full or read-only. So every operation opens its own connection (which also makes a fork harmless)
and is one short transaction. `sqlite3` is imported when the file is first touched.

Nothing here opens the database file by other means than SQLite: closing such a descriptor would drop the locks that
this process holds (sqlite.org, "How To Corrupt An SQLite Database File", 2.2).
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from wavetune.core.whole_file import one_at_a_time
from wavetune.errors import StoreError

if TYPE_CHECKING:
    import sqlite3

APPLICATION_ID = 0x77617663
"""``wavc`` in the header of the file: tells it from any other SQLite database."""

SCHEMA_VERSION = 1

PATIENCE_S = 10.0
"""How long one operation waits for other processes in all; one of them needs milliseconds."""

BUSY_TIMEOUT_S = 1.0
"""How long SQLite waits by itself. Some conflicts (recovery after a kill, a switch of journal) it reports at once."""

# Another process is in the way; PROTOCOL: it lost a race for the index of the write-ahead log.
_BUSY = ("SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_PROTOCOL")
_DAMAGED = ("SQLITE_NOTADB", "SQLITE_CORRUPT")
# What a file system without shared memory or locks says to write-ahead logging, and a read-only one to a reader.
_NO_WAL = ("SQLITE_IOERR", "SQLITE_CANTOPEN", "SQLITE_READONLY")
_ADVICE = {
    "SQLITE_FULL": "the disk is full",
    "SQLITE_BUSY": "another process holds it",
    "SQLITE_LOCKED": "another process holds it",
    "SQLITE_PROTOCOL": "another process holds it",
    "SQLITE_READONLY": "the file or its folder is read-only",
    "SQLITE_CANTOPEN": "it cannot be opened",
    "SQLITE_NOTADB": "it is damaged",
    "SQLITE_CORRUPT": "it is damaged",
    "SQLITE_IOERR": "reading or writing failed",
}

# Write-ahead logging needs memory that all processes share, so processes of two hosts would not see each other
# (sqlite.org, "Write-Ahead Logging"); a virtual machine's shared folder is the same.
_NETWORK_FILE_SYSTEMS = (
    "nfs", "cifs", "smb", "9p", "virtiofs", "lustre", "gpfs", "beegfs", "ceph", "afs", "orangefs", "pvfs2", "fuse.",
)  # fmt: skip

T = TypeVar("T")


class ChoiceFile:
    """A SQLite file with one table, safe with many processes and threads.

    Parameters
    ----------
    path : Path
        Absolute. Nothing is created before the first `write`.
    create_table : str
        Statement that creates the table in a new file.
    patience_s : float, default=10
        How long an operation waits for other processes.
    on_moved : callable
        Called with a sentence when a damaged file was moved aside.
    """

    def __init__(
        self, path: Path, create_table: str, *, on_moved: Callable[[str], None], patience_s: float = PATIENCE_S
    ) -> None:
        self.path = path
        self._create_table = create_table
        self._on_moved = on_moved
        self._patience_s = patience_s
        self._uses_wal: bool | None = None

    def read(self, sql: str, arguments: tuple[object, ...]) -> list[tuple[Any, ...]]:
        """Return rows; none where there is no file yet. Changes nothing.

        Raises
        ------
        StoreError
            If the file cannot be read, is damaged, or is of another program or a newer wavetune.
        """

        def select(sqlite: sqlite3.Connection) -> list[tuple[Any, ...]]:
            with contextlib.closing(sqlite):
                return sqlite.execute(sql, arguments).fetchall() if self._is_ready(sqlite) else []

        def attempt() -> list[tuple[Any, ...]]:
            import sqlite3

            if _identity(self.path) is None:
                return []
            try:
                return select(self._connect("rw"))
            except sqlite3.Error as error:
                if _name(error) not in _NO_WAL:
                    raise
                if os.access(self.path.parent, os.W_OK):
                    return select(self._connect("rw", has_shared_memory=False))
                if _size(f"{self.path}-wal"):
                    raise
            # A read-only place: SQLite cannot create the files beside it that even a reader of a log wants.
            return select(self._connect("ro&immutable=1"))

        return self._patiently(attempt)

    def write(self, sql: str, row: tuple[object, ...]) -> None:
        """Run one statement in a transaction of its own; when this returns, it is on the disk.

        A damaged file is moved aside, beside its place, and a new one begun.

        Raises
        ------
        StoreError
            If the file cannot be written, or is of another program or a newer wavetune.
        """
        import sqlite3

        def attempt() -> bool:
            before = _identity(self.path)
            try:
                self._commit(sql, row)
            except sqlite3.Error as error:
                if self._uses_wal and _name(error) in _NO_WAL:
                    self._uses_wal = False
                elif before is not None and _is_damage(error):
                    self._move_aside(before, str(error))
                else:
                    raise
                return False
            # If the path names another file now (moved aside by another process, or only just created), the row may
            # have gone to the old one: write it again.
            return before is not None and before == _identity(self.path)

        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"{self.path}: its folder cannot be created ({error})") from None
        for _ in range(4):
            if self._patiently(attempt):
                return
        raise StoreError(f"{self.path}: the file is replaced again and again")

    def _commit(self, sql: str, row: tuple[object, ...]) -> None:
        with contextlib.closing(self._open_for_writing()) as sqlite:
            # A commit reaches the disk before it is reported: survives a power cut, not only a kill.
            sqlite.execute("PRAGMA synchronous = FULL")
            sqlite.execute("BEGIN IMMEDIATE")
            try:
                if not self._is_ready(sqlite):
                    sqlite.execute(self._create_table)
                    sqlite.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                    sqlite.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
                sqlite.execute(sql, row)
                sqlite.execute("COMMIT")
            except BaseException:
                # A full disk may have rolled back already.
                if sqlite.in_transaction:
                    sqlite.execute("ROLLBACK")
                raise

    def _open_for_writing(self) -> sqlite3.Connection:
        import sqlite3

        if self._uses_wal is None:
            self._uses_wal = not _is_on_network(self.path)
        sqlite = self._connect("rwc", has_shared_memory=self._uses_wal)
        try:
            self._is_ready(sqlite)
            if self._uses_wal and sqlite.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
                # If somebody is writing just now, the file stays as it is: any journal will do.
                with contextlib.suppress(sqlite3.OperationalError):
                    sqlite.execute("PRAGMA journal_mode = WAL")
        except BaseException:
            sqlite.close()
            raise
        return sqlite

    def _connect(self, mode: str, *, has_shared_memory: bool = True) -> sqlite3.Connection:
        import sqlite3

        uri = f"{self.path.as_uri()}?mode={mode}"
        # isolation_level=None: transactions are only those that are begun here.
        sqlite = sqlite3.connect(uri, uri=True, timeout=BUSY_TIMEOUT_S, isolation_level=None)
        try:
            # Hand-damaged text must not end the reading of the other rows.
            sqlite.text_factory = lambda raw: raw.decode("utf-8", "replace")
            if not has_shared_memory:
                # An exclusive connection keeps the index of a write-ahead log in its own memory, which is enough to
                # leave that mode.
                sqlite.execute("PRAGMA locking_mode = EXCLUSIVE")
                self._is_ready(sqlite)
                if sqlite.execute("PRAGMA journal_mode").fetchone()[0] == "wal":
                    sqlite.execute("PRAGMA journal_mode = DELETE")
                sqlite.execute("PRAGMA locking_mode = NORMAL")
                sqlite.execute("SELECT count(*) FROM sqlite_master").fetchone()
        except BaseException:
            sqlite.close()
            raise
        return sqlite

    def _is_ready(self, sqlite: sqlite3.Connection) -> bool:
        """Whether the table is there; refuses another program's file before anything in it is changed."""
        # One snapshot: another process may be creating the table between two looks.
        with _snapshot(sqlite):
            application_id = sqlite.execute("PRAGMA application_id").fetchone()[0]
            version = sqlite.execute("PRAGMA user_version").fetchone()[0]
            has_tables = bool(sqlite.execute("SELECT count(*) FROM sqlite_master").fetchone()[0])
        if application_id == APPLICATION_ID:
            if version > SCHEMA_VERSION:
                raise StoreError(
                    f"{self.path}: schema version {version} is newer than this wavetune knows ({SCHEMA_VERSION}); "
                    "update wavetune, or set WAVETUNE_CACHE_DIR to another folder"
                )
            return True
        if application_id or version or has_tables:
            raise StoreError(
                f"{self.path}: a database of another program; remove it, or set WAVETUNE_CACHE_DIR to another folder"
            )
        return False

    def _move_aside(self, damaged: tuple[int, int], reason: str) -> None:
        with one_at_a_time(self.path):
            # Another process may have moved it already; what is there now is new.
            if _identity(self.path) != damaged:
                return
            aside = f"{self.path}.damaged-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
            for side_file in ("-wal", "-shm", "-journal"):
                with contextlib.suppress(OSError):
                    os.replace(f"{self.path}{side_file}", f"{aside}{side_file}")
            try:
                os.replace(self.path, aside)
            except OSError as error:
                raise StoreError(f"{self.path}: it is damaged ({reason}) and cannot be moved aside ({error})") from None
        self._on_moved(f"{self.path}: the file is damaged ({reason}); it was moved to {aside} and a new one begun")

    def _patiently(self, attempt: Callable[[], T]) -> T:
        """Try again while other processes are in the way; say what is wrong otherwise."""
        try:
            import sqlite3
        except ImportError as error:
            raise StoreError(f"{self.path}: this Python has no sqlite3 ({error})") from None
        deadline = time.monotonic() + self._patience_s
        n_tries = 0
        while True:
            try:
                return attempt()
            except sqlite3.Error as error:
                if _name(error) not in _BUSY or time.monotonic() > deadline:
                    advice = _ADVICE.get(_name(error), "unexpected database error")
                    if not os.access(self.path.parent, os.W_OK):
                        advice = "its folder is read-only"
                    raise StoreError(f"{self.path}: {advice} (SQLite: {error})") from error
            except StoreError:
                raise
            except OSError as error:
                raise StoreError(f"{self.path}: {error}") from error
            n_tries += 1
            # Processes that started together must not try again together.
            time.sleep(0.001 * (1 + (os.getpid() + n_tries) % 17))


def _name(error: sqlite3.Error) -> str:
    """Return the primary result code of SQLite; empty if Python itself complains."""
    name: str = getattr(error, "sqlite_errorname", "")
    return "_".join(name.split("_")[:2])


def _is_damage(error: sqlite3.Error) -> bool:
    # A file of ours without its table or a column was damaged by hand.
    return _name(error) in _DAMAGED or str(error).startswith(("no such", "table choices has no column"))


@contextlib.contextmanager
def _snapshot(sqlite: sqlite3.Connection) -> Iterator[None]:
    """Read in one transaction: the one that is open, or one for the purpose."""
    is_open = sqlite.in_transaction
    if not is_open:
        sqlite.execute("BEGIN")
    try:
        yield
    finally:
        if not is_open and sqlite.in_transaction:
            sqlite.execute("ROLLBACK")


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0


def _is_on_network(path: Path) -> bool:
    """Whether ``path`` lies on a file system that hosts share, by the kernel's list of mounts (Linux)."""
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as file:
            lines = file.read().splitlines()
    except OSError:
        return False
    return mount_type(lines, os.path.realpath(path)).startswith(_NETWORK_FILE_SYSTEMS)


def mount_type(lines: list[str], path: str) -> str:
    """Return the type of the file system that holds ``path``, from lines of ``/proc/self/mountinfo`` (proc(5))."""
    best, found = -1, ""
    for line in lines:
        left, _, right = line.partition(" - ")
        fields = left.split(" ")
        if len(fields) < 5 or not right:
            continue
        # Spaces and the like are written as \040.
        point = fields[4].encode().decode("unicode_escape") if "\\" in fields[4] else fields[4]
        is_inside = path == point or path.startswith(point.rstrip("/") + "/")
        # Later lines are mounted over earlier ones.
        if is_inside and len(point) >= best:
            best, found = len(point), right.split(" ")[0]
    return found
