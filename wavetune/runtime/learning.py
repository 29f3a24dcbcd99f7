"""Live measurement of misses: in which thread, and at most once for each problem of a process."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from wavetune.errors import NoMeasurerError

if TYPE_CHECKING:
    from wavetune.runtime.measurer import MeasuredChoice, Measurer, MeasureRequest

logger = logging.getLogger("wavetune")

MAX_TRIED = 1 << 16
"""Problems that are known to have been tried; all are forgotten when there are more."""

Learned = Callable[["MeasuredChoice"], None]
"""Takes the outcome of a measurement."""


def require_measurer(kernel: str) -> Measurer:
    """Return the measurer of a kernel family.

    Raises
    ------
    NoMeasurerError
        If none is registered; says what registers one.
    """
    from wavetune.runtime.measurer import find_measurer  # As below: only programs that measure pay for it.

    measurer = find_measurer(kernel)
    if measurer is None:
        raise NoMeasurerError(
            f"on_miss='measure' needs something that can measure kernel {kernel!r}, and nothing is registered; "
            "`import wavetune.launch` registers one for use on a GPU, or choose another on_miss"
        )
    return measurer


class Learner:
    """Measures every miss once, one after another. What was given up is left to the next process."""

    def __init__(self) -> None:
        self._tried: set[object] = set()
        # By process: a child forked during a measurement must not wait for its parent's thread.
        self._locks: dict[int, threading.RLock] = {}

    def now(self, key: object, measurer: Measurer, request: MeasureRequest, learned: Learned) -> bool:
        """Measure in this thread, unless the key was tried before; waits for measurements of other threads.

        Parameters
        ----------
        key : object
            Identifies the problem and its tables.
        measurer : Measurer
            Measures.
        request : MeasureRequest
            What it is asked.
        learned : callable
            Is given the outcome, if there is one, before another thread is let in.

        Returns
        -------
        bool
            Whether something was learned in this call.
        """
        with self._locks.setdefault(os.getpid(), threading.RLock()):
            if key in self._tried:
                return False
            try:
                choice = measurer.measure(request)
            except Exception:
                # A measurer is somebody else's code, and an answer must come all the same.
                logger.exception("measuring %s failed", request.problem)
                choice = None
            # A capture that began meanwhile is no reason never to try again.
            if choice is not None or not measurer.is_capturing():
                self._mark(key)
            if choice is not None:
                learned(choice)
            return choice is not None

    def later(self, key: object, measurer: Measurer, request: MeasureRequest, learned: Learned) -> bool:
        """Measure in the background, unless the key was tried before or is waiting.

        Returns
        -------
        bool
            False if there is no place in the queue: the caller may ask again.
        """
        from wavetune.runtime import background

        if key in self._tried:
            return True

        def done(choice: MeasuredChoice | None) -> None:
            if choice is not None:
                learned(choice)

        if not background.submit(measurer, request, done):
            return False
        self._mark(key)
        return True

    def _mark(self, key: object) -> None:
        if len(self._tried) >= MAX_TRIED:
            self._tried.clear()
        self._tried.add(key)
