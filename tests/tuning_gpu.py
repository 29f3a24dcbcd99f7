"""A made-up GPU for tunings: true latencies, noise that depends on the method, and a journal of what was asked."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Iterator, Sequence

from wavetune.core.arch import ArchSpec, find_arch
from wavetune.core.config import GEMM, KernelConfig
from wavetune.core.problem import GemmProblem
from wavetune.measure.contest import PAIR_RULE
from wavetune.measure.runner import Point, PreparedConfigs, Progress, no_progress
from wavetune.measure.timing import GRAPH_METHOD, STREAM_METHOD, StoppingRule
from wavetune.pipeline.tune_plan import ProblemPlan
from wavetune.store.record import CompiledConfig, Measurement, Status

Truth = Callable[[GemmProblem, KernelConfig], float]

STREAM_NOISE = 3.0
"""Screening readings are so many times as noisy as precise ones."""


def some_configs(number: int) -> list[KernelConfig]:
    """Return different legal configurations."""
    tiles = [(64, 64, 64), (64, 128, 64), (128, 64, 64), (128, 128, 64), (128, 256, 64), (64, 64, 128)]
    found = [
        GEMM.config(
            {"block_m": m, "block_n": n, "block_k": k, "group_m": g, "num_warps": w, "num_stages": 3, "load": "tma"}
        )
        for g in (8, 4, 2, 1, 16)
        for w in (4, 8)
        for m, n, k in tiles
    ]
    assert len(set(found)) == len(found) >= number
    return found[:number]


class MadeUpTuningGpu:
    """Conforms to `wavetune.measure.contest.ContestRunner`.

    Parameters
    ----------
    truth : callable
        True latency, microseconds.
    noise : float
        Relative standard deviation of a precise reading's median.
    seed : int
        Of the noise; the reading of a point in a stage is always the same.
    broken : collection of KernelConfig
        What does not compile.
    crashing : collection of KernelConfig
        What compiles and cannot be launched.
    stop_after : int, optional
        Measurements after which somebody presses Ctrl-C.
    """

    def __init__(
        self,
        truth: Truth,
        noise: float = 0.0,
        seed: int = 0,
        broken: Iterable[KernelConfig] = (),
        crashing: Iterable[KernelConfig] = (),
        stop_after: int | None = None,
    ) -> None:
        self._truth, self._noise, self._seed = truth, noise, seed
        self._broken, self._crashing = set(broken), set(crashing)
        self._left = math.inf if stop_after is None else stop_after
        self.arch: ArchSpec = find_arch("h200")
        self.asked: list[Point] = []
        self.rules: list[tuple[str, StoppingRule]] = []
        self.renewed = 0

    def environment(self) -> dict[str, str]:
        """Return the fingerprint."""
        return {"gpu_name": "made up", "arch": self.arch.name, "kernel_source": "made-up"}

    def prepare(self, configs: Iterable[KernelConfig], progress: Progress = no_progress) -> PreparedConfigs:
        """Compile what is not broken."""
        compiled, failures = [], []
        for config in configs:
            if config in self._broken:
                problem = GemmProblem(1, 64, 64)
                failures.append(Measurement(problem, config, Status.COMPILE_ERROR, stratum="prepare", detail="too big"))
            else:
                compiled.append(CompiledConfig(config, 96, 0, 100_000))
        return PreparedConfigs(tuple(compiled), tuple(failures))

    def measure(
        self,
        points: Sequence[Point],
        progress: Progress = no_progress,
        *,
        method: str = GRAPH_METHOD,
        rule: StoppingRule = PAIR_RULE,
    ) -> Iterator[Measurement]:
        """Read each point with noise."""
        self.rules.append((method, rule))
        for done, point in enumerate(points, start=1):
            if self._left <= 0:
                raise KeyboardInterrupt
            self._left -= 1
            self.asked.append(point)
            yield self._read(point, method)
            progress(done, len(points))

    def renew_buffers(self) -> None:
        """Count."""
        self.renewed += 1

    def _read(self, point: Point, method: str) -> Measurement:
        if point.config in self._crashing:
            return Measurement(
                point.problem, point.config, Status.LAUNCH_ERROR, method=method, stratum=point.stratum, detail="crash"
            )
        # A string, so that the noise is the same in every process.
        chance = random.Random(f"{self._seed}/{point.problem}/{point.config}/{point.stratum}")
        sigma = self._noise * (STREAM_NOISE if method == STREAM_METHOD else 1.0)
        true_us = self._truth(point.problem, point.config)
        return Measurement(
            point.problem, point.config, Status.OK, latency_us=true_us * math.exp(chance.gauss(0.0, sigma)),
            spread_us=2.0 * sigma * true_us, rounds=9, method=method, stratum=point.stratum,
        )  # fmt: skip


def plan_of(
    problem: GemmProblem,
    candidates: Sequence[KernelConfig],
    *,
    pick: KernelConfig | None = None,
    default: KernelConfig | None = None,
    count: int = 10,
    predicted_us: float = 30.0,
    seeds: Sequence[KernelConfig] = (),
) -> ProblemPlan:
    """Return a plan; the first candidate is the pick, the last one the default, if not said."""
    return ProblemPlan(
        problem, count, predicted_us, pick or candidates[0], default or candidates[-1], tuple(candidates), tuple(seeds)
    )
