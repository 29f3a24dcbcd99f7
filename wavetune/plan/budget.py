"""What a plan costs: points, and seconds on the GPU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from wavetune.core.arch import ArchSpec
from wavetune.core.config import KernelConfig
from wavetune.core.problem import Problem
from wavetune.mapping.gemm import ceil_div, compulsory_bytes, loop_trips
from wavetune.store.record import CompiledConfig, Point
from wavetune.waves.geometry import wave_geometry
from wavetune.waves.occupancy import ctas_per_sm

ROUGH_LAUNCH_US = 5.0
ROUGH_TRIP_US = 0.35
ROUGH_MATRIX_EFFICIENCY = 0.3
ROUGH_DRAM_EFFICIENCY = 0.8
"""`rough_latency_us` on the recorded H200 sweeps (2026-11): median ratio 1.2, log spread 0.45; for budgets only."""


@dataclass(frozen=True, slots=True)
class MeasurementCost:
    """Seconds that the stream timer spends on a point: rounds of short batches, fewer of long launches.

    Parameters
    ----------
    batch_us : float, default=40.0
        Shortest reading, microseconds.
    max_total_us : float, default=2500.0
        GPU time after which no round is added, microseconds.
    min_rounds, max_rounds : int
        Bounds on the rounds.
    overhead_us : float, default=350.0
        Everything beside the readings, per point: preparing launches, the first round, the spins in between. With
        it, 17,226 points on an H200 (2026-11) cost what was predicted, within a tenth.
    """

    batch_us: float = 40.0
    max_total_us: float = 2500.0
    min_rounds: int = 3
    max_rounds: int = 6
    overhead_us: float = 350.0

    def seconds(self, latency_us: float) -> float:
        """Return the cost of a point of this latency."""
        reading_us = max(self.batch_us, latency_us)
        rounds = min(max(self.max_total_us / reading_us, self.min_rounds), self.max_rounds)
        return (rounds * reading_us + self.overhead_us) * 1e-6


@dataclass(slots=True)
class Budget:
    """Points in order of importance, as far as they can be afforded.

    Parameters
    ----------
    max_points : int
        Most points.
    max_seconds : float
        Most predicted seconds.
    cost : MeasurementCost
        Turns latencies into seconds.
    """

    max_points: int
    max_seconds: float
    cost: MeasurementCost
    points: list[Point] = field(default_factory=list)
    seconds: float = 0.0
    n_refused: int = 0
    _keys: set[tuple[Problem, KernelConfig]] = field(default_factory=set)

    def exclude(self, points: Iterable[Point]) -> None:
        """Treat points as measured already: they are neither added nor paid for."""
        self._keys.update((point.problem, point.config) for point in points)

    def add(self, point: Point, latency_us: float) -> bool:
        """Add a point that is new and affordable; say whether it was added."""
        key = (point.problem, point.config)
        if key in self._keys:
            return False
        seconds = self.cost.seconds(latency_us)
        if len(self.points) >= self.max_points or self.seconds + seconds > self.max_seconds:
            self.n_refused += 1
            return False
        self._keys.add(key)
        self.points.append(point)
        self.seconds += seconds
        return True

    def add_together(self, points: Sequence[tuple[Point, float]]) -> bool:
        """Add points and their latencies if all of them are affordable, or none: half a sweep cannot be judged."""
        seconds = sum(self.cost.seconds(latency_us) for _, latency_us in points)
        if self.seconds + seconds > self.max_seconds or len(self.points) + len(points) > self.max_points:
            self.n_refused += len(points)
            return False
        for point, latency_us in points:
            self.add(point, latency_us)
        return True

    def plan(self) -> Plan:
        """Return what was added."""
        return Plan(tuple(self.points), self.seconds, self.n_refused)


@dataclass(frozen=True, slots=True)
class Plan:
    """Points to measure, most important first.

    Parameters
    ----------
    points : tuple of Point
        No problem and configuration twice.
    predicted_seconds : float
        What measuring them is expected to take.
    n_refused : int
        Points that the budget did not allow.
    """

    points: tuple[Point, ...]
    predicted_seconds: float
    n_refused: int

    def __len__(self) -> int:
        return len(self.points)

    def strata(self) -> dict[str, int]:
        """Count points by stratum, largest first."""
        return dict(Counter(point.stratum for point in self.points).most_common())


def rough_latency_us(
    dims: tuple[int, int, int], compiled: CompiledConfig, arch: ArchSpec, input_bytes: int, output_bytes: int
) -> float:
    """Guess a GEMM latency before anything was measured, within a factor of two."""
    config = compiled.config
    block_m, block_n, block_k, split_k = (int(config[name]) for name in ("block_m", "block_n", "block_k", "split_k"))
    m, n, k = dims
    resident = ctas_per_sm(
        arch, num_warps=int(config["num_warps"]), num_regs=compiled.num_regs, smem_bytes=compiled.smem_bytes
    )
    waves = wave_geometry(ceil_div(m, block_m) * ceil_div(n, block_n) * split_k, resident, arch.num_sms)
    trips: int = loop_trips(k, block_k, split_k)
    sm_flops_per_us = arch.bf16_tflops * 1e6 / arch.num_sms * ROUGH_MATRIX_EFFICIENCY * 2 / input_bytes
    trip_us = 2.0 * block_m * block_n * block_k / sm_flops_per_us
    memory_us: float = compulsory_bytes(m, n, k, input_bytes, output_bytes) / (arch.dram_gb_per_s * 1e3)
    busy_us: float = max(
        waves.waves * trips * ROUGH_TRIP_US, waves.depth * trips * trip_us, memory_us / ROUGH_DRAM_EFFICIENCY
    )
    return ROUGH_LAUNCH_US + busy_us
