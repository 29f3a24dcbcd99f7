"""The runner: blocks without a GPU, and the whole of it on one."""

import gc
import os
import subprocess
import sys

import pytest

from wavetune.core.attention_problem import AttentionDecodeProblem
from wavetune.core.config import GEMM, KernelConfig
from wavetune.core.problem import GemmProblem
from wavetune.errors import RunnerError
from wavetune.kernels.registry import find_family
from wavetune.measure.environment import device_name
from wavetune.measure.runner import Runner
from wavetune.measure.timing import BRIEF_GRAPH_METHOD, GRAPH_METHOD, STREAM_METHOD, SUSTAINED_METHOD, StoppingRule
from wavetune.measure.triton_runner import BLOCK_POINTS, TritonRunner, split_blocks
from wavetune.store.record import Point, Status


def make_config(**fields: object) -> KernelConfig:
    """Complete a configuration."""
    base = {"block_m": 128, "block_n": 128, "block_k": 64, "group_m": 8, "num_warps": 4, "num_stages": 3}
    return GEMM.config({**base, "load": "tma", **fields})


def has_gpu() -> bool:
    """Whether NVML answers."""
    try:
        device_name()
    except RunnerError:
        return False
    return True


def test_blocks_keep_problems_together() -> None:
    """Points of one problem, however they come, are in one block; nothing is lost."""
    points = [Point(GemmProblem(m, 64, 64), make_config(group_m=g), "s") for g in range(1, 31) for m in range(1, 11)]
    blocks = list(split_blocks(points, lambda point: 10.0))
    assert sorted(map(id, (p for block in blocks for p in block))) == sorted(map(id, points))
    assert all(len(block) <= BLOCK_POINTS for block in blocks)
    homes = [{point.problem for point in block} for block in blocks]
    assert sum(map(len, homes)) == 10


def test_long_points_make_small_blocks() -> None:
    """A block is bounded in time; a problem that exceeds the bound alone still gets its block."""
    points = [Point(GemmProblem(m, 64, 64), make_config(), "s") for m in range(1, 6)]
    assert [len(block) for block in split_blocks(points, lambda point: 60_000.0)] == [1, 1, 1, 1, 1]
    assert [len(block) for block in split_blocks(points[:1], lambda point: 1e9)] == [1]


def test_importing_the_runner_needs_neither_torch_nor_triton() -> None:
    """Both are imported when a runner is made."""
    code = "import sys, wavetune.measure.triton_runner; print('torch' in sys.modules, 'triton' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ)
    assert result.stdout.split() == ["False", "False"]


@pytest.mark.skipif(has_gpu(), reason="there is a GPU")
def test_without_a_gpu_the_error_names_the_replay() -> None:
    """No traceback of a library, but what is missing and what to do."""
    with pytest.raises(RunnerError, match="replay"):
        TritonRunner("h200")


@pytest.fixture(scope="module")
def runner() -> TritonRunner:
    """Return one runner for all tests: its data pool takes 12 GB."""
    if not has_gpu():
        pytest.skip("needs a GPU")
    return TritonRunner(device_name())


@pytest.mark.gpu
def test_conforms_to_the_protocol(runner: TritonRunner) -> None:
    """The pipeline sees a Runner with a fingerprint."""
    assert isinstance(runner, Runner)
    environment = runner.environment()
    assert environment["gpu_name"] == device_name()
    assert "missing" not in environment.values()


@pytest.mark.gpu
def test_prepare_and_measure(runner: TritonRunner) -> None:
    """Good configurations are timed with every method; impossible ones are failures with reasons."""
    good = [make_config(), make_config(schedule="split_k", split_k=2), make_config(block_n=160)]
    bad = [make_config(schedule="persistent", block_n=256, num_warps=8, num_stages=4), make_config(split_k=2)]
    prepared = runner.prepare([*good, *bad])
    assert [compiled.config for compiled in prepared.compiled] == good
    assert [failure.status for failure in prepared.failures] == [Status.OUT_OF_RESOURCES, Status.ILLEGAL]
    points = [Point(GemmProblem(m, 4096, 4096), config, "s") for m in (128, 512) for config in good]
    by_method = {}
    for method in (STREAM_METHOD, GRAPH_METHOD, BRIEF_GRAPH_METHOD, SUSTAINED_METHOD):
        results = list(runner.measure(points, method=method))
        assert {(r.problem, r.config) for r in results} == {(p.problem, p.config) for p in points}
        assert all(r.status is Status.OK and r.method == method and r.rounds >= 2 for r in results)
        by_method[method] = {(r.problem, r.config): r.latency_us for r in results}
    for key, latency_us in by_method[STREAM_METHOD].items():
        assert latency_us == pytest.approx(by_method[GRAPH_METHOD][key], rel=0.25)
        assert by_method[BRIEF_GRAPH_METHOD][key] == pytest.approx(by_method[GRAPH_METHOD][key], rel=0.1)
    assert gc.isenabled()
    assert float(runner.conditions()["launch_floor_us"]) < 5.0


@pytest.mark.gpu
def test_short_calls_of_decode_are_timed_in_brief_graphs(runner: TritonRunner) -> None:
    """A calibration's own method differs by problem; each measurement says which it was."""
    configs = find_family("attention_decode").configs(runner.arch, "bf16")
    config = next(config for config in configs if config["splits"] == 2)
    short, long = (AttentionDecodeProblem((kv_len,) * 8, 32, 8, 128) for kv_len in (512, 65536))
    decode = TritonRunner(runner.arch, "attention_decode", "bf16", "d128")
    results = {r.problem: r for r in decode.measure([Point(long, config, "s"), Point(short, config, "s")])}
    assert results[short].method == BRIEF_GRAPH_METHOD
    assert results[long].method == STREAM_METHOD
    [again] = decode.measure([Point(short, config, "s")], method=GRAPH_METHOD)
    assert results[short].latency_us == pytest.approx(again.latency_us, rel=0.1)


@pytest.mark.gpu
def test_points_that_cannot_run_are_statuses(runner: TritonRunner) -> None:
    """Unaligned operands under TMA, and operands beyond the pool."""
    unaligned = Point(GemmProblem(64, 512, 512, alignment=2), make_config(), "s")
    huge = Point(GemmProblem(2**20, 64, 2**14), make_config(), "s")
    fine = Point(GemmProblem(64, 512, 512), make_config(), "s")
    results = {r.problem: r for r in runner.measure([unaligned, huge, fine], rule=StoppingRule(max_rounds=4))}
    assert results[unaligned.problem].status is Status.ILLEGAL
    assert results[huge.problem].status is Status.OUT_OF_MEMORY
    assert results[fine.problem].status is Status.OK
