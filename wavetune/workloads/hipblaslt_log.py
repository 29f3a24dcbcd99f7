"""``HIPBLASLT_LOG_MASK=32``: one runnable hipblaslt-bench line a call, up to gigabytes of them.

Lines of one shape differ in their solution index at most. So lines are counted as bytes without it, and only different
ones are parsed; of those, everything behind the sizes (types, epilogue, ...) is parsed once a log.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import Any

from wavetune.core.problem import MAX_DIMENSION
from wavetune.errors import WavetuneError, WorkloadError
from wavetune.workloads.bench_options import MARKER, BenchOptions
from wavetune.workloads.blas import EXCHANGED
from wavetune.workloads.intake import Intake, encode
from wavetune.workloads.source import LineSource
from wavetune.workloads.tally import pack_plain

MAX_HELD_LINES = 1 << 13
MAX_HELD_BYTES = 8 << 20
"""Different lines that are held before they are parsed. More are no faster: they fall out of the processor's cache."""

MAX_TEMPLATES = 1 << 13
"""Different texts behind the sizes; a log has a dozen."""

_MARKER = MARKER.encode() + b" "
_INDEX = b" --solution_index "
_INDEX_VALUE = re.compile(rb"-?\d{1,18}\r?")
_GROUPED = "groups"
_END = MAX_DIMENSION + 1

_SIZES = re.compile(
    rb"hipblaslt-bench (?:--api_method \w+ +)?-m (\d{1,10}) -n (\d{1,10}) -k (\d{1,10})"
    rb" --lda (\d+) --ldb (\d+) --ldc \d+ --ldd (\d+)(?: --lde \d+)? +(?:--stride_[a-e] \d+ +)*"
)
"""The usual beginning of a line. Others are read option by option, with the same result."""


_Record = tuple[bytes, int, int, bytes]
"""A line from the marker on and without its solution index; calls; number of the first line; its solution index."""


class HipblasltLogParser:
    """Counts the calls of one log."""

    def __init__(self, intake: Intake) -> None:
        self._intake = intake
        # Line to calls, number of the first, and its index.
        self._held: dict[bytes, list[Any]] = {}
        self._held_bytes = 0
        # Whether lines hardly repeat, so that holding them is a waste.
        self._is_varied = False
        self._templates: dict[bytes, _Template] = {}
        self._last_options: Counter[str] = Counter()
        self._first_with: dict[str, int] = {}

    def read(self, source: LineSource) -> None:
        """Read a log to its end."""
        number = 0
        for block in source.blocks():
            lines = block.split(b"\n")
            torn = lines.pop()
            records = _records(lines, number + 1)
            if self._is_varied:
                self._parse(records)
            else:
                self._hold(records)
            number += len(lines)
            if torn:
                number += 1
                self._parse_held()
                self._parse_torn(torn, number)
        self._parse_held()
        self._intake.account.read = number
        self._intake.account.note(EXCHANGED)
        self._compare_ends()

    def _hold(self, records: list[_Record]) -> None:
        """Count lines that are the same."""
        held = self._held
        for text, _, line, index in records:
            known = held.get(text)
            if known is not None:
                known[0] += 1
                continue
            held[text] = [1, line, index]
            self._held_bytes += len(text)
            if len(held) >= MAX_HELD_LINES or self._held_bytes > MAX_HELD_BYTES:
                self._is_varied = sum(calls for calls, _, _ in held.values()) < 2 * len(held)
                self._parse_held()

    def _parse_held(self) -> None:
        self._parse((text, calls, line, index) for text, (calls, line, index) in self._held.items())
        self._count_templates()
        self._held.clear()
        self._held_bytes = 0

    def _parse(self, records: Iterable[_Record]) -> None:
        """Parse lines. The usual ones take two microseconds each, which is why all is here."""
        templates, intake = self._templates, self._intake
        match, source, add = _SIZES.match, intake.source, intake.tally.add_packed
        for text, calls, line, index in records:
            sizes = match(text)
            if sizes is not None:
                rest = text[sizes.end() :]
                template = templates.get(rest) or self._learn(rest)
                m_text, n_text, k_text, lda, ldb, ldd = sizes.groups()
                if (
                    template.is_good
                    and lda == (k_text if template.transposes_a else m_text)
                    and ldb == (n_text if template.transposes_b else k_text)
                    and ldd == m_text
                    and (not index or index.isdigit())
                ):
                    m, n, k = int(m_text), int(n_text), int(k_text)
                    if 0 < m < _END and 0 < n < _END and 0 < k < _END:
                        template.calls += calls
                        if not template.first_line:
                            template.first_line = line
                        extra = f"{template.extra_start}{int(index)}}}" if index else template.extra
                        add(pack_plain(template.kind_id, m, k, n, template.batch, source), line, calls, extra)
                        continue
            self._parse_words(text, calls, line, index)

    def _learn(self, rest: bytes) -> _Template:
        """Parse what stands behind the sizes. What is wrong with it is found again by `_parse_words`, line by line."""
        try:
            options = BenchOptions.parse(f"{MARKER} -m 1 -n 1 -k 1 " + rest.decode("utf-8", "replace"))
            options.check()
            template = _Template(options, self._intake)
        except WavetuneError:
            template = _Template(None, self._intake)
        if len(self._templates) >= MAX_TEMPLATES:
            self._count_templates()
            self._templates.clear()
        self._templates[rest] = template
        return template

    def _count_templates(self) -> None:
        for template in self._templates.values():
            if template.calls:
                self._intake.account.recognised += template.calls
                self._note_end(template.last, template.first_line, template.calls)
                template.calls = 0

    def _parse_words(self, text: bytes, calls: int, line: int, index: bytes) -> None:
        """Parse a line option by option, in whatever order."""
        intake = self._intake
        try:
            options = BenchOptions.parse(text.decode("utf-8", "replace"))
            options.check()
            if index and _INDEX_VALUE.fullmatch(index) is None:
                raise WorkloadError(f"solution_index must be a number, got {index.decode('utf-8', 'replace')!r}")
            key = options.key()
        except WavetuneError as error:
            intake.account.refuse(line, str(error), calls)
            return
        intake.account.recognised += calls
        self._note_end(_GROUPED if options.is_grouped else options.last, line, calls)
        if key is None:
            intake.account.empty += calls
            return
        extra: dict[str, object] = dict(options.unknown)
        if index:
            extra["solution_index"] = int(index)
        intake.record(key, line, calls, extra)

    def _parse_torn(self, line: bytes, number: int) -> None:
        """Take the last line, which has no line end, if it ends where the lines before it do."""
        for text, calls, _, index in _records([line], number):
            try:
                last = BenchOptions.parse(text.decode("utf-8", "replace")).last
            except WavetuneError:
                last = ""
            if self._last_options and last not in self._last_options:
                self._intake.account.refuse(number, "the file ends inside this line")
            else:
                self._parse_words(text, calls, number, index)

    def _note_end(self, last: str, line: int, count: int) -> None:
        self._last_options[last] += count
        self._first_with[last] = min(line, self._first_with.get(last, line))

    def _compare_ends(self) -> None:
        """Say so if lines end with different options: they come from different builds, or some are cut."""
        ends = sorted((name for name in self._last_options if name != _GROUPED), key=self._first_with.__getitem__)
        if len(ends) > 1:
            parts = ", ".join(f"{self._last_options[e]} with {e} (first: line {self._first_with[e]})" for e in ends)
            self._intake.account.note(f"lines end differently, {parts}: different builds, or some are cut")


class _Template:
    """Everything behind the sizes of a line, and the lines that have it; not good if it must be read by words."""

    __slots__ = (
        "batch", "calls", "extra", "extra_start", "first_line", "is_good", "kind_id", "last", "transposes_a",
        "transposes_b",
    )  # fmt: skip

    def __init__(self, options: BenchOptions | None, intake: Intake) -> None:
        self.calls = self.first_line = 0
        self.is_good = options is not None and not options.is_grouped
        if options is None or not self.is_good:
            return
        blas = options.kind()
        self.transposes_a, self.transposes_b = blas.transposes_a, blas.transposes_b
        self.batch = options.batch
        self.kind_id = intake.tally.kind_id(blas.kind)
        self.last = options.last
        self.extra = encode(options.unknown)
        # What stands before a solution index.
        self.extra_start = f'{self.extra[:-1] + ", " if self.extra else "{"}"solution_index": '


def _records(lines: list[bytes], first: int) -> list[_Record]:
    """Cut lines from the marker on, and their solution index out."""
    records = []
    for number, line in enumerate(lines, first):
        start = line.find(_MARKER)
        if start < 0:
            continue
        cut = line.rfind(_INDEX, start)
        if cut < 0:
            records.append((line[start:], 1, number, b""))
            continue
        end = line.find(b" ", cut + len(_INDEX))
        if end < 0:
            end = len(line)
        records.append((line[start:cut] + line[end:], 1, number, line[cut + len(_INDEX) : end]))
    return records


def read_hipblaslt_log(source: LineSource, intake: Intake) -> None:
    """Read a log of ``HIPBLASLT_LOG_MASK=32``."""
    HipblasltLogParser(intake).read(source)
