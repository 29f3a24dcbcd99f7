"""Files of any size as blocks of whole lines: plain or gzip, or standard input."""

from __future__ import annotations

import codecs
import re
import sys
import zlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO

from wavetune.core.workload import foreign_bytes
from wavetune.errors import WorkloadError

BLOCK_BYTES = 1 << 20
"""Read at a time. Larger blocks are no faster, and compressed ones grow twentyfold."""

MAX_LINE_BYTES = 64 << 20
"""A longer line is no line of a log: the file is binary, or something else altogether."""

HEAD_BYTES = 1 << 20
"""Looked at to tell the format."""

STDIN = "-"

_GZIP = b"\x1f\x8b"
_ESCAPE = b"\x1b"
_COLOURS = re.compile(rb"\x1b\[[0-9;?]*[ -/]*[@-~]")
_GZIP_WINDOW = 16 + zlib.MAX_WBITS


class LineSource:
    """One input, read once from front to back.

    Parameters
    ----------
    path : str or Path
        A file, or ``-`` for standard input. Gzip is told by content.

    Attributes
    ----------
    name : str
        As it was given; ``stdin`` for ``-``.
    damage : str
        Why reading ended before the end, where it did: what was read until then is good.

    Raises
    ------
    WorkloadError
        If the file cannot be opened or read, or has a line beyond `MAX_LINE_BYTES`.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = str(path)
        self.name = "stdin" if self.path == STDIN else self.path
        self.damage = ""
        self._head = b""
        self._is_first = True
        self._is_at_end = False
        try:
            self._file: IO[bytes] = sys.stdin.buffer if self.path == STDIN else Path(path).open("rb")  # noqa: SIM115
            self._first = self._file.read(BLOCK_BYTES)
        except OSError as error:
            raise WorkloadError(f"{self.name}: cannot read ({error.strerror or error})") from None
        foreign = foreign_bytes(self._first, self.name)
        if foreign:
            self._close()
            raise WorkloadError(f"{self.name}: cannot read: {foreign}")
        self._gunzip = _Gunzip() if self._first.startswith(_GZIP) else None

    def __enter__(self) -> LineSource:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._close()

    def head(self) -> bytes:
        """Return the beginning, which `blocks` will return again."""
        while len(self._head) < HEAD_BYTES:
            block = self._read()
            if not block:
                break
            self._head += block
        return self._head[:HEAD_BYTES]

    def blocks(self, *, as_they_are: bool = False) -> Iterator[bytes]:
        """Yield whole lines, many at a time; only the last block may lack its line end.

        Parameters
        ----------
        as_they_are : bool, default=False
            Whether the escape sequences stay by which programs colour what they print.
        """
        blocks = self._blocks()
        return blocks if as_they_are else map(without_colours, blocks)

    def _blocks(self) -> Iterator[bytes]:
        carry = self._head
        self._head = b""
        while True:
            cut = carry.rfind(b"\n") + 1
            if cut:
                yield carry[:cut]
                carry = carry[cut:]
            if len(carry) > MAX_LINE_BYTES:
                raise WorkloadError(
                    f"{self.name}: a line of more than {MAX_LINE_BYTES >> 20} MiB; this is no text file"
                )
            block = self._read()
            if not block:
                break
            carry += block
        if carry:
            yield carry

    def lines(self) -> Iterator[tuple[int, str]]:
        """Yield line number, from 1, and line without its end. Bytes that are no UTF-8 become U+FFFD."""
        number = 0
        for block in self.blocks():
            rows = block.split(b"\n")
            if not rows[-1]:
                rows.pop()
            for row in rows:
                number += 1
                yield number, row.rstrip(b"\r").decode("utf-8", "replace")

    def text(self) -> str:
        """Return the whole input, at most `MAX_LINE_BYTES`: for formats that are one document.

        Raises
        ------
        WorkloadError
            If it is longer.
        """
        size = 0
        blocks = []
        for block in self.blocks():
            size += len(block)
            if size > MAX_LINE_BYTES:
                raise WorkloadError(f"{self.name}: a document of more than {MAX_LINE_BYTES >> 20} MiB")
            blocks.append(block)
        return b"".join(blocks).decode("utf-8", "replace")

    def _close(self) -> None:
        if self.path != STDIN:
            self._file.close()

    def _read(self) -> bytes:
        """Return the next bytes, none at the end; never the mark that some editors put first."""
        block = self._read_marked()
        if self._is_first:
            self._is_first = False
            block = block.removeprefix(codecs.BOM_UTF8)
        return block

    def _read_marked(self) -> bytes:
        while not self._is_at_end:
            try:
                block = self._first or self._file.read(BLOCK_BYTES)
            except OSError as error:
                raise WorkloadError(f"{self.name}: cannot read ({error.strerror or error})") from None
            self._first = b""
            self._is_at_end = not block
            if self._gunzip is None:
                return block
            try:
                text = self._gunzip.feed(block)
            except (zlib.error, EOFError) as error:
                self.damage = f"the gzip stream is cut or damaged ({error})"
                self._is_at_end = True
                return b""
            if text:
                return text
        return b""


def without_colours(block: bytes) -> bytes:
    """Take out the escape sequences of terminals."""
    return _COLOURS.sub(b"", block) if _ESCAPE in block else block


def named_twice(paths: Iterable[str | Path]) -> str:
    """Return a path that is a file named before, whatever it is called; empty if there is none."""
    seen: set[object] = set()
    for path in paths:
        file: object = str(path)
        with suppress(OSError):
            status = Path("/dev/stdin" if file == STDIN else path).stat()
            file = (status.st_dev, status.st_ino)
        if file in seen:
            return str(path)
        seen.add(file)
    return ""


class _Gunzip:
    """Decompresses a stream of gzip members, block by block; a torn stream loses its torn end only."""

    def __init__(self) -> None:
        self._member = zlib.decompressobj(_GZIP_WINDOW)
        self._has_begun = False

    def feed(self, block: bytes) -> bytes:
        """Return what a block decompresses to; an empty block is the end.

        Raises
        ------
        EOFError
            If the end comes inside a member.
        zlib.error
            If the bytes are damaged.
        """
        if not block and self._has_begun and not self._member.eof:
            raise EOFError("it ends inside a member")
        texts = []
        while block:
            if self._member.eof:
                self._member, self._has_begun = zlib.decompressobj(_GZIP_WINDOW), False
            self._has_begun = True
            texts.append(self._member.decompress(block))
            # Members may be padded with zeros.
            block = self._member.unused_data.lstrip(b"\0")
        return b"".join(texts)
