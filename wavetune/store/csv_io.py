"""Measurement files: CSV, plain or gzip, one row a measurement.

Columns are found by name: the sizes of the problem, the fields of the configuration (those with a default may be
missing), ``num_regs, num_spills, smem_bytes`` and ``latency_us``; others are ignored. ``kernel``, ``dtype`` and
``layout`` may be missing too, but a file that has them must be of what it is read as. What a file may not hold is
refused with file, line and fix; what real sweeps do hold (repeated readings, a few of them disturbed) is merged or
skipped, and counted in the report.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from wavetune.core.arch import ArchSpec
from wavetune.core.config import KernelSpec
from wavetune.core.dtype import DType, find_dtype
from wavetune.core.whole_file import describe_os_error, replacing
from wavetune.errors import MeasurementError
from wavetune.store.csv_rows import COMPILED_COLUMNS, STATED_COLUMNS, FileRows, Rejection, parse_rows
from wavetune.store.legal_rows import keep_legal
from wavetune.store.read_report import FileReport, ReadReport, SkipLog
from wavetune.store.roofline import floor_us, roofline_us
from wavetune.store.table import MeasurementTable, concatenate, sort_configs

ROOFLINE_RATIO_RANGE = (1.0, 300.0)
"""A file whose median latency over roofline is outside is in another unit. Recorded H200 files: 5 to 12."""

REPEAT_FACTOR = 1.5
"""Repeated readings further apart than this disagree. Undisturbed readings repeat within 1.15 (data README)."""

MAX_STALL_FACTOR = 8.0
"""Host stalls make a reading up to 7 times too slow (data README); further apart, one of the two rows is wrong."""

MAX_STALLED_FRACTION = 0.005
"""Share of a file's rows that stalls may explain. Recorded single-round sweeps: 0.0006 of the rows."""

_UNITS_IN_US = {"milliseconds": 1e3, "seconds": 1e6, "nanoseconds": 1e-3}


@dataclass(frozen=True, slots=True)
class ReadResult:
    """The rows that were read, and an account of those that were not."""

    table: MeasurementTable
    report: ReadReport


def read_measurements(
    paths: Sequence[str | Path] | str | Path,
    spec: KernelSpec,
    dtype: str,
    arch: ArchSpec,
    *,
    exhaustive: bool,
    layout: str = "nk",
    on_bad_row: str = "error",
) -> ReadResult:
    """Read measurement files of one kernel family, dtype and GPU.

    Rows keep their order: disturbed readings come in blocks. Rows of the same problem and configuration *within
    one file* become one, the median; readings of several files stay apart.

    Parameters
    ----------
    paths : path or sequence of paths
        CSV files, gzip or plain (told by content).
    exhaustive : bool
        Whether these are sweeps of many configurations over realistic problems.
    on_bad_row : {"error", "skip"}, default="error"
        What to do with a row that cannot be true. A file that cannot be true is always an error.

    Returns
    -------
    ReadResult
        In each file report, ``rows_read == rows_kept + rows_merged + rows_skipped``.

    Raises
    ------
    MeasurementError
        If a file is missing, empty, damaged, not UTF-8, lacks a column, was given twice, is in another unit, says that
        it is of another kernel, dtype or layout, holds two kernels under one configuration, or (unless skipped) holds
        an impossible row. Names file, line and fix.
    """
    if on_bad_row not in ("error", "skip"):
        raise MeasurementError(f"on_bad_row must be 'error' or 'skip', got {on_bad_row!r}")
    names = [str(path) for path in ([paths] if isinstance(paths, str | Path) else paths)]
    if not names:
        raise MeasurementError("no measurement file was given; name at least one")
    element = find_dtype(dtype)
    asked = dict(zip(STATED_COLUMNS, (spec.name, element.name, layout), strict=True))
    tables: list[MeasurementTable] = []
    reports: list[FileReport] = []
    for name in names:
        data = _read_bytes(name)
        digest = hashlib.sha256(data).hexdigest()
        for known in reports:
            if known.sha256 == digest:
                raise MeasurementError(f"{name}: the same file as {known.path}; give it once")
        reject = Rejection(name, on_bad_row == "skip", SkipLog())
        parsed = parse_rows(data, spec, arch, reject, asked)
        rows = keep_legal(parsed, spec, element.name, layout, arch, reject)
        rows = _check_roofline(rows, spec, element, arch, reject)
        rows, rows_merged = _merge_repeats(rows, reject)
        if not len(rows.lines):
            reject.bad_file("no usable row is left", f"first reason: {reject.log.entries()[0].reason}")
        tables.append(_to_table(rows, spec, element.name, layout, exhaustive))
        reports.append(FileReport(name, digest, rows.rows_read, len(rows.lines), rows_merged, reject.log.entries()))
    try:
        table = concatenate(tables)
    except MeasurementError as error:
        raise MeasurementError(f"{', '.join(names)}: {error}; were they measured with different compilers?") from None
    return ReadResult(table, ReadReport(tuple(reports)))


def write_measurements(
    path: str | Path, table: MeasurementTable, *, extra: Mapping[str, Sequence[object]] | None = None
) -> None:
    """Write a table as CSV, compressed if the name ends in ``.gz``. The same table gives the same bytes.

    The file appears whole or not at all. `read_measurements` gives the table back, if no problem and
    configuration is in it twice.

    Parameters
    ----------
    extra : mapping of str to sequence, optional
        More columns, one value a row; readers ignore them.

    Raises
    ------
    MeasurementError
        If the file cannot be written, or an extra column has the wrong length or a name that is taken.
    """
    extra = extra or {}
    header = [*table.spec.dims, *table.spec.fields, *COMPILED_COLUMNS, "latency_us", *STATED_COLUMNS, *extra]
    stated = (table.spec.name, table.dtype, table.layout)
    for name, values in extra.items():
        if len(values) != len(table) or header.count(name) > 1:
            raise MeasurementError(f"extra column {name!r} is taken or has {len(values)} values for {len(table)} rows")
    fixed = [
        [*(entry.config[field] for field in table.spec.fields), *(getattr(entry, name) for name in COMPILED_COLUMNS)]
        for entry in table.configs
    ]
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    columns = (table.dims.tolist(), table.config_index.tolist(), table.latency_us.tolist(), *extra.values())
    for dims, config, latency_us, *more in zip(*columns, strict=True):
        writer.writerow([*dims, *fixed[config], latency_us, *stated, *more])
    data = text.getvalue().encode()
    if str(path).endswith(".gz"):
        data = gzip.compress(data, mtime=0)
    try:
        with replacing(path) as place:
            place.write_bytes(data)
    except OSError as error:
        raise MeasurementError(f"{describe_os_error(path, error)}; choose another place") from error


def _read_bytes(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise MeasurementError(f"{path}: cannot read ({error.strerror}); check the path") from None


def _check_roofline(rows: FileRows, spec: KernelSpec, dtype: DType, arch: ArchSpec, reject: Rejection) -> FileRows:
    roofline = roofline_us(spec.name, rows.dims, dtype, arch)
    floor = floor_us(spec.name, rows.dims, dtype, arch)
    if roofline is None or floor is None or not len(rows.lines):
        return rows
    low, high = ROOFLINE_RATIO_RANGE
    ratio = float(np.median(rows.latency_us / roofline))
    if not low <= ratio <= high:
        units = [unit for unit, scale in _UNITS_IN_US.items() if low <= ratio * scale <= high]
        guess = (
            f"latency_us looks like {' or '.join(units)}" if units else "latency_us is in no unit of time known here"
        )
        reject.bad_file(
            f"median latency is {ratio:.3g} times the roofline of {arch.name}, expected {low:g} to {high:g}: {guess}",
            "convert latency_us to microseconds, and check the architecture and dtype",
        )
    good = rows.latency_us >= floor
    for row in np.flatnonzero(~good):
        sizes = " x ".join(map(str, rows.dims[row]))
        reject.bad_row(
            int(rows.lines[row]),
            f"latency_us {rows.latency_us[row]:g} is below the {floor[row]:.3g} us that {arch.name} needs for {sizes}"
            if not reject.skips
            else f"latency below the bandwidth and matrix-rate floor of {arch.name}",
        )
    return rows.select(good)


def _merge_repeats(rows: FileRows, reject: Rejection) -> tuple[FileRows, int]:
    """Make one row of the readings of one problem and configuration; return how many went into another row."""
    key = np.column_stack([rows.dims, rows.config_index])
    _, first, inverse, count = np.unique(key, axis=0, return_index=True, return_inverse=True, return_counts=True)
    if len(first) == len(key):
        return rows, 0
    order = np.argsort(inverse.reshape(-1), kind="stable")
    start = np.cumsum(count) - count
    latency_us = rows.latency_us.copy()
    keep = np.zeros(len(key), dtype=np.bool_)
    keep[first] = True
    rows_merged = n_stalled = 0
    for group in np.flatnonzero(count > 1):
        members = order[start[group] : start[group] + count[group]]
        readings = rows.latency_us[members]
        agree = readings <= REPEAT_FACTOR * readings.min()
        if agree.all():
            latency_us[members[0]] = float(np.median(readings))
            rows_merged += len(members) - 1
            continue
        n_stalled += int(np.sum(~agree))
        slowest, fastest = int(members[np.argmax(readings)]), int(members[np.argmin(readings)])
        lines = sorted((int(rows.lines[slowest]), int(rows.lines[fastest])))
        factor = float(readings.max() / readings.min())
        if factor > MAX_STALL_FACTOR or n_stalled > MAX_STALLED_FRACTION * len(key):
            keep[members] = False
            for member in members:
                reject.bad_row(
                    int(rows.lines[member]) if reject.skips else lines[1],
                    "repeated rows of one problem and configuration disagree"
                    if reject.skips
                    else f"disagrees with line {lines[0]} (same problem and configuration) by a factor {factor:.3g}",
                    "measure again or remove the wrong row",
                )
            continue
        keep[members] = False
        keep[members[agree][0]] = True
        latency_us[members[agree][0]] = float(np.median(readings[agree]))
        rows_merged += int(np.sum(agree)) - 1
        for member in members[~agree]:
            reason = (
                f"slower than a repeated reading by a factor of {REPEAT_FACTOR:g} to {MAX_STALL_FACTOR:g}: a host stall"
            )
            reject.log.add(reason, int(rows.lines[member]))
    merged = FileRows(rows.configs, rows.dims, rows.config_index, latency_us, rows.lines, rows.rows_read)
    return merged.select(keep), rows_merged


def _to_table(rows: FileRows, spec: KernelSpec, dtype: str, layout: str, exhaustive: bool) -> MeasurementTable:
    used = np.unique(rows.config_index)
    configs = sort_configs([rows.configs[index] for index in used])
    position = {entry: index for index, entry in enumerate(configs)}
    remap = np.full(len(rows.configs), -1, dtype=np.int64)
    remap[used] = [position[rows.configs[index]] for index in used]
    return MeasurementTable(
        spec=spec,
        dtype=dtype,
        layout=layout,
        configs=configs,
        dims=rows.dims,
        config_index=remap[rows.config_index],
        latency_us=rows.latency_us,
        exhaustive=np.full(len(rows.lines), exhaustive),
    )
