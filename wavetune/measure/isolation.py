"""Run tasks in disposable processes: a crash, a hang or a poisoned CUDA context costs one task, not the run.

A worker that fails in any way is ended and replaced. Workers come from a fork server, which imports the heavy
packages once and never touches the GPU, so that a fresh worker is ready in milliseconds.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

from wavetune.errors import RunnerError

CRASHED = "crashed"
TIMED_OUT = "timed_out"
RAISED = "raised"
SETUP_FAILED = "setup_failed"

_BEGUN = "begun"
"""A worker's first message: it could import what its main module needs."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one task ended.

    Parameters
    ----------
    index : int
        Position of the task.
    value : object
        What the task returned; None after a failure.
    failure : {"", "crashed", "timed_out", "raised"}
        Empty for success.
    detail : str
        The reason of a failure.
    """

    index: int
    value: Any = None
    failure: str = ""
    detail: str = ""


@dataclass
class _Worker:
    process: Any
    pipe: Connection
    index: int
    deadline: float
    has_begun: bool = False


def run_isolated(
    task: Callable[[Any], Any],
    items: Sequence[Any],
    *,
    setup: Callable[..., None],
    setup_args: tuple[Any, ...] = (),
    n_workers: int,
    time_limit_s: float,
    attempts: int = 1,
    preload: tuple[str, ...] = (),
) -> Iterator[Outcome]:
    """Run ``task`` on every item, each in a worker process that is replaced after any failure.

    Parameters
    ----------
    task : callable
        Importable function of one item.
    items : sequence
        Picklable arguments.
    setup : callable
        Importable function, run once in every worker before its first item; its time counts to that item.
    setup_args : tuple
        Its arguments.
    n_workers : int
        Processes at a time.
    time_limit_s : float
        Seconds for one item.
    attempts : int, default=1
        Times an item is tried, each in a fresh process after a failure, before it is given up: the item in hand
        may be the victim of an earlier one.
    preload : tuple of str
        Modules that the fork server imports; they must not initialize the GPU.

    Yields
    ------
    Outcome
        One for each item, in order of completion.

    Raises
    ------
    RunnerError
        If ``setup`` raises, or a worker cannot begin: no item could be run.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(preload))
    pending = deque(range(len(items)))
    tries = [0] * len(items)
    workers: list[_Worker] = []
    environment = dict(os.environ)

    def start() -> _Worker:
        ours, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(theirs, task, setup, setup_args, environment), daemon=True)
        process.start()
        theirs.close()
        return _Worker(process, ours, -1, 0.0)

    def assign(worker: _Worker) -> bool:
        if not pending:
            return False
        worker.index = pending.popleft()
        tries[worker.index] += 1
        worker.deadline = time.monotonic() + time_limit_s
        with suppress(OSError):  # it may have just died, which `_receive` finds out
            worker.pipe.send((worker.index, items[worker.index]))
        return True

    try:
        for _ in range(min(n_workers, len(items))):
            workers.append(start())
            assign(workers[-1])
        while workers:
            timeout = max(0.0, min(worker.deadline for worker in workers) - time.monotonic())
            ready = set(wait([worker.pipe for worker in workers], timeout))
            now = time.monotonic()
            for worker in list(workers):
                outcome: Outcome | None = None
                if worker.pipe in ready:
                    outcome = _receive(worker)
                elif now >= worker.deadline:
                    outcome = Outcome(worker.index, None, TIMED_OUT, f"took longer than {time_limit_s:g} s")
                if outcome is None:
                    continue
                if outcome.failure:
                    _end(worker)
                    workers.remove(worker)
                    if tries[outcome.index] < attempts:
                        pending.append(outcome.index)
                    else:
                        yield outcome
                    if pending:
                        workers.append(start())
                        assign(workers[-1])
                else:
                    has_work = assign(worker)
                    yield outcome
                    if not has_work:
                        workers.remove(worker)
                        _end(worker)
    finally:
        for worker in workers:
            _end(worker)


def _receive(worker: _Worker) -> Outcome | None:
    """Return how an item ended, None if the worker only says that it has begun."""
    try:
        message = worker.pipe.recv()
    except (EOFError, OSError):
        worker.process.join(1.0)
        code = worker.process.exitcode
        if not worker.has_begun and code == 1:
            raise RunnerError(
                "worker processes end before they begin; a script that measures has to do so below "
                "`if __name__ == '__main__':`, because its workers import it"
            ) from None
        return Outcome(worker.index, None, CRASHED, f"the process ended with exit code {code}")
    if message == _BEGUN:
        worker.has_begun = True
        return None
    index, failure, payload = message
    if failure == SETUP_FAILED:
        raise RunnerError(f"a worker process cannot start: {payload}")
    if failure:
        return Outcome(index, None, failure, payload)
    return Outcome(index, payload)


def _end(worker: _Worker) -> None:
    worker.pipe.close()
    worker.process.terminate()
    worker.process.join(1.0)
    if worker.process.is_alive():
        worker.process.kill()
        worker.process.join()


def _serve(
    pipe: Connection, task: Callable[[Any], Any], setup: Callable[..., None], setup_args: tuple[Any, ...],
    environment: dict[str, str],
) -> None:  # fmt: skip
    # The fork server keeps the environment of its start; TRITON_CACHE_DIR may have been set since.
    os.environ.clear()
    os.environ.update(environment)
    is_set_up = False
    with suppress(OSError):  # it may not be needed any more, which the first item would say
        pipe.send(_BEGUN)
    while True:
        try:
            index, item = pipe.recv()
        except (EOFError, OSError):
            return
        try:
            if not is_set_up:
                setup(*setup_args)
        except Exception as error:
            pipe.send((index, SETUP_FAILED, f"{type(error).__name__}: {error}"[:2000]))
            return
        is_set_up = True
        try:
            pipe.send((index, "", task(item)))
        except Exception as error:
            pipe.send((index, RAISED, f"{type(error).__name__}: {error}"[:2000]))
            return
