"""Winners of tunings as patterns: what won on problems that fill the GPU in the same way is worth measuring first.

A pattern is a configuration with the kind of launch it won in: how often its grid fills the SMs, how long its loop is,
how the grid of tiles is shaped, each by octave. A problem matches a pattern if the configuration would be launched on
it in that kind of way; so patterns of one model serve the next, and those of one GPU another with other SMs.
"""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from wavetune.core.arch import ArchSpec, find_arch
from wavetune.core.config import GEMM, KernelConfig
from wavetune.core.dtype import find_dtype
from wavetune.core.problem import GEMM_LAYOUTS, GemmProblem
from wavetune.core.whole_file import describe_os_error, one_at_a_time
from wavetune.errors import ModelFileError, WavetuneError
from wavetune.mapping.gemm import map_gemm
from wavetune.runtime.document_reader import DocumentReader
from wavetune.runtime.json_document import (
    dump,
    encode_document,
    lines,
    parse_document,
    read_bytes,
    write_bytes,
)

SCHEMA = "wavetune-patterns"
SCHEMA_VERSION = 1

MAX_PATTERNS = 1024
"""Patterns that a file holds; beyond, the least useful ones go."""

MAX_SEEDS = 8
"""Patterns that are measured for one problem: as many as the model's ranking needs to be 1 % from the best."""

LEAST_RATE = 0.05
"""A pattern goes when it wins less often: of 40 problems that it was measured on, one."""

MAX_OCTAVE = 12
"""Classes end here, both ways: beyond 4,096 waves, trips or tiles in a row, nothing is told apart any more."""

COLUMNS = ("kernel", "dtype", "layout", "arch", "wave", "loop", "aspect", "config", "wins", "uses", "last_used")

_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")


@dataclass(frozen=True, slots=True)
class LaunchClass:
    """The kind of a launch, in octaves.

    Parameters
    ----------
    wave : int
        Of the grid over the SMs: 0 is about one CTA on each, -2 a quarter of the GPU.
    loop : int
        Of the loop trips of a CTA.
    aspect : int
        Of rows of tiles over columns of tiles.
    """

    wave: int
    loop: int
    aspect: int


@dataclass(frozen=True, slots=True)
class Pattern:
    """A configuration that won, and how often.

    Parameters
    ----------
    dtype, layout : str
        Of the operands.
    arch : str
        GPU that it won on.
    launch : LaunchClass
        The kind of launch.
    config : KernelConfig
        Complete.
    wins, uses : int
        Problems that it won, of those that it was measured on.
    last_used : str
        Day, as 2026-11-29.
    """

    dtype: str
    layout: str
    arch: str
    launch: LaunchClass
    config: KernelConfig
    wins: int
    uses: int
    last_used: str

    @property
    def key(self) -> tuple[object, ...]:
        """Everything but the counts."""
        return self.dtype, self.layout, self.arch, self.launch, self.config

    @property
    def rate(self) -> float:
        """Chance to win again: wins over uses, drawn to one half while uses are few."""
        return (self.wins + 1) / (self.uses + 2)


def classify(problem: GemmProblem, config: KernelConfig, arch: ArchSpec) -> LaunchClass:
    """Return the kind of launch that a configuration makes of a problem; neither may be empty."""
    mapping = map_gemm(problem, config, arch)
    return LaunchClass(
        _octave(mapping.grid_size / arch.num_sms), _octave(mapping.loop_trips),
        _octave(mapping.tiles_m / mapping.tiles_n),
    )  # fmt: skip


class PatternCache:
    """Patterns by their keys; a bounded number of them.

    Parameters
    ----------
    patterns : iterable of Pattern
        Those of one key are added up.
    """

    def __init__(self, patterns: Iterable[Pattern] = ()) -> None:
        self._patterns: dict[tuple[object, ...], Pattern] = {}
        for pattern in patterns:
            self._add(pattern)

    def __len__(self) -> int:
        return len(self._patterns)

    def __iter__(self) -> Iterator[Pattern]:
        return iter(self._patterns.values())

    def matching(self, problem: GemmProblem, arch: ArchSpec) -> list[Pattern]:
        """Return the patterns of problems like this one, most promising first; those of this GPU before others."""
        found = [
            pattern
            for pattern in self
            if (pattern.dtype, pattern.layout) == (problem.dtype, problem.layout)
            and classify(problem, pattern.config, arch) == pattern.launch
        ]
        return sorted(found, key=lambda p: (p.arch != arch.name, -p.rate, -p.wins, sorted(map(str, p.config.items()))))

    def record_use(self, problem: GemmProblem, config: KernelConfig, arch: ArchSpec, *, won: bool) -> None:
        """Count that a configuration was measured on a problem, and whether it won; only winners become patterns."""
        pattern = Pattern(
            problem.dtype, problem.layout, arch.name, classify(problem, config, arch), config, int(won), 1, _today()
        )
        if won or pattern.key in self._patterns:
            self._add(pattern)

    def merge(self, others: Iterable[Pattern]) -> None:
        """Add patterns of another cache; counts of the same ones add up."""
        for pattern in others:
            self._add(pattern)

    def prune(self, limit: int = MAX_PATTERNS, least_rate: float = LEAST_RATE) -> int:
        """Let go of patterns that hardly ever win, then of the least useful beyond the limit.

        Returns
        -------
        int
            How many went.
        """
        before = len(self)
        kept = [pattern for pattern in self if pattern.rate >= least_rate]
        kept.sort(key=lambda pattern: (pattern.rate, pattern.wins, pattern.last_used), reverse=True)
        self._patterns = {pattern.key: pattern for pattern in kept[:limit]}
        return before - len(self)

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the cache, one pattern a line, sorted; atomically.

        Raises
        ------
        ModelFileError
            If the folder cannot be written.
        """
        configs = sorted({pattern.config for pattern in self}, key=lambda config: tuple(map(str, config.items())))
        position = {config: index for index, config in enumerate(configs)}
        rows = sorted(
            (
                GEMM.name, p.dtype, p.layout, p.arch, p.launch.wave, p.launch.loop, p.launch.aspect,
                position[p.config], p.wins, p.uses, p.last_used,
            )
            for p in self
        )  # fmt: skip
        document = [
            ("configs", lines([dump(dict(config)) for config in configs], "[]")),
            ("columns", dump(list(COLUMNS))),
            ("patterns", lines([dump(list(row)) for row in rows], "[]")),
        ]
        write_bytes(encode_document(SCHEMA, SCHEMA_VERSION, document), Path(path))

    def _add(self, pattern: Pattern) -> None:
        known = self._patterns.get(pattern.key)
        if known is not None:
            pattern = replace(
                pattern, wins=known.wins + pattern.wins, uses=known.uses + pattern.uses,
                last_used=max(known.last_used, pattern.last_used),
            )  # fmt: skip
        self._patterns[pattern.key] = pattern


def read_patterns(path: str | os.PathLike[str]) -> PatternCache:
    """Read and check a cache.

    Raises
    ------
    ModelFileError
        If the file cannot be read, is no pattern cache, does not match its digest, or holds what cannot be; names file
        and field.
    """
    name = os.fspath(path)
    reader = _PatternReader(name)
    document, _ = parse_document(read_bytes(path), reader, schema=SCHEMA, version=SCHEMA_VERSION)
    try:
        return reader.cache(document)
    except ModelFileError:
        raise
    except WavetuneError as error:
        raise ModelFileError(f"{name}: {error}") from None


@contextmanager
def updating_patterns(path: str | os.PathLike[str], *, create: bool = False) -> Iterator[PatternCache]:
    """Yield what a file holds now, and write what has become of it when the block ends; other processes wait.

    Parameters
    ----------
    path : path
        The file.
    create : bool, default=False
        Whether to begin with nothing where there is no file, rather than to fail.

    Raises
    ------
    ModelFileError
        As `read_patterns`, or if the folder cannot be written.
    """
    target = Path(path)
    if not create:
        # Says that there is no file before a lock is made beside it.
        read_bytes(target)
    with ExitStack() as stack:
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            stack.enter_context(one_at_a_time(target))
        except OSError as error:
            raise ModelFileError(describe_os_error(target, error)) from None
        cache = read_patterns(target) if target.exists() else PatternCache()
        yield cache
        cache.write(target)


class _PatternReader(DocumentReader):
    def cache(self, document: dict[str, Any]) -> PatternCache:
        if self._get(document, "columns") != list(COLUMNS):
            self.fail("columns", f"this version of wavetune needs {list(COLUMNS)}")
        configs = self._as_list(
            self._get(document, "configs"), "configs", lambda value, where: self._config(value, where, GEMM)
        )
        patterns = self._as_list(
            self._get(document, "patterns"), "patterns", lambda value, where: self._pattern(value, where, configs)
        )
        if len({pattern.key for pattern in patterns}) != len(patterns):
            self.fail("patterns", "the same pattern appears twice")
        return PatternCache(patterns)

    def _pattern(self, value: Any, where: str, configs: tuple[KernelConfig, ...]) -> Pattern:
        if not isinstance(value, list) or len(value) != len(COLUMNS):
            self.fail(where, f"expected {', '.join(COLUMNS)}")
        row = dict(zip(COLUMNS, value, strict=True))
        for column in ("kernel", "dtype", "layout", "arch", "last_used"):
            if not isinstance(row[column], str):
                self.fail(f"{where}.{column}", f"expected text, got {row[column]!r}")
        if row["kernel"] != GEMM.name:
            self.fail(f"{where}.kernel", f"patterns are of {GEMM.name}, not of {row['kernel']!r}")
        if row["layout"] not in GEMM_LAYOUTS:
            self.fail(f"{where}.layout", f"unknown layout {row['layout']!r}; known: {', '.join(GEMM_LAYOUTS)}")
        if not _DATE.fullmatch(row["last_used"]):
            self.fail(f"{where}.last_used", f"expected a day such as 2026-11-29, got {row['last_used']!r}")
        octaves = [
            self._as_integer(row[column], f"{where}.{column}", -MAX_OCTAVE, MAX_OCTAVE)
            for column in ("wave", "loop", "aspect")
        ]
        uses = self._as_integer(row["uses"], f"{where}.uses", 1)
        return Pattern(
            find_dtype(row["dtype"]).name, row["layout"], find_arch(row["arch"]).name, LaunchClass(*octaves),
            configs[self._as_integer(row["config"], f"{where}.config", 0, len(configs) - 1)],
            self._as_integer(row["wins"], f"{where}.wins", 0, uses), uses, row["last_used"],
        )  # fmt: skip


def _octave(ratio: float) -> int:
    return max(-MAX_OCTAVE, min(MAX_OCTAVE, round(math.log2(ratio))))


def _today() -> str:
    return time.strftime("%Y-%m-%d", time.gmtime())
