"""What a calibration measures, stage by stage: a recording's points, or the three stages of a live run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import numpy as np

from wavetune.core.arch import ArchSpec
from wavetune.core.config import KernelConfig
from wavetune.fit.model import WaveLatencyModel
from wavetune.fit.selection import broad_sample
from wavetune.measure.replay_runner import STRATUM_EXHAUSTIVE, ReplayRunner
from wavetune.plan.budget import Plan
from wavetune.plan.sampling import (
    EXHAUSTIVE_STRATA,
    PlanOptions,
    dense_plan,
    finalist_plan,
    further_shapes,
    realistic_shapes,
    sparse_plan,
)
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


class LiveStrategy:
    """Sparse over the whole space, dense on the configurations that can still win, then the finalists of new shapes.

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
        """Yield the sparse plan, then the dense and the finalists', directed by models of the rows so far."""
        sparse = sparse_plan(
            compiled, self._arch, dtype=self._dtype, layout=self._layout, options=self._options, shapes=self.shapes()
        )
        yield "sparse", sparse
        dense = self.dense(measured(), sparse.points, sparse.predicted_seconds)
        yield "dense", dense
        done_seconds = sparse.predicted_seconds + dense.predicted_seconds
        yield "finalists", self.finalists(measured(), [*sparse.points, *dense.points], done_seconds)

    def dense(self, table: MeasurementTable, done: Sequence[Point], done_seconds: float) -> Plan:
        """Plan the dense stage from the rows of the sparse one."""
        return self._directed(dense_plan, table, self.shapes(), done, done_seconds)

    def finalists(self, table: MeasurementTable, done: Sequence[Point], done_seconds: float) -> Plan:
        """Plan the finalists from the rows of both other stages."""
        return self._directed(finalist_plan, table, self.finalist_shapes(), done, done_seconds)

    def finalist_shapes(self) -> list[tuple[int, int, int]]:
        """Return problems that the other stages leave out: realistic layers, and as many drawn at random."""
        n_layers = self._options.finalist_shapes // 2
        layers = further_shapes(n_layers, self._options)
        sizes = np.array(self.shapes())
        ranges = list(zip(sizes.min(axis=0).tolist(), sizes.max(axis=0).tolist(), strict=True))
        drawn = broad_sample(ranges, self._options.finalist_shapes - n_layers, random_state=0)
        return list(dict.fromkeys([*layers, *map(tuple, drawn.tolist())]))

    def _directed(
        self,
        plan: Callable[..., Plan],
        table: MeasurementTable,
        shapes: list[tuple[int, int, int]],
        done: Sequence[Point],
        done_seconds: float,
    ) -> Plan:
        """Let a model of the rows so far direct a plan."""
        model = WaveLatencyModel(
            kernel=table.spec.name,
            dtype=table.dtype,
            arch=self._arch.name,
            screen=False,
            cell_dims=np.empty((0, len(table.spec.dims)), dtype=np.int64),
        ).fit_table(table)
        return plan(
            model.configs_,
            shapes,
            model.predict_undistilled(np.array(shapes, dtype=np.int64)),
            self._arch,
            done=done,
            done_seconds=done_seconds,
            dtype=self._dtype,
            layout=self._layout,
            options=self._options,
        )
