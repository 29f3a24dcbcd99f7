"""Where parsers put what they read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from wavetune.core.problem import MAX_DIMENSION
from wavetune.core.workload_entry import WorkloadEntry, WorkloadKey
from wavetune.errors import WorkloadError
from wavetune.workloads.account import FileAccount
from wavetune.workloads.tally import CallKey, Tally

OF_A_GPU = ("GPU", "compute units")
"""Facts that ``--device`` chooses by."""


@dataclass(frozen=True, slots=True)
class ImportOptions:
    """What a file cannot say itself.

    Parameters
    ----------
    dtype, layout : str
        Of problems in plain files that do not say.
    device : str, default=""
        Take the rows of this GPU only, by name or by its number of compute units; without it, the first GPU that a
        file names.
    hidden_size, experts_per_token : int, default=0
        Of the model, for fused-MoE files: they name the intermediate size only.
    """

    dtype: str = "bf16"
    layout: str = "nk"
    device: str = ""
    hidden_size: int = 0
    experts_per_token: int = 0


class Origins:
    """Facts that all rows of one import must share: GPU, compute units, library versions, build."""

    def __init__(self, device: str = "") -> None:
        self.device = device
        self._facts: dict[str, tuple[str, str]] = {}

    def is_elsewhere(self, *names: str) -> bool:
        """Whether this GPU, by all that it is called, is not the one that was asked for; unnamed ones may be."""
        return bool(self.device) and any(names) and self.device not in names

    def agree(self, facts: Mapping[str, str], place: str) -> None:
        """Compare facts with those that were read before, and keep new ones.

        Raises
        ------
        WorkloadError
            If one differs.
        """
        for name, value in facts.items():
            known, where = self._facts.setdefault(name, (value, place))
            if known != value:
                advice = "import them apart" + (f", or take one with --device {value}" if name in OF_A_GPU else "")
                raise WorkloadError(f"{name} is {value!r} here and {known!r} at {where}; {advice}")


class Intake:
    """Takes the records of one file: counts them, keeps the account.

    Parameters
    ----------
    tally : Tally
        Of the whole import.
    account : FileAccount
        Of this file.
    sources : sequence of int
        Indices in the tally of the files of this format; the last one is this file.
    options : ImportOptions
        What the file cannot say.
    origins : Origins
        Of the whole import.
    """

    def __init__(
        self, tally: Tally, account: FileAccount, sources: Sequence[int], options: ImportOptions, origins: Origins
    ) -> None:
        self.tally = tally
        self.account = account
        self.source = sources[-1]
        self._sources = sources
        self.options = options
        self.origins = origins
        self._other_sources: dict[str, int] = {}

    def record(self, key: WorkloadKey, line: int, count: int = 1, extra: Mapping[str, Any] | None = None) -> None:
        """Count calls of a log."""
        self.tally.add(self.call_key(key), self.source, line, count, encode(extra))

    def row(
        self, key: WorkloadKey, line: int, extra: Mapping[str, Any] | None = None, *, chooses_again: bool = False
    ) -> bool:
        """Take a row of a table, where every key stands once.

        Parameters
        ----------
        chooses_again : bool, default=False
            Whether another file may have chosen something else for the same key, as each rank of a program does: the
            row is then a repeat, and what the first file says is kept.

        Returns
        -------
        bool
            False if the row was refused: the key was there before, with something else beside it.
        """
        call_key = self.call_key(key)
        text = encode(extra)
        known = self.find(call_key)
        if known is None:
            self.tally.add(call_key, self.source, line, 1, text)
            return True
        source, first_line, first_text = known
        where = f"{self.tally.sources[source]}:{first_line}"
        # A table of untuned problems has nothing to say about them.
        if text and first_text and text != first_text and (source == self.source or not chooses_again):
            self.account.refuse(line, f"disagrees with {where} about the same problem")
            return False
        self.account.repeated += 1
        return True

    def add_entry(self, entry: WorkloadEntry, line: int) -> None:
        """Take an entry of a workload; what it says about its own sources is kept."""
        key, extra = self.call_key(entry.key), encode(entry.extra)
        elsewhere = 0
        for name, count in entry.sources.items():
            if 0 < count <= entry.count - elsewhere:
                if name not in self._other_sources:
                    self._other_sources[name] = self.tally.add_source(name)
                self.tally.add(key, self._other_sources[name], line, count, extra)
                elsewhere += count
        if elsewhere < entry.count:
            self.tally.add(key, self.source, line, entry.count - elsewhere, extra)

    def find(self, key: CallKey) -> tuple[int, int, str] | None:
        """Return source, line and extra of the first call with this key in files of this format, or None."""
        return self.tally.find(key, self._sources)

    def call_key(self, key: WorkloadKey) -> CallKey:
        """Split a key into its kind and its sizes."""
        groups = ""
        if key.groups:
            uniform = all(sizes[1:] == (key.n, key.k) for sizes in key.groups)
            groups = json.dumps([sizes[0] if uniform else sizes for sizes in key.groups], separators=(",", ":"))
        unit = replace(key, m=1, n=1, k=1, batch=1, groups=())
        return CallKey(self.tally.kind_id(unit), key.n, key.k, key.m, key.batch, groups)


def encode(extra: Mapping[str, Any] | None) -> str:
    """Write facts beside a key as JSON; empty if there are none."""
    return json.dumps(extra, sort_keys=True) if extra else ""


def size_error(**sizes: int) -> str:
    """Say which size no kernel can have; empty if all are positive and in range."""
    for name, value in sizes.items():
        if not 0 < value <= MAX_DIMENSION:
            return f"{name} must be from 1 to {MAX_DIMENSION}, got {value}"
    return ""
