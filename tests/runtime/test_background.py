"""Misses measured in the background: one at a time, each once, and never in the way of the program."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from wavetune.core.arch import find_arch
from wavetune.core.config import GEMM
from wavetune.core.problem import GemmProblem
from wavetune.runtime.background import BackgroundQueue
from wavetune.runtime.device import Device
from wavetune.runtime.measurer import MeasuredChoice, MeasureRequest

CONFIG = GEMM.config({"block_m": 64, "block_n": 64, "block_k": 64, "group_m": 8, "num_warps": 4, "num_stages": 3})
H200 = find_arch("nvidia-h200")


def request(m: int, index: int = 0) -> MeasureRequest:
    """Return a request for one problem."""
    return MeasureRequest(GemmProblem(m, 64, 64), (), CONFIG, Device(H200, 132, H200.name, index), 50.0, 0.02)


class SlowMeasurer:
    """Measures when it is allowed to, and notes what and where."""

    def __init__(self) -> None:
        self.may_go = threading.Event()
        self.started = threading.Event()
        self.measured: list[int] = []
        self.threads: set[int] = set()
        self.capturing = False

    def is_capturing(self) -> bool:
        """Whether the test says so."""
        return self.capturing

    def measure(self, request: MeasureRequest) -> MeasuredChoice | None:
        """Measure sizes above 100, raise for 13."""
        self.started.set()
        assert self.may_go.wait(30)
        self.threads.add(threading.get_ident())
        m = request.problem.dims[0]
        self.measured.append(m)
        if m == 13:
            raise RuntimeError("an accident")
        return MeasuredChoice(CONFIG, float(m), 2.0) if m > 100 else None


@pytest.fixture
def measurer() -> SlowMeasurer:
    """Return a measurer that waits."""
    return SlowMeasurer()


@pytest.fixture
def queue() -> Iterator[BackgroundQueue]:
    """Return a small queue."""
    queue = BackgroundQueue(max_waiting=3, poll_s=0.005, patience_s=0.2)
    yield queue
    queue.stop(10.0)


def test_outcomes_arrive_from_one_daemon_thread(queue: BackgroundQueue, measurer: SlowMeasurer) -> None:
    """Requests are measured in order by a thread of their own; each callback gets its outcome, None included."""
    outcomes: list[tuple[int, MeasuredChoice | None]] = []
    measurer.may_go.set()
    for m in (101, 5, 102):
        assert queue.submit(measurer, request(m), lambda choice, m=m: outcomes.append((m, choice)))
    assert queue.wait_until_idle(30)
    assert measurer.measured == [101, 5, 102]
    assert [m for m, _ in outcomes] == [101, 5, 102]
    assert [choice and choice.latency_us for _, choice in outcomes] == [101.0, None, 102.0]
    assert len(measurer.threads) == 1
    assert threading.get_ident() not in measurer.threads
    workers = [thread for thread in threading.enumerate() if thread.ident in measurer.threads]
    assert all(thread.daemon for thread in workers)


def test_a_problem_waits_only_once(queue: BackgroundQueue, measurer: SlowMeasurer) -> None:
    """A problem that waits or is in hand is not taken again; on another GPU, or once done, it is."""
    calls: list[object] = []
    assert queue.submit(measurer, request(101), calls.append)
    assert measurer.started.wait(30)
    assert not queue.submit(measurer, request(101), calls.append)  # in hand
    assert queue.submit(measurer, request(102), calls.append)
    assert not queue.submit(measurer, request(102), calls.append)  # waits
    assert queue.submit(measurer, request(102, index=1), calls.append)
    measurer.may_go.set()
    assert queue.wait_until_idle(30)
    assert measurer.measured == [101, 102, 102]
    assert queue.submit(measurer, request(101), calls.append)
    assert queue.wait_until_idle(30)
    assert len(calls) == 4


def test_the_queue_is_bounded(queue: BackgroundQueue, measurer: SlowMeasurer) -> None:
    """Beyond its bound the queue refuses at once."""
    assert queue.submit(measurer, request(200), lambda choice: None)
    assert measurer.started.wait(30)
    taken = [queue.submit(measurer, request(m), lambda choice: None) for m in range(201, 211)]
    assert taken == [True] * 3 + [False] * 7
    measurer.may_go.set()
    assert queue.wait_until_idle(30)
    assert measurer.measured == [200, 201, 202, 203]
    assert queue.submit(measurer, request(205), lambda choice: None)


def test_accidents_do_not_end_the_thread(
    queue: BackgroundQueue, measurer: SlowMeasurer, caplog: pytest.LogCaptureFixture
) -> None:
    """An error of a measurer or of a callback is logged, and the next request is served."""
    outcomes: list[object] = []
    measurer.may_go.set()

    def fail(choice: MeasuredChoice | None) -> None:
        raise ValueError("callback")

    queue.submit(measurer, request(13), outcomes.append)
    queue.submit(measurer, request(101), fail)
    queue.submit(measurer, request(102), outcomes.append)
    assert queue.wait_until_idle(30)
    assert [getattr(choice, "latency_us", None) for choice in outcomes] == [102.0]
    text = caplog.text
    assert "an accident" in text
    assert "callback" in text


def test_requests_wait_while_graphs_are_captured(
    queue: BackgroundQueue, measurer: SlowMeasurer, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is measured during a capture; afterwards it is. A capture without end makes the request give up."""
    caplog.set_level(logging.INFO, "wavetune")
    measurer.may_go.set()
    measurer.capturing = True
    outcomes: list[object] = []
    queue.submit(measurer, request(101), outcomes.append)
    time.sleep(0.05)
    assert measurer.measured == []
    measurer.capturing = False
    assert queue.wait_until_idle(30)
    assert measurer.measured == [101]
    measurer.capturing = True
    queue.submit(measurer, request(102), outcomes.append)
    assert queue.wait_until_idle(30)
    assert measurer.measured == [101]
    assert outcomes[1] is None
    assert "captured all the time" in caplog.text


def test_many_threads_may_submit(measurer: SlowMeasurer) -> None:
    """Sixteen threads that submit the same problems have each measured once, in one thread."""
    queue = BackgroundQueue(max_waiting=1000)
    outcomes: list[object] = []

    def submit() -> None:
        for m in range(101, 131):
            queue.submit(measurer, request(m), outcomes.append)

    threads = [threading.Thread(target=submit) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    measurer.may_go.set()
    assert queue.wait_until_idle(30)
    assert sorted(measurer.measured) == list(range(101, 131))
    assert len(outcomes) == 30
    assert len(measurer.threads) == 1
    queue.stop(10.0)


def test_a_stopped_queue_takes_no_more(queue: BackgroundQueue, measurer: SlowMeasurer) -> None:
    """Stopping lets the measurement in hand end, drops what waits, and refuses what comes."""
    outcomes: list[object] = []
    queue.submit(measurer, request(101), outcomes.append)
    assert measurer.started.wait(30)
    queue.submit(measurer, request(102), outcomes.append)
    stopper = threading.Thread(target=queue.stop)
    stopper.start()
    measurer.may_go.set()
    stopper.join(30)
    assert measurer.measured == [101]
    assert len(outcomes) == 1
    assert not queue.submit(measurer, request(103), outcomes.append)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_has_a_queue_of_its_own() -> None:
    """A child that is forked while the parent measures can measure too, and does not repeat the parent's requests."""
    program = """
import os, sys, threading, time
sys.path.insert(0, sys.argv[1])
from test_background import BackgroundQueue, SlowMeasurer, request
queue, parent, child = BackgroundQueue(), SlowMeasurer(), SlowMeasurer()
queue.submit(parent, request(101), lambda choice: None)
queue.submit(parent, request(102), lambda choice: None)
parent.started.wait(30)
pid = os.fork()
if pid == 0:
    child.may_go.set()
    assert queue.submit(child, request(101), lambda choice: None)
    assert queue.wait_until_idle(30)
    assert child.measured == [101] and parent.measured == []
    os._exit(7)
_, status = os.waitpid(pid, 0)
parent.may_go.set()
assert queue.wait_until_idle(30) and parent.measured == [101, 102]
print(os.waitstatus_to_exitcode(status))
"""
    folder = os.path.dirname(__file__)
    done = subprocess.run([sys.executable, "-c", program, folder], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "7", done.stderr


def test_the_end_of_the_program_waits_for_the_measurement_in_hand() -> None:
    """A program that ends while something is measured lets it finish, and drops the rest."""
    program = """
import sys, threading, time
sys.path.insert(0, sys.argv[1])
from test_background import SlowMeasurer, request
from wavetune.runtime import background
measurer = SlowMeasurer()
for m in (101, 102):
    background.submit(measurer, request(m), lambda choice: print("done", choice.latency_us, flush=True))
measurer.started.wait(30)
timer = threading.Timer(0.3, measurer.may_go.set)
timer.daemon = True  # the end of the program does not wait for it
timer.start()
print("end", flush=True)
"""
    folder = os.path.dirname(__file__)
    done = subprocess.run([sys.executable, "-c", program, folder], capture_output=True, text=True, timeout=60)
    assert done.stdout.split("\n") == ["end", "done 101.0", ""], done.stderr
    assert done.returncode == 0
