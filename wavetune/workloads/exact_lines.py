"""Byte-identical lines of a log, counted: QuickTune's notion of a duplicate."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType

from wavetune.errors import WorkloadError
from wavetune.workloads.counted_keys import MAX_KEYS_IN_MEMORY, CountedKeys
from wavetune.workloads.detect import detect_format
from wavetune.workloads.source import LineSource, named_twice

_RECORD_MARKS = {"hipblaslt-log": b"hipblaslt-bench", "cublaslt-log": b"[Trace]", "hipblaslt-profile": b"function"}
"""What a line of these logs has; their other lines belong to other programs."""


class ExactLines:
    """Different lines of some files, in the order of their first appearance. Close it when done.

    Attributes
    ----------
    read, ignored : int
        Lines of all files, and those among them that are blank or belong to other programs.
    damages : list of str
        Which files could not be read to their end, and why.
    """

    def __init__(self, paths: Sequence[str | Path], *, limit: int = MAX_KEYS_IN_MEMORY) -> None:
        self.read = 0
        self.ignored = 0
        self.damages: list[str] = []
        self._lines = CountedKeys(limit)
        if twice := named_twice(paths):
            raise WorkloadError(f"{twice}: the file is named twice; its lines would count twice")
        for path in paths:
            with LineSource(path) as source:
                self._read(source)

    def __enter__(self) -> ExactLines:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._lines.close()

    def counted(self) -> Iterator[tuple[int, bytes]]:
        """Yield count and line, without its end."""
        for line, count, _ in self._lines.rows_by_line():
            yield count, line

    def _read(self, source: LineSource) -> None:
        mark = _RECORD_MARKS.get(detect_format(source), b"")
        for block in source.blocks(as_they_are=True):
            lines = block.split(b"\n")
            if not lines[-1]:
                lines.pop()
            for line in lines:
                self.read += 1
                if mark in line and line:
                    self._lines.add(line, self.read)
                else:
                    self.ignored += 1
        if source.damage:
            self.damages.append(f"{source.name}: {source.damage}")
