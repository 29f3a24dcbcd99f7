"""A run that is killed at any moment goes on where it was."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from wavetune.store.database import MeasurementStore

BATCH = 40
N_POINTS = 4000
WORKER = """
import sys
from wavetune.core.config import GEMM
from wavetune.core.problem import GemmProblem
from wavetune.store.database import MeasurementStore
from wavetune.store.record import CompiledConfig, Measurement, Point, Status

path, batch_size, n_points = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
config = GEMM.config({"block_m": 64, "block_n": 64, "block_k": 64, "group_m": 8, "num_warps": 4, "num_stages": 3})
points = [Point(GemmProblem(m, 64, 64), config, "loop") for m in range(1, n_points + 1)]
with MeasurementStore(path, {"gpu": "none"}) as store:
    store.record_compiled([CompiledConfig(config, 64, 0, 1024)])
    done = store.done_points()
    left = [point for point in points if point not in done]
    print("start", len(done), flush=True)
    for first in range(0, len(left), batch_size):
        batch = left[first : first + batch_size]
        store.record(Measurement(p.problem, p.config, Status.OK, 10.0, stratum=p.stratum) for p in batch)
        print(len(done) + first + len(batch), flush=True)
"""


def start(path: Path) -> subprocess.Popen[str]:
    """Start a run that records all points that are not there yet."""
    arguments = [sys.executable, "-c", WORKER, str(path), str(BATCH), str(N_POINTS)]
    return subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)


def test_kill_nine_loses_at_most_the_batch_in_flight(tmp_path: Path) -> None:
    """Kill nine loses at most the batch in flight."""
    path = tmp_path / "s.db"
    recorded = 0
    for kill_after in (1, 7, 20):
        worker = start(path)
        assert worker.stdout is not None
        first = worker.stdout.readline().split()
        assert first[0] == "start"
        assert recorded <= int(first[1]) <= recorded + BATCH
        for _ in range(kill_after):
            recorded = int(worker.stdout.readline())
        time.sleep(0.002 * kill_after)
        worker.send_signal(signal.SIGKILL)
        rest, _ = worker.communicate()
        assert worker.returncode == -signal.SIGKILL
        # A line that the kill cut short was not promised.
        recorded = max([recorded, *(int(line) for line in rest.splitlines(keepends=True) if line.endswith("\n"))])
        with MeasurementStore(path) as store:
            sizes = [entry.problem.dims[0] for entry in store.measurements()]
        assert recorded <= len(sizes) <= recorded + BATCH
        assert sizes == list(range(1, len(sizes) + 1))
        recorded = len(sizes)
    assert 0 < recorded < N_POINTS
    worker = start(path)
    worker.communicate(timeout=60)
    assert worker.returncode == 0
    with MeasurementStore(path) as store:
        assert [entry.problem.dims[0] for entry in store.measurements()] == list(range(1, N_POINTS + 1))


def test_two_processes_may_record_at_the_same_time(tmp_path: Path) -> None:
    """Two processes may record at the same time."""
    workers = [start(tmp_path / "s.db") for _ in range(2)]
    for worker in workers:
        worker.communicate(timeout=60)
        assert worker.returncode == 0
    with MeasurementStore(tmp_path / "s.db") as store:
        assert len(store.measurements()) == N_POINTS


@pytest.mark.parametrize("leftover", ["-wal", "-shm"])
def test_side_files_of_a_killed_run_do_no_harm(tmp_path: Path, leftover: str) -> None:
    """Side files of a killed run do no harm."""
    with MeasurementStore(tmp_path / "s.db", {"gpu": "none"}):
        pass
    (tmp_path / f"s.db{leftover}").write_bytes(b"\0" * 5000)
    with MeasurementStore(tmp_path / "s.db", {"gpu": "none"}) as store:
        assert store.environment() == {"gpu": "none"}
