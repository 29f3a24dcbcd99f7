"""A runner that answers from recorded measurements: the pipeline without a GPU."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from wavetune.core.arch import ArchSpec
from wavetune.core.config import KernelConfig
from wavetune.core.problem import Problem
from wavetune.measure.runner import PreparedConfigs, Progress, no_progress
from wavetune.store.record import Measurement, Point, Status, make_problem
from wavetune.store.table import MeasurementTable

METHOD = "replay"
STRATUM_EXHAUSTIVE = "recorded-exhaustive"
STRATUM_POINTS = "recorded-points"


class ReplayRunner:
    """Replays a table.

    What was recorded more than once is answered with the median; what was never recorded with the status
    ``NOT_RECORDED``.

    Parameters
    ----------
    table : MeasurementTable
        The recording.
    arch : ArchSpec
        The GPU that it was made on.
    environment : dict of str to str, optional
        Facts of the recording to add to the fingerprint.
    """

    def __init__(self, table: MeasurementTable, arch: ArchSpec, environment: dict[str, str] | None = None) -> None:
        self._table = table
        self._arch = arch
        self._extra = dict(environment or {})
        problems, latency_us = table.latency_matrix()
        self._row = {tuple(dims): row for row, dims in enumerate(problems.tolist())}
        self._column = {entry.config: column for column, entry in enumerate(table.configs)}
        self._latency_us = latency_us

    @property
    def arch(self) -> ArchSpec:
        """The GPU of the recording."""
        return self._arch

    def environment(self) -> dict[str, str]:
        """Return the fingerprint: the recording's digest stands for everything that made it."""
        table = self._table
        digest = hashlib.sha256(repr(table.configs).encode())
        for column in (table.dims, table.config_index, table.latency_us, table.exhaustive):
            digest.update(np.ascontiguousarray(column).tobytes())
        return {
            **self._extra,
            "runner": METHOD,
            "arch": self._arch.name,
            "kernel": table.spec.name,
            "dtype": table.dtype,
            "layout": table.layout,
            "recording_sha256": digest.hexdigest(),
        }

    def prepare(self, configs: Iterable[KernelConfig], progress: Progress = no_progress) -> PreparedConfigs:
        """Look configurations up: recorded ones were compiled then."""
        wanted = list(configs)
        compiled, failures = [], []
        for done, config in enumerate(wanted, start=1):
            if config in self._column:
                compiled.append(self._table.configs[self._column[config]])
            else:
                checked = self._problem(tuple(self._table.dims[0].tolist()))
                failures.append(_not_recorded(Point(checked, config, ""), "the recording has no such configuration"))
            progress(done, len(wanted))
        return PreparedConfigs(tuple(compiled), tuple(failures))

    def measure(self, points: Sequence[Point], progress: Progress = no_progress) -> Iterator[Measurement]:
        """Replay points, in order."""
        for done, point in enumerate(points, start=1):
            yield self._replay(point)
            progress(done, len(points))

    def recorded_points(self, exhaustive: bool | None = None) -> list[Point]:
        """Return what can be replayed, in recorded order, each problem and configuration once.

        Parameters
        ----------
        exhaustive : bool, optional
            Only rows of exhaustive sweeps, or only the others; all by default.
        """
        table = self._table
        if exhaustive is not None:
            table = table.select(table.exhaustive == exhaustive)
        points: dict[tuple[tuple[int, ...], int], Point] = {}
        problems = {dims: self._problem(dims) for dims in set(map(tuple, table.dims.tolist()))}
        rows = zip(table.dims.tolist(), table.config_index.tolist(), table.exhaustive.tolist(), strict=True)
        for dims, column, is_exhaustive in rows:
            stratum = STRATUM_EXHAUSTIVE if is_exhaustive else STRATUM_POINTS
            point = Point(problems[tuple(dims)], table.configs[column].config, stratum)
            points.setdefault((tuple(dims), column), point)
        return list(points.values())

    def _problem(self, dims: tuple[int, ...]) -> Problem:
        return make_problem(self._table.spec.name, dims, self._table.dtype, self._table.layout)

    def _replay(self, point: Point) -> Measurement:
        table, problem = self._table, point.problem
        if problem.kernel != table.spec.name or problem != self._problem(problem.dims):
            return _not_recorded(point, f"the recording is of {table.spec.name} {table.dtype} {table.layout}, aligned")
        row, column = self._row.get(problem.dims), self._column.get(point.config)
        latency_us = np.nan if row is None or column is None else float(self._latency_us[row, column])
        if not np.isfinite(latency_us):
            return _not_recorded(point, "this problem was not recorded with this configuration")
        return Measurement(
            problem, point.config, Status.OK, latency_us=latency_us, rounds=1, method=METHOD, stratum=point.stratum
        )


def _not_recorded(point: Point, detail: str) -> Measurement:
    return Measurement(
        point.problem, point.config, Status.NOT_RECORDED, method=METHOD, stratum=point.stratum, detail=detail
    )
