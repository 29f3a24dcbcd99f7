"""Many writers on one store, killed at random: nothing that was committed is lost."""

from __future__ import annotations

import logging
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from wavetune.core.config import GEMM
from wavetune.core.problem import GemmProblem
from wavetune.runtime.measurer import MeasuredChoice
from wavetune.runtime.user_store import UserStore

N_WRITERS = 8
N_KILLS = 24
SCOPE = {"arch": "nvidia-h200", "num_sms": 132, "kernel": "gemm", "dtype": "bf16", "layout": "nk"}
CONFIG = GEMM.config({"block_m": 64, "block_n": 64, "block_k": 64, "group_m": 8, "num_warps": 4, "num_stages": 3})

# Each round saves a problem of its own, one that this writer saves again and again, and one that all writers share.
# A line is promised once it is on the disk.
WRITER = """
import logging, os, sys
from pathlib import Path
from wavetune.core.config import KernelConfig
from wavetune.core.problem import GemmProblem
from wavetune.runtime.measurer import MeasuredChoice
from wavetune.runtime.user_store import UserStore

path, log, writer, fields = Path(sys.argv[1]), open(sys.argv[2], "ab", buffering=0), int(sys.argv[3]), sys.argv[4]
config = KernelConfig(**{k: int(v) if v.isdigit() else v for k, v in (f.split("=") for f in fields.split(","))})

def note(line):
    log.write(line.encode() + b"\\n")
    os.fsync(log.fileno())

class Note(logging.Handler):
    def emit(self, record):
        note("WARNING " + record.getMessage())

logging.getLogger("wavetune").addHandler(Note())
store = UserStore(path)
for turn in range(int(sys.argv[5]), 10**6):
    for m in (writer * 10**6 + turn, 100 + writer, 7):
        choice = MeasuredChoice(config, float(turn), 1e6)
        store.save(GemmProblem(m, 64, 64), choice, arch="nvidia-h200", num_sms=132)
        note(f"{m} {turn}")
"""


def start(path: Path, log: Path, writer: int, first_turn: int) -> subprocess.Popen[bytes]:
    """Start a writer whose turns, and so latencies, begin at ``first_turn``."""
    fields = ",".join(f"{name}={value}" for name, value in CONFIG.items())
    arguments = [str(path), str(log), str(writer), fields, str(first_turn)]
    return subprocess.Popen([sys.executable, "-c", WRITER, *arguments])


def promised(log: Path) -> dict[int, int]:
    """Return the last turn promised for each first size; a line that the kill cut short was not promised."""
    lines = log.read_text().splitlines(keepends=True) if log.exists() else []
    assert [line for line in lines if line.startswith("WARNING")] == []
    pairs = [line.split() for line in lines if line.endswith("\n")]
    return {int(m): int(turn) for m, turn in pairs}


def test_killed_writers_lose_nothing_that_was_committed(tmp_path: Path) -> None:
    """Eight writers, killed at random and started again: every promised choice is there, the file is sound."""
    path = tmp_path / "choices.db"
    logs = [tmp_path / f"{writer}.log" for writer in range(1, N_WRITERS + 1)]
    dice = random.Random(4)
    writers = [start(path, log, writer, 1) for writer, log in enumerate(logs, 1)]
    try:
        for kill in range(N_KILLS):
            time.sleep(dice.uniform(0.0, 0.3))
            victim = dice.randrange(N_WRITERS)
            writers[victim].send_signal(signal.SIGKILL)
            assert writers[victim].wait() == -signal.SIGKILL
            if kill < N_KILLS - N_WRITERS:
                writers[victim] = start(path, logs[victim], victim + 1, 1000 * (kill + 1))
    finally:
        for writer in writers:
            writer.kill()
            writer.wait()
    stored = {dims[0]: choice.latency_us for (dims, _), choice in UserStore(path).load(**SCOPE).items()}
    n_promised = 0
    for writer, log in enumerate(logs, 1):
        for m, turn in promised(log).items():
            n_promised += 1
            # The problem that all share is of whoever came last.
            if m == 100 + writer:
                assert stored[m] >= turn
            elif m != 7:
                assert stored[m] == turn
    assert n_promised > 5 * N_WRITERS
    with sqlite3.connect(path) as sqlite:
        assert sqlite.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    sqlite.close()
    assert list(tmp_path.glob("*damaged*")) == []


def test_threads_share_a_store(tmp_path: Path) -> None:
    """Sixteen threads, through one store and through stores of their own, lose nothing."""
    path, shared = tmp_path / "choices.db", UserStore(tmp_path / "choices.db")
    n_threads, n_saves = 16, 12

    def write(thread: int) -> None:
        store = shared if thread % 2 else UserStore(path)
        for turn in range(n_saves):
            problem = GemmProblem(1 + thread * n_saves + turn, 64, 64)
            store.save(problem, MeasuredChoice(CONFIG, 1.0 + turn, 2.0), arch="nvidia-h200", num_sms=132)
            assert (problem.dims, 16) in store.load(**SCOPE)

    errors: list[BaseException] = []

    def run(thread: int) -> None:
        try:
            write(thread)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(thread,)) for thread in range(n_threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    stored = sorted(dims[0] for dims, _ in UserStore(path).load(**SCOPE))
    assert stored == list(range(1, n_threads * n_saves + 1))


def test_many_may_create_the_file_at_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Writers that all find no file agree on one, and nobody takes it for a stranger's half way."""
    for attempt in range(15):
        path, barrier = tmp_path / str(attempt) / "choices.db", threading.Barrier(8)

        def write(m: int, path: Path = path, barrier: threading.Barrier = barrier) -> None:
            store = UserStore(path)
            barrier.wait(30)
            store.save(GemmProblem(m, 64, 64), MeasuredChoice(CONFIG, 1.0, 2.0), arch="nvidia-h200", num_sms=132)

        threads = [threading.Thread(target=write, args=(m,)) for m in range(1, 9)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(dims[0] for dims, _ in UserStore(path).load(**SCOPE)) == list(range(1, 9))
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []
