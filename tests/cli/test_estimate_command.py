"""``wavetune estimate``: problems times candidates times latency, by the iteration policy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from command_shell import Result

from wavetune import choose_config, clear_caches, rank_configs
from wavetune.core.arch import find_arch
from wavetune.core.problem import GemmProblem
from wavetune.core.workload import Workload
from wavetune.pipeline.tuning_estimate import ALL, PREPARE_CORE_SECONDS, estimate_tuning
from wavetune.plan.iteration_policy import LONG, MEDIUM, SHORT, iterations_for
from wavetune.runtime.device import Device, named_device

Cli = Callable[..., Result]

SHAPES = [(1, 4096, 4096), (512, 8192, 8192), (16384, 16384, 16384)]


@pytest.fixture
def device(cli: Cli) -> Device:
    """Return an H200, with the small model found first."""
    clear_caches()
    return named_device(find_arch("h200").name)


def workload(*shapes: tuple[int, int, int]) -> Workload:
    """Return a workload of these shapes."""
    return Workload.from_problems((GemmProblem(*shape), 10) for shape in shapes)


def test_policy():
    """Every latency has a class, the open range of QuickTune the middle one."""
    assert (SHORT.cold, SHORT.timed, MEDIUM.cold, MEDIUM.timed, LONG.cold, LONG.timed) == (200, 100, 50, 20, 10, 2)
    expected = {0.1: SHORT, 49.9: SHORT, 50.0: MEDIUM, 99.0: MEDIUM, 1000.0: MEDIUM, 1000.1: LONG, 1e6: LONG}
    assert {latency_us: iterations_for(latency_us) for latency_us in expected} == expected


def test_the_ranking_is_added_up(device: Device):
    """Within the ranking, seconds are launches times predicted latencies; each configuration compiles once."""
    estimate = estimate_tuning(workload(*SHAPES), device, top=ALL, space=lambda dtype: (), cores=2)
    configs = set()
    for key in estimate.keys:
        ranked = rank_configs(key.problem, arch="h200")
        launches = iterations_for(ranked[0].latency_us).launches
        assert key.seconds == pytest.approx(launches * sum(entry.latency_us for entry in ranked) / 1e6)
        assert (key.launches, key.candidates, key.assumed) == (launches * len(ranked), len(ranked), 0)
        configs |= {entry.config for entry in ranked}
    assert [key.iterations for key in estimate.keys] == [SHORT.name, MEDIUM.name, LONG.name]
    assert estimate.n_configs == len(configs)
    assert estimate.prepare_seconds == pytest.approx(PREPARE_CORE_SECONDS * len(configs) / 2)
    assert estimate.measure_seconds == pytest.approx(sum(key.seconds for key in estimate.keys))


def test_the_default_is_timed_as_well(device: Device):
    """The model's pick alone is timed against the default, once if it is the default."""
    estimate = estimate_tuning(workload(*SHAPES), device, top=1, space=lambda dtype: (), cores=1)
    default = choose_config(0, 4096, 4096, arch="h200")
    for key in estimate.keys:
        assert key.candidates == 1 + (rank_configs(key.problem, arch="h200")[0].config != default)


def test_candidates_beyond_the_ranking(device: Device):
    """They are as slow as the slowest that is ranked, and only legal ones count."""
    shape = GemmProblem(1, 4096, 4096)
    ranked = rank_configs(shape, arch="h200")
    more = [ranked[0].config.replace(group_m=g) for g in (1, 2, 4)]
    illegal = ranked[0].config.replace(block_k=96)
    estimate = estimate_tuning(
        workload(shape.dims), device, top=len(ranked) + 2, space=lambda dtype: [illegal, ranked[0].config, *more],
        cores=1,
    )  # fmt: skip
    (key,) = estimate.keys
    assert (key.candidates, key.assumed) == (len(ranked) + 2, 2)
    slowest = max(entry.latency_us for entry in ranked)
    total_us = sum(entry.latency_us for entry in ranked) + 2 * slowest
    assert key.seconds == pytest.approx(SHORT.launches * total_us / 1e6)


def test_command(cli: Cli):
    """Classes, totals and JSON; problems without a model are left out, and alone are an error."""
    Path("w.csv").write_text("m,n,k,dtype,count\n1,4096,4096,bf16,5\n16384,16384,16384,bf16,1\n8,64,64,int8,1\n")
    arguments = ("estimate", "w.csv", "--arch", "h200", "--cores", 2, "--top")
    document = cli(*arguments, 1, "--json").json
    assert document["left_out"] == 1
    assert [row["problems"] for row in document["classes"]] == [1, 0, 1]
    assert document["seconds"] == pytest.approx(document["measure_seconds"] + document["prepare_seconds"])
    assert sum(row["seconds"] for row in document["classes"]) == pytest.approx(document["measure_seconds"])
    result = cli(*arguments, 2)
    assert "on 2 cores" in result.stdout
    assert "above 1000 us" in result.stdout
    assert cli(*arguments, 0).code == 2
    Path("w.csv").write_text("m,n,k,dtype\n8,64,64,int8\n")
    assert cli(*arguments, 1).code == 4
