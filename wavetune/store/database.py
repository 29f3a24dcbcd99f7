"""The measurement store: what was measured so far, on which machine, so that a run can be resumed.

One row per point (problem, configuration, stratum). A batch is one transaction: a run that is killed loses at most the
batch in flight, and the same command goes on with the points that `MeasurementStore.done_points` does not have.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from wavetune.core.config import KernelConfig, KernelSpec
from wavetune.core.problem import Problem
from wavetune.errors import MeasurementError, StoreError
from wavetune.mapping.kernel_mapping import short_dtype
from wavetune.store.connection import StoreConnection
from wavetune.store.csv_io import write_measurements
from wavetune.store.record import PASSING, CompiledConfig, Measurement, Point, Status, make_problem
from wavetune.store.row_codec import (
    SELECT,
    UPSERT,
    config_row,
    decode_rows,
    measurement_row,
    parse_config,
    problem_row,
    row_id,
)
from wavetune.store.table import MeasurementTable, sort_configs

IMPORT_METHOD = "imported"
"""Timing method of rows from a CSV file, which does not say."""


class MeasurementStore:
    """Measurements of one machine, in a SQLite file.

    Parameters
    ----------
    path : path
        The file; created if missing.
    environment : mapping of str to str, optional
        Fingerprint of the machine and the kernels. The first one is kept with the file; None opens for reading
        whatever is there.
    busy_timeout_s : float, default=10.0
        How long to wait for another process that writes.

    Raises
    ------
    StoreError
        If the file cannot be used, or was measured in another environment; names the first field that differs.
    """

    def __init__(
        self, path: str | Path, environment: Mapping[str, str] | None = None, *, busy_timeout_s: float = 10.0
    ) -> None:
        self._connection = StoreConnection(path, busy_timeout_s)
        self.path = self._connection.path
        self._problem_ids: dict[Problem, int] = {}
        self._config_ids: dict[KernelConfig, int] = {}
        try:
            if environment is not None:
                self._claim(dict(environment))
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def environment(self) -> dict[str, str]:
        """Return the fingerprint, empty if none was given yet."""
        return {str(field): str(value) for field, value in self._connection.query("SELECT * FROM environment")}

    def record_compiled(self, batch: Iterable[CompiledConfig]) -> None:
        """Keep what compiled kernels need, all or nothing.

        Raises
        ------
        StoreError
            If a configuration is known with other numbers: its rows would describe two kernels.
        """
        with self._connection.transaction() as sqlite:
            for entry in batch:
                row = config_row(entry.config)
                numbers: tuple[int, int, int] = (entry.num_regs, entry.num_spills, entry.smem_bytes)
                known = sqlite.execute(
                    "SELECT num_regs, num_spills, smem_bytes FROM configs WHERE key = ?", (row["key"],)
                ).fetchone()
                if known is not None and known[0] is not None:
                    if not entry.is_same_kernel(CompiledConfig(entry.config, *known)):
                        raise StoreError(
                            f"{self.path}: {entry.config} was compiled to (num_regs, num_spills, smem_bytes) = "
                            f"{known}, now to {numbers}; start a new store for the changed kernel"
                        )
                    numbers = known
                sqlite.execute(
                    "UPDATE configs SET num_regs = ?, num_spills = ?, smem_bytes = ? WHERE id = ?",
                    (*numbers, row_id(sqlite, "configs", "key", row)),
                )

    def record(self, batch: Iterable[Measurement]) -> None:
        """Keep measurements, all or nothing. A point that is recorded again keeps its place, with the later success.

        Raises
        ------
        StoreError
            If the file cannot be written. The batches before stay.
        MeasurementError
            If a status contradicts the latency.
        """
        new_problems: dict[Problem, int] = {}
        new_configs: dict[KernelConfig, int] = {}
        with self._connection.transaction() as sqlite:
            for entry in batch:
                has_latency = entry.latency_us is not None and 0.0 < entry.latency_us < float("inf")
                if has_latency != (entry.status is Status.OK):
                    raise MeasurementError(f"status {entry.status} with latency {entry.latency_us} us: {entry}")
                problem = self._problem_ids.get(entry.problem) or new_problems.get(entry.problem)
                if problem is None:
                    problem = new_problems[entry.problem] = row_id(
                        sqlite, "problems", "key", problem_row(entry.problem)
                    )
                config = self._config_ids.get(entry.config) or new_configs.get(entry.config)
                if config is None:
                    config = new_configs[entry.config] = row_id(sqlite, "configs", "key", config_row(entry.config))
                sqlite.execute(UPSERT, (problem, config, *measurement_row(entry)))
        # Only now: the ids of a batch that was rolled back do not exist.
        self._problem_ids |= new_problems
        self._config_ids |= new_configs

    def compiled_configs(self) -> tuple[CompiledConfig, ...]:
        """Return the configurations that were compiled, in table order."""
        rows: list[Any] = self._connection.query(
            "SELECT fields, num_regs, num_spills, smem_bytes FROM configs WHERE num_regs IS NOT NULL"
        )
        return sort_configs(CompiledConfig(parse_config(fields), *numbers) for fields, *numbers in rows)

    def measurements(self, *, failed: bool | None = None) -> list[Measurement]:
        """Return the records in the order they were first made; only failures, or only successes, if asked."""
        where = {None: "", True: "WHERE m.status != 'ok'", False: "WHERE m.status = 'ok'"}[failed]
        return decode_rows(self._connection.query(f"{SELECT} {where} ORDER BY m.id"))

    def done_points(self) -> frozenset[Point]:
        """Return the points that need no measuring any more: successes, and failures that would only fail again."""
        return frozenset(
            Point(entry.problem, entry.config, entry.stratum)
            for entry in self.measurements()
            if entry.status not in PASSING
        )

    def to_table(
        self, spec: KernelSpec, *, dtype: str, layout: str = "nk", exhaustive_strata: Collection[str] = ()
    ) -> MeasurementTable:
        """Return the successes of one family, dtype and layout, in recorded order.

        Parameters
        ----------
        exhaustive_strata : collection of str
            Strata whose rows belong to sweeps over realistic problems.

        Raises
        ------
        StoreError
            If there is none, or a measured configuration was never given to `record_compiled`.
        """
        return self._columns(spec, dtype, layout, exhaustive_strata)[0]

    def export_csv(
        self,
        path: str | Path,
        spec: KernelSpec,
        *,
        dtype: str,
        layout: str = "nk",
        strata: Collection[str] | None = None,
    ) -> int:
        """Write successes as a measurement file; ``set``, ``method``, ``spread_us`` and ``rounds`` are extra columns.

        Returns
        -------
        int
            Rows written.

        Raises
        ------
        StoreError, MeasurementError
            If there is nothing to write, or the file cannot be written.
        """
        table, entries = self._columns(spec, dtype, layout, ())
        if strata is not None:
            rows = np.flatnonzero([entry.stratum in strata for entry in entries])
            table, entries = table.select(rows), [entries[row] for row in rows]
        extra: dict[str, Sequence[object]] = {
            "set": [entry.stratum for entry in entries],
            "method": [entry.method for entry in entries],
            "spread_us": [entry.spread_us for entry in entries],
            "rounds": [entry.rounds for entry in entries],
        }
        write_measurements(path, table, extra=extra)
        return len(table)

    def import_table(self, table: MeasurementTable, stratum: str) -> None:
        """Record the rows of a table, as read by `wavetune.store.csv_io.read_measurements`, in one transaction."""
        self.record_compiled(table.configs)
        problems, index = table.problems()
        known = [make_problem(table.spec.name, tuple(dims), table.dtype, table.layout) for dims in problems.tolist()]
        rows = zip(index.tolist(), table.config_index.tolist(), table.latency_us.tolist(), strict=True)
        self.record(
            Measurement(
                known[problem],
                table.configs[config].config,
                Status.OK,
                latency_us,
                method=IMPORT_METHOD,
                stratum=stratum,
            )
            for problem, config, latency_us in rows
        )

    def _columns(
        self, spec: KernelSpec, dtype: str, layout: str, exhaustive_strata: Collection[str]
    ) -> tuple[MeasurementTable, list[Measurement]]:
        family = (spec.name, short_dtype(dtype), layout)
        entries = [entry for entry in self.measurements(failed=False) if _family_of(entry.problem) == family]
        if not entries:
            raise StoreError(f"{self.path}: no measurements of {spec.name} {dtype} {layout}; run the calibration first")
        used = {entry.config for entry in entries}
        configs = tuple(entry for entry in self.compiled_configs() if entry.config in used)
        position = {entry.config: index for index, entry in enumerate(configs)}
        unknown = used - set(position)
        if unknown:
            raise StoreError(
                f"{self.path}: measured but not compiled: {min(map(str, unknown))}; record_compiled it first"
            )
        table = MeasurementTable(
            spec=spec,
            dtype=family[1],
            layout=layout,
            configs=configs,
            dims=np.array([entry.problem.dims for entry in entries], dtype=np.int64),
            config_index=np.array([position[entry.config] for entry in entries], dtype=np.int64),
            latency_us=np.array([entry.latency_us for entry in entries], dtype=np.float64),
            exhaustive=np.array([entry.stratum in exhaustive_strata for entry in entries], dtype=np.bool_),
        )
        return table, entries

    def _claim(self, environment: dict[str, str]) -> None:
        with self._connection.transaction() as sqlite:
            stored = dict(sqlite.execute("SELECT field, value FROM environment").fetchall())
            if not stored:
                sqlite.executemany("INSERT INTO environment VALUES (?, ?)", sorted(environment.items()))
                return
        for field in sorted(stored.keys() | environment.keys()):
            if stored.get(field) != environment.get(field):
                raise StoreError(
                    f"{self.path}: measured with {field} = {stored.get(field)!r}, but now it is "
                    f"{environment.get(field)!r}; start a new store, or restore the old {field}"
                )


def _family_of(problem: Problem) -> tuple[str, str, str]:
    return problem.kernel, problem.dtype, getattr(problem, "layout", "")
