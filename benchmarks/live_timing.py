"""Timing of a few kernels against each other and against torch.mm, as a server runs them: graphs over rotating data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from wavetune.core.arch import ArchSpec
from wavetune.core.config import KernelConfig
from wavetune.core.problem import GemmProblem
from wavetune.kernels.registry import find_family
from wavetune.measure import environment
from wavetune.measure.cuda_timing import Candidate, Timing, lock_identity
from wavetune.measure.gpu_session import GpuSession
from wavetune.measure.timing import GRAPH_METHOD, StoppingRule
from wavetune.store.record import Point

TORCH_MM = "torch.mm"

PAIR_RULE = StoppingRule(relative=0.003, absolute_us=0.05, min_rounds=9, max_rounds=15, max_total_us=60_000.0)
"""For candidates that decide a comparison: 0.3 % or 0.05 us, at most 15 interleaved rounds."""


class Comparison:
    """Times candidates of one GEMM problem, interleaved. A context manager: the GPU is locked while it is open."""

    def __init__(self, arch: ArchSpec, dtype: str, gpu: int = 0) -> None:
        self.arch = arch
        self._dtype = dtype
        self._gpu = gpu

    def __enter__(self) -> Comparison:
        self._lock = environment.timing_lock(self._gpu, lock_identity(self._gpu))
        self._lock.__enter__()
        self.session = GpuSession(self.arch, find_family("gemm"), self._dtype, self._gpu)
        self.session.watch()
        return self

    def __exit__(self, *error: Any) -> None:
        self._lock.__exit__(*error)

    def time(self, problem: GemmProblem, candidates: Mapping[str, KernelConfig | str]) -> dict[str, Timing | None]:
        """Time each label's configuration, or torch.mm; equal configurations are timed once."""
        distinct = list(dict.fromkeys(candidates.values()))
        n_windows = self.session.n_windows(Point(problem, KernelConfig(), ""), 0.0, GRAPH_METHOD)
        timings = self.session.graph_timer.time(
            [Candidate(self._launches(problem, entry, n_windows)) for entry in distinct], PAIR_RULE
        )
        by_entry = dict(zip(distinct, timings, strict=True))
        return {label: by_entry[entry] for label, entry in candidates.items()}

    def _launches(self, problem: GemmProblem, entry: KernelConfig | str, n_windows: int) -> list[Any]:
        if isinstance(entry, KernelConfig):
            return list(self.session.bind(Point(problem, entry, ""), n_windows))
        import torch

        def launch(a: Any, b: Any, out: Any) -> Any:
            return lambda: torch.mm(a, b, out=out)

        m, n, k = problem.dims
        take = self.session.windows.take
        return [
            launch(take(problem.dtype, m, k), take(problem.dtype, n, k).T, take(problem.dtype, m, n, is_output=True))
            for _ in range(n_windows)
        ]
