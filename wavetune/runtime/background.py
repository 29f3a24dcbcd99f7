"""Measure misses in a thread of their own, one after another, while the program goes on with the model's answer."""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from wavetune.runtime.measurer import MeasuredChoice, Measurer, MeasureRequest

MAX_WAITING = 64
"""Requests that wait at most; a miss beyond them is answered by the model and asked for again when it next comes up."""

CAPTURE_POLL_S = 0.05
"""Pause between two looks whether a graph is still being captured."""

CAPTURE_PATIENCE_S = 60.0
"""After waiting this long for captures to end, a request is dropped."""

EXIT_PATIENCE_S = 30.0
"""How long the end of the program waits for the measurement in hand: a thread cut off inside a driver may crash it."""

OnDone = Callable[[MeasuredChoice | None], None]
"""Receives the outcome, in the worker's thread."""

logger = logging.getLogger("wavetune")


@dataclass(frozen=True, slots=True)
class _Job:
    measurer: Measurer
    request: MeasureRequest
    on_done: OnDone

    @property
    def key(self) -> tuple[object, ...]:
        return (self.request.problem, self.request.device)


class BackgroundQueue:
    """A bounded queue and one daemon thread, which starts with the first request.

    Parameters
    ----------
    max_waiting : int, default=64
        Requests that wait at most.
    poll_s, patience_s : float
        How often to look whether a capture has ended, and how long to wait for it.
    """

    def __init__(
        self,
        max_waiting: int = MAX_WAITING,
        *,
        poll_s: float = CAPTURE_POLL_S,
        patience_s: float = CAPTURE_PATIENCE_S,
    ) -> None:
        self._max_waiting = max_waiting
        self._poll_s, self._patience_s = poll_s, patience_s
        self._reset()

    def _reset(self) -> None:
        self._process = os.getpid()
        self._waiting: deque[_Job] = deque()
        self._keys: set[tuple[object, ...]] = set()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._is_stopping = False

    def submit(self, measurer: Measurer, request: MeasureRequest, on_done: OnDone) -> bool:
        """Ask for a measurement; returns at once.

        Parameters
        ----------
        measurer : Measurer
            Who measures; called from the worker's thread, while it sees no capture.
        request : MeasureRequest
            What to measure.
        on_done : callable
            Called with the outcome, or None if there is none, from the worker's thread.

        Returns
        -------
        bool
            False if it was not taken: the same problem waits already (or is in hand), or the queue is full.
        """
        job = _Job(measurer, request, on_done)
        if self._process != os.getpid():
            # A forked child has neither the thread nor a use for its parent's requests.
            self._reset()
        with self._changed:
            if self._is_stopping or job.key in self._keys or len(self._waiting) >= self._max_waiting:
                return False
            self._keys.add(job.key)
            self._waiting.append(job)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="wavetune-measure", daemon=True)
                self._thread.start()
                atexit.register(self.stop)
            self._changed.notify_all()
        return True

    def wait_until_idle(self, timeout_s: float) -> bool:
        """Wait until nothing waits or is in hand; returns whether that came about in time."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._keys, timeout_s)

    def stop(self, timeout_s: float = EXIT_PATIENCE_S) -> None:
        """Drop what waits, let the measurement in hand end, and take no more."""
        if self._process != os.getpid():
            return
        with self._changed:
            self._is_stopping = True
            self._keys -= {job.key for job in self._waiting}
            self._waiting.clear()
            self._changed.notify_all()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout_s)

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._is_stopping)
                if self._is_stopping:
                    return
                job = self._waiting.popleft()
            try:
                job.on_done(self._measure(job))
            except Exception:
                # The thread serves every later request too.
                logger.exception("measuring %s in the background failed", job.request.problem)
            with self._changed:
                self._keys.discard(job.key)
                self._changed.notify_all()

    def _measure(self, job: _Job) -> MeasuredChoice | None:
        deadline = time.monotonic() + self._patience_s
        while job.measurer.is_capturing():
            if self._is_stopping or time.monotonic() > deadline:
                logger.info("not measured: %s: graphs are being captured all the time", job.request.problem)
                return None
            time.sleep(self._poll_s)
        return job.measurer.measure(job.request)


_queue = BackgroundQueue()


def submit(measurer: Measurer, request: MeasureRequest, on_done: OnDone) -> bool:
    """Ask the queue of this process for a measurement; see `BackgroundQueue.submit`."""
    return _queue.submit(measurer, request, on_done)


def wait_until_idle(timeout_s: float) -> bool:
    """Wait until the queue of this process is empty; see `BackgroundQueue.wait_until_idle`."""
    return _queue.wait_until_idle(timeout_s)
