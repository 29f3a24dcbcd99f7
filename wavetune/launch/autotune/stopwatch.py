"""Time single launches of anybody's kernel, on the operands that it was called with.

`wavetune.measure.cuda_timing` rotates over data of its own. Here the operands are the caller's, so every reading is of
one launch after the last-level cache was flushed, and whatever must happen before a launch (zeroing, restoring) happens
outside of the reading. A reading contains about two microseconds of events, the same for all candidates.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

LAUNCH_METHOD = "flushed-launch-1"
"""Name of the method, as stored with measurements."""

FLUSH_CACHES = 2
"""Last-level caches that are read before each launch."""

FIRST_LEAD_US = 150.0
"""Spin that lets the host run ahead of the GPU: Triton's launcher takes 30 to 60 us (H200 machine, 2026-11)."""

MAX_LEAD_US = 5_000.0
"""Longest spin; a host that is still behind is too busy to be measured beside."""


@dataclass(frozen=True, slots=True)
class Lap:
    """One launch to be timed.

    Parameters
    ----------
    launch : callable
        Launches once, on the current stream.
    prepare : callable
        Called before, outside of the reading.
    finish : callable
        Called after, outside of the reading.
    """

    launch: Callable[[], object]
    prepare: Callable[[], object] = lambda: None
    finish: Callable[[], object] = lambda: None


class Stopwatch(Protocol):
    """Times launches."""

    def read(self, laps: Sequence[Lap]) -> list[float | None]:
        """Return microseconds of each lap, in order; None where the host was behind and the reading says nothing."""
        ...


class CudaStopwatch:
    """Times launches on the current stream of a CUDA device.

    Parameters
    ----------
    gpu : int
        Ordinal of the current device.
    l2_bytes : int
        Its last-level cache.

    Raises
    ------
    torch.cuda.OutOfMemoryError
        If there is no memory for the flush.
    """

    def __init__(self, gpu: int, l2_bytes: int) -> None:
        import torch

        self._cuda: Any = torch.cuda
        self._torch = torch
        self._stream = self._cuda.current_stream(gpu)
        rows = max(FLUSH_CACHES * l2_bytes // 4096, 1)
        self._flush = torch.zeros((rows, 1024), dtype=torch.float32, device=f"cuda:{gpu}")
        self._sink = torch.empty(1024, dtype=torch.float32, device=f"cuda:{gpu}")
        self._events: list[tuple[Any, Any]] = []
        self._lead_us = FIRST_LEAD_US
        self._cycles_per_us = self._measure_spin()

    def read(self, laps: Sequence[Lap]) -> list[float | None]:
        """Time every lap once, in order; see `Stopwatch.read`."""
        while len(self._events) < len(laps):
            self._events.append((self._new_event(), self._new_event()))
        starved = []
        for lap, (start, end) in zip(laps, self._events, strict=False):
            lap.prepare()
            self._torch.amax(self._flush, dim=0, out=self._sink)
            self._cuda._sleep(int(self._lead_us * self._cycles_per_us))
            start.record(self._stream)
            lap.launch()
            # If the GPU has come past the start by now, it may have waited for the launch.
            starved.append(bool(start.query()))
            end.record(self._stream)
            lap.finish()
        self._stream.synchronize()
        if any(starved):
            self._lead_us = min(2.0 * self._lead_us, MAX_LEAD_US)
        return [
            None if is_starved else max(start.elapsed_time(end) * 1e3, 1e-3)
            for is_starved, (start, end) in zip(starved, self._events, strict=False)
        ]

    def _new_event(self) -> Any:
        return self._cuda.Event(enable_timing=True)

    def _measure_spin(self) -> float:
        start, end = self._new_event(), self._new_event()
        cycles = 500_000
        self._cuda._sleep(cycles)
        start.record(self._stream)
        self._cuda._sleep(cycles)
        end.record(self._stream)
        self._stream.synchronize()
        return float(cycles / max(start.elapsed_time(end) * 1e3, 1e-3))
