"""Patterns as seeds of a tuning: who is measured first, what is learned, and what other GPUs' patterns must pass."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from tuning_gpu import plan_of, some_configs

from wavetune.core.arch import ArchSpec, find_arch
from wavetune.core.config import KernelConfig
from wavetune.core.problem import GemmProblem
from wavetune.core.workload import Workload
from wavetune.pipeline.tune_patterns import PatternSeeds, compilable
from wavetune.pipeline.tune_plan import plan_tuning
from wavetune.pipeline.tune_verdict import Outcome, TunedProblem
from wavetune.runtime.device import named_device
from wavetune.workloads.pattern_cache import MAX_SEEDS, Pattern, PatternCache, classify, read_patterns

H200 = named_device(find_arch("h200").name)
PROBLEM = GemmProblem(512, 4096, 4096)
CONFIGS = some_configs(12)


def pattern(config: KernelConfig, arch: str = "nvidia-h200", wins: int = 1, uses: int = 1) -> Pattern:
    """Return a pattern that matches the problem on an H200."""
    return Pattern("bf16", "nk", arch, classify(PROBLEM, config, H200.arch), config, wins, uses, "2026-11-29")


def test_seeds_are_the_most_promising():
    """At most so many, best first, and none without a cache."""
    cache = PatternCache(pattern(config, wins=wins, uses=20) for wins, config in enumerate(CONFIGS, start=1))
    seeds = PatternSeeds(cache, H200)(PROBLEM)
    assert seeds == CONFIGS[::-1][:MAX_SEEDS]
    assert PatternSeeds(PatternCache(), H200)(PROBLEM) == []


def test_seeds_lead_a_plan():
    """Seeds come before the model's ranking, once, and illegal ones not at all."""
    unaligned = GemmProblem(512, 4095, 4095)
    seed = CONFIGS[3]
    cache = PatternCache([pattern(seed)])
    workload = Workload.from_problems([(PROBLEM, 1), (unaligned, 1)])
    plan = plan_tuning(workload, H200, top=2, space=lambda dtype: (), seeds=PatternSeeds(cache, H200))
    first, second = plan.plans
    assert first.seeds == (seed,)
    assert first.candidates[0] == seed
    assert first.candidates[1] == first.pick
    assert len(set(first.candidates)) == len(first.candidates)
    # TMA cannot load its rows.
    assert second.seeds == ()


def test_what_is_learned(tmp_path: Path):
    """A seed that was measured counts a use, a winner a win; kept picks and failures teach nothing new."""
    path = tmp_path / "p.json"
    PatternCache([pattern(CONFIGS[0]), pattern(CONFIGS[1])]).write(path)
    seeds = PatternSeeds.open(path, H200)
    plan = plan_of(PROBLEM, CONFIGS, pick=CONFIGS[5], seeds=CONFIGS[:2])
    tuned = [
        TunedProblem(plan, Outcome.TUNED, CONFIGS[1]),
        TunedProblem(plan, Outcome.PICK, CONFIGS[5]),
        TunedProblem(plan, Outcome.FAILED, CONFIGS[5]),
        TunedProblem(plan_of(PROBLEM, CONFIGS), Outcome.TUNED, CONFIGS[7]),
    ]
    assert seeds.learn(tuned) == 3
    counts = {entry.config: (entry.wins, entry.uses) for entry in read_patterns(path)}
    assert counts == {CONFIGS[0]: (1, 3), CONFIGS[1]: (2, 3), CONFIGS[7]: (1, 1)}
    assert len(PatternSeeds.open(path, H200).cache) == 3
    assert len(PatternSeeds.open(tmp_path / "new.json", H200).cache) == 0


def test_patterns_of_another_gpu_must_compile():
    """Only what compiles for this GPU is measured; each configuration is compiled once, own patterns never."""
    asked: list[list[KernelConfig]] = []

    def only_the_second(configs: Sequence[KernelConfig], arch: ArchSpec, dtype: str, layout: str) -> set[KernelConfig]:
        asked.append(list(configs))
        assert (arch.name, dtype, layout) == ("nvidia-h200", "bf16", "nk")
        return {CONFIGS[1]}

    cache = PatternCache([pattern(c, "nvidia-b200", wins=2, uses=2) for c in CONFIGS[:3]] + [pattern(CONFIGS[4])])
    seeds = PatternSeeds(cache, H200, compile_filter=only_the_second)
    assert seeds(PROBLEM) == [CONFIGS[4], CONFIGS[1]]
    assert seeds(PROBLEM) == [CONFIGS[4], CONFIGS[1]]
    assert asked == [CONFIGS[:3]]


def test_the_rules_come_before_the_compiler():
    """What the rules of a GPU forbid is not compiled at all: an A100 has no TMA."""
    a100 = named_device(find_arch("a100").name)

    def nothing(configs: Sequence[KernelConfig], arch: ArchSpec, dtype: str, layout: str) -> set[KernelConfig]:
        raise AssertionError("nothing is left to compile")

    patterns = [
        Pattern("bf16", "nk", "nvidia-h200", classify(PROBLEM, c, a100.arch), c, 1, 1, "2026-11-29") for c in CONFIGS
    ]
    assert PatternSeeds(PatternCache(patterns), a100, compile_filter=nothing)(PROBLEM) == []


def test_the_compiler_itself():
    """Configurations are compiled for a GPU that is not here; one that takes too many registers is left out."""
    pytest.importorskip("triton")
    good = CONFIGS[0].replace(load="pointer", num_stages=2)
    # Shared memory beyond that of an A100, whatever the rules let through.
    large = CONFIGS[4].replace(load="pointer", num_stages=5)
    assert compilable([good, large], find_arch("a100"), "fp16", "nk") == {good}


def test_two_tunings_teach_one_file(tmp_path: Path):
    """What another process taught the file meanwhile stays, also what it did not let stay."""
    path = tmp_path / "p.json"
    PatternCache([pattern(CONFIGS[0]), pattern(CONFIGS[1])]).write(path)
    first, second = PatternSeeds.open(path, H200), PatternSeeds.open(path, H200)
    first.learn([TunedProblem(plan_of(PROBLEM, CONFIGS, seeds=CONFIGS[:2]), Outcome.TUNED, CONFIGS[5])])
    second.learn([TunedProblem(plan_of(PROBLEM, CONFIGS, seeds=CONFIGS[:2]), Outcome.TUNED, CONFIGS[1])])
    counts = {entry.config: (entry.wins, entry.uses) for entry in read_patterns(path)}
    assert counts == {CONFIGS[0]: (1, 3), CONFIGS[1]: (2, 3), CONFIGS[5]: (1, 1)}


def test_tunings_that_end_together(tmp_path: Path):
    """Of tunings that write at the same moment none is lost; the folder of a new file is made."""
    path = tmp_path / "new" / "p.json"
    tuned = [TunedProblem(plan_of(PROBLEM, CONFIGS), Outcome.TUNED, CONFIGS[0])]
    everybody = [PatternSeeds.open(path, H200) for _ in range(8)]
    threads = [threading.Thread(target=seeds.learn, args=(tuned,)) for seeds in everybody]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (entry,) = read_patterns(path)
    assert (entry.wins, entry.uses) == (8, 8)
