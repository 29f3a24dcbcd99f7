"""What was measured on this user's machines while programs ran: the next process starts with it.

One row for each (GPU, kernel, dtype, layout, problem, Triton major.minor, kernel source). The newest measurement wins,
not the fastest: each one compared the candidates and the default with each other, seconds apart, on the driver and the
kernel of its time, while a lucky reading of long ago would otherwise stay for ever.

Loading never fails: what cannot be used is skipped, with one warning for each kind of trouble.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wavetune.core.arch import ArchSpec, find_arch
from wavetune.core.config import KernelConfig, KernelSpec, find_kernel_spec
from wavetune.core.problem import MAX_DIMENSION, GemmProblem, Problem
from wavetune.errors import ArchError, ConfigError, StoreError, WavetuneError
from wavetune.mapping.legality import gemm_illegal_reason
from wavetune.runtime.choice_file import ChoiceFile
from wavetune.runtime.installed import triton_release as triton_release
from wavetune.runtime.measurer import MeasuredChoice
from wavetune.runtime.settings import STORE_NAME as STORE_NAME

RETRY_AFTER_S = 60.0
"""After a failed write, how long choices stay in memory before the file is tried again."""

_KEY = ("arch", "num_sms", "kernel", "dtype", "layout", "dims", "alignment", "triton", "kernel_source")
_VALUES = ("config", "latency_us", "default_us", "wavetune", "created")
# No column types: a row is checked when it is read, whoever wrote it.
_CREATE = f"CREATE TABLE choices ({', '.join(_KEY + _VALUES)}, PRIMARY KEY ({', '.join(_KEY)})) WITHOUT ROWID"
_UPSERT = f"INSERT OR REPLACE INTO choices ({', '.join(_KEY + _VALUES)}) VALUES ({', '.join('?' * 14)})"
_SCOPE = _KEY[:5]
_SELECT = (
    "SELECT dims, alignment, triton, kernel_source, config, latency_us, default_us FROM choices "
    f"WHERE {' AND '.join(f'{name} = ?' for name in _SCOPE)} ORDER BY created"
)

_Row = tuple[Any, ...]
_Key = tuple[tuple[int, ...], int]

logger = logging.getLogger("wavetune")


@dataclass(frozen=True, slots=True)
class StoredChoice:
    """A measured winner.

    Parameters
    ----------
    config : KernelConfig
        Complete, and legal for its problem where the rules of the kernel are known.
    latency_us, default_us : float
        Measured latency of the winner and of the default it was compared with, microseconds.
    """

    config: KernelConfig
    latency_us: float
    default_us: float


class UserStore:
    """Measured choices of one user, in a SQLite file that processes and threads share.

    Parameters
    ----------
    path : Path or None
        The file; created, with its folder, by the first `save`. None, for a user without a home folder, keeps
        everything in memory.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path.absolute() if path is not None else None
        self._file: ChoiceFile | None = None
        if self.path is not None:
            self._file = ChoiceFile(self.path, _CREATE, on_moved=lambda sentence: self._warn("moved", sentence))
        # Rows that are not in the file (yet), by their key.
        self._unsaved: dict[_Row, _Row] = {}
        self._try_again_at = 0.0
        self._warned: set[str] = set()
        self._locks: dict[int, threading.Lock] = {}

    def load(
        self, *, arch: str, num_sms: int, kernel: str, dtype: str, layout: str, kernel_source: str = ""
    ) -> dict[_Key, StoredChoice]:
        """Return what is known for one kernel on one GPU.

        Parameters
        ----------
        arch : str
            GPU model.
        num_sms : int
            SMs that launches may use.
        kernel, dtype, layout : str
            Which kernel family.
        kernel_source : str, default=""
            Digest of the kernel's source: choices of another known source are left out. Empty accepts any.

        Returns
        -------
        dict of (dims, alignment) to StoredChoice
            Choices that were made with the Triton major.minor of this process (any, if Triton is not installed).
        """
        scope = (arch, num_sms, kernel, dtype, layout)
        rows: list[_Row] = []
        if self._file is not None:
            try:
                rows = self._file.read(_SELECT, scope)
            except StoreError as error:
                self._warn("read", f"{error}; measured choices of earlier processes are not used")
        rows += [row[5:12] for row in list(self._unsaved.values()) if row[:5] == scope]
        return self._decode(rows, scope, kernel_source)

    def save(self, problem: Problem, choice: MeasuredChoice, *, arch: str, num_sms: int) -> None:
        """Keep a measured choice; never raises.

        It is on the disk when this returns, or it is kept in memory, with one warning for all of them.
        """
        now_ns = time.time_ns()
        created = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now_ns // 10**9)) + f".{now_ns % 10**9:09d}Z"
        row = (
            arch, num_sms, problem.kernel, problem.dtype, getattr(problem, "layout", ""),
            json.dumps([int(size) for size in problem.dims]), getattr(problem, "alignment", 0), triton_release(),
            choice.kernel_source, json.dumps(dict(choice.config)), float(choice.latency_us), float(choice.default_us),
            getattr(sys.modules.get("wavetune"), "__version__", ""), created,
        )  # fmt: skip
        # By process, so that a child forked while another thread was saving does not wait for that thread for ever.
        with self._locks.setdefault(os.getpid(), threading.Lock()):
            self._unsaved[row[: len(_KEY)]] = row
            if self._file is None:
                self._warn("write", "no home folder: measured choices stay in memory; set WAVETUNE_CACHE_DIR")
                return
            if time.monotonic() < self._try_again_at:
                return
            try:
                for key, unsaved in list(self._unsaved.items()):
                    self._file.write(_UPSERT, unsaved)
                    del self._unsaved[key]
            except StoreError as error:
                self._try_again_at = time.monotonic() + RETRY_AFTER_S
                self._warn("write", f"{error}; measured choices stay in the memory of this process")

    def _decode(self, rows: list[_Row], scope: _Row, kernel_source: str) -> dict[_Key, StoredChoice]:
        arch, _, kernel, dtype, layout = scope
        reader = _RowReader(arch, kernel, dtype, layout)
        release = triton_release()
        choices: dict[_Key, StoredChoice] = {}
        foreign: dict[_Key, str] = {}
        damaged: list[str] = []
        for row in rows:
            try:
                key, choice = reader.read(row)
            except (WavetuneError, ValueError, TypeError, RecursionError) as error:
                damaged.append(f"{error}")
                continue
            if release and row[2] and row[2] != release:
                foreign[key] = str(row[2])
            elif not (kernel_source and row[3] and row[3] != kernel_source):
                choices[key] = choice
        place = self.path or "memory"
        if damaged:
            self._warn("rows", f"{place}: {len(damaged)} rows of {kernel} {dtype} are skipped: {damaged[0]}")
        stale = [version for key, version in foreign.items() if key not in choices]
        if stale:
            self._warn(
                "triton",
                f"{place}: {len(stale)} choices of {kernel} {dtype} are not used: field triton is {stale[0]}, this "
                f"process has {release}",
            )
        return choices

    def _warn(self, kind: str, sentence: str) -> None:
        if kind not in self._warned:
            self._warned.add(kind)
            logger.warning("%s", sentence)


class _RowReader:
    """Turns rows of one scope into choices, refusing what cannot be right."""

    def __init__(self, arch: str, kernel: str, dtype: str, layout: str) -> None:
        self._kernel, self._dtype, self._layout = kernel, dtype, layout
        self._spec: KernelSpec | None = None
        self._arch: ArchSpec | None = None
        # A kernel or a GPU may be one that only its own launcher knows.
        with contextlib.suppress(ConfigError, ArchError):
            self._spec, self._arch = find_kernel_spec(kernel), find_arch(arch)

    def read(self, row: _Row) -> tuple[_Key, StoredChoice]:
        dims_text, alignment, _, _, config_text, latency_us, default_us = row
        dims = json.loads(_text("dims", dims_text))
        if not isinstance(dims, list) or not all(type(size) is int and 1 <= size <= MAX_DIMENSION for size in dims):
            raise ValueError(f"field dims is {str(dims_text)[:80]!r}, not a list of sizes")
        if self._spec is not None and len(dims) != len(self._spec.dims):
            raise ValueError(f"field dims has {len(dims)} sizes, not {len(self._spec.dims)}")
        if type(alignment) is not int:
            raise ValueError(f"field alignment is {alignment!r}")
        fields = json.loads(_text("config", config_text))
        if not isinstance(fields, dict):
            raise ValueError(f"field config is {str(config_text)[:80]!r}, not an object")
        config = self._spec.config(fields) if self._spec is not None else KernelConfig(**fields)
        for name, value in (("latency_us", latency_us), ("default_us", default_us)):
            if type(value) not in (int, float) or not 0.0 < value < math.inf:
                raise ValueError(f"field {name} is {value!r}, not a positive number")
        if self._kernel == GemmProblem.kernel and self._arch is not None:
            m, n, k = dims
            problem = GemmProblem(m, n, k, self._dtype, self._layout, alignment)
            reason = gemm_illegal_reason(problem, config, self._arch)
            if reason is not None:
                raise ValueError(f"field config is not legal for {tuple(dims)}: {reason}")
        return (tuple(dims), alignment), StoredChoice(config, float(latency_us), float(default_us))


def _text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"field {name} is {value!r}, not text")
    return value
