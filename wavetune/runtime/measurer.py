"""What the runtime asks of anything that can measure a problem while a program runs.

The runtime never imports the measuring code: the launch layer registers a `Measurer` for each kernel family, and a miss
under ``on_miss="measure"`` finds it here. `wavetune.runtime.background.submit` lets any of them measure in a thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from wavetune.core.config import KernelConfig
from wavetune.core.problem import Problem

if TYPE_CHECKING:
    from wavetune.runtime.device import Device


@dataclass(frozen=True, slots=True)
class MeasureRequest:
    """A miss that may be measured.

    Parameters
    ----------
    problem : Problem
        What is to be computed; not empty.
    configs : tuple of KernelConfig
        Legal candidates, best predicted first, at most ``measure_top_k`` of them; may be empty or hold ``default``.
    default : KernelConfig
        What is launched if nothing beats it; always measured too, so that a choice is never slower than it.
    device : Device
        Where the answer will be launched.
    budget_ms : float
        Time the measurement may take besides compiling, milliseconds.
    margin : float
        A candidate replaces the default only if it is faster by more than this share.
    """

    problem: Problem
    configs: tuple[KernelConfig, ...]
    default: KernelConfig
    device: Device
    budget_ms: float
    margin: float


@dataclass(frozen=True, slots=True)
class MeasuredChoice:
    """The outcome of a measurement.

    Parameters
    ----------
    config : KernelConfig
        The winner; the default unless another one beats it by the margin.
    latency_us, default_us : float
        Measured latency of the winner and of the default, microseconds. Positive and finite.
    kernel_source : str, default=""
        Digest of the source of the kernel that was timed, where it is known.
    """

    config: KernelConfig
    latency_us: float
    default_us: float
    kernel_source: str = ""


@runtime_checkable
class Measurer(Protocol):
    """Times the candidates of a miss. Any thread may call it."""

    def is_capturing(self) -> bool:
        """Whether the current stream of this thread is being captured into a graph: nothing may be measured then."""
        ...

    def measure(self, request: MeasureRequest) -> MeasuredChoice | None:
        """Measure, or give up cleanly.

        Returns
        -------
        MeasuredChoice or None
            None, with the reason in the log, if the GPU is busy or out of memory, a graph is being captured, or no
            candidate can be launched. Never raises for a fault of a candidate.
        """
        ...


# Replaced as single dictionary operations, which threads see whole.
_measurers: dict[str, Measurer] = {}


def register_measurer(kernel: str, measurer: Measurer) -> None:
    """Make ``measurer`` the one for a kernel family; a later one takes the place of an earlier one."""
    _measurers[kernel] = measurer


def find_measurer(kernel: str) -> Measurer | None:
    """Return the measurer of a kernel family, or None if none is registered."""
    return _measurers.get(kernel)
