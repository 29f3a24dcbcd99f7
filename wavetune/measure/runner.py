"""What the pipeline asks of anything that can measure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from wavetune.core.arch import ArchSpec
from wavetune.core.config import KernelConfig
from wavetune.store.record import CompiledConfig, Measurement, Point

__all__ = ["Point", "PreparedConfigs", "Progress", "Runner", "no_progress"]


class Progress(Protocol):
    """Called as work proceeds, from the thread that asked for it."""

    def __call__(self, done: int, total: int) -> None:
        """Report that ``done`` of ``total`` items are finished."""
        ...


def no_progress(done: int, total: int) -> None:
    """Report nothing."""


@dataclass(frozen=True, slots=True)
class PreparedConfigs:
    """The outcome of compiling and checking configurations: each is in exactly one of the two.

    Parameters
    ----------
    compiled : tuple of CompiledConfig
        Legal, right and ready to be timed, in the order asked for.
    failures : tuple of Measurement
        One for each other configuration; its status is not ``OK`` and its problem is the one used for checking.
    """

    compiled: tuple[CompiledConfig, ...]
    failures: tuple[Measurement, ...]


@runtime_checkable
class Runner(Protocol):
    """Turns points into measurements. A failure is a measurement with a status, never an exception."""

    @property
    def arch(self) -> ArchSpec:
        """The GPU that is measured."""
        ...

    def environment(self) -> dict[str, str]:
        """Return what must not change within one store: device, driver, compiler, kernel source."""
        ...

    def prepare(self, configs: Iterable[KernelConfig], progress: Progress = no_progress) -> PreparedConfigs:
        """Compile and check configurations."""
        ...

    def measure(self, points: Sequence[Point], progress: Progress = no_progress) -> Iterator[Measurement]:
        """Measure points, one measurement each, as they are finished; the order is the runner's."""
        ...
