"""The rows of one measurement file: bytes to checked columns.

Every distinct cell text is parsed once (a sweep repeats them thousands of times), so strictness costs little.
"""

from __future__ import annotations

import csv
import gzip
import io
import math
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import NoReturn

import numpy as np
import numpy.typing as npt

from wavetune.core.arch import ArchSpec
from wavetune.core.config import FieldValue, KernelConfig, KernelSpec
from wavetune.core.dtype import find_dtype
from wavetune.core.problem import MAX_DIMENSION
from wavetune.errors import ConfigError, InfeasibleConfigError, MeasurementError, ProblemError
from wavetune.store.read_report import SkipLog
from wavetune.store.record import CompiledConfig
from wavetune.waves.occupancy import ctas_per_sm

COMPILED_COLUMNS = ("num_regs", "num_spills", "smem_bytes")
"""What the compiled kernel needs: part of every row, since occupancy depends on it."""

STATED_COLUMNS = ("kernel", "dtype", "layout")
"""What was measured. A file need not say it; one that says something else than was asked for is refused."""

CHUNK_ROWS = 8192
"""Rows held as text at a time: bounds memory at a few megabytes."""

_INTEGER = re.compile(r"\s*[+-]?\d{1,18}\s*", re.ASCII)
_NUMBER = re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*", re.ASCII)
_GZIP_MAGIC = b"\x1f\x8b"


@dataclass(frozen=True, slots=True)
class FileRows:
    """Rows of one file whose every cell is possible by itself.

    Parameters
    ----------
    configs : tuple of CompiledConfig
        Distinct configurations, in order of appearance.
    dims : ndarray of shape (n_rows, n_dims)
        Problem sizes, in ``[1, 2**31)``.
    config_index : ndarray of shape (n_rows,)
        Index into ``configs``.
    latency_us : ndarray of shape (n_rows,)
        Positive and finite.
    lines : ndarray of shape (n_rows,)
        Line in the file; the header is line 1.
    rows_read : int
        Rows of the file, skipped ones included.
    """

    configs: tuple[CompiledConfig, ...]
    dims: npt.NDArray[np.int64]
    config_index: npt.NDArray[np.int64]
    latency_us: npt.NDArray[np.float64]
    lines: npt.NDArray[np.int64]
    rows_read: int

    def select(self, rows: npt.NDArray[np.bool_] | npt.NDArray[np.int64]) -> FileRows:
        """Return the file restricted to ``rows``."""
        return FileRows(
            self.configs,
            self.dims[rows],
            self.config_index[rows],
            self.latency_us[rows],
            self.lines[rows],
            self.rows_read,
        )


@dataclass(frozen=True, slots=True)
class Rejection:
    """Stops at the first bad row, or logs it and goes on."""

    path: str
    skips: bool
    log: SkipLog

    def bad_row(self, line: int, reason: str, fix: str = "correct or remove the row") -> None:
        """Refuse a row.

        Raises
        ------
        MeasurementError
            Unless bad rows are skipped.
        """
        if not self.skips:
            raise MeasurementError(f"{self.path}:{line}: {reason}; {fix}, or read with bad rows skipped")
        self.log.add(reason, line)

    def bad_file(self, reason: str, fix: str, line: int | None = None) -> NoReturn:
        """Refuse the file.

        Raises
        ------
        MeasurementError
            Always.
        """
        place = self.path if line is None else f"{self.path}:{line}"
        raise MeasurementError(f"{place}: {reason}; {fix}")


class _Dimensions(dict[str, int]):
    """Cell text to a problem size; -1 where it is none."""

    def __missing__(self, text: str) -> int:
        value = int(text) if _INTEGER.fullmatch(text) else -1
        self[text] = value if 0 <= value <= MAX_DIMENSION else -1
        return self[text]


class _Latencies(dict[str, float]):
    """Cell text to microseconds; NaN where it is no positive finite number."""

    def __missing__(self, text: str) -> float:
        value = float(text) if _NUMBER.fullmatch(text) else math.nan
        self[text] = value if 0.0 < value < math.inf else math.nan
        return self[text]


class _Configs(dict[tuple[str, ...], int]):
    """Cell texts of a configuration to its index; -1 where they are impossible, with the reason kept."""

    def __init__(self, spec: KernelSpec, names: tuple[str, ...], arch: ArchSpec) -> None:
        super().__init__()
        self.spec, self.names, self.arch = spec, names, arch
        self.index: dict[CompiledConfig, int] = {}
        self.compiled: dict[KernelConfig, CompiledConfig] = {}
        self.clashes: dict[tuple[str, ...], str] = {}
        self.reasons: dict[tuple[str, ...], str] = {}

    def __missing__(self, cells: tuple[str, ...]) -> int:
        self[cells] = -1
        try:
            entry = self._parse(dict(zip(self.names, cells, strict=True)))
        except (ConfigError, InfeasibleConfigError) as error:
            self.reasons[cells] = str(error)
            return -1
        known = self.compiled.setdefault(entry.config, entry)
        if known != entry:
            name = next(name for name in COMPILED_COLUMNS if getattr(known, name) != getattr(entry, name))
            self.clashes[cells] = (
                f"{name} is {getattr(entry, name)} here and {getattr(known, name)} in an earlier row of the same "
                f"configuration {entry.config}"
            )
        self[cells] = self.index.setdefault(entry, len(self.index))
        return self[cells]

    def _parse(self, cells: dict[str, str]) -> CompiledConfig:
        compiled = []
        for name in COMPILED_COLUMNS:
            text = cells.pop(name)
            if not _INTEGER.fullmatch(text) or int(text) < 0:
                raise ConfigError(f"{name} must be an integer of at least 0, got {text!r}")
            compiled.append(int(text))
        fields: dict[str, FieldValue] = {}
        for name, text in cells.items():
            is_number = name not in self.spec.words and _INTEGER.fullmatch(text)
            fields[name] = int(text) if is_number else text.strip()
        entry = CompiledConfig(self.spec.config(fields), *compiled)
        num_warps = entry.config.get("num_warps")
        if isinstance(num_warps, int):
            ctas_per_sm(self.arch, num_warps=num_warps, num_regs=entry.num_regs, smem_bytes=entry.smem_bytes)
        return entry


def decode_text(data: bytes, reject: Rejection) -> str:
    """Decompress (by content, not by name) and decode as UTF-8, with or without a byte-order mark."""
    if reject.path.endswith(".gz") and data and not data.startswith(_GZIP_MAGIC):
        reject.bad_file("not a gzip file", "compress it, or drop .gz from its name")
    if data.startswith(_GZIP_MAGIC):
        try:
            data = gzip.decompress(data)
        except (EOFError, zlib.error, OSError) as error:
            reject.bad_file(f"damaged or truncated gzip data ({error})", "copy or download the file again")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        reject.bad_file("not UTF-8 text", "save it as CSV in UTF-8", line)


def parse_rows(
    data: bytes, spec: KernelSpec, arch: ArchSpec, reject: Rejection, asked: Mapping[str, str]
) -> FileRows:  # fmt: skip
    """Parse one file and check every cell by itself.

    Parameters
    ----------
    asked : mapping of str to str
        What each of `STATED_COLUMNS` must be where the file has it.

    Raises
    ------
    MeasurementError
        If the file is empty, damaged, not CSV, lacks a column or is of something else; if one configuration has two
        different compiled kernels; at the first impossible row, unless those are skipped.
    """
    text = decode_text(data, reject)
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        first = next(reader, [])
        header = [name.strip() for name in first]
        if not any(header):
            reject.bad_file("the file is empty", "expected a header line and rows")
        column = _find_columns(header, spec, reject)
        names = tuple(name for name in column if name in spec.fields or name in COMPILED_COLUMNS)
        configs = _Configs(spec, names, arch)
        parts = list(_parse_chunks(reader, first, column, configs, reject, asked))
    except csv.Error as error:
        reject.bad_file(f"not a CSV file ({error})", "expected comma-separated cells", reader.line_num)
    rows_read = sum(part.rows_read for part in parts)
    if not rows_read:
        reject.bad_file("a header but no rows", "measure something, or leave the file out")
    return FileRows(
        configs=tuple(configs.index),
        dims=np.concatenate([part.dims for part in parts]),
        config_index=np.concatenate([part.config_index for part in parts]),
        latency_us=np.concatenate([part.latency_us for part in parts]),
        lines=np.concatenate([part.lines for part in parts]),
        rows_read=rows_read,
    )


def _find_columns(header: list[str], spec: KernelSpec, reject: Rejection) -> dict[str, int]:
    wanted = (*spec.dims, *spec.fields, *COMPILED_COLUMNS, "latency_us")
    missing = [name for name in wanted if name not in header and name not in spec.defaults]
    if missing:
        fix = f"the header has {', '.join(header)[:200]}"
        if "latency_us" in missing and any(name.startswith("latency") or name.endswith("_us") for name in header):
            fix += "; the latency column must be named latency_us and be in microseconds"
        reject.bad_file(f"missing column {', '.join(missing)}", fix, 1)
    known = dict.fromkeys((*wanted, *STATED_COLUMNS))
    twice = [name for name in known if header.count(name) > 1]
    if twice:
        reject.bad_file(f"column {twice[0]} appears twice", "keep one of them", 1)
    return {name: header.index(name) for name in known if name in header}


def _parse_chunks(
    reader: Iterator[list[str]],
    header: list[str],
    column: dict[str, int],
    configs: _Configs,
    reject: Rejection,
    asked: Mapping[str, str],
) -> Iterator[FileRows]:
    n_cells = len(header)
    dimensions, latencies = _Dimensions(), _Latencies()
    # Files that were written one behind the other have their header again.
    numbered = ((reader.line_num, row) for row in reader if row and row != header)  # type: ignore[attr-defined]
    while chunk := list(islice(numbered, CHUNK_ROWS)):
        bad: dict[int, str] = {
            line: f"{len(row)} cells where the header has {n_cells}" for line, row in chunk if len(row) != n_cells
        }
        whole = [(line, row) for line, row in chunk if len(row) == n_cells] if bad else chunk
        lines = np.array([line for line, _ in whole], dtype=np.int64)
        cells = list(zip(*(row for _, row in whole), strict=True)) or [()] * n_cells
        for name in (name for name in asked if name in column):
            _check_stated(name, asked[name], cells[column[name]], lines, reject)
        dim_names = configs.spec.dims
        dims = np.array(
            [[dimensions[text] for text in cells[column[name]]] for name in dim_names], dtype=np.int64
        ).T.reshape(len(whole), len(dim_names))
        latency_us = np.array([latencies[text] for text in cells[column["latency_us"]]], dtype=np.float64)
        keys = list(zip(*(cells[column[name]] for name in configs.names), strict=True))
        config_index = np.array([configs[key] for key in keys], dtype=np.int64)
        good = (dims >= _least_sizes(configs.spec)).all(axis=1) & (latency_us > 0) & (config_index >= 0)
        for row in np.flatnonzero(~good):
            bad[int(lines[row])] = _explain(whole[row][1], keys[row], column, configs, dimensions)
        for line in sorted(bad):
            reject.bad_row(line, bad[line])
        for key, reason in configs.clashes.items():
            reject.bad_file(reason, "two different kernels cannot share a file", int(lines[keys.index(key)]))
        yield FileRows((), dims[good], config_index[good], latency_us[good], lines[good], len(chunk))


def _check_stated(
    name: str, asked: str, cells: Sequence[str], lines: npt.NDArray[np.int64], reject: Rejection
) -> None:  # fmt: skip
    """Refuse a file that says that it is of something else; an empty cell says nothing."""
    for text in dict.fromkeys(cells):
        stated = text.strip()
        if name == "dtype":
            with suppress(ProblemError):
                stated = find_dtype(stated).name
        if stated not in ("", asked):
            fix = f"ask for {name} {stated}, or take another file"
            reject.bad_file(f"{name} is {stated}, asked for was {asked}", fix, int(lines[cells.index(text)]))


def _least_sizes(spec: KernelSpec) -> list[int]:
    return [int(name not in spec.zero_dims) for name in spec.dims]


def _explain(
    row: list[str], key: tuple[str, ...], column: dict[str, int], configs: _Configs, dimensions: _Dimensions
) -> str:
    for name, least in zip(configs.spec.dims, _least_sizes(configs.spec), strict=True):
        if dimensions[row[column[name]]] < least:
            return f"{name} must be an integer in [{least}, {MAX_DIMENSION}], got {row[column[name]]!r}"
    if key in configs.reasons:
        return configs.reasons[key]
    return f"latency_us must be a positive, finite number, got {row[column['latency_us']]!r}"
