"""Measure a miss while the program runs: the best predicted candidates and the default, against each other.

Importing this module registers a `LiveMeasurer` for GEMM; torch and triton are loaded by the first
measurement. What it promises: a choice is never slower than the default by more than the noise; nothing is measured
while a graph is captured, on a GPU that another process is timing, or beyond the budget, which only the first launch of
a candidate may exceed; and a caller never sees an error of a candidate.

Timing in the background shares the interpreter with the program. A program that never lets go of it delays launches;
such readings are thrown away (see `wavetune.measure.cuda_timing`), and in the end the measurement is given up.
"""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Any

from wavetune.core.config import GEMM, KernelConfig
from wavetune.errors import WavetuneError
from wavetune.launch import capture
from wavetune.measure.environment import collector_paused, timing_lock
from wavetune.runtime.measurer import MeasuredChoice, MeasureRequest, register_measurer

if TYPE_CHECKING:
    from wavetune.launch.live_session import LiveSession
    from wavetune.measure.cuda_timing import Candidate, Timing

MIN_ROUNDS = 3
"""Rounds that a comparison needs: fewer readings have no useful confidence interval."""

MAX_ROUNDS = 25
"""Rounds at most, however much of the budget is left: as many as the finalists of a comparison get."""

logger = logging.getLogger("wavetune")


class NotMeasuredError(Exception):
    """A measurement was given up; the message is the reason."""


OpenSession = Callable[[MeasureRequest, Sequence[KernelConfig]], AbstractContextManager[Any]]
"""Gives what a measurement needs of a GPU: `wavetune.launch.live_session.open_session`, or what acts alike."""


class LiveMeasurer:
    """Measures misses of a family in `wavetune.kernels.registry`; conforms to `wavetune.runtime.measurer.Measurer`.

    Parameters
    ----------
    open_session : callable, optional
        Prepares a GPU for a request and its configurations.
    find_capture : callable, optional
        Whether a graph is being captured.
    lock : callable, optional
        Gives the right to time on a GPU, as `wavetune.measure.environment.timing_lock` does.
    clock : callable, optional
        Tells the time in seconds.
    """

    def __init__(
        self,
        *,
        open_session: OpenSession | None = None,
        find_capture: Callable[[], bool] = capture.is_capturing,
        lock: Callable[[int, str | None], AbstractContextManager[None]] = timing_lock,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._open_session = open_session or _open_gpu_session
        self._find_capture = find_capture
        self._lock = lock
        self._clock = clock

    def is_capturing(self) -> bool:
        """Whether a graph is being captured, in this thread or visibly in another: nothing may be measured then."""
        return self._find_capture()

    def measure(self, request: MeasureRequest) -> MeasuredChoice | None:
        """Measure a request, or give up with a line in the log; never raises for a fault of GPU or candidate."""
        try:
            if self._find_capture():
                raise NotMeasuredError("a CUDA graph is being captured")
            began = self._clock()
            with _one_at_a_time(request.budget_ms):
                return self._measure(request, request.budget_ms - (self._clock() - began) * 1e3)
        except (NotMeasuredError, WavetuneError) as error:
            logger.info("not measured: %s: %s", request.problem, str(error))
        except Exception as error:
            # Only the message goes to the log: a handler that keeps the error would keep the tensors of its frames.
            reason = "out of memory" if _is_out_of_memory(error) else _first_line(error)
            logger.warning("not measured: %s: %s", request.problem, reason)
        return None

    def _measure(self, request: MeasureRequest, budget_ms: float) -> MeasuredChoice:
        # Here, because it loads triton.
        from wavetune.launch.live_contest import Contest

        configs = list(dict.fromkeys((request.default, *request.configs)))
        with self._open_session(request, configs) as session:
            on_failure = partial(_drop, request)
            bound: dict[KernelConfig, Candidate] = {}
            for config in affordable(configs, session.expected_us, budget_ms):
                try:
                    bound[config] = session.bind(config)
                except Exception as error:
                    on_failure(config, error)
            if not bound:
                raise NotMeasuredError("no candidate can be launched")
            deadline = session.began + session.compile_s + budget_ms / 1e3
            with self._lock(session.gpu, session.lock_identity), collector_paused():
                timings = Contest(bound, session.timer, deadline, on_failure, self._clock).run()
            choice = pick(list(timings), list(timings.values()), request.margin, session.kernel_source)
        logger.info(
            "measured %s: %s, %.2f us, default %.2f us; %d candidates, %.0f ms and %.0f ms of compiling",
            request.problem, choice.config, choice.latency_us, choice.default_us, len(bound),
            (self._clock() - session.began - session.compile_s) * 1e3, session.compile_s * 1e3,
        )  # fmt: skip
        return choice


def affordable(configs: Sequence[KernelConfig], expected_us: float, budget_ms: float) -> list[KernelConfig]:
    """Return as many of ``configs``, first ones first, as can be compared within the budget.

    Raises
    ------
    NotMeasuredError
        If not even two can.
    """
    n_candidates = int(budget_ms * 1e3 / (MIN_ROUNDS * expected_us))
    if n_candidates < min(2, len(configs)):
        raise NotMeasuredError(
            f"one launch takes about {expected_us / 1e3:.1f} ms, too long to compare two in {budget_ms:g} ms"
        )
    return list(configs[:n_candidates])


def pick(
    configs: Sequence[KernelConfig], timings: Sequence[Timing | None], margin: float, kernel_source: str = ""
) -> MeasuredChoice:
    """Choose by timings: the default, unless another is faster by the margin beyond the noise.

    Parameters
    ----------
    configs : sequence of KernelConfig
        The default first, then by prediction. Where the default could not be timed, the next one stands in for it.
    timings : sequence of Timing or None
        One for each configuration.
    margin : float
        Share by which a configuration must be faster than the default.
    kernel_source : str, default=""
        Digest of the kernel's source.

    Returns
    -------
    MeasuredChoice
        Of those that beat the default and cannot be told from the fastest, the one that was predicted best: near ties
        do not flap between runs.

    Raises
    ------
    NotMeasuredError
        If nothing was timed often enough to know its noise.
    """
    timed = [
        (config, timing)
        for config, timing in zip(configs, timings, strict=True)
        if timing is not None and math.isfinite(timing.spread_us)
    ]
    if not timed:
        raise NotMeasuredError("no reading could be trusted, or the budget was too short for two")
    default, base = timed[0]
    fastest = min((timing for _, timing in timed), key=lambda timing: timing.latency_us)
    for config, timing in timed[1:]:
        is_faster = base.latency_us - timing.latency_us > margin * base.latency_us + _noise_us(base, timing)
        if is_faster and timing.latency_us - fastest.latency_us <= _noise_us(fastest, timing):
            return MeasuredChoice(config, timing.latency_us, base.latency_us, kernel_source)
    return MeasuredChoice(default, base.latency_us, base.latency_us, kernel_source)


def _noise_us(first: Timing, second: Timing) -> float:
    """Half-width of the 95 % confidence interval of a difference of two medians."""
    return math.hypot(first.spread_us, second.spread_us)


def _open_gpu_session(request: MeasureRequest, configs: Sequence[KernelConfig]) -> AbstractContextManager[LiveSession]:
    # Here, because it loads torch and triton.
    from wavetune.launch.live_session import open_session

    return open_session(request, configs)


_MEASURING = threading.Lock()


@contextlib.contextmanager
def _one_at_a_time(budget_ms: float) -> Iterator[None]:
    """Keep the threads of this process from timing each other; one that waits in vain gives up."""
    if not _MEASURING.acquire(timeout=budget_ms / 1e3):
        raise NotMeasuredError("another thread is measuring")
    try:
        yield
    finally:
        _MEASURING.release()


def _drop(request: MeasureRequest, config: KernelConfig, error: Exception) -> None:
    """Leave out a candidate that failed; without memory there is no going on."""
    if _is_out_of_memory(error):
        raise error
    logger.info("candidate dropped: %s for %s: %s", config, request.problem, _first_line(error))


def _is_out_of_memory(error: BaseException) -> bool:
    # By name: torch.cuda.OutOfMemoryError, without importing torch here. Not triton's OutOfResources.
    return type(error).__name__ == "OutOfMemoryError"


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"[:300]


# Only the resolver of GEMM measures what it misses; other families answer by their models and rules.
register_measurer(GEMM.name, LiveMeasurer())
