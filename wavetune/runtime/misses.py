"""Which problems the tables did not know, for offline tuning.

A key is listed once, with the source of its first answer; calls are counted only while the setting ``record`` is on.
Keys survive `wavetune.configure`, and are forgotten by `wavetune.clear_caches`.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from wavetune.core.problem import GemmProblem
from wavetune.core.shorthand import format_sizes
from wavetune.errors import WorkloadError
from wavetune.mapping.legality import TMA_ALIGNMENT
from wavetune.runtime.choice import Source
from wavetune.runtime.sources import warn_once

logger = logging.getLogger("wavetune")

MAX_MISSES = 1 << 16
"""Keys that are listed for one kernel, dtype, layout, device and numerics class, as many again if they are not aligned;
further ones are not listed."""


class ResolverKey(NamedTuple):
    """What a set of tables answers for.

    Parameters
    ----------
    kernel, dtype, layout : str
        The kernel family.
    arch : str
        GPU.
    num_sms : int
        SMs that launches may use.
    numerics : str
        Numerics class.
    """

    kernel: str
    dtype: str
    layout: str
    arch: str
    num_sms: int
    numerics: str


@dataclass(frozen=True, slots=True)
class Miss:
    """A problem that was not answered from an exact table.

    Parameters
    ----------
    problem : GemmProblem
        The problem.
    source : Source
        Where its first answer came from.
    arch : str
        GPU.
    num_sms : int
        SMs of the answer.
    numerics : str
        Numerics class that was asked for.
    count : int
        Calls while recording; 0 if nothing was recorded.
    """

    problem: GemmProblem
    source: Source
    arch: str
    num_sms: int
    numerics: str
    count: int


class MissList:
    """The misses of one set of tables.

    Parameters
    ----------
    key : ResolverKey
        Which tables.

    Attributes
    ----------
    aligned, unaligned : dict
        Sizes, with the alignment class where it is not full, to the source of the first answer.
    """

    def __init__(self, key: ResolverKey) -> None:
        self.key = key
        self.aligned: dict[tuple[int, int, int], Source] = {}
        self.unaligned: dict[tuple[int, int, int, int], Source] = {}
        self._counts: dict[GemmProblem, int] = {}

    def add(self, sizes: tuple[int, int, int], alignment: int, source: Source) -> None:
        """List a key if it is new, and log a line about it."""
        if alignment == TMA_ALIGNMENT:
            if sizes in self.aligned or not self._has_room(len(self.aligned)):
                return
            self.aligned[sizes] = source
        else:
            if (*sizes, alignment) in self.unaligned or not self._has_room(len(self.unaligned)):
                return
            self.unaligned[*sizes, alignment] = source
        if logger.isEnabledFor(logging.INFO):
            key = self.key
            logger.info(
                "not exact: %s %s %s %s, alignment %d, on %s: %s",
                key.kernel, format_sizes(sizes), key.dtype, key.layout, alignment, key.arch, source.value,
            )  # fmt: skip

    def count(self, problem: GemmProblem) -> None:
        """Count a call; of as many keys as are listed at most."""
        with _counting:
            if problem in self._counts or len(self._counts) < MAX_MISSES:
                self._counts[problem] = self._counts.get(problem, 0) + 1

    def __iter__(self) -> Iterator[Miss]:
        key = self.key
        aligned = [((*sizes, TMA_ALIGNMENT), source) for sizes, source in list(self.aligned.items())]
        for (m, n, k, alignment), source in aligned + list(self.unaligned.items()):
            problem = GemmProblem(m, n, k, key.dtype, key.layout, alignment)
            yield Miss(problem, source, key.arch, key.num_sms, key.numerics, self._counts.get(problem, 0))

    def _has_room(self, n_listed: int) -> bool:
        if n_listed < MAX_MISSES:
            return True
        warn_once(f"more than {MAX_MISSES} keys of {self.key} are not exact; further ones are not listed")
        return False


_counting = threading.Lock()
_lists: dict[ResolverKey, MissList] = {}
_before_reading: list[Callable[[], None]] = []


def misses_of(key: ResolverKey) -> MissList:
    """Return the list of a set of tables, the same one each time."""
    found = _lists.get(key)
    return found if found is not None else _lists.setdefault(key, MissList(key))


def before_reading(call: Callable[[], None]) -> None:
    """Have ``call`` called before misses are read: it adds what is not listed yet."""
    _before_reading.append(call)


def misses() -> list[Miss]:
    """Return the distinct problems whose answer was not exact, aligned ones first, as far as `MAX_MISSES` goes."""
    for call in _before_reading:
        call()
    return [miss for found in list(_lists.values()) for miss in found]


def write_misses(path: str | os.PathLike[str]) -> int:
    """Write the misses as a workload, for `wavetune calibrate` and `wavetune freeze`.

    Returns
    -------
    int
        Problems written. Where calls were not recorded, each counts as one.

    Raises
    ------
    WorkloadError
        If ``path`` is no path, or the file cannot be written.
    """
    if not isinstance(path, str | os.PathLike):
        raise WorkloadError(f"path must be the path of the file to write, got {path!r}")
    from wavetune.core.workload import Workload

    found = misses()
    workload = Workload.from_problems((miss.problem, max(miss.count, 1)) for miss in found)
    workload.write(Path(path))
    return len(workload.entries)


def forget_misses() -> None:
    """Forget every miss and count."""
    _lists.clear()
