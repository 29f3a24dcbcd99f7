"""Call counts of the keys of a workload, by input."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from wavetune.core.workload_entry import WorkloadEntry, WorkloadKey
from wavetune.errors import WorkloadError
from wavetune.workloads.counted_keys import MAX_KEYS_IN_MEMORY, CountedKeys

MAX_KINDS = 1 << 16
"""Combinations of operation, types, layouts and epilogue; a program has dozens. They stay in memory."""

_HEAD = struct.Struct(">HIIIII")
"""Kind, n, k, m, batch, and index of the input; groups stand before the index. Big-endian bytes sort like numbers."""

_SOURCE_BYTES = 4

pack_plain = _HEAD.pack
"""Pack kind, n, k, m, batch and the index of the input: a key without groups, sizes below 2**32."""


class CallKey(NamedTuple):
    """Key of one call. ``groups`` is a JSON list, or empty."""

    kind: int
    n: int
    k: int
    m: int
    batch: int
    groups: str


class CallRow(NamedTuple):
    """One key with its calls. ``sources`` maps the index of an input to the calls in it."""

    key: CallKey
    calls: int
    sources: dict[int, int]
    extra: str


class Tally:
    """Counts calls by key and input; entries come out ordered by kind, then n, k and m.

    A key's *kind* is the key without its sizes: there are few of them, so that a key packs into some bytes.

    Parameters
    ----------
    limit : int, default=MAX_KEYS_IN_MEMORY
        Keys to count in memory; more of them go to a temporary file.
    """

    def __init__(self, limit: int = MAX_KEYS_IN_MEMORY) -> None:
        self.kinds: list[WorkloadKey] = []
        self.sources: list[str] = []
        self._kind_ids: dict[WorkloadKey, int] = {}
        self._has_groups = False
        self._keys = CountedKeys(limit)
        self.add_packed = self._keys.add
        """Count calls of a key from `pack_plain`: the fast way in."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing was counted."""
        return self._keys.is_empty

    def close(self) -> None:
        """Delete the temporary file."""
        self._keys.close()

    def add_source(self, name: str) -> int:
        """Return the index of a new input."""
        self.sources.append(name)
        return len(self.sources) - 1

    def kind_id(self, kind: WorkloadKey) -> int:
        """Return the number of a key without sizes (all of them 1, no groups).

        Raises
        ------
        WorkloadError
            Beyond `MAX_KINDS` of them.
        """
        found = self._kind_ids.get(kind)
        if found is None:
            if len(self.kinds) >= MAX_KINDS:
                raise WorkloadError(f"more than {MAX_KINDS} combinations of types and epilogues: no model has so many")
            found = self._kind_ids[kind] = len(self.kinds)
            self.kinds.append(kind)
        return found

    def add(self, key: CallKey, source: int, line: int, calls: int, extra: str) -> None:
        """Count calls. Of ``extra`` (JSON, or empty) the first is kept."""
        self._has_groups = self._has_groups or bool(key.groups)
        self._keys.add(_pack(key, source), line, calls, extra)

    def find(self, key: CallKey, sources: Sequence[int]) -> tuple[int, int, str] | None:
        """Return source, line and extra of the first call with this key in these inputs, or None."""
        for source in sources:
            found = self._keys.find(_pack(key, source))
            if found is not None:
                return source, *found
        return None

    def rows(self) -> Iterator[CallRow]:
        """Yield every key once."""
        previous, current = b"", None
        for packed, calls, extra in self._keys.rows():
            shared = packed[:-_SOURCE_BYTES]
            source = int.from_bytes(packed[-_SOURCE_BYTES:])
            if current is not None and shared == previous:
                current.sources[source] = calls
                current = current._replace(calls=current.calls + calls)
                continue
            if current is not None:
                yield current
            previous = shared
            current = CallRow(_unpack(packed), calls, {source: calls}, extra)
        if current is not None:
            yield current

    def plain_rows(self) -> Iterator[tuple[int, int, int, int, int, int, int, str]] | None:
        """Yield kind, n, k, m, batch, source, calls and extra, fast; None where keys have groups or several sources."""
        if len(self.sources) > 1 or self._has_groups:
            return None
        unpack = _HEAD.unpack
        return ((*unpack(packed), calls, extra) for packed, calls, extra in self._keys.rows())

    def entry(self, row: CallRow) -> WorkloadEntry:
        """Return a row as an entry of a workload."""
        kind, n, k, m, batch, groups = row.key
        sizes = tuple(json.loads(groups)) if groups else ()
        key = replace(self.kinds[kind], m=m, n=n, k=k, batch=batch, groups=sizes)
        sources = {self.sources[source]: calls for source, calls in row.sources.items()}
        return WorkloadEntry(key, row.calls, sources, json.loads(row.extra) if row.extra else {})


def _pack(key: CallKey, source: int) -> bytes:
    packed = _HEAD.pack(key.kind, key.n, key.k, key.m, key.batch, source)
    if not key.groups:
        return packed
    return packed[:-_SOURCE_BYTES] + key.groups.encode() + packed[-_SOURCE_BYTES:]


def _unpack(packed: bytes) -> CallKey:
    kind, n, k, m, batch, _ = _HEAD.unpack(packed[: _HEAD.size])
    return CallKey(kind, n, k, m, batch, packed[_HEAD.size - _SOURCE_BYTES : -_SOURCE_BYTES].decode())
