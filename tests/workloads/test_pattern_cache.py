"""Winners as patterns: classes, counts, eviction, and a file that is refused where it is damaged."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tuning_gpu import some_configs

from wavetune.core.arch import find_arch
from wavetune.core.problem import GemmProblem
from wavetune.errors import ModelFileError
from wavetune.mapping.gemm import map_gemm
from wavetune.runtime.document_reader import DocumentReader
from wavetune.runtime.json_document import dump, encode_document, parse_document
from wavetune.workloads.pattern_cache import (
    COLUMNS,
    MAX_OCTAVE,
    SCHEMA,
    LaunchClass,
    Pattern,
    PatternCache,
    classify,
    read_patterns,
)

H200, A100 = find_arch("h200"), find_arch("a100")
CONFIGS = some_configs(8)
PROBLEM = GemmProblem(512, 4096, 4096)
SIZES = st.integers(1, 2**20)


def pattern(index: int = 0, *, wins: int = 1, uses: int = 1, arch: str = "nvidia-h200", day: int = 1) -> Pattern:
    """Return a pattern of a configuration that matches the problem on an H200."""
    launch = classify(PROBLEM, CONFIGS[index], H200)
    return Pattern("bf16", "nk", arch, launch, CONFIGS[index], wins, uses, f"2026-11-{day:02d}")


@given(SIZES, SIZES, SIZES, st.sampled_from(CONFIGS))
def test_classes_are_octaves(m: int, n: int, k: int, config: Any):
    """A class is within half an octave of what it stands for, and ends where it says."""
    problem = GemmProblem(m, n, k)
    mapping = map_gemm(problem, config, H200)
    launch = classify(problem, config, H200)
    exact = (mapping.grid_size / H200.num_sms, mapping.loop_trips, mapping.tiles_m / mapping.tiles_n)
    for octave, ratio in zip((launch.wave, launch.loop, launch.aspect), exact, strict=True):
        assert abs(octave) <= MAX_OCTAVE
        if abs(octave) < MAX_OCTAVE:
            assert 2 ** (octave - 0.5) <= ratio * 1.0000001
            assert ratio <= 2 ** (octave + 0.5) * 1.0000001


def test_patterns_match_problems_that_fill_the_gpu_alike():
    """A pattern serves shapes of its class on any GPU, and no others; other types and layouts never."""
    cache = PatternCache([pattern()])
    assert [found.config for found in cache.matching(PROBLEM, H200)] == [CONFIGS[0]]
    assert cache.matching(GemmProblem(500, 4000, 4032), H200)
    assert not cache.matching(GemmProblem(64, 4096, 4096), H200)
    assert not cache.matching(GemmProblem(512, 4096, 512), H200)
    assert not cache.matching(GemmProblem(512, 4096, 4096, "fp16"), H200)
    assert not cache.matching(GemmProblem(512, 4096, 4096, "bf16", "kn"), H200)
    # 108 SMs instead of 132: the same waves with fewer tiles.
    assert cache.matching(GemmProblem(512, 3328, 4096), A100)


def test_the_most_promising_come_first():
    """Order is by chance to win, those of this GPU before others; a few uses are no certainty."""
    cache = PatternCache(
        [
            pattern(0, wins=1, uses=1),
            pattern(1, wins=9, uses=10),
            pattern(2, wins=2, uses=10),
            pattern(3, wins=10, uses=10, arch="nvidia-a100"),
        ]
    )
    assert [CONFIGS.index(found.config) for found in cache.matching(PROBLEM, H200)] == [1, 0, 2, 3]


def test_uses_are_counted():
    """Only a winner becomes a pattern; once it is one, every use counts."""
    cache = PatternCache()
    cache.record_use(PROBLEM, CONFIGS[0], H200, won=False)
    assert len(cache) == 0
    for won in (True, False, True):
        cache.record_use(PROBLEM, CONFIGS[0], H200, won=won)
    (found,) = cache
    assert (found.wins, found.uses, found.arch) == (2, 3, "nvidia-h200")


def test_eviction():
    """Who hardly ever wins goes; then, beyond the limit, the least useful and among equals the longest unused."""
    losers = [pattern(0, wins=1, uses=60)]
    keepers = [pattern(1, wins=5, uses=6), pattern(2, wins=3, uses=6), pattern(3, day=3), pattern(4, day=2)]
    cache = PatternCache([*losers, *keepers])
    assert cache.prune(limit=10) == 1
    assert {CONFIGS.index(entry.config) for entry in cache} == {1, 2, 3, 4}
    assert cache.prune(limit=2) == 2
    assert [CONFIGS.index(entry.config) for entry in cache] == [1, 3]
    assert cache.prune(limit=0) == 2


def test_merge_adds_counts():
    """Counts of the same pattern add up, and the later day stays."""
    cache = PatternCache([pattern(0, wins=2, uses=3, day=9)])
    cache.merge([pattern(0, wins=1, uses=4, day=5), pattern(1)])
    first, second = cache
    assert (first.wins, first.uses, first.last_used) == (3, 7, "2026-11-09")
    assert second == pattern(1)


def test_round_trip(tmp_path: Path):
    """What is written is read, and written again it is the same bytes."""
    path = tmp_path / "p.json"
    patterns = [pattern(i, wins=i, uses=i + 1, arch=arch) for i in range(8) for arch in ("nvidia-h200", "nvidia-a100")]
    PatternCache(patterns).write(path)
    read = read_patterns(path)
    assert {entry.key: entry for entry in read} == {entry.key: entry for entry in patterns}
    data = path.read_bytes()
    read.write(path)
    assert path.read_bytes() == data
    PatternCache().write(path)
    assert len(read_patterns(path)) == 0


def rewritten(path: Path, change: Any) -> None:
    """Change the document of a file, and give it the digest that belongs to it."""
    document, _ = parse_document(path.read_bytes(), DocumentReader(str(path)), schema=SCHEMA, version=1)
    change(document)
    rows = [(name, dump(document[name])) for name in document if name not in ("schema", "schema_version", "digest")]
    path.write_bytes(encode_document(SCHEMA, 1, rows))


WRONG = {
    "kernel": "attention", "dtype": "fp3", "layout": "mn", "arch": "nvidia-h900", "wave": 13, "loop": "2",
    "aspect": 0.5, "config": 1, "wins": 2, "uses": 0, "last_used": "yesterday",
}  # fmt: skip


@pytest.mark.parametrize("column", WRONG)
def test_a_wrong_value_is_refused(tmp_path: Path, column: str):
    """Each value of a row is checked, and named where it is wrong."""
    path = tmp_path / "p.json"
    PatternCache([pattern()]).write(path)

    def spoil(document: dict[str, Any]) -> None:
        document["patterns"][0][COLUMNS.index(column)] = WRONG[column]

    rewritten(path, spoil)
    with pytest.raises(ModelFileError, match=f"p.json: .*({column}|unknown)"):
        read_patterns(path)


def test_damaged_files_are_refused(tmp_path: Path):
    """Cut, edited, foreign and doubled files are refused; the message names the field."""
    path = tmp_path / "p.json"
    PatternCache([pattern(0), pattern(1)]).write(path)
    data = path.read_bytes()
    for damaged, field in (
        (data[:-20], "file"),
        (data.replace(b'"bf16"', b'"fp16"', 1), "digest"),
        (data.replace(b"wavetune-patterns", b"wavetune-pinned"), "schema"),
        (b"[]", "file"),
        (b"\xff\xfe", "file"),
    ):
        path.write_bytes(damaged)
        with pytest.raises(ModelFileError, match=f"field {field}"):
            read_patterns(path)
    path.write_bytes(data)
    rewritten(path, lambda document: document["patterns"].append(document["patterns"][0]))
    with pytest.raises(ModelFileError, match="field patterns: the same pattern appears twice"):
        read_patterns(path)
    path.write_bytes(data)
    rewritten(path, lambda document: document.pop("configs"))
    with pytest.raises(ModelFileError, match="field configs: missing"):
        read_patterns(path)
    with pytest.raises(ModelFileError, match="cannot read"):
        read_patterns(tmp_path / "none.json")


def test_a_file_is_plain_json(tmp_path: Path):
    """Other programs can read the file: every row has the columns that the file names."""
    path = tmp_path / "p.json"
    PatternCache([replace(pattern(), launch=LaunchClass(-2, 5, 0))]).write(path)
    document = json.loads(path.read_text())
    row = dict(zip(document["columns"], document["patterns"][0], strict=True))
    assert (row["wave"], row["loop"], row["aspect"], row["wins"]) == (-2, 5, 0, 1)
    assert document["configs"][row["config"]] == dict(CONFIGS[0])
