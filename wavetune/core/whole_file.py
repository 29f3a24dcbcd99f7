"""Write files whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """Yield where to write; the file takes the place of ``path`` when the block ends without an error.

    A reader sees the old file or the new one, and a full disk leaves the old one. What cannot be replaced is written to
    as it is: devices and pipes, such as ``/dev/stdout``. A link is followed.

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
    # Not `Path.resolve`, which raises a RuntimeError for a loop of links in older versions of Python.
    target = Path(os.path.realpath(path))
    partial = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        yield partial
        partial.replace(target)
    finally:
        # After success there is nothing left to remove; after an error, that one is what counts.
        with suppress(OSError):
            partial.unlink()


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
