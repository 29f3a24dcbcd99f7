"""A GPU that exists only as a clock, for tests of live measurement."""

from __future__ import annotations

import gc
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

from wavetune.core.arch import find_arch
from wavetune.core.config import GEMM, KernelConfig
from wavetune.core.problem import GemmProblem
from wavetune.launch.live import LiveMeasurer
from wavetune.measure.cuda_timing import Candidate
from wavetune.runtime.device import Device
from wavetune.runtime.measurer import MeasuredChoice, MeasureRequest

H200 = find_arch("nvidia-h200")
PROBLEM = GemmProblem(40, 3000, 5000)
ROUND_OVERHEAD_S = 0.4e-3


def config(group_m: int) -> KernelConfig:
    """Return one of several configurations."""
    fields = {"block_m": 64, "block_n": 64, "block_k": 64, "num_warps": 4, "num_stages": 3}
    return GEMM.config({**fields, "group_m": group_m})


DEFAULT, FIRST, SECOND, THIRD, FOURTH = (config(group_m) for group_m in range(1, 6))


def request(
    *configs: KernelConfig, budget_ms: float = 50.0, margin: float = 0.02, problem: GemmProblem = PROBLEM
) -> MeasureRequest:
    """Return a request for these candidates."""
    return MeasureRequest(problem, configs, DEFAULT, Device(H200, 132, H200.name, 0), budget_ms, margin)


class MadeUpGpu:
    """A session, its timer and its clock.

    Parameters
    ----------
    latencies_us : mapping of KernelConfig to float or Exception
        The truth, microseconds; an error in place of a latency is raised when the configuration is bound.
    noise : float, default=0.015
        Standard deviation of a reading, relative.
    seed : int, default=0
        Of the noise.
    """

    def __init__(
        self, latencies_us: Mapping[KernelConfig, float | Exception], noise: float = 0.015, seed: int = 0
    ) -> None:
        self.latencies_us = latencies_us
        self.noise, self.dice = noise, random.Random(seed)
        self.now = 0.0
        self.compile_each_s = self.set_up_s = 0.0
        self.expected_us = 30.0
        self.is_starved = False
        self.fails_in_round = -1
        self.fails_to_launch: dict[KernelConfig, Exception] = {}
        self.fails_to_open: Exception | None = None
        self.rounds: list[list[KernelConfig]] = []
        self.collects: list[bool] = []
        self.bound: list[KernelConfig] = []
        self.n_open = self.n_closed = 0
        # Of a session.
        self.gpu, self.lock_identity, self.began, self.compile_s, self.kernel_source = 0, "made-up", 0.0, 0.0, "abcd"
        self.timer = self
        self._kept: list[Candidate] = []
        self._config_of: dict[int, KernelConfig] = {}

    def slowdown(self, round_index: int, config: KernelConfig) -> float:
        """Return how much slower a configuration is in a round; rounds count from 1, looks included."""
        return 1.0

    def read(self, candidates: Sequence[Candidate], sizes: Sequence[int]) -> list[float | None]:
        """Launch one round."""
        order = [self._config_of[id(candidate)] for candidate in candidates]
        self.collects.append(gc.isenabled())
        self.rounds.append(order)
        self.now += ROUND_OVERHEAD_S
        readings: list[float | None] = []
        for config, candidate, size in zip(order, candidates, sizes, strict=True):
            if config in self.fails_to_launch:
                raise self.fails_to_launch[config]
            assert 1 <= size <= len(candidate.launches)
            truth_us = self.latencies_us[config]
            assert isinstance(truth_us, float)
            latency_us = truth_us * self.slowdown(len(self.rounds), config)
            latency_us *= 1.0 + self.noise * self.dice.gauss(0.0, 1.0)
            self.now += latency_us * size / 1e6
            readings.append(None if self.is_starved else latency_us)
        if self.fails_in_round == len(self.rounds):
            raise RuntimeError("CUDA error: an illegal memory access was encountered\nmore lines")
        return readings

    def full_rounds(self) -> list[list[KernelConfig]]:
        """Return the rounds without the looks at single candidates before them."""
        first = next((i for i, order in enumerate(self.rounds) if len(order) > 1), len(self.rounds))
        return self.rounds[first:]

    def bind(self, config: KernelConfig) -> Candidate:
        """Compile for a while, or fail."""
        self.now += self.compile_each_s
        self.compile_s += self.compile_each_s
        latency_us = self.latencies_us[config]
        if isinstance(latency_us, Exception):
            raise latency_us
        candidate = Candidate([lambda: None] * 6)
        self._kept.append(candidate)
        self._config_of[id(candidate)] = config
        self.bound.append(config)
        return candidate

    @contextmanager
    def open(self, request: MeasureRequest, configs: Sequence[KernelConfig]) -> Iterator[MadeUpGpu]:
        """Be the session of a request."""
        self.n_open += 1
        if self.fails_to_open is not None:
            raise self.fails_to_open
        self.began, self.compile_s = self.now, 0.0
        self.now += self.set_up_s
        try:
            yield self
        finally:
            self.n_closed += 1

    def measurer(self, **changes: Any) -> LiveMeasurer:
        """Return a measurer that measures here."""
        parts = {"find_capture": lambda: False, "lock": lambda gpu, identity: nullcontext(), "clock": lambda: self.now}
        return LiveMeasurer(open_session=self.open, **{**parts, **changes})

    def measure(self, request: MeasureRequest) -> MeasuredChoice | None:
        """Measure a request here."""
        return self.measurer().measure(request)
