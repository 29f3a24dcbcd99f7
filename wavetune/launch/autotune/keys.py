"""The keys that a kernel is calibrated on: from its decorator or from a file, sorted by what one model can answer."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wavetune.errors import ConfigError, MeasurementError, RunnerError
from wavetune.launch.autotune.decorator import AutotunedKernel
from wavetune.launch.autotune.tables import KeyShaper
from wavetune.mapping.kernel_mapping import KernelMapping, KernelProblem
from wavetune.plan.kernel_points import keys_in_ranges

Dims = tuple[int, ...]


@dataclass
class KeyGroup:
    """Keys that differ in sizes only: those of one model, for one combination of element types.

    Parameters
    ----------
    kernel : AutotunedKernel
        The kernel.
    names : tuple of str
        Names of the sizes.
    rest : mapping of str to object
        The other entries of the key.
    pool, sweep : list of tuple of int
        Sizes to choose points from, and sizes that every configuration is measured on.
    """

    kernel: AutotunedKernel
    names: tuple[str, ...]
    rest: Mapping[str, Any]
    pool: list[Dims] = field(default_factory=list)
    sweep: list[Dims] = field(default_factory=list)

    def key_of(self, dims: Dims) -> dict[str, Any]:
        """Return the key with these sizes, in the order of the kernel's key."""
        sizes = dict(zip(self.names, dims, strict=True))
        return {name: sizes[name] if name in sizes else self.rest[name] for name in self.kernel.keys}

    def shaper(self) -> KeyShaper:
        """Return the mapping of the group's launches."""
        assert self.kernel.mapping is not None
        mapping = KernelMapping(
            self.kernel.name, self.names, self.kernel.mapping.grid_size, self.kernel.mapping.loop_trips,
            self.kernel.mapping.bytes_moved,
        )  # fmt: skip
        return KeyShaper(mapping, self.kernel.candidates, self.rest)

    def probe(self) -> KernelProblem:
        """Return a key of middling size as a problem; makes its arguments, to see their element types.

        Raises
        ------
        RunnerError
            If ``make_args`` fails.
        """
        assert self.kernel.make_args is not None
        keys = sorted({*self.pool, *self.sweep}, key=_volume)
        key = self.key_of(keys[len(keys) // 2])
        try:
            arguments = dict(self.kernel.make_args(key))
        except Exception as error:
            raise RunnerError(
                f"make_args of kernel {self.kernel.name} fails for key {key}: {type(error).__name__}: {error}"
            ) from error
        return self.kernel.describe_key(key, arguments)[0]


def group_keys(kernel: AutotunedKernel, sweep: Sequence[Mapping[str, Any]] = ()) -> list[KeyGroup]:
    """Sort the keys of a kernel by what one model can answer.

    Parameters
    ----------
    kernel : AutotunedKernel
        Its ``calibration_keys`` are the pool.
    sweep : sequence of mapping, optional
        Keys that every configuration is measured on; they join the pool.

    Raises
    ------
    ConfigError
        If the kernel lacks what calibration needs, there are no keys, or a key has other entries than the kernel's.
    """
    if kernel.mapping is None or kernel.make_args is None:
        missing = "make_args" if kernel.make_args is None else "grid_size and loop_trips"
        raise ConfigError(f"kernel {kernel.name} cannot be calibrated: its autotune has no {missing}")
    groups: dict[tuple[object, ...], KeyGroup] = {}
    for key in _pool_keys(kernel):
        group, dims = _group_of(kernel, key, groups)
        group.pool.append(dims)
    for key in sweep:
        group, dims = _group_of(kernel, key, groups)
        group.sweep.append(dims)
        group.pool.append(dims)
    if not groups:
        raise ConfigError(
            f"kernel {kernel.name} has no keys to calibrate on: give calibration_keys to autotune, or a file of keys"
        )
    for group in groups.values():
        group.pool = list(dict.fromkeys(group.pool))
        group.sweep = list(dict.fromkeys(group.sweep))
    return list(groups.values())


def read_keys(path: Path, names: Sequence[str]) -> list[dict[str, Any]]:
    """Read keys from a CSV file with one column a name, or a JSON list of objects.

    Raises
    ------
    MeasurementError
        If the file cannot be read, is neither, or lacks a name; says where.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise MeasurementError(f"{path}: cannot read: {error}") from None
    if text.lstrip().startswith("["):
        try:
            rows: list[Any] = json.loads(text)
        except json.JSONDecodeError as error:
            raise MeasurementError(f"{path}: not JSON: {error}") from None
    else:
        rows = [{name: _value(cell) for name, cell in row.items()} for row in csv.DictReader(text.splitlines())]
    keys = []
    for number, row in enumerate(rows, start=1):
        missing = [name for name in names if not isinstance(row, dict) or row.get(name) is None]
        if missing:
            raise MeasurementError(
                f"{path}: key {number} has no {missing[0]}; a key of the kernel is {', '.join(names)}"
            )
        keys.append({name: row[name] for name in names})
    if not keys:
        raise MeasurementError(f"{path}: no keys; the first line must name the columns {', '.join(names)}")
    return keys


def _pool_keys(kernel: AutotunedKernel) -> Iterable[Mapping[str, Any]]:
    keys = kernel.calibration_keys
    if keys is None:
        return ()
    if not isinstance(keys, Mapping):
        return keys
    ranges = []
    for name in kernel.keys:
        bounds = keys.get(name)
        if bounds is None or len(bounds) != 2 or not 1 <= bounds[0] <= bounds[1]:
            raise ConfigError(
                f"calibration_keys of kernel {kernel.name}: the range of {name} must be (smallest, largest), both at "
                f"least 1, got {bounds!r}"
            )
        ranges.append((int(bounds[0]), int(bounds[1])))
    return (dict(zip(kernel.keys, dims, strict=True)) for dims in keys_in_ranges(ranges))


def _group_of(
    kernel: AutotunedKernel, key: Mapping[str, Any], groups: dict[tuple[object, ...], KeyGroup]
) -> tuple[KeyGroup, Dims]:
    if set(key) != set(kernel.keys):
        raise ConfigError(f"a key of kernel {kernel.name} is {', '.join(kernel.keys)}; got {dict(key)}")
    ordered = {name: key[name] for name in kernel.keys}
    problem, mapping = kernel.describe_key(ordered, {})
    rest = {name: value for name, value in ordered.items() if name not in mapping.dims}
    scope = (mapping.dims, problem.layout)
    return groups.setdefault(scope, KeyGroup(kernel, mapping.dims, rest)), problem.dims


def _volume(dims: Dims) -> float:
    product = 1.0
    for size in dims:
        product *= size
    return product


def _value(cell: str | None) -> Any:
    """Read a cell: an integer, a boolean, or the text."""
    if cell is None:
        return None
    text = cell.strip()
    if text in ("True", "False"):
        return text == "True"
    return int(text) if text.removeprefix("-").isdecimal() else text
