"""Contests on a GPU: configurations and torch.mm in the same interleaved rounds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from wavetune.core.dtype import find_dtype
from wavetune.errors import RunnerError
from wavetune.kernels.call import Launch
from wavetune.measure import environment
from wavetune.measure.contest import PAIR_RULE, TORCH_MM, ContestRule
from wavetune.measure.cuda_timing import Candidate, Timing, lock_identity
from wavetune.measure.gpu_session import GpuSession
from wavetune.measure.runner import Point, Progress, no_progress
from wavetune.measure.timing import GRAPH_METHOD, StoppingRule
from wavetune.measure.triton_runner import TritonRunner
from wavetune.store.record import Measurement

FRESH_SEED = 1
"""Seeds the data of renewed buffers; the first ones are seeded with 0."""


class ContestSession(GpuSession):
    """A `GpuSession` that binds `TORCH_MM` like a configuration, and makes the untimed launches of a rule."""

    def bind(self, point: Point, n_windows: int) -> list[Launch]:
        """Return launches of a point, each on its own operands.

        Raises
        ------
        RunnerError
            If torch.mm does not compute the element type.
        """
        if point.config != TORCH_MM:
            return super().bind(point, n_windows)
        problem: Any = point.problem
        if find_dtype(problem.dtype).is_scaled:
            raise RunnerError(f"torch.mm takes no scales, which {problem.dtype} has")
        return [self._library_launch(problem) for _ in range(n_windows)]

    def _library_launch(self, problem: Any) -> Launch:
        import torch

        m, n, k = problem.dims
        take = self.windows.take
        a = take(problem.dtype, m, k)
        b = take(problem.dtype, n, k).T if problem.layout == "nk" else take(problem.dtype, k, n)
        out = take(problem.dtype, m, n, is_output=True)

        def launch() -> None:
            torch.mm(a, b, out=out)

        return launch

    def _time(self, candidates: Sequence[Candidate], method: str, rule: StoppingRule) -> Sequence[Timing | None]:
        if isinstance(rule, ContestRule) and candidates and rule.cold_launches:
            self._warm(candidates, rule.cold_launches)
        return super()._time(candidates, method, rule)

    def _warm(self, candidates: Sequence[Candidate], n_launches: int) -> None:
        import torch

        groups: dict[int, list[Candidate]] = {}
        for candidate in candidates:
            groups.setdefault(candidate.group, []).append(candidate)
        # Configurations are bound to the stream; torch.mm asks which one is current.
        with torch.cuda.stream(self.stream):
            for members in groups.values():
                for turn in range(max(n_launches, len(members))):
                    launches = members[turn % len(members)].launches
                    launches[turn // len(members) % len(launches)]()
                self.stream.synchronize()


class TritonContestRunner(TritonRunner):
    """A `TritonRunner` that conforms to `wavetune.measure.contest.ContestRunner`."""

    def measure(
        self,
        points: Sequence[Point],
        progress: Progress = no_progress,
        *,
        method: str | None = GRAPH_METHOD,
        rule: StoppingRule = PAIR_RULE,
    ) -> Iterator[Measurement]:
        """Time points, see `TritonRunner.measure`; `TORCH_MM` may be among their configurations."""
        if self._session is None:
            with environment.timing_lock(self.gpu, lock_identity(self.gpu)):
                self._session = ContestSession(self._arch, self._family, self.dtype, self.gpu)
        yield from super().measure(points, progress, method=method, rule=rule)

    def renew_buffers(self) -> None:
        """Time on other memory with other data from now on."""
        import torch

        seen = self._session
        if seen is None:
            return
        with environment.timing_lock(self.gpu, lock_identity(self.gpu)):
            # While the old pools still hold theirs, so that it is other memory.
            fresh = ContestSession(self._arch, self._family, self.dtype, self.gpu)
        if not find_dtype(self.dtype).is_scaled:
            fresh.windows.inputs.normal_(generator=torch.Generator(f"cuda:{self.gpu}").manual_seed(FRESH_SEED))
            torch.cuda.synchronize(self.gpu)
        # One run, for those who judge its drift.
        fresh.states[:0] = seen.states
        fresh.reference_us[:0] = seen.reference_us
        self._session = fresh
        del seen
        torch.cuda.empty_cache()
