"""Contests between configurations, with a vendor's library beside them: what tuning asks of a runner.

No GPU, no torch: `wavetune.measure.contest_runner` does it on one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from wavetune.core.arch import ArchSpec
from wavetune.core.config import KernelConfig
from wavetune.measure.runner import Point, PreparedConfigs, Progress, no_progress
from wavetune.measure.timing import GRAPH_METHOD, StoppingRule
from wavetune.store.record import Measurement

TORCH_MM = KernelConfig(library="torch.mm")
"""In the place of a configuration: the product by torch.mm, which is cuBLAS."""


@dataclass(frozen=True, slots=True)
class ContestRule(StoppingRule):
    """A stopping rule with launches before the first reading.

    Parameters
    ----------
    cold_launches : int
        Untimed launches before the first round, shared by the candidates of a problem: they take turns, so one warms
        clocks and caches for the next. Each gets at least one.
    """

    cold_launches: int = 0


PAIR_RULE = ContestRule(relative=0.003, absolute_us=0.05, min_rounds=9, max_rounds=15, max_total_us=60_000.0)
"""For the few that decide: 0.3 % or 0.05 us, 9 to 15 interleaved rounds."""


@runtime_checkable
class ContestRunner(Protocol):
    """A `wavetune.measure.runner.Runner` that is told how to time, and that times `TORCH_MM` like a configuration."""

    @property
    def arch(self) -> ArchSpec:
        """The GPU that is measured."""
        ...

    def environment(self) -> dict[str, str]:
        """Return what must not change within one store."""
        ...

    def prepare(self, configs: Iterable[KernelConfig], progress: Progress = no_progress) -> PreparedConfigs:
        """Compile and check configurations."""
        ...

    def measure(
        self,
        points: Sequence[Point],
        progress: Progress = no_progress,
        *,
        method: str = GRAPH_METHOD,
        rule: StoppingRule = PAIR_RULE,
    ) -> Iterator[Measurement]:
        """Measure points, one measurement each; candidates of one problem against each other, round by round."""
        ...

    def renew_buffers(self) -> None:
        """Take other memory and other data from now on."""
        ...
