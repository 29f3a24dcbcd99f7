"""Timing on a CUDA GPU: four methods over the same bound launches.

`StreamTimer` is the method of calibration. A server runs kernels back to back, captured in graphs, on weights that
left the cache long ago. Capturing a graph for a point can cost more than timing it, so the launches are
queued one behind another on a busy stream, each on its own window of a large data pool, with an event between
batches. The host stays ahead of the GPU: a spin kernel gives it a lead, and a reading during which the GPU may
have waited for the host is thrown away. `GraphTimer` is the yardstick; its brief graphs calibrate calls of several
kernels that take a few microseconds, whose gaps a stream does not show as they are. `time_sustained` shows the power
limit.

How well it ranks, on an H200 (2026-11, Triton 3.6, bf16), linear layers of three models, m = 1 to 4096:

- 107 shapes, 3 to 4 rounds: the pick of `StreamTimer` costs 0.45 % (geometric mean; 95th percentile 2.8 %, largest
  4.5 %) against the best of its top five under `GraphTimer`; its top three cost 0.1 %. A point took 1.4 ms at a mean
  latency of 334 us.
- 23 shapes, 20 configurations each, up to 12 rounds: mean rank correlation with `GraphTimer` 0.92 for m <= 64, 0.85
  for 128 to 512, 0.58 for 1024 to 2048. There the best are within a percent or two of each other, and the power state
  decides: a graph timing repeated seconds later correlated 0.1 to 0.8 with itself.

Capturing a graph takes 0.2 to 0.3 ms, besides at least four sets of operands.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from wavetune.kernels.call import Launch
from wavetune.measure.timing import (
    CALIBRATION_RULE,
    StoppingRule,
    launches_per_reading,
    median_half_width,
    round_order,
)

BATCH_US = 40.0
"""Shortest time between two events: keeps their cost, one to two microseconds, small and nearly constant."""

MAX_BATCH = 6
"""Most launches in a reading; each needs its own operands."""

LEAD_US = 300.0
"""Spin that lets the host run ahead, at the start of a round and whenever the GPU has caught up."""

LONG_KERNEL_US = 150.0
"""A first reading above this counts; below, it warms instruction cache and descriptors and is thrown away."""


@dataclass(frozen=True, slots=True)
class Timing:
    """The latency of one candidate.

    Parameters
    ----------
    latency_us : float
        Median over rounds, microseconds.
    spread_us : float
        Half-width of the 95 % confidence interval of the median, microseconds.
    rounds : int
        Readings behind the median.
    """

    latency_us: float
    spread_us: float
    rounds: int


@dataclass
class Candidate:
    """Something to time.

    Parameters
    ----------
    launches : sequence of callables
        Each launches the same work on its own operands, on the timer's stream.
    group : int, default=0
        Candidates of one problem share a group; the slow ones of a group are measured less precisely.
    """

    launches: Sequence[Launch]
    group: int = 0
    readings: list[float] = field(default_factory=list)
    spent_us: float = 0.0

    def timing(self) -> Timing | None:
        """Summarize the readings; None without any."""
        if not self.readings:
            return None
        return Timing(median(self.readings), median_half_width(self.readings), len(self.readings))


def unsatisfied(candidates: Sequence[Candidate], active: Sequence[int], rule: StoppingRule) -> list[int]:
    """Return those of ``active`` that need more readings."""
    best_us: dict[int, float] = {}
    for candidate in candidates:
        if candidate.readings:
            best_us[candidate.group] = min(best_us.get(candidate.group, math.inf), median(candidate.readings))
    return [
        i
        for i in active
        if not rule.is_satisfied(
            candidates[i].readings, candidates[i].spent_us, best_us.get(candidates[i].group, math.inf)
        )
    ]


def _cuda() -> Any:
    # torch annotates these only in part.
    import torch

    return torch.cuda


def timing_event() -> Any:
    """Return a CUDA event that records time."""
    return _cuda().Event(enable_timing=True)


def new_stream(gpu: int) -> Any:
    """Return a stream of its own: graphs cannot be captured on the default one."""
    return _cuda().Stream(gpu)


def lock_identity(gpu: int) -> str | None:
    """Return the name of a GPU for `wavetune.measure.environment.timing_lock`, None if torch does not tell one.

    The UUID: processes that see different GPUs by CUDA_VISIBLE_DEVICES give the same ordinals to different ones.
    """
    uuid = getattr(_cuda().get_device_properties(gpu), "uuid", None)
    return None if uuid is None else str(uuid)


class StreamTimer:
    """Time candidates on a busy stream, see the module docstring.

    Parameters
    ----------
    stream : torch.cuda.Stream
        The stream that the launches are bound to.
    flush : callable
        Queues what empties the cache.
    """

    def __init__(self, stream: Any, flush: Callable[[], None]) -> None:
        import torch

        self._torch = torch
        self._stream = stream
        self._flush = flush
        self._events: list[Any] = []
        self._cycles_per_us = _spin_cycles_per_us(torch, stream)
        self.event_cost_us = 0.0
        self.starved_readings = 0

    def time(self, candidates: Sequence[Candidate], rule: StoppingRule = CALIBRATION_RULE) -> list[Timing | None]:
        """Time candidates against each other.

        Parameters
        ----------
        candidates : sequence of Candidate
            Timed in shuffled order, round by round, until each satisfies ``rule``.
        rule : StoppingRule
            When a candidate is done.

        Returns
        -------
        list of Timing or None
            In the order of ``candidates``; None if no reading of a candidate could be trusted.
        """
        active = list(range(len(candidates)))
        batch = [1] * len(candidates)
        # Readings that are thrown away must not make the loop endless.
        for round_index in range(3 * rule.max_rounds):
            order = [active[i] for i in round_order(len(active), round_index)]
            readings = self.read([candidates[i] for i in order], [batch[i] for i in order])
            for i, reading in zip(order, readings, strict=True):
                if reading is None:
                    continue
                candidate = candidates[i]
                candidate.spent_us += reading * batch[i]
                if round_index == 0:
                    batch[i] = launches_per_reading(reading, batch_us=BATCH_US, max_launches=len(candidate.launches))
                    if reading < LONG_KERNEL_US:
                        continue
                candidate.readings.append(reading)
            active = unsatisfied(candidates, active, rule)
            if not active:
                break
        return [candidate.timing() for candidate in candidates]

    def read(self, candidates: Sequence[Candidate], sizes: Sequence[int]) -> list[float | None]:
        """Time one round.

        Parameters
        ----------
        candidates : sequence of Candidate
            In the order of their launches.
        sizes : sequence of int
            Launches of each.

        Returns
        -------
        list of float or None
            Microseconds of one launch of each; None if the GPU may have waited for the host.
        """
        torch, stream = self._torch, self._stream
        while len(self._events) < 2 * len(candidates) + 2:
            self._events.append(timing_event())
        starts, ends = self._events[: len(candidates)], self._events[len(candidates) + 1 :]
        starved = [False] * len(candidates)
        with torch.cuda.stream(stream):
            self._flush()
            self._spin(LEAD_US)
            previous = starts[0]
            previous.record(stream)
            first_of: list[Any] = []
            for index, (candidate, size) in enumerate(zip(candidates, sizes, strict=True)):
                first_of.append(previous)
                for launch in candidate.launches[:size]:
                    launch()
                # If the work before this batch is still running, the GPU cannot have waited inside the batch.
                starved[index] = previous.query()
                ends[index].record(stream)
                previous = ends[index]
                if starved[index]:
                    self._spin(LEAD_US)
                    previous = starts[index]
                    previous.record(stream)
        stream.synchronize()
        self.starved_readings += sum(starved)
        return [
            None if starved[i] else max(first_of[i].elapsed_time(ends[i]) * 1e3 - self.event_cost_us, 1e-3) / sizes[i]
            for i in range(len(candidates))
        ]

    def _spin(self, duration_us: float) -> None:
        _cuda()._sleep(int(duration_us * self._cycles_per_us))


def _spin_cycles_per_us(torch: Any, stream: Any) -> float:
    start, end = timing_event(), timing_event()
    cycles = 2_000_000
    with torch.cuda.stream(stream):
        torch.cuda._sleep(cycles)
        start.record(stream)
        torch.cuda._sleep(cycles)
        end.record(stream)
    stream.synchronize()
    return float(cycles / (start.elapsed_time(end) * 1e3))


class GraphTimer:
    """Time candidates as CUDA graphs over rotating buffers: the yardstick of `StreamTimer`, and of benchmarks.

    Parameters
    ----------
    stream : torch.cuda.Stream
        The stream that the launches are bound to.
    flush : callable
        Queues what empties the cache.
    """

    def __init__(self, stream: Any, flush: Callable[[], None]) -> None:
        import torch

        self._torch = torch
        self._stream = stream
        self._flush = flush
        self.replay_cost_us = 0.0

    def capture(self, launches: Sequence[Launch]) -> Any:
        """Capture launches, each once, into a graph."""
        torch = self._torch
        with torch.cuda.stream(self._stream):
            for launch in launches[:2]:
                launch()
            self._stream.synchronize()
            graph = torch.cuda.CUDAGraph()
            graph.capture_begin(capture_error_mode="thread_local")
            for launch in launches:
                launch()
            graph.capture_end()
        return graph

    def time(
        self, candidates: Sequence[Candidate], rule: StoppingRule = CALIBRATION_RULE, *, is_brief: bool = False
    ) -> list[Timing | None]:
        """Time candidates against each other, one replay a reading.

        The launches of each candidate together must touch several times the last-level cache; where they are too few
        for that, ``is_brief`` flushes it before each round, and takes the cost of a replay off its reading.
        """
        torch, stream = self._torch, self._stream
        graphs = [self.capture(candidate.launches) for candidate in candidates]
        events = [(timing_event(), timing_event()) for _ in candidates]
        active = list(range(len(candidates)))
        for round_index in range(rule.max_rounds + 1):
            with torch.cuda.stream(stream):
                if is_brief:
                    self._flush()
                for i in (active[j] for j in round_order(len(active), round_index)):
                    events[i][0].record(stream)
                    graphs[i].replay()
                    events[i][1].record(stream)
            stream.synchronize()
            for i in active:
                elapsed_us = events[i][0].elapsed_time(events[i][1]) * 1e3
                candidates[i].spent_us += elapsed_us
                if round_index > 0:
                    cost_us = self.replay_cost_us if is_brief else 0.0
                    candidates[i].readings.append(max(elapsed_us - cost_us, 1e-3) / len(candidates[i].launches))
            active = unsatisfied(candidates, active, rule)
            if not active:
                break
        return [candidate.timing() for candidate in candidates]


def time_sustained(stream: Any, launches: Sequence[Launch], seconds: float = 1.0) -> Timing:
    """Time launches back to back and report the second half, when the power limit has set in.

    Parameters
    ----------
    stream : torch.cuda.Stream
        The stream that the launches are bound to.
    launches : sequence of callables
        Cycled through.
    seconds : float, default=1
        How long to run.
    """
    import torch

    readings: list[tuple[float, float]] = []
    begin = time.perf_counter()
    n_launches = len(launches)
    with torch.cuda.stream(stream):
        while True:
            start, end = timing_event(), timing_event()
            start.record(stream)
            for i in range(n_launches):
                launches[i % len(launches)]()
            end.record(stream)
            stream.synchronize()
            now = time.perf_counter() - begin
            elapsed_us = start.elapsed_time(end) * 1e3
            readings.append((now, elapsed_us / n_launches))
            # Long batches keep the GPU busy across the synchronizations.
            if elapsed_us < 20_000.0:
                n_launches = min(n_launches * 2, 4096)
            if now >= seconds:
                break
    last = [reading for now, reading in readings if now >= seconds / 2]
    return Timing(median(last), median_half_width(last), len(last))


def cache_flush(data: Any) -> Callable[[], None]:
    """Return what reads ``data``, larger than the last-level cache, on the current stream."""
    import torch

    # Reduced along memory: across it, torch takes a workspace that grows with the SMs, 66 MiB on an H200
    # (ReduceConfig::global_memory_size in ATen/native/cuda/Reduce.cuh).
    rows = data[: data.numel() // 1024 * 1024].view(1024, -1)
    sink = torch.empty(1024, dtype=data.dtype, device=data.device)

    def flush() -> None:
        torch.amax(rows, dim=1, out=sink)

    return flush
