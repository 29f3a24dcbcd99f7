"""Write files whole or not at all, and one process after another."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """Yield where to write; the file takes the place of ``path`` when the block ends without an error.

    A reader sees the old file or the new one, and a full disk leaves the old one. Of threads and processes that write
    the same file the last one wins. Who may read and write a file stays as it was. What cannot be replaced is written
    to as it is: devices and pipes, such as ``/dev/stdout``. A link is followed.

    Parameters
    ----------
    path : str or Path
        Where the file goes.

    Raises
    ------
    OSError
        If it cannot be put there.
    """
    path = Path(path)
    if path.exists() and not path.is_file():
        yield path
        return
    target = _target(path)
    mode = _mode(target)
    partial = _claim(target, mode)
    try:
        yield partial
        if mode is not None:
            # Where it cannot be set, what was private stays so.
            with suppress(OSError):
                partial.chmod(mode)
        partial.replace(target)
    finally:
        # After success there is nothing left to remove; after an error, that one is what counts.
        with suppress(OSError):
            partial.unlink()


def check_place(path: str | Path) -> None:
    """Raise what writing a file would raise, before something begins whose result would be lost.

    Raises
    ------
    OSError
        If a file cannot be put there; `describe_os_error` says it in words.
    """
    path = Path(path)
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if path.is_file() or not path.exists():
        target = _target(path)
        _claim(target, _mode(target)).unlink()


@contextmanager
def one_at_a_time(path: str | Path) -> Iterator[None]:
    """Let other processes and threads that want to change a file wait until the block ends.

    The lock is a file beside it, which stays: ``NAME.lock``. Where file systems know no locks, nobody waits.

    Raises
    ------
    OSError
        If the lock file cannot be made.
    """
    import fcntl

    target = _target(Path(path))
    descriptor = os.open(target.with_name(f"{target.name}.lock"), os.O_RDWR | os.O_CREAT, 0o666)
    try:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def write_whole(path: str | Path, text: str) -> None:
    """Write a text in UTF-8, whole or not at all; line ends are kept.

    Raises
    ------
    OSError
        If it cannot be written; `describe_os_error` says it in words.
    """
    with replacing(path) as place:
        place.write_text(text, encoding="utf-8", newline="")


def describe_os_error(path: str | Path, error: OSError) -> str:
    """Say why a file cannot be written, and what to do where that is known."""
    folder = Path(path).parent
    if isinstance(error, FileNotFoundError) and not folder.is_dir():
        return f"{path}: cannot write: there is no folder {folder}; make it first"
    return f"{path}: cannot write ({error.strerror or error})"


def _target(path: Path) -> Path:
    # Not `Path.resolve`, which raises a RuntimeError for a loop of links in older versions of Python.
    return Path(os.path.realpath(path))


def _mode(target: Path) -> int | None:
    """Return who may read and write a file, or None if there is none."""
    try:
        return stat.S_IMODE(target.stat().st_mode)
    except OSError:
        return None


def _claim(target: Path, mode: int | None) -> Path:
    """Make an empty file beside another one, under a name that nobody else has; that of an old file is private."""
    partial = target.with_name(f".{target.name}.{os.urandom(8).hex()}")
    os.close(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666 if mode is None else 0o600))
    return partial
