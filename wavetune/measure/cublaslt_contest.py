"""cuBLASLt's list, cuBLAS's default and kernels of this project, timed against each other in one run.

All as CUDA graphs over rotating buffers larger than the cache, interleaved round by round, on one stream.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from wavetune.core.arch import ArchSpec
from wavetune.core.config import KernelConfig
from wavetune.core.problem import GemmProblem
from wavetune.core.shorthand import describe_config
from wavetune.errors import RunnerError, WavetuneError
from wavetune.kernels.registry import find_family
from wavetune.measure import environment
from wavetune.measure.contest import TORCH_MM
from wavetune.measure.contest_runner import ContestSession
from wavetune.measure.cublaslt import Algorithm, CublasLt, CublasLtPlan
from wavetune.measure.cuda_timing import Candidate, Timing, lock_identity
from wavetune.measure.timing import FINALIST_RULE, GRAPH_METHOD, StoppingRule
from wavetune.store.record import Point

Entrant = KernelConfig | Algorithm
"""A configuration of this project's GEMM, torch.mm in the place of one, or an entry of cuBLASLt's list."""

QUALIFYING_RULE = StoppingRule(relative=0.005, absolute_us=0.1, min_rounds=5, max_rounds=9, max_total_us=30_000.0)
"""For a list, most of which loses."""


@dataclass(frozen=True, slots=True)
class VendorResult:
    """How one problem went. Every latency is of the final, on buffers that the qualifying round did not choose by.

    Parameters
    ----------
    problem : GemmProblem
        Which.
    default : Timing or None
        torch.mm.
    own : Timing or None
        The given configuration; None without one.
    first, best : Timing or None
        The heuristic's first algorithm, and the one that qualified fastest.
    algorithm : Algorithm or None
        The fastest.
    algorithms : tuple of Algorithm
        The whole list.
    qualifying_us : mapping of int to float
        Latency of each rank in the qualifying round: what chose ``algorithm``, and so a little too good of it.
    failures : mapping of int to str
        Ranks that failed or computed something else than torch, with the reason.
    reason : str
        Why there is no list, or no reading of the given configuration; empty otherwise.
    """

    problem: GemmProblem
    default: Timing | None
    own: Timing | None = None
    first: Timing | None = None
    best: Timing | None = None
    algorithm: Algorithm | None = None
    algorithms: tuple[Algorithm, ...] = ()
    qualifying_us: Mapping[int, float] = field(default_factory=dict)
    failures: Mapping[int, str] = field(default_factory=dict)
    reason: str = ""


class VendorContest:
    """Times GEMM problems of one dtype on one GPU. A context manager: the GPU is locked while it is open.

    Parameters
    ----------
    arch : ArchSpec
        The GPU model.
    dtype : str
        One of `wavetune.measure.cublaslt.CUBLASLT_DTYPES`.
    gpu : int, default=0
        Ordinal, as CUDA counts.
    needs_list : bool, default=True
        Whether to refuse to go without nvmath-python.

    Attributes
    ----------
    session : ContestSession
        Of the GPU, while it is open.
    library : CublasLt or None
        Likewise; None without nvmath-python.
    missing : str
        Why there is no library.
    is_lost : bool
        Whether the GPU failed.

    Raises
    ------
    RunnerError
        On entering, if the GPU is being timed by another process, or nvmath-python is needed and missing.
    """

    session: ContestSession

    def __init__(self, arch: ArchSpec, dtype: str, gpu: int = 0, *, needs_list: bool = True) -> None:
        self._arch, self._dtype, self._gpu, self._needs_list = arch, dtype, gpu, needs_list
        self.library: CublasLt | None = None
        self.missing = ""
        self.is_lost = False

    def __enter__(self) -> VendorContest:
        self._lock = environment.timing_lock(self._gpu, lock_identity(self._gpu))
        self._lock.__enter__()
        try:
            self.session = ContestSession(self._arch, find_family("gemm"), self._dtype, self._gpu)
            # First, so that torch has loaded its library when nvmath looks for one.
            self.session.watch()
            self._open_library()
        except BaseException as error:
            self._lock.__exit__(type(error), error, error.__traceback__)
            raise
        return self

    def _open_library(self) -> None:
        try:
            self.library = CublasLt(f"cuda:{self._gpu}")
        except RunnerError as error:
            if self._needs_list:
                raise
            self.missing = str(error)

    def __exit__(self, *error: Any) -> None:
        if self.library is not None:
            self.library.__exit__(*error)
        self._lock.__exit__(*error)

    def run(self, problem: GemmProblem, config: KernelConfig | None, *, top: int) -> VendorResult:
        """Time the first ``top`` algorithms of the list, then the fastest beside the default and ``config``.

        Parameters
        ----------
        problem : GemmProblem
            Contiguous operands.
        config : KernelConfig or None
            This project's choice.
        top : int
            Algorithms to ask for.

        Raises
        ------
        RunnerError
            If there is no library, the operands exceed the data pool, or the GPU fails: its context is lost then, and
            ``is_lost`` true.
        """
        if self.library is None:
            raise RunnerError(f"there is no list of cuBLASLt: {self.missing or 'the contest is not open'}")
        try:
            with self.library.plan(problem, top) as plan:
                return self._run(plan, config)
        except RuntimeError as error:
            if isinstance(error, WavetuneError):
                raise
            self.is_lost = True
            raise RunnerError(f"the GPU failed while timing {problem.dims}: {error}") from error

    def _run(self, plan: CublasLtPlan, config: KernelConfig | None) -> VendorResult:
        problem = plan.problem
        failures = self.check(plan)
        sound = [entry for entry in plan.algorithms if entry.rank not in failures]
        timings = self.time(problem, sound, plan, QUALIFYING_RULE)
        latency = {
            entry.rank: timing.latency_us for entry, timing in zip(sound, timings, strict=True) if timing is not None
        }
        best = plan.algorithms[min(latency, key=lambda rank: latency[rank])] if latency else None
        # The first of the list is what the heuristic alone would have run.
        first = sound[0] if sound and sound[0].rank == 0 else None
        reason = "" if plan.algorithms else f"cuBLASLt lists no algorithm: {plan.reason or 'none fits'}"
        if config is not None:
            try:
                self.session.bind(Point(problem, config, ""), 1)
            # Illegal here, or refused by the compiler or the GPU: the list is worth reporting all the same.
            except Exception as error:
                reason, config = f"{describe_config(config)}: {error}"[:300], None
        finalists = list(dict.fromkeys(entry for entry in (TORCH_MM, config, best, first) if entry is not None))
        final: dict[Entrant | None, Timing | None] = {None: None}
        final |= dict(zip(finalists, self.time(problem, finalists, plan, FINALIST_RULE), strict=True))
        return VendorResult(
            problem, final[TORCH_MM], final[config], final[first], final[best], best, tuple(plan.algorithms), latency,
            failures, reason,
        )  # fmt: skip

    def time(
        self, problem: GemmProblem, entrants: Sequence[Entrant], plan: CublasLtPlan | None, rule: StoppingRule
    ) -> list[Timing | None]:
        """Time entrants against each other, in order; algorithms need the plan that they are of."""
        if not entrants:
            return []
        n_windows = self.session.n_windows(Point(problem, KernelConfig(), ""), 0.0, GRAPH_METHOD)
        candidates = [Candidate(self._launches(problem, entrant, plan, n_windows)) for entrant in entrants]
        return list(self.session.graph_timer.time(candidates, rule))

    def check(self, plan: CublasLtPlan) -> dict[int, str]:
        """Run every algorithm once and compare with torch.

        Returns
        -------
        dict of int to str
            Ranks that failed, with the reason.
        """
        import torch

        from wavetune.kernels.reference import MAX_RELATIVE_ERROR, relative_error

        a, b, out = self._operands(plan.problem)
        limit = MAX_RELATIVE_ERROR[plan.problem.dtype]
        failures = {}
        with torch.cuda.stream(self.session.stream):
            reference = torch.mm(a, b.T if plan.problem.layout == "nk" else b).float()
            for algorithm in plan.algorithms:
                out.fill_(math.nan)
                try:
                    plan.bind(algorithm, a, b, out, self.session.stream.cuda_stream)()
                    self.session.stream.synchronize()
                # nvmath's own class is of no base but Exception.
                except Exception as error:
                    failures[algorithm.rank] = f"{type(error).__name__}: {error}"[:300]
                    continue
                off = relative_error(out, reference)
                # Both are rounded; NaN is below no limit.
                if not off <= limit:
                    failures[algorithm.rank] = f"relative error {off:.2g} against torch, limit {limit:g}"
        return failures

    def _launches(self, problem: GemmProblem, entrant: Entrant, plan: CublasLtPlan | None, n_windows: int) -> list[Any]:
        if isinstance(entrant, KernelConfig):
            return list(self.session.bind(Point(problem, entrant, ""), n_windows))
        if plan is None:
            raise ValueError(f"{entrant.describe()} needs the plan that it is of")
        stream = self.session.stream.cuda_stream
        return [plan.bind(entrant, *self._operands(problem), stream) for _ in range(n_windows)]

    def _operands(self, problem: GemmProblem) -> tuple[Any, Any, Any]:
        m, n, k = problem.dims
        take = self.session.windows.take
        b = take(problem.dtype, n, k) if problem.layout == "nk" else take(problem.dtype, k, n)
        return take(problem.dtype, m, k), b, take(problem.dtype, m, n, is_output=True)
