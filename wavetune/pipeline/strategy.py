"""What a calibration measures, stage by stage: a recording's points, or the two-stage plan of a live run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import numpy as np

from wavetune.core.arch import ArchSpec
from wavetune.core.config import KernelConfig
from wavetune.fit.model import WaveLatencyModel
from wavetune.measure.replay_runner import STRATUM_EXHAUSTIVE, ReplayRunner
from wavetune.plan.budget import Plan
from wavetune.plan.sampling import EXHAUSTIVE_STRATA, PlanOptions, dense_plan, realistic_shapes, sparse_plan
from wavetune.store.record import CompiledConfig, Point
from wavetune.store.table import MeasurementTable


class Strategy(Protocol):
    """Decides what to measure."""

    @property
    def exhaustive_strata(self) -> tuple[str, ...]:
        """Strata whose rows belong to sweeps over realistic problems."""
        ...

    def configs(self) -> Sequence[KernelConfig]:
        """Return the configurations to compile and check."""
        ...

    def stages(
        self, compiled: Sequence[CompiledConfig], measured: Callable[[], MeasurementTable]
    ) -> Iterator[tuple[str, Plan]]:
        """Yield name and plan of each stage; ``measured()`` gives all rows so far."""
        ...


class ReplayStrategy:
    """Everything that a recording holds, in one stage.

    Parameters
    ----------
    runner : ReplayRunner
        The recording.
    table : MeasurementTable
        The same recording.
    """

    exhaustive_strata = (STRATUM_EXHAUSTIVE,)

    def __init__(self, runner: ReplayRunner, table: MeasurementTable) -> None:
        self._runner = runner
        self._table = table

    def configs(self) -> Sequence[KernelConfig]:
        """Return the recorded configurations."""
        return [entry.config for entry in self._table.configs]

    def stages(
        self, compiled: Sequence[CompiledConfig], measured: Callable[[], MeasurementTable]
    ) -> Iterator[tuple[str, Plan]]:
        """Yield the recorded points."""
        yield "replay", Plan(tuple(self._runner.recorded_points()), 0.0, 0)


class TwoStageStrategy:
    """Sparse over the whole space, then dense on the configurations that can still win.

    Parameters
    ----------
    space : sequence of KernelConfig
        Candidate configurations.
    arch : ArchSpec
        The GPU.
    dtype, layout : str
        What is measured.
    options : PlanOptions
        Budget and sizes of the plan.
    workload : sequence of tuple of int
        Realistic problems of the user's, put before the built-in ones.
    """

    exhaustive_strata = EXHAUSTIVE_STRATA

    def __init__(
        self,
        space: Sequence[KernelConfig],
        arch: ArchSpec,
        *,
        dtype: str,
        layout: str,
        options: PlanOptions,
        workload: Sequence[tuple[int, int, int]] = (),
    ) -> None:
        self._space = list(space)
        self._arch = arch
        self._dtype = dtype
        self._layout = layout
        self._options = options
        self._workload = list(dict.fromkeys(workload))

    def configs(self) -> Sequence[KernelConfig]:
        """Return the candidate space."""
        return self._space

    def shapes(self) -> list[tuple[int, int, int]]:
        """Return the realistic problems, the user's first."""
        return list(dict.fromkeys([*self._workload, *realistic_shapes(self._options)]))

    def stages(
        self, compiled: Sequence[CompiledConfig], measured: Callable[[], MeasurementTable]
    ) -> Iterator[tuple[str, Plan]]:
        """Yield the sparse plan, then the dense one, which a model of the sparse stage's rows directs."""
        sparse = sparse_plan(
            compiled, self._arch, dtype=self._dtype, layout=self._layout, options=self._options, shapes=self.shapes()
        )
        yield "sparse", sparse
        yield "dense", self.dense(measured(), sparse.points, sparse.predicted_seconds)

    def dense(self, table: MeasurementTable, done: Sequence[Point], done_seconds: float) -> Plan:
        """Plan the dense stage from the rows of the sparse one."""
        model = WaveLatencyModel(
            kernel=table.spec.name,
            dtype=table.dtype,
            arch=self._arch.name,
            screen=False,
            cell_dims=np.empty((0, len(table.spec.dims)), dtype=np.int64),
        ).fit_table(table)
        shapes = self.shapes()
        predicted = model.predict_undistilled(np.array(shapes, dtype=np.int64))
        return dense_plan(
            model.configs_,
            shapes,
            predicted,
            self._arch,
            done=done,
            done_seconds=done_seconds,
            dtype=self._dtype,
            layout=self._layout,
            options=self._options,
        )
