"""A GPU that runs grouped GEMM: waves of CTAs that share an SM, bound by the matrix unit or by memory, with noise."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence

from wavetune.core.arch import ArchSpec, find_arch
from wavetune.core.config import GROUPED_GEMM, KernelConfig
from wavetune.core.grouped_problem import GroupedGemmProblem
from wavetune.mapping.grouped_gemm import map_grouped_gemm
from wavetune.measure.runner import PreparedConfigs, Progress, no_progress
from wavetune.store.record import CompiledConfig, Measurement, Point, Status

ARCH = find_arch("nvidia-h200")
NOISE = 0.01

TILES = {
    (16, 64, 128): 4, (16, 128, 128): 2, (32, 128, 64): 3, (64, 64, 64): 4, (64, 128, 64): 3, (128, 64, 64): 3,
    (128, 128, 64): 2, (128, 256, 64): 1, (256, 128, 64): 1,
}  # fmt: skip
"""Tile to resident CTAs of an SM."""


def simulated_configs() -> list[CompiledConfig]:
    """Return the tiles with TMA loads, and two with pointers; registers and shared memory give the residency."""
    compiled = []
    for load, tiles in (("tma", TILES), ("pointer", ((64, 64, 64), (128, 128, 64)))):
        for block_m, block_n, block_k in tiles:
            config = GROUPED_GEMM.config(
                {
                    "block_m": block_m, "block_n": block_n, "block_k": block_k, "num_warps": 4, "num_stages": 3,
                    "load": load,
                }
            )  # fmt: skip
            smem = ARCH.smem_per_sm_bytes // TILES[block_m, block_n, block_k] - ARCH.smem_reserved_bytes
            compiled.append(CompiledConfig(config, 64, 0, smem))
    return compiled


def simulated_us(problem: GroupedGemmProblem, config: KernelConfig) -> float:
    """Return the time of a launch without noise."""
    mapping = map_grouped_gemm(problem, config, ARCH)
    block_m, block_n, block_k = (int(config[name]) for name in ("block_m", "block_n", "block_k"))
    resident = TILES[block_m, block_n, block_k]
    is_pointer = config["load"] == "pointer"
    # A narrow tile keeps less of the matrix unit busy.
    trip_us = 2.0 * block_m * block_n * block_k / (6e6 * (1.0 - 8.0 / block_m) * (1.0 - 10.0 / block_n))
    compute_us = -(-mapping.grid_size // ARCH.num_sms) * (
        0.3 + mapping.loop_trips * trip_us * (1.0 + 0.15 * is_pointer)
    )
    latency_us = -(-mapping.grid_size // (ARCH.num_sms * resident)) * (1.2 + 0.25 * mapping.loop_trips)
    bytes_us = (mapping.compulsory_bytes + mapping.reread_bytes) / (0.85e3 * ARCH.dram_gb_per_s)
    return 3.0 + max(compute_us, latency_us, bytes_us) + 0.1 * min(compute_us, bytes_us)


class SimulatedGrouped:
    """A runner over `simulated_us`; conforms to `wavetune.measure.runner.Runner`."""

    def __init__(self) -> None:
        self.compiled = simulated_configs()
        self.measured: list[Point] = []

    @property
    def arch(self) -> ArchSpec:
        """The GPU that is played."""
        return ARCH

    def environment(self) -> dict[str, str]:
        """Return a fingerprint."""
        return {"arch": ARCH.name, "gpu_name": "simulated", "triton": "3.6.0"}

    def prepare(self, configs: Iterable[KernelConfig], progress: Progress = no_progress) -> PreparedConfigs:
        """Accept every configuration."""
        wanted = set(configs)
        return PreparedConfigs(tuple(entry for entry in self.compiled if entry.config in wanted), ())

    def measure(self, points: Sequence[Point], progress: Progress = no_progress) -> Iterator[Measurement]:
        """Return times with noise."""
        for point in points:
            self.measured.append(point)
            noise = 1.0 + NOISE * random.Random(f"{point.problem.dims}{point.config}").gauss(0.0, 1.0)
            us = simulated_us(point.problem, point.config) * noise
            yield Measurement(
                point.problem, point.config, Status.OK, latency_us=us, spread_us=0.01 * us, rounds=3,
                method="simulated", stratum=point.stratum,
            )  # fmt: skip
