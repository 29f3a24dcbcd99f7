"""Timing of a few launches against each other as a server runs them: graphs over rotating data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

from wavetune.core.arch import ArchSpec
from wavetune.core.config import KernelConfig
from wavetune.core.problem import Problem
from wavetune.kernels.registry import find_family
from wavetune.measure import environment
from wavetune.measure.contest import PAIR_RULE
from wavetune.measure.cuda_timing import Candidate, Timing, lock_identity
from wavetune.measure.gpu_session import GpuSession
from wavetune.measure.timing import GRAPH_METHOD, StoppingRule
from wavetune.store.record import Point


class Comparison:
    """Times candidates of one problem, interleaved. A context manager: the GPU is locked while it is open.

    Parameters
    ----------
    arch : ArchSpec
        The GPU.
    dtype : str
        Element type.
    kernel : str, default="gemm"
        Family.
    gpu : int, default=0
        Ordinal, as CUDA counts.
    rule : StoppingRule
        When a candidate has been timed enough.
    """

    session: GpuSession

    def __init__(
        self, arch: ArchSpec, dtype: str, *, kernel: str = "gemm", gpu: int = 0, rule: StoppingRule = PAIR_RULE
    ) -> None:
        self.arch, self.dtype, self.gpu, self.rule = arch, dtype, gpu, rule
        self.family = find_family(kernel)

    def __enter__(self) -> Self:
        self._lock = environment.timing_lock(self.gpu, lock_identity(self.gpu))
        self._lock.__enter__()
        self.session = GpuSession(self.arch, self.family, self.dtype, self.gpu)
        self.session.watch()
        return self

    def __exit__(self, *error: Any) -> None:
        self.session.watch()
        self._lock.__exit__(*error)

    def n_windows(self, problem: Problem) -> int:
        """Return how many sets of operands a graph of a problem goes over."""
        return self.session.n_windows(Point(problem, KernelConfig(), ""), 0.0, GRAPH_METHOD)

    def time(self, problem: Problem, candidates: Mapping[str, KernelConfig]) -> dict[str, Timing | None]:
        """Time each label's configuration; equal configurations are timed once."""
        n_windows = self.n_windows(problem)
        distinct = list(dict.fromkeys(candidates.values()))
        timings = self.time_launches([self.session.bind(Point(problem, config, ""), n_windows) for config in distinct])
        by_config = dict(zip(distinct, timings, strict=True))
        return {label: by_config[config] for label, config in candidates.items()}

    def time_launches(self, launches: Sequence[Sequence[Any]]) -> list[Timing | None]:
        """Time lists of launches, each as a graph; None for what could not be timed."""
        return self.session.graph_timer.time([Candidate(list(entry)) for entry in launches], self.rule)


def in_us(timing: Timing | None) -> float | None:
    """Return a latency to the nanosecond; None for none."""
    return None if timing is None else round(timing.latency_us, 3)
