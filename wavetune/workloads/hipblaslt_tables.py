"""What hipblaslt-bench prints, and the tuning files that it writes: a line of names, then a line of values.

Every value line gives a `BenchOptions`, the same that a log line gives.
"""

from __future__ import annotations

import re
from typing import Any

from wavetune.core.workload_entry import WorkloadKey
from wavetune.errors import WavetuneError, WorkloadError
from wavetune.workloads.bench_lines import own_text
from wavetune.workloads.bench_options import FLAGS, BenchOptions
from wavetune.workloads.blas import EXCHANGED
from wavetune.workloads.intake import Intake
from wavetune.workloads.source import LineSource
from wavetune.workloads.table_rows import latency_us, named_cells, plain_value, split_cells

MAX_HELD_PROBLEMS = 100_000
"""Problems of a bench output whose best candidate is kept in mind; a run of weeks has fewer."""

_CANDIDATE = re.compile(r"\[(\d+)\]:\s*(transA,.*)")
_HEADER_STARTS = ("transA,", "schema_version,")
_NAMES = {"swizzle_a": "swizzleA", "swizzle_b": "swizzleB", "soulution_index": "solution_index"}
_TUNED_COLUMNS = ("kernel_name", "solution_name", "gcnArchName", "CUs", "complete")
_VALUE_LINE = re.compile(r"(?:[NTC],[NTC]|\d+,[\w-]*),.*")
_KERNEL_INFO = re.compile(r"--(Solution index|Solution name|kernel name):\s*(.*)", re.IGNORECASE)
_KERNEL_NAMES = {"solution index": "solution_index", "solution name": "solution_name", "kernel name": "kernel_name"}
_DEVICE = re.compile(r"Device ID \d+ : .*?(gfx\w+)")
_BUILD = re.compile(r"(?:hipBLASLt git version|Git Version): *(\S+)", re.IGNORECASE)
_NO_SOLUTION = re.compile(r"no solution found", re.IGNORECASE)


def read_bench_output(source: LineSource, intake: Intake) -> None:
    """Read what hipblaslt-bench printed: every problem once, with its best candidate."""
    reader = _BenchOutputReader(intake)
    for number, line in source.lines():
        intake.account.read = number
        reader.take(number, own_text(line))
    reader.finish()
    intake.account.note(EXCHANGED)


def read_tuning_file(source: LineSource, intake: Intake) -> None:
    """Read a tuning or override file: every row a problem."""
    account = intake.account
    header: list[str] = []
    build = ""
    pending = 0
    for number, line in source.lines():
        account.read = number
        text = line.strip()
        found = _BUILD.match(text)
        if found is not None:
            build = found[1]
            account.provenance.setdefault("library build", build)
            account.recognised += 1
        elif text.startswith(_HEADER_STARTS):
            _refuse_names(pending, intake)
            header, pending = text.split(","), number
            account.recognised += 1
        elif _VALUE_LINE.fullmatch(text):
            pending = 0
            try:
                if not header:
                    raise WorkloadError("values without their names: the order of columns depends on the build")
                account.recognised += _take_tuned(named_cells(header, split_cells(text)), build, number, intake)
            except WavetuneError as error:
                account.refuse(number, str(error))
    _refuse_names(pending, intake)
    account.note(EXCHANGED)


def _refuse_names(line: int, intake: Intake) -> None:
    """Take back a line of names, recognised before its values failed to come."""
    if line:
        intake.account.recognised -= 1
        intake.account.refuse(line, "names without their values: the file was cut here")


def _take_tuned(row: dict[str, str], build: str, line: int, intake: Intake) -> bool:
    """Take a row of a tuning file; False if it is skipped."""
    arch, units = row.get("gcnArchName", "").partition(":")[0], row.get("CUs", "")
    if intake.origins.is_elsewhere(arch, units):
        intake.account.leave(arch, units)
        return False
    facts = {"GPU": arch, "compute units": units}
    if not (row.get("kernel_name") or row.get("solution_name")):
        # Indices of unnamed rows hold for one build of the library.
        facts["library build"] = row.get("git_version") or build
    intake.origins.agree({fact: value for fact, value in facts.items() if value}, f"{intake.account.path}:{line}")
    options = table_options(row)
    key = options.key()
    if key is None:
        intake.account.empty += 1
        return True
    extra: dict[str, Any] = {"latency_us": latency_us(row["us"])} if row.get("us") else {}
    for name in ("solution_index", *_TUNED_COLUMNS):
        if options.one(name):
            extra[name] = plain_value(options.one(name))
    return intake.row(key, line, extra)


def table_options(row: dict[str, str]) -> BenchOptions:
    """Turn named cells into the options that would print them.

    Raises
    ------
    WorkloadError
        If a column is missing, or the row is of a grouped GEMM, whose groups it does not list.
    """
    options = BenchOptions()
    for column, cell in row.items():
        name = _NAMES.get(column, column)
        if name in FLAGS:
            if cell.lower() not in ("", "0", "false"):
                options.flags.add(name)
        elif cell:
            options.values[name] = [cell]
    if options.is_grouped:
        raise WorkloadError("a grouped GEMM: the row does not list its groups")
    options.check()
    return options


class _BenchOutputReader:
    """Reads blocks of names, values and kernel; candidates of one problem follow each other."""

    def __init__(self, intake: Intake) -> None:
        self._intake = intake
        self._header: list[str] = []
        self._header_line = 0
        self._best: dict[WorkloadKey, tuple[int, dict[str, Any]]] = {}
        self._current: dict[str, Any] | None = None
        # Why all values are refused, and whether they are another GPU's, by the facts that were printed last.
        self._rejection = ""
        self._is_elsewhere = False
        self._unsolved = 0

    def take(self, number: int, line: str) -> None:
        """Take one line."""
        account = self._intake.account
        candidate = _CANDIDATE.match(line)
        info = _KERNEL_INFO.match(line)
        if candidate is not None:
            self._refuse_pending()
            self._header, self._header_line = candidate[2].split(","), number
            self._current = None
            account.recognised += 1
        elif self._header_line and _VALUE_LINE.fullmatch(line):
            self._header_line = 0
            self._take_values(number, line)
        elif info is not None:
            account.recognised += 1
            if self._current is not None:
                self._current[_KERNEL_NAMES[info[1].lower()]] = plain_value(info[2].strip())
        elif line.startswith("Winner:"):
            account.recognised += 1
        elif _NO_SOLUTION.search(line):
            account.recognised += 1
            self._unsolved += 1
        else:
            self._take_fact(number, line)

    def finish(self) -> None:
        """Count what was read."""
        self._refuse_pending()
        self._flush()
        if self._unsolved:
            self._intake.account.note(f"no solution was found {self._unsolved} times; those problems are not printed")

    def _take_values(self, number: int, line: str) -> None:
        account = self._intake.account
        if self._is_elsewhere:
            account.leave(account.provenance.get("GPU", ""))
            return
        try:
            if self._rejection:
                raise WorkloadError(self._rejection)
            row = named_cells(self._header, split_cells(line))
            key = table_options(row).key()
            found: dict[str, Any] = {"latency_us": latency_us(row["us"])} if row.get("us") else {}
        except WavetuneError as error:
            account.refuse(number, str(error))
            return
        account.recognised += 1
        index = row.get("solution_index") or row.get("soulution_index")
        if index:
            found["solution_index"] = plain_value(index)
        self._current = found
        if key is None:
            account.empty += 1
            return
        known = self._best.get(key)
        if known is None:
            self._best[key] = (number, found)
        elif found.get("latency_us", float("inf")) <= known[1].get("latency_us", float("inf")):
            self._best[key] = (known[0], found)
        if len(self._best) >= MAX_HELD_PROBLEMS:
            self._flush()

    def _take_fact(self, number: int, line: str) -> None:
        account, origins = self._intake.account, self._intake.origins
        for fact, pattern in (("GPU", _DEVICE), ("library build", _BUILD)):
            found = pattern.match(line)
            if found is None:
                continue
            account.recognised += 1
            account.provenance.setdefault(fact, found[1])
            if fact == "GPU":
                self._is_elsewhere = origins.is_elsewhere(found[1])
                if self._is_elsewhere:
                    continue
            try:
                origins.agree({fact: found[1]}, f"{account.path}:{number}")
            except WorkloadError as error:
                self._rejection = str(error)
            else:
                self._rejection = ""

    def _refuse_pending(self) -> None:
        _refuse_names(self._header_line, self._intake)
        self._header_line = 0

    def _flush(self) -> None:
        for key, (line, found) in self._best.items():
            if self._intake.find(self._intake.call_key(key)) is None:
                self._intake.record(key, line, 1, found)
            else:
                self._intake.account.repeated += 1
        self._best.clear()
