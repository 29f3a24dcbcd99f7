"""One measurement, or the reason why there is none."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from wavetune.core.config import KernelConfig
from wavetune.core.problem import Problem


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
