"""A GPU that runs attention by list scheduling: CTAs go to whichever SM is free first, one at a time on each."""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from wavetune.core.arch import ArchSpec, find_arch
from wavetune.core.attention_problem import AttentionDecodeProblem, AttentionProblem
from wavetune.core.config import ATTENTION, ATTENTION_DECODE, KernelConfig
from wavetune.mapping.attention import IN_ORDER, LONGEST_FIRST, block_trips, map_attention_decode
from wavetune.mapping.attention_shape import AnyAttentionProblem, key_problem
from wavetune.measure.runner import PreparedConfigs, Progress, no_progress
from wavetune.store.record import CompiledConfig, Measurement, Point, Status

ARCH = find_arch("nvidia-h200")
NOISE = 0.01


def prefill_configs() -> list[KernelConfig]:
    """Return eight configurations: four tiles, in two orders."""
    return [
        ATTENTION.config(
            {
                "block_m": block_m, "block_n": block_n, "order": order, "masking": "edges", "num_warps": block_m // 16,
                "num_stages": 2,
            }
        )
        for block_m, block_n in ((128, 128), (128, 64), (64, 64), (64, 32))
        for order in (IN_ORDER, LONGEST_FIRST)
    ]  # fmt: skip


def decode_configs() -> list[KernelConfig]:
    """Return fourteen configurations: two tiles, seven numbers of splits."""
    return [
        ATTENTION_DECODE.config({"block_n": block_n, "splits": splits, "num_warps": 4, "num_stages": 3})
        for block_n in (32, 64)
        for splits in (1, 2, 4, 8, 16, 32, 64)
    ]


def prefill_us(problem: AttentionProblem, config: KernelConfig) -> float:
    """Return the time of a prefill: a tile costs what it multiplies, and something for each trip and each CTA."""
    block_m, block_n = int(config["block_m"]), int(config["block_n"])
    tile_us = block_m * block_n * 5e-5 * (1.0 + 0.15 * (block_m == 64)) + 0.12
    begin_us = 0.4 + 0.006 * block_m
    return 4.0 + _last_sm(problem, block_m, block_n, str(config["order"]), begin_us, tile_us)


@lru_cache(maxsize=100_000)
def _last_sm(
    problem: AttentionProblem, block_m: int, block_n: int, order: str, begin_us: float, tile_us: float
) -> float:  # fmt: skip
    trips = []
    for q_len, kv_len in zip(problem.q_lengths, problem.kv_lengths, strict=True):
        args = (q_len, kv_len, problem.is_causal, problem.window, block_m, block_n)
        one = [block_trips(block, *args) for block in range(-(-q_len // block_m))]
        trips += one * problem.heads
    if order == LONGEST_FIRST:
        trips.sort(reverse=True)
    free = [0.0] * ARCH.num_sms
    for count in trips:
        heapq.heapreplace(free, free[0] + begin_us + tile_us * count)
    return max(free)


def decode_us(problem: AttentionDecodeProblem, config: KernelConfig) -> float:
    """Return the time of a decode step: bytes at the full rate, or one split after another, and a second kernel."""
    mapping = map_attention_decode(problem, config)
    trip_us = 0.2 + 0.004 * int(config["block_n"])
    waves = -(-mapping.active_ctas // (4 * ARCH.num_sms))
    bytes_us = (mapping.compulsory_bytes + 0.3 * mapping.workspace_bytes) / (0.85e3 * ARCH.dram_gb_per_s)
    combine_us = 1.5 + 0.02 * int(config["splits"]) if int(config["splits"]) > 1 else 0.0
    return 4.0 + combine_us + max(waves * mapping.longest_trips * trip_us, bytes_us)


@dataclass
class SimulatedAttention:
    """Measures either family by simulation; conforms to `wavetune.measure.runner.Runner`.

    Parameters
    ----------
    kernel : str
        The family.
    """

    kernel: str
    arch: ArchSpec = ARCH
    measured: list[Point] = field(default_factory=list)

    @property
    def configs(self) -> list[KernelConfig]:
        """The candidates."""
        return prefill_configs() if self.kernel == "attention" else decode_configs()

    def truth_us(self, problem: AnyAttentionProblem, config: KernelConfig) -> float:
        """Return the true latency."""
        if isinstance(problem, AttentionProblem):
            return prefill_us(problem, config)
        return decode_us(problem, config)

    def environment(self) -> dict[str, str]:
        """Return a fingerprint."""
        return {"arch": ARCH.name, "gpu_name": "simulated", "triton": "3.6.0"}

    def prepare(self, configs: Iterable[KernelConfig], progress: Progress = no_progress) -> PreparedConfigs:
        """Compile everything: one CTA on an SM in a prefill, four in a decode step."""
        registers, smem = (200, 150_000) if self.kernel == "attention" else (100, 40_000)
        return PreparedConfigs(tuple(CompiledConfig(config, registers, 0, smem) for config in configs), ())

    def measure(self, points: Sequence[Point], progress: Progress = no_progress) -> Iterator[Measurement]:
        """Simulate, with noise."""
        for n_done, point in enumerate(points, start=1):
            self.measured.append(point)
            problem = key_problem(self.kernel, point.problem.dims, "bf16", "d128")
            assert problem == point.problem
            noise = math.exp(random.Random(str(point)).gauss(0.0, NOISE))
            progress(n_done, len(points))
            yield Measurement(
                point.problem, point.config, Status.OK, self.truth_us(problem, point.config) * noise, 0.1, 5, "made-up",
                point.stratum,
            )  # fmt: skip
