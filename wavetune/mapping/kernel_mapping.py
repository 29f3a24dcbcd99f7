"""Any kernel, seen as what the latency model needs: how many units of work, and how long each one is.

The owner of a kernel writes two small functions of (key, config). Everything else (waves, terms, fit, choice) is the
same for every kernel.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from wavetune.core.element import find_element
from wavetune.errors import MappingError, ProblemError

Key = Mapping[str, Any]
"""What a launch depends on: the values of the ``key`` arguments by name."""

Meta = Mapping[str, Any]
"""A configuration by name: its meta-parameters, ``num_warps``, ``num_stages``; as a grid callable of Triton gets it."""

MappingFunction = Callable[[Key, Meta], int]

MAX_COUNT = 2**53
"""Largest count a mapping may give: beyond it floats no longer hold every integer."""


class LaunchShape(NamedTuple):
    """What one launch asks of the GPU.

    Parameters
    ----------
    grid_size : int
        Units of work that occupy an SM slot; 0 if there is nothing to launch.
    loop_trips : int
        Trips of the main loop in the longest unit.
    total_trips : int
        Trips of all units together.
    moved_bytes : int
        Bytes that must come from or go to DRAM; 0 if unknown.
    """

    grid_size: int
    loop_trips: int
    total_trips: int
    moved_bytes: int


@dataclass(frozen=True, slots=True)
class KernelMapping:
    """How one kernel cuts a problem into CTAs and loop trips.

    Parameters
    ----------
    name : str
        Name of the kernel.
    dims : tuple of str
        The entries of a key, in table order.
    grid_size, loop_trips : callable
        Functions of (key, config) that return integers: units of work, and trips of the main loop in each. They may
        depend on nothing but their arguments.
    bytes_moved : callable, optional
        Bytes that the launch moves to and from DRAM at least. Matters for kernels that are bound by memory.
    total_trips : callable, optional
        Trips of all units together, where units differ in length; ``grid_size * loop_trips`` if not given.
    """

    name: str
    dims: tuple[str, ...]
    grid_size: MappingFunction
    loop_trips: MappingFunction
    bytes_moved: MappingFunction | None = None
    total_trips: MappingFunction | None = None

    def shape(self, key: Key, config: Meta) -> LaunchShape:
        """Map one launch.

        Raises
        ------
        MappingError
            If a function fails, or returns what is no count; names the function, key and configuration.
        """
        grid_size = self._count("grid_size", self.grid_size, key, config)
        trips = self._count("loop_trips", self.loop_trips, key, config)
        total = grid_size * trips
        if self.total_trips is not None:
            total = self._count("total_trips", self.total_trips, key, config)
        moved = 0 if self.bytes_moved is None else self._count("bytes_moved", self.bytes_moved, key, config)
        return LaunchShape(grid_size, trips, total, moved)

    def functions(self) -> tuple[tuple[str, MappingFunction], ...]:
        """Return the functions that are given, by the name of their role."""
        roles = ("grid_size", "loop_trips", "bytes_moved", "total_trips")
        return tuple((role, getattr(self, role)) for role in roles if getattr(self, role) is not None)

    def _count(self, role: str, function: MappingFunction, key: Key, config: Meta) -> int:
        where = f"{role} of kernel {self.name} with key {dict(key)} and config {dict(config)}"
        try:
            value = function(key, config)
        except Exception as error:
            raise MappingError(f"{where} raises {type(error).__name__}: {error}") from error
        try:
            count = operator.index(value)
        except TypeError:
            raise MappingError(f"{where} must return an integer, got {value!r}; use // or triton.cdiv") from None
        if not 0 <= count <= MAX_COUNT:
            raise MappingError(f"{where} must be in [0, 2**53], got {count}")
        return count


@dataclass(frozen=True, slots=True)
class KernelProblem:
    """One key of a kernel that is not a family of this package; conforms to `wavetune.core.problem.Problem`.

    Parameters
    ----------
    kernel : str
        Name of the kernel.
    dims : tuple of int
        The integers of the key.
    dtype : str
        Short names of the element types of its tensors, joined by ``+``; empty without tensors.
    layout : str, default=""
        Whatever else is in the key, as text.
    alignment : int, default=0
        Not used; every alignment of such a kernel is one problem.
    """

    kernel: str
    dims: tuple[int, ...]
    dtype: str
    layout: str = ""
    alignment: int = 0

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to launch; only the mapping knows, so False."""
        return False


def short_dtype(dtype: object) -> str:
    """Return the short name of an element type, ``bf16`` for ``torch.bfloat16``; unknown ones keep their own name."""
    name = str(dtype)
    try:
        return find_element(name)
    except ProblemError:
        return name.rpartition(".")[2]
