"""Compile jobs in parallel processes, so that this process finds them in Triton's cache on disk."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from queue import SimpleQueue

from wavetune.core.arch import ArchSpec
from wavetune.launch.compile_worker import CompileJob, arch_to_json

COMPILE_LIMIT_S = 120.0
"""Seconds one job may take, the start of its process included. GEMM configurations take 0.1 to 1 s (Triton 3.6)."""

_log = logging.getLogger("wavetune")


def compile_in_parallel(jobs: Sequence[CompileJob], arch: ArchSpec, n_workers: int) -> Iterator[int]:
    """Compile jobs; what fails here is left to the caller, who meets the same failure in his own process.

    Parameters
    ----------
    jobs : sequence of CompileJob
        What to compile.
    arch : ArchSpec
        The GPU to compile for.
    n_workers : int
        Processes at a time.

    Yields
    ------
    int
        How many jobs are done, after each of them; all of them at the end, unless no process could be started.
    """
    pending, done = deque(jobs), SimpleQueue[bool]()
    workers = [_Worker(arch, pending, done) for _ in range(min(n_workers, len(jobs)))]
    n_running, n_done = len(workers), 0
    try:
        for worker in workers:
            worker.start()
        while n_running:
            if done.get():
                n_done += 1
                yield n_done
            else:
                n_running -= 1
    finally:
        pending.clear()
        for worker in workers:
            worker.end()


class _Worker(threading.Thread):
    """Feeds one process after another; puts True for every job, and False at the end."""

    def __init__(self, arch: ArchSpec, pending: deque[CompileJob], done: SimpleQueue[bool]) -> None:
        super().__init__(daemon=True)
        self._arch, self._pending, self._done = arch, pending, done
        self._process: subprocess.Popen[str] | None = None

    def run(self) -> None:
        try:
            while True:
                try:
                    job = self._pending.popleft()
                except IndexError:
                    break
                answer = self._ask(job)
                if answer != '""\n':
                    _log.debug("compiling %r ahead failed: %s", job, answer.strip() or "the process ended")
                self._done.put(True)
        except OSError as error:
            _log.warning("no process to compile in: %s; kernels are compiled one after another", error)
        finally:
            self.end()
            self._done.put(False)

    def end(self) -> None:
        """End the process at hand."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def _ask(self, job: CompileJob) -> str:
        """Return the answer of the process, empty if it ended instead; then the next job gets a fresh one."""
        if self._process is None:
            self._process = _start(self._arch)
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        too_long = threading.Timer(COMPILE_LIMIT_S, process.kill)
        too_long.start()
        try:
            process.stdin.write(job.to_json() + "\n")
            process.stdin.flush()
            answer = process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        finally:
            too_long.cancel()
        if not answer:
            self.end()
        return answer


def _start(arch: ArchSpec) -> subprocess.Popen[str]:
    # The worker finds the same packages, and no GPU: it only compiles.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "CUDA_VISIBLE_DEVICES": ""}
    process = subprocess.Popen(
        [sys.executable, "-m", "wavetune.launch.compile_worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
        text=True,
    )
    assert process.stdin is not None
    process.stdin.write(arch_to_json(arch) + "\n")
    return process
