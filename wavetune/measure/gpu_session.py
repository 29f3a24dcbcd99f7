"""What lives as long as a run of measurements on one GPU: stream, data pool, timers, and the watch over the GPU."""

from __future__ import annotations

import gc
import time
from collections.abc import Sequence
from statistics import median
from typing import Any

from wavetune.core.arch import ArchSpec
from wavetune.errors import RunnerError, WavetuneError
from wavetune.kernels.call import Launch, bind
from wavetune.kernels.empty import empty_call
from wavetune.kernels.registry import KernelFamily
from wavetune.kernels.windows import DataWindows
from wavetune.measure import environment
from wavetune.measure.cuda_timing import (
    BATCH_US,
    MAX_BATCH,
    Candidate,
    GraphTimer,
    StreamTimer,
    Timing,
    cache_flush,
    new_stream,
    time_sustained,
    timing_event,
)
from wavetune.measure.launch_cost import measure_event_cost, measure_replay_cost
from wavetune.measure.timing import (
    BRIEF_GRAPH_METHOD,
    BRIEF_US,
    GRAPH_METHOD,
    STREAM_METHOD,
    SUSTAINED_METHOD,
    TIMING_METHODS,
    StoppingRule,
    has_drifted,
    launches_per_reading,
)
from wavetune.store.record import Measurement, Point, Status

POOL_BYTES = 6 * 2**30
"""Data pool: holds the weight of the largest vocabulary layer (152064 x 8192 in bf16 is 2.5 GB), a hundred caches."""

POOL_FRACTION = 6
"""On smaller GPUs the two pools take one sixth of the free memory each."""

GRAPH_CACHES = 3
"""Last-level caches that the buffers of a graph, and the flush before a round, cover."""

MAX_GRAPH_LAUNCHES = 64
"""Most launches in a graph, each on operands of its own."""

WATCH_INTERVAL_S = 20.0
"""Least time between two looks at the GPU, so that measuring in small portions stays cheap."""

WATCH_US = 100_000.0
"""GPU time of the reference product before it is read: both readings of a run are then taken under the same load."""

_SHARE_OF_PEAK = 0.5
_SHARE_OF_BANDWIDTH = 0.6


class GpuSession:
    """Time points on one GPU.

    Parameters
    ----------
    arch : ArchSpec
        The GPU model.
    family : KernelFamily
        Kernels to time.
    dtype : str
        Of the operands.
    gpu : int
        Ordinal, as CUDA counts.
    """

    def __init__(self, arch: ArchSpec, family: KernelFamily, dtype: str, gpu: int) -> None:
        import torch

        self.arch, self.family, self.gpu = arch, family, gpu
        torch.cuda.set_device(gpu)
        self.stream: Any = new_stream(gpu)
        free_bytes, _ = torch.cuda.mem_get_info(gpu)
        self.windows = DataWindows(dtype, f"cuda:{gpu}", min(POOL_BYTES, free_bytes // POOL_FRACTION))
        torch.cuda.synchronize(gpu)
        flush = cache_flush(self.windows.inputs[: GRAPH_CACHES * arch.l2_bytes // 2])
        self.timer = StreamTimer(self.stream, flush)
        self.graph_timer = GraphTimer(self.stream, flush)
        empty = bind(empty_call(arch), self.stream.cuda_stream)
        self.event_cost_us, self.floor_us = measure_event_cost(self.timer, empty)
        self.timer.event_cost_us = self.event_cost_us
        self.graph_timer.replay_cost_us = measure_replay_cost(self.graph_timer, empty)
        size = 2048
        a, b = torch.empty((2, size, size), dtype=torch.bfloat16, device=f"cuda:{gpu}").normal_()
        self._product = (a, b, torch.empty_like(a))
        self.states: list[environment.GpuState] = []
        self._watched_at = 0.0
        self.reference_us: list[list[float]] = []

    def expected_us(self, problem: Any) -> float:
        """Return a rough latency from the roofline, microseconds."""
        return expected_us(self.family.cost(problem), self.arch)

    def calibration_method(self, problem: Any) -> str:
        """Return the method by which calibration times a problem, see `KernelFamily.brief_below_us`."""
        is_brief = self.expected_us(problem) < self.family.brief_below_us
        return BRIEF_GRAPH_METHOD if is_brief else STREAM_METHOD

    def watch(self) -> None:
        """Record the state of the GPU, and the time of one fixed large product to see a drift; now and then only."""
        import torch

        if self.states and time.monotonic() - self._watched_at < WATCH_INTERVAL_S:
            return
        readings: list[float] = []
        with torch.cuda.stream(self.stream):
            # The first product of a process loads its library, for longer than all readings take together.
            torch.mm(self._product[0], self._product[1], out=self._product[2])
            while sum(readings) * 4 < WATCH_US:
                start, end = timing_event(), timing_event()
                start.record()
                for _ in range(4):
                    torch.mm(self._product[0], self._product[1], out=self._product[2])
                end.record()
                self.stream.synchronize()
                readings.append(start.elapsed_time(end) * 250.0)
        self.states.append(environment.gpu_state(self.gpu))
        self._watched_at = time.monotonic()
        self.reference_us.append(readings[len(readings) // 2 :])

    def conditions(self) -> dict[str, str]:
        """Return the state at the start and the end, the launch floor, and signs of trouble."""
        first, last = self.states[0], self.states[-1]
        return {
            "launch_floor_us": f"{self.floor_us:.3f}",
            "event_cost_us": f"{self.event_cost_us:.3f}",
            "replay_cost_us": f"{self.graph_timer.replay_cost_us:.3f}",
            "sm_clock_mhz": f"{first.sm_clock_mhz} {last.sm_clock_mhz}",
            "memory_clock_mhz": f"{first.memory_clock_mhz} {last.memory_clock_mhz}",
            "temperature_c": f"{first.temperature_c} {last.temperature_c}",
            "power_w": f"{first.power_w:.0f} {last.power_w:.0f}",
            "throttle_reasons": " ".join(sorted({reason for s in self.states for reason in s.throttle_reasons})),
            "reference_us": f"{median(self.reference_us[0]):.2f} {median(self.reference_us[-1]):.2f}",
            "starved_readings": str(self.timer.starved_readings),
            "drifted": str(has_drifted(self.reference_us[0], self.reference_us[-1])).lower(),
        }

    def measure_block(self, block: Sequence[Point], method: str, rule: StoppingRule) -> list[Measurement]:
        """Time the points of a block against each other; one measurement each, in order.

        Raises
        ------
        RunnerError
            If the method is unknown, or the GPU fails: its context is lost then.
        """
        results: dict[int, Measurement] = {}
        candidates: dict[int, Candidate] = {}
        groups: dict[Any, int] = {}
        was_enabled = gc.isenabled()
        gc.disable()
        try:
            for place, point in enumerate(block):
                try:
                    launches = self.bind(point, self.n_windows(point, self.expected_us(point.problem), method))
                except Exception as error:
                    status, detail = _bind_failure(error)
                    results[place] = _failed(point, status, method, detail)
                else:
                    candidates[place] = Candidate(launches, groups.setdefault(point.problem, len(groups)))
            timings = self._time(list(candidates.values()), method, rule)
        except RuntimeError as error:
            if isinstance(error, WavetuneError):
                raise
            problems = ", ".join(sorted({str(block[place].problem.dims) for place in candidates})[:5])
            raise RunnerError(f"the GPU failed while timing {problems}: {error}") from error
        finally:
            if was_enabled:
                gc.enable()
        for place, timing in zip(candidates, timings, strict=True):
            point = block[place]
            if timing is None:
                results[place] = _failed(point, Status.LAUNCH_ERROR, method, "the host never kept ahead of the GPU")
            else:
                results[place] = Measurement(
                    point.problem, point.config, Status.OK, latency_us=timing.latency_us,
                    spread_us=timing.spread_us, rounds=timing.rounds, method=method, stratum=point.stratum,
                )  # fmt: skip
        return [results[place] for place in range(len(block))]

    def _time(self, candidates: Sequence[Candidate], method: str, rule: StoppingRule) -> Sequence[Timing | None]:
        if not candidates:
            return []
        if method == STREAM_METHOD:
            return self.timer.time(candidates, rule)
        if method in (GRAPH_METHOD, BRIEF_GRAPH_METHOD):
            return self.graph_timer.time(candidates, rule, is_brief=method == BRIEF_GRAPH_METHOD)
        if method == SUSTAINED_METHOD:
            return [time_sustained(self.stream, candidate.launches) for candidate in candidates]
        raise RunnerError(f"unknown timing method {method!r}; known: {', '.join(TIMING_METHODS)}")

    def n_windows(self, point: Point, expected_us: float, method: str) -> int:
        """Return how many sets of operands the launches of a point need."""
        if method == STREAM_METHOD:
            return launches_per_reading(expected_us, batch_us=BATCH_US, max_launches=MAX_BATCH)
        if method == BRIEF_GRAPH_METHOD:
            return max(4, launches_per_reading(expected_us, batch_us=BRIEF_US, max_launches=MAX_GRAPH_LAUNCHES))
        _, n_bytes = self.family.cost(point.problem)
        return max(4, min(MAX_GRAPH_LAUNCHES, int(-(-GRAPH_CACHES * self.arch.l2_bytes // max(n_bytes, 1)))))

    def bind(self, point: Point, n_windows: int) -> list[Launch]:
        """Return launches of a point, each on its own operands."""
        reason = self.family.legal(point.problem, point.config, self.arch)
        if reason is not None:
            raise _IllegalPointError(reason)
        handle = self.stream.cuda_stream
        return [
            self.family.bind(
                self.family.carve_operands(point.problem, point.config, self.windows), point.config, self.arch, handle
            )
            for _ in range(n_windows)
        ]


def expected_us(cost: tuple[int, int], arch: ArchSpec) -> float:
    """Return a rough latency from the roofline, microseconds.

    Parameters
    ----------
    cost : tuple of int
        Floating-point operations, bytes moved at least.
    arch : ArchSpec
        The GPU.
    """
    flops, n_bytes = cost
    by_flops = flops / (_SHARE_OF_PEAK * arch.bf16_tflops * 1e6)
    by_bytes = n_bytes / (_SHARE_OF_BANDWIDTH * arch.dram_gb_per_s * 1e3)
    return float(max(by_flops, by_bytes) + 3.0)


class _IllegalPointError(Exception):
    pass


def _failed(point: Point, status: Status, method: str, detail: str) -> Measurement:
    return Measurement(point.problem, point.config, status, method=method, stratum=point.stratum, detail=detail)


def _bind_failure(error: Exception) -> tuple[Status, str]:
    name = type(error).__name__
    detail = f"{name}: {error}"[:500]
    if isinstance(error, _IllegalPointError):
        return Status.ILLEGAL, str(error)
    if name in ("OutOfMemoryError",) or "exceeds the data pool" in detail:
        return Status.OUT_OF_MEMORY, detail
    if name in ("OutOfResources", "InfeasibleConfigError"):
        return Status.OUT_OF_RESOURCES, detail
    if name == "CompilationError":
        return Status.COMPILE_ERROR, detail
    return Status.LAUNCH_ERROR, detail
