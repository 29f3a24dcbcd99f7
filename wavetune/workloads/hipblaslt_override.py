"""hipBLASLt override files from what hipblaslt-bench printed: `HIPBLASLT_TUNING_OVERRIDE_FILE` reads them.

A solution index holds for one build of the library on one GPU. So nothing else can be turned into such a file, and
what the output does not say about build and GPU has to be said by whoever ran it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from wavetune.core.arch import find_arch
from wavetune.errors import ArchError, WavetuneError, WorkloadError
from wavetune.workloads.account import FileAccount
from wavetune.workloads.bench_lines import own_text
from wavetune.workloads.source import LineSource
from wavetune.workloads.table_rows import latency_us, named_cells, split_cells

LOOKUP_KEY = (
    "transA", "transB", "batch_count", "m", "n", "k", "a_type", "b_type", "c_type", "compute_type",
)  # fmt: skip
"""What hipBLASLt compares; leading dimensions, strides and epilogue are not part of it."""

_CANDIDATE = re.compile(r"\[\d+\]:\s*(transA,.*)")
_VALUES = re.compile(r"[NTC],[NTC],.*")
_INFO = re.compile(r"--(Solution index|kernel name):\s*(\S+)", re.IGNORECASE)
_BUILD = re.compile(r"hipBLASLt git version: *(\S+)", re.IGNORECASE)
_TARGET = re.compile(r"Query device success.*Target device ID is (\d+)")
_DEVICE = re.compile(r"Device ID (\d+) : (.*?) ?(gfx\w[^\s]*)")
_UNSOLVED = re.compile(r"no solution found", re.IGNORECASE)
_INDEX_NAMES = ("solution_index", "soulution_index")
"""The second one is how older builds write it."""

_MARGIN = "    "


@dataclass(frozen=True, slots=True)
class OverrideFile:
    """What is to be written.

    Parameters
    ----------
    text : str
        The file.
    rows : int
        Problems in it.
    left_out : mapping of str to int
        Why problems are not, and how many.
    account : FileAccount
        What became of the lines that were read.
    build, gpu : str
        Build of the library, and the GPU's target.
    compute_units : int
        Of the GPU.
    """

    text: str
    rows: int
    left_out: Mapping[str, int]
    account: FileAccount
    build: str
    gpu: str
    compute_units: int


def override_file(
    source: LineSource, *, build: str = "", gpu: str = "", compute_units: int = 0, strict: bool = False
) -> OverrideFile:
    """Turn the output of hipblaslt-bench into an override file: the fastest candidate of every problem.

    Parameters
    ----------
    source : LineSource
        The output, of one build on one GPU; plain or gzip.
    build : str
        Build of the library (``hipBLASLt git version``), where the output does not say.
    gpu : str
        The GPU's target, such as ``gfx942:sramecc+:xnack-``, where the output does not say.
    compute_units : int
        Of the GPU, where its model is not known.
    strict : bool
        Whether a bad line is an error.

    Raises
    ------
    WorkloadError
        If there is no problem with a solution index, build or GPU are unknown or contradict what is given, or a line
        is bad and ``strict``.
    """
    reader = _Reader(FileAccount(source.name, "hipblaslt-bench"))
    for number, line in source.lines():
        reader.take(number, own_text(line))
    reader.finish()
    if source.damage:
        reader.account.note(source.damage)
    bad = reader.account.first_bad
    if strict and bad is not None:
        raise WorkloadError(f"{source.name}:{bad.first_line}: {bad.reason}")
    if not reader.best:
        said = f" ({bad.reason}, line {bad.first_line})" if bad else ""
        raise WorkloadError(
            f"{source.name}: no result of hipblaslt-bench{said}; an override file holds solution indices of one build "
            "of hipBLASLt, which only its bench prints"
        )
    build = _agreed(source.name, "build", "--git-version", reader.builds, build)
    gpu = _agreed(source.name, "GPU", "--gpu-target", {target for _, target in reader.devices()}, gpu)
    compute_units = compute_units or _compute_units(source.name, {name for name, _ in reader.devices()})
    left_out: dict[str, int] = {}
    written: dict[tuple[str, ...], str] = {}
    for row in reader.best.values():
        reason = _refusal(row)
        key = tuple(row.cells.get(name, "") for name in LOOKUP_KEY)
        if not reason and key in written:
            # The library knows one solution for both.
            reason = "hipBLASLt does not tell it from an earlier problem, for it looks up " + ", ".join(LOOKUP_KEY)
        if reason:
            left_out[reason] = left_out.get(reason, 0) + 1
        else:
            written[key] = row.lines(gpu, compute_units)
    if not written:
        reasons = "; ".join(f"{reason} ({count} problems)" for reason, count in left_out.items())
        raise WorkloadError(f"{source.name}: nothing can be written: {reasons}")
    text = f"Git Version: {build}\n" + "".join(written.values())
    return OverrideFile(text, len(written), left_out, reader.account, build, gpu, compute_units)


@dataclass(slots=True)
class _Row:
    """A candidate: its columns as the build names and orders them."""

    cells: dict[str, str]
    latency_us: float
    info: dict[str, str] = field(default_factory=dict)

    @property
    def index(self) -> str:
        """The solution index; empty if it was not printed. 0 is one."""
        printed = next((self.cells[name] for name in _INDEX_NAMES if self.cells.get(name)), "")
        return printed or self.info.get("solution index", "")

    def lines(self, gpu: str, compute_units: int) -> str:
        """Return the two lines of an override file."""
        name = next((name for name in _INDEX_NAMES if name in self.cells), _INDEX_NAMES[0])
        cells = {column: cell for column, cell in self.cells.items() if column not in (name, "kernel_name")}
        cells |= {name: self.index, "gcnArchName": gpu, "CUs": str(compute_units)}
        # Older builds do not know the column; with it a row survives a rebuild of the library.
        if "kernel_name" in self.cells:
            cells["kernel_name"] = self.cells["kernel_name"] or self.info.get("kernel name", "")
        return f"{_MARGIN}{','.join(cells)}\n{_MARGIN}{','.join(cells.values())}\n"


class _Reader:
    """Keeps the fastest candidate of every problem; facts about build and GPU stand between them."""

    def __init__(self, account: FileAccount) -> None:
        self.account = account
        self.builds: set[str] = set()
        self.best: dict[tuple[tuple[str, str], ...], _Row] = {}
        self._targets: set[str] = set()
        self._devices: dict[str, tuple[str, str]] = {}
        self._header: list[str] = []
        self._header_line = 0
        self._row: _Row | None = None
        self._unsolved = 0

    def devices(self) -> set[tuple[str, str]]:
        """Return name and target of the GPUs that ran something."""
        ran = {number: device for number, device in self._devices.items() if number in self._targets}
        return set((ran or self._devices).values())

    def take(self, number: int, line: str) -> None:
        """Take one line."""
        self.account.read = number
        candidate, info = _CANDIDATE.match(line), _INFO.match(line)
        if candidate is not None:
            self._refuse_pending()
            self._keep()
            self._header, self._header_line = candidate[1].split(","), number
        elif self._header_line and _VALUES.fullmatch(line):
            self._take_values(number, line)
            self._header_line = 0
        elif info is not None and self._row is not None:
            self._row.info[info[1].lower()] = info[2]
        else:
            self._take_fact(line)
            return
        self.account.recognised += 1

    def finish(self) -> None:
        """Take what is left."""
        self._refuse_pending()
        self._keep()
        if self._unsolved:
            self.account.note(f"no solution was found {self._unsolved} times; those problems are not printed")

    def _take_values(self, number: int, line: str) -> None:
        try:
            cells = named_cells(self._header, split_cells(line))
            missing = [name for name in (*LOOKUP_KEY, "us") if name not in cells]
            if missing:
                raise WorkloadError(f"no column {missing[0]}")
            self._row = _Row(cells, latency_us(cells["us"]))
        except WavetuneError as error:
            self.account.recognised -= 1
            self.account.refuse(number, str(error))

    def _keep(self) -> None:
        """Keep the candidate if it is the fastest; a winner that is printed again has its index in its cells."""
        row, self._row = self._row, None
        if row is None:
            return
        # All that is asked for; measured are the columns from the first rate on.
        columns = list(row.cells)
        measured = next((at for at, name in enumerate(columns) if name.startswith("hipblaslt-")), len(columns))
        problem = tuple((name, row.cells[name]) for name in columns[:measured])
        known = self.best.get(problem)
        if known is None or row.latency_us <= known.latency_us:
            self.best[problem] = row

    def _refuse_pending(self) -> None:
        if self._header_line:
            self.account.recognised -= 1
            self.account.refuse(self._header_line, "names without their values: the output was cut here")
            self._header_line = 0

    def _take_fact(self, line: str) -> None:
        build, target, device = _BUILD.match(line), _TARGET.match(line), _DEVICE.match(line)
        if build is not None:
            self.builds.add(build[1])
        elif target is not None:
            self._targets.add(target[1])
        elif device is not None:
            self._devices[device[1]] = (device[2], device[3])
        elif _UNSOLVED.search(line):
            self._unsolved += 1
        else:
            return
        self.account.recognised += 1


def _refusal(row: _Row) -> str:
    if row.cells.get("grouped_gemm", "0") not in ("0", "false"):
        return "a grouped GEMM, whose groups are not printed"
    if any(row.cells.get(f"swizzle_{operand}", "0") not in ("0", "false") for operand in "ab"):
        # The lookup would hand it to calls with plain operands.
        return "of shuffled operands, which hipBLASLt does not tell from plain ones"
    if not re.fullmatch(r"\d+", row.index):
        return "no solution index: run hipblaslt-bench with --print_kernel_info"
    return ""


def _agreed(path: str, what: str, option: str, found: set[str], given: str) -> str:
    if len(found) > 1:
        raise WorkloadError(
            f"{path}: solution indices of one {what} mean nothing to another, and here are {', '.join(sorted(found))}; "
            "split the output"
        )
    printed = next(iter(found), "")
    if given and printed and given != printed:
        raise WorkloadError(f"{path}: the output says {what} {printed}, not {given}")
    if not (given or printed):
        raise WorkloadError(f"{path}: the output does not say of which {what} it is; {_named_with(path, option)}")
    if re.search(r"[\s,]", given):
        raise WorkloadError(f"{option} must be one word without a comma, got {given!r}")
    return given or printed


def _compute_units(path: str, names: set[str]) -> int:
    for name in names:
        try:
            return find_arch(name).num_sms
        except ArchError:
            continue
    said = f"of {', '.join(sorted(names))} " if names else ""
    raise WorkloadError(
        f"{path}: the number of compute units {said}is not known; {_named_with(path, '--compute-units')}"
    )


def _named_with(path: str, option: str) -> str:
    return f"name it: `wavetune convert bench-output {path} {option} ...`"
