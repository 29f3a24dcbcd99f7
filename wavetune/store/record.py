"""One measurement, or the reason why there is none."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from wavetune.core.attention_problem import AttentionDecodeProblem, AttentionProblem
from wavetune.core.config import KernelConfig
from wavetune.core.grouped_problem import GroupedGemmProblem
from wavetune.core.problem import GemmProblem, Problem
from wavetune.errors import ProblemError
from wavetune.mapping.kernel_mapping import KernelProblem


class Status(StrEnum):
    """How a measurement ended. Anything but ``OK`` is kept with its reason and never stops a run."""

    OK = "ok"
    COMPILE_ERROR = "compile_error"
    COMPILE_TIMEOUT = "compile_timeout"
    OUT_OF_RESOURCES = "out_of_resources"
    LAUNCH_ERROR = "launch_error"
    WRONG_RESULT = "wrong_result"
    OUT_OF_MEMORY = "out_of_memory"
    ILLEGAL = "illegal"
    NOT_RECORDED = "not_recorded"


PASSING = frozenset({Status.LAUNCH_ERROR, Status.OUT_OF_MEMORY})
"""Failures that another run may not have: the host was busy, or another process held the memory."""


_FROM_DIMS: Mapping[str, Callable[[tuple[int, ...], str, str], Problem]] = {
    cls.kernel: cls.from_dims for cls in (AttentionProblem, AttentionDecodeProblem, GroupedGemmProblem)
}
"""Families whose key is a summary of the problem."""


def make_problem(kernel: str, dims: tuple[int, ...], dtype: str, layout: str = "nk", alignment: int = 16) -> Problem:
    """Build the problem that a stored row names; a kernel without problems of its own has its sizes as keys.

    Raises
    ------
    ProblemError
        If a size or an option is impossible.
    """
    if kernel in _FROM_DIMS:
        return _FROM_DIMS[kernel](dims, dtype, layout)
    if kernel != "gemm":
        return KernelProblem(kernel, tuple(dims), dtype, layout)
    if len(dims) != 3:
        raise ProblemError(f"cannot rebuild a problem of kernel {kernel!r} with sizes {dims}")
    m, n, k = dims
    return GemmProblem(m, n, k, dtype, layout, alignment)


@dataclass(frozen=True, slots=True)
class Point:
    """One measurement to make.

    Parameters
    ----------
    problem : Problem
        What to compute.
    config : KernelConfig
        How.
    stratum : str
        Which part of the plan asks for it.
    """

    problem: Problem
    config: KernelConfig
    stratum: str


REGISTER_JITTER = 8
"""Registers by which two compilations of one kernel may differ."""


@dataclass(frozen=True, slots=True)
class CompiledConfig:
    """A launch configuration and what its compiled kernel needs.

    Parameters
    ----------
    config : KernelConfig
        The configuration.
    num_regs : int
        Registers of one thread.
    num_spills : int
        Spilled registers (bytes of local memory / 4).
    smem_bytes : int
        Shared memory of one CTA.
    """

    config: KernelConfig
    num_regs: int
    num_spills: int
    smem_bytes: int

    def is_same_kernel(self, other: CompiledConfig) -> bool:
        """Whether two compilations can be one kernel: equal but for a few registers.

        ptxas does not always allocate alike: of 342 GEMM configurations compiled twice on an H200 machine
        (Triton 3.6, CUDA 13.0), one had 94 registers once and 90 once.
        """
        return (self.config, self.num_spills, self.smem_bytes) == (
            other.config,
            other.num_spills,
            other.smem_bytes,
        ) and abs(self.num_regs - other.num_regs) <= REGISTER_JITTER


@dataclass(frozen=True, slots=True)
class Measurement:
    """The outcome of timing one configuration on one problem.

    Parameters
    ----------
    problem : Problem
        What was computed.
    config : KernelConfig
        How.
    status : Status
        ``OK`` if and only if ``latency_us`` is a positive number.
    latency_us : float or None
        Median over rounds, microseconds.
    spread_us : float or None
        Half-width of the 95 % confidence interval of the median, microseconds.
    rounds : int
        Interleaved rounds behind the median.
    method : str
        Timing method, as named in `wavetune.measure.timing`.
    stratum : str
        Which part of the plan asked for it.
    detail : str
        The reason, where ``status`` is not ``OK``.
    """

    problem: Problem
    config: KernelConfig
    status: Status
    latency_us: float | None = None
    spread_us: float | None = None
    rounds: int = 0
    method: str = ""
    stratum: str = ""
    detail: str = ""
