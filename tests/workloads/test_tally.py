"""Counting beyond memory: the temporary file changes nothing but the memory."""

from __future__ import annotations

import random
import tracemalloc
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from workload_reading import DATA

from wavetune.core.workload_entry import WorkloadKey
from wavetune.errors import WorkloadError
from wavetune.workloads import tally as tally_module
from wavetune.workloads.counted_keys import CountedKeys
from wavetune.workloads.exact_lines import ExactLines
from wavetune.workloads.importing import import_files
from wavetune.workloads.tally import CallKey, Tally

SIZES = st.integers(1, 2**31 - 1)
KEYS = st.builds(
    CallKey, st.just(0), SIZES, SIZES, SIZES, st.integers(1, 4), st.sampled_from(["", "[1,2]", "[[1,2,3]]"])
)  # fmt: skip


@given(
    st.lists(st.tuples(st.one_of(KEYS, st.just(CallKey(0, 7, 7, 7, 1, ""))), st.integers(0, 2), st.integers(1, 9))),
    st.integers(1, 6),
)
def test_spilling_changes_nothing(calls: list[tuple[CallKey, int, int]], limit: int):
    """Counts by key and input are the same, whatever the limit; every key comes once."""
    tally = Tally(limit)
    tally.kind_id(WorkloadKey(1, 1, 1))
    for name in "abc":
        tally.add_source(name)
    expected: dict[CallKey, Counter[int]] = {}
    firsts: dict[CallKey, dict[int, str]] = {}
    for line, (key, source, count) in enumerate(calls):
        tally.add(key, source, line, count, f"{{{line}}}")
        expected.setdefault(key, Counter())[source] += count
        firsts.setdefault(key, {}).setdefault(source, f"{{{line}}}")
    for key, by_source in firsts.items():
        source = min(by_source)
        found = tally.find(key, range(3))
        assert found is not None
        assert (found[0], found[2]) == (source, by_source[source])
    rows = list(tally.rows())
    tally.close()
    assert {row.key: row.sources for row in rows} == {key: dict(counter) for key, counter in expected.items()}
    assert len(rows) == len(expected)
    assert [row.key[:4] for row in rows] == sorted(row.key[:4] for row in rows)
    assert all(row.calls == sum(row.sources.values()) for row in rows)
    assert all(row.extra == firsts[row.key][min(row.sources)] for row in rows)


def test_an_import_beyond_memory_is_the_same(tmp_path: Path):
    """A log read with room for three keys is the log read in memory."""
    log = tmp_path / "l.log"
    log.write_text("".join((DATA / "hipblaslt-mask32.log").read_text() for _ in range(5)))
    with import_files([log]) as roomy, import_files([log], limit=3) as tight:
        assert list(roomy.entries()) == list(tight.entries())


def test_memory_is_bounded():
    """A hundred thousand keys, a thousand of them in memory: the peak is that of a thousand."""
    rng = random.Random(0)
    counted = CountedKeys(1000)
    tracemalloc.start()
    for line in range(100_000):
        counted.add(b"%d" % rng.randrange(10**9), line)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert sum(count for _, count, _ in counted.rows()) == 100_000
    counted.close()
    # A key, its place in two dictionaries and its row on the way to the file are about 500 bytes.
    assert peak < 1000 * 1000


def test_kinds_are_bounded(monkeypatch: pytest.MonkeyPatch):
    """Types and epilogues stay in memory, so there may not be any number of them."""
    monkeypatch.setattr(tally_module, "MAX_KINDS", 2)
    tally = Tally()
    for activation in ("relu", "gelu", "relu"):
        tally.kind_id(WorkloadKey(1, 1, 1, activation=activation))
    with pytest.raises(WorkloadError, match="combinations"):
        tally.kind_id(WorkloadKey(1, 1, 1, activation="silu"))
    tally.close()


def test_no_room_for_the_temporary_file():
    """A full disk is an error that says where the file is."""
    counted = CountedKeys(1)
    counted._database.execute("PRAGMA max_page_count = 2")
    with pytest.raises(WorkloadError, match="SQLITE_TMPDIR"):
        count_many(counted, 10_000)
    counted.close()


def count_many(counted: CountedKeys, number: int) -> None:
    """Count different keys with long texts."""
    for line in range(number):
        counted.add(b"%d" % line, line, 1, "x" * 100)


def test_exact_lines(tmp_path: Path):
    """Byte-identical lines of a log, once each, in order, with counts; other lines of it are left out."""
    text = "noise\nhipblaslt-bench -m 1 a\nhipblaslt-bench -m 1 b\n\nhipblaslt-bench -m 1 a\nhipblaslt-bench -m 1  a"
    (tmp_path / "l").write_text(text)
    for limit in (1, 1000):
        with ExactLines([tmp_path / "l"], limit=limit) as lines:
            assert list(lines.counted()) == [
                (2, b"hipblaslt-bench -m 1 a"), (1, b"hipblaslt-bench -m 1 b"), (1, b"hipblaslt-bench -m 1  a"),
            ]  # fmt: skip
            assert (lines.read, lines.ignored) == (6, 2)
