"""Live measurement on a made-up GPU: whom it chooses, what it costs, and when it gives up."""

from __future__ import annotations

import gc
import logging
import random
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton")

from clock_gpu import DEFAULT, FIRST, FOURTH, H200, SECOND, THIRD, MadeUpGpu, request

from wavetune.core.config import KernelConfig
from wavetune.launch import live
from wavetune.launch.live import LiveMeasurer, pick
from wavetune.measure.cuda_timing import Timing
from wavetune.measure.environment import timing_lock
from wavetune.runtime.device import Device
from wavetune.runtime.measurer import MeasuredChoice, Measurer, MeasureRequest, find_measurer


class OutOfMemoryError(RuntimeError):
    """Named like torch's."""


def reasons(caplog: pytest.LogCaptureFixture) -> str:
    """Return the log so far."""
    return "\n".join(record.getMessage() for record in caplog.records)


@pytest.fixture(autouse=True)
def log(caplog: pytest.LogCaptureFixture) -> None:
    """Keep every line of the log."""
    caplog.set_level(logging.DEBUG, "wavetune")


def test_the_fastest_candidate_wins() -> None:
    """A clear winner is chosen, with its latency, the default's and the kernel's source."""
    gpu = MadeUpGpu({DEFAULT: 30.0, FIRST: 28.0, SECOND: 22.0, THIRD: 35.0, FOURTH: 50.0})
    choice = gpu.measure(request(FIRST, SECOND, THIRD, FOURTH))
    assert choice is not None
    assert choice.config == SECOND
    assert choice.latency_us == pytest.approx(22.0, rel=0.02)
    assert choice.default_us == pytest.approx(30.0, rel=0.02)
    assert choice.kernel_source == "abcd"


def test_a_choice_is_never_clearly_slower_than_the_default_nor_than_the_best() -> None:
    """Over random GPUs: at most 1 % slower than the default, and what is clearly best is found within 5 %."""
    dice = random.Random(1)
    for seed in range(150):
        latencies: dict[KernelConfig, float | Exception] = {
            entry: dice.uniform(80.0, 125.0) for entry in (DEFAULT, FIRST, SECOND, THIRD, FOURTH)
        }
        gpu = MadeUpGpu(latencies, seed=seed)
        choice = gpu.measure(request(FIRST, SECOND, THIRD, FOURTH))
        assert choice is not None
        chosen, default = latencies[choice.config], latencies[DEFAULT]
        assert isinstance(chosen, float)
        assert isinstance(default, float)
        assert chosen <= 1.01 * default
        assert chosen <= 1.05 * min(value for value in latencies.values() if isinstance(value, float))


def test_the_default_stays_unless_beaten_by_the_margin() -> None:
    """Candidates that are faster by less than the margin do not replace the default; a smaller margin lets them."""
    latencies = {DEFAULT: 100.0, FIRST: 97.0, SECOND: 101.0}
    for seed in range(30):
        wide = MadeUpGpu(latencies, noise=0.003, seed=seed).measure(request(FIRST, SECOND, margin=0.05))
        narrow = MadeUpGpu(latencies, noise=0.003, seed=seed).measure(request(FIRST, SECOND, margin=0.01))
        assert wide is not None
        assert narrow is not None
        assert wide.config == DEFAULT
        assert wide.latency_us == wide.default_us
        assert narrow.config == FIRST


def test_noise_keeps_the_default() -> None:
    """A gain beyond the margin that the noise may explain does not count."""
    quiet = [Timing(100.0, 0.5, 5), Timing(95.0, 0.5, 5)]
    noisy = [Timing(100.0, 4.0, 5), Timing(95.0, 4.0, 5)]
    assert pick([DEFAULT, FIRST], quiet, 0.02).config == FIRST
    assert pick([DEFAULT, FIRST], noisy, 0.02).config == DEFAULT


def test_near_ties_go_to_the_prediction() -> None:
    """Of candidates that cannot be told apart, the one predicted best is answered, whichever read faster."""
    close = [Timing(100.0, 0.5, 5), Timing(80.3, 0.4, 5), Timing(80.0, 0.4, 5), Timing(70.0, float("inf"), 1), None]
    assert pick([DEFAULT, FIRST, SECOND, THIRD, FOURTH], close, 0.02).config == FIRST
    apart = [Timing(100.0, 0.5, 5), Timing(82.0, 0.4, 5), Timing(80.0, 0.4, 5)]
    assert pick([DEFAULT, FIRST, SECOND], apart, 0.02).config == SECOND


def test_a_failing_candidate_is_dropped(caplog: pytest.LogCaptureFixture) -> None:
    """A candidate that does not compile or launch is left out, with its reason in the log."""
    broken = RuntimeError("ptxas died\nwith many lines")
    gpu = MadeUpGpu({DEFAULT: 30.0, FIRST: broken, SECOND: 20.0, THIRD: ValueError("illegal"), FOURTH: 10.0})
    gpu.fails_to_launch[FOURTH] = RuntimeError("invalid argument")
    choice = gpu.measure(request(FIRST, SECOND, THIRD, FOURTH))
    assert choice is not None
    assert choice.config == SECOND
    assert "ptxas died" in reasons(caplog)
    assert "invalid argument" in reasons(caplog)
    assert "many lines" not in reasons(caplog)
    assert "illegal" in reasons(caplog)


def test_without_a_working_default_the_best_predicted_stands_in() -> None:
    """If the default cannot run, the candidates are compared with the first of them that can."""
    gpu = MadeUpGpu({DEFAULT: RuntimeError("no"), FIRST: 30.0, SECOND: 29.9, THIRD: 20.0})
    choice = gpu.measure(request(FIRST, SECOND, THIRD))
    assert choice is not None
    assert choice.config == THIRD
    assert choice.default_us == pytest.approx(30.0, rel=0.03)
    gpu = MadeUpGpu({DEFAULT: 10.0, FIRST: 30.0, SECOND: 29.9})
    gpu.fails_to_launch[DEFAULT] = RuntimeError("invalid argument")
    choice = gpu.measure(request(FIRST, SECOND))
    assert choice is not None
    assert choice.config == FIRST


def test_a_default_without_rivals_is_measured_alone() -> None:
    """A request without candidates measures the default; a default among the candidates is measured once."""
    gpu = MadeUpGpu({DEFAULT: 30.0})
    choice = gpu.measure(request(DEFAULT))
    assert choice is not None
    assert choice.config == DEFAULT
    assert gpu.bound == [DEFAULT]


GIVING_UP: dict[str, tuple[dict[str, Any], str]] = {
    "nothing can be launched": ({"latencies_us": {DEFAULT: RuntimeError("a"), FIRST: RuntimeError("b")}}, "no candid"),
    "out of memory while opening": ({"fails_to_open": OutOfMemoryError("CUDA out of memory. Tried")}, "out of memory"),
    "out of memory while binding": ({"latencies_us": {DEFAULT: 3.0, FIRST: OutOfMemoryError("x")}}, "out of memory"),
    "a CUDA error while timing": ({"fails_in_round": 5}, "illegal memory access"),
    "out of memory while launching": ({"fails_to_launch": {FIRST: OutOfMemoryError("x")}}, "out of memory"),
    "no launch works": ({"fails_to_launch": {DEFAULT: ValueError(), FIRST: ValueError()}}, "no candid"),
    "no reading can be trusted": ({"is_starved": True}, "no reading"),
    "too long for the budget": ({"expected_us": 20_000.0}, "too long"),
    "reason of the session": ({"fails_to_open": live.NotMeasuredError("another GPU")}, "another GPU"),
}


@pytest.mark.parametrize("case", GIVING_UP)
def test_giving_up_is_clean(case: str, caplog: pytest.LogCaptureFixture) -> None:
    """Whatever happens, the caller gets None and the log one reason; session and collector are as before."""
    changes, reason = GIVING_UP[case]
    gpu = MadeUpGpu({DEFAULT: 30.0, FIRST: 20.0})
    for name, value in changes.items():
        setattr(gpu, name, value)
    assert gpu.measure(request(FIRST)) is None
    assert reason in reasons(caplog)
    assert sum(record.getMessage().startswith("not measured") for record in caplog.records) == 1
    assert gc.isenabled()
    assert gpu.n_closed == (gpu.n_open if gpu.fails_to_open is None else 0)
    healthy = MadeUpGpu({DEFAULT: 30.0, FIRST: 20.0})
    assert healthy.measure(request(FIRST)) is not None


def test_nothing_happens_while_a_graph_is_captured(caplog: pytest.LogCaptureFixture) -> None:
    """During a capture nothing is opened, bound or timed."""
    gpu = MadeUpGpu({DEFAULT: 30.0, FIRST: 20.0})
    measurer = gpu.measurer(find_capture=lambda: True)
    assert measurer.is_capturing()
    assert measurer.measure(request(FIRST)) is None
    assert gpu.n_open == 0
    assert gpu.rounds == []
    assert "captured" in reasons(caplog)


def test_a_gpu_that_another_process_times_on_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """While another holds the timing lock of the very GPU, nothing is timed; afterwards it is."""
    monkeypatch.setenv("WAVETUNE_LOCK_DIR", str(tmp_path))
    gpu = MadeUpGpu({DEFAULT: 30.0, FIRST: 20.0})
    measurer = gpu.measurer(lock=timing_lock)
    with timing_lock(0, "made-up"):
        assert measurer.measure(request(FIRST)) is None
    assert gpu.rounds == []
    assert "already being timed" in reasons(caplog)
    with timing_lock(0, "another GPU"):
        assert measurer.measure(request(FIRST)) is not None


def test_the_collector_is_paused_while_timing() -> None:
    """No garbage is collected between launches, and what was off stays off."""
    gpu = MadeUpGpu({DEFAULT: 30.0, FIRST: 20.0})
    gpu.measure(request(FIRST))
    assert gpu.collects
    assert not any(gpu.collects)
    assert gc.isenabled()
    gc.disable()
    try:
        gpu.measure(request(FIRST))
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_threads_do_not_measure_each_other(caplog: pytest.LogCaptureFixture) -> None:
    """While one thread measures, another waits no longer than its budget and gives up."""
    gpu = MadeUpGpu({DEFAULT: 30.0, FIRST: 20.0})
    is_timing, may_end = threading.Event(), threading.Event()

    @contextmanager
    def slow_lock(gpu: int, identity: str | None) -> Iterator[None]:
        is_timing.set()
        may_end.wait(30)
        yield

    measurer = gpu.measurer(lock=slow_lock)
    outcome: list[MeasuredChoice | None] = []
    thread = threading.Thread(target=lambda: outcome.append(measurer.measure(request(FIRST))))
    thread.start()
    assert is_timing.wait(30)
    assert measurer.measure(request(SECOND, budget_ms=5.0)) is None
    assert "another thread" in reasons(caplog)
    may_end.set()
    thread.join(30)
    assert outcome[0] is not None


def test_importing_the_launchers_registers_a_measurer() -> None:
    """`import wavetune.launch` is enough for ``on_miss="measure"``, which GEMM alone has."""
    import wavetune.launch  # noqa: F401

    measurer = find_measurer("gemm")
    assert isinstance(measurer, Measurer)
    assert isinstance(measurer, LiveMeasurer)
    assert find_measurer("attention") is None


def test_a_process_without_cuda_gives_up_and_does_not_start_it(caplog: pytest.LogCaptureFixture) -> None:
    """The registered measurer never starts CUDA by itself."""
    torch = pytest.importorskip("torch")
    if torch.cuda.is_initialized():
        pytest.skip("CUDA is in use here")
    measurer = LiveMeasurer()
    assert not measurer.is_capturing()
    assert measurer.measure(request(FIRST)) is None
    assert "CUDA is not in use" in reasons(caplog)
    assert not torch.cuda.is_initialized()


def test_a_kernel_without_launches_gives_up(caplog: pytest.LogCaptureFixture) -> None:
    """A family that has no kernels is a reason, not an error."""

    class OtherProblem:
        kernel, dtype, dims, is_empty = "nothing_of_the_kind", "bf16", (1,), False

    other = MeasureRequest(OtherProblem(), (FIRST,), DEFAULT, Device(H200, 132, H200.name, 0), 50.0, 0.02)
    assert LiveMeasurer().measure(other) is None
    assert "nothing_of_the_kind" in reasons(caplog)


def test_the_lock_is_asked_for_without_waiting() -> None:
    """The lock is held for the timing only, not while candidates compile."""
    gpu = MadeUpGpu({DEFAULT: 30.0, FIRST: 20.0})
    held: list[tuple[int, int]] = []

    def lock(ordinal: int, identity: str | None) -> AbstractContextManager[None]:
        held.append((len(gpu.bound), len(gpu.rounds)))
        return nullcontext()

    gpu.measurer(lock=lock).measure(request(FIRST))
    assert held == [(2, 0)]
