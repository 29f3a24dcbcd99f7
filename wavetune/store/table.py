"""Many measurements in columns: what readers produce and fits consume."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from wavetune.core.config import KernelConfig, KernelSpec
from wavetune.errors import MeasurementError
from wavetune.store.record import CompiledConfig

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class MeasurementTable:
    """Successful measurements of one kernel family and dtype, by column.

    Parameters
    ----------
    spec : KernelSpec
        The kernel family.
    dtype : str
        Short dtype name.
    layout : str
        Operand layout, ``""`` for a family without layouts.
    configs : tuple of CompiledConfig
        The distinct launch configurations, in the order of their sorted fields.
    dims : ndarray of shape (n_rows, len(spec.dims))
        Problem sizes.
    config_index : ndarray of shape (n_rows,)
        Index into ``configs``.
    latency_us : ndarray of shape (n_rows,)
        Microseconds, positive and finite.
    exhaustive : ndarray of bool of shape (n_rows,)
        True where the row belongs to a sweep of many configurations over one realistic problem;
        False for wave-structured points of one configuration.
    """

    spec: KernelSpec
    dtype: str
    layout: str
    configs: tuple[CompiledConfig, ...]
    dims: IntArray
    config_index: IntArray
    latency_us: FloatArray
    exhaustive: BoolArray

    def __len__(self) -> int:
        return len(self.latency_us)

    def problems(self) -> tuple[IntArray, IntArray]:
        """Return the distinct problems.

        Returns
        -------
        dims : ndarray of shape (n_problems, n_dims)
            Distinct rows of `dims`, sorted.
        problem_index : ndarray of shape (n_rows,)
            ``dims[problem_index]`` are the rows' problems.
        """
        unique, inverse = np.unique(self.dims, axis=0, return_inverse=True)
        return unique, inverse.reshape(-1)

    def select(self, rows: BoolArray | IntArray) -> MeasurementTable:
        """Return the table restricted to ``rows``; keeps all configurations."""
        return replace(
            self,
            dims=self.dims[rows],
            config_index=self.config_index[rows],
            latency_us=self.latency_us[rows],
            exhaustive=self.exhaustive[rows],
        )

    def restrict(self, configs: Collection[KernelConfig]) -> MeasurementTable:
        """Return the table without any other configurations, and without their rows."""
        kept = [index for index, entry in enumerate(self.configs) if entry.config in configs]
        renumber = np.full(len(self.configs), -1, dtype=np.int64)
        renumber[kept] = np.arange(len(kept))
        rows = self.select(renumber[self.config_index] >= 0)
        return replace(
            rows, configs=tuple(self.configs[index] for index in kept), config_index=renumber[rows.config_index]
        )

    def mark_exhaustive(self, exhaustive: bool) -> MeasurementTable:
        """Return the table with every row marked as part of an exhaustive sweep, or none."""
        return replace(self, exhaustive=np.full(len(self), exhaustive))

    def latency_matrix(self) -> tuple[IntArray, FloatArray]:
        """Arrange latencies by problem and configuration.

        Returns
        -------
        problems : ndarray of shape (n_problems, n_dims)
            Distinct problems.
        latency_us : ndarray of shape (n_problems, n_configs)
            NaN where not measured; the median where measured more than once.
        """
        problems, problem_index = self.problems()
        cell = problem_index * len(self.configs) + self.config_index
        order = np.argsort(cell, kind="stable")
        cells, start = np.unique(cell[order], return_index=True)
        matrix = np.full(len(problems) * len(self.configs), np.nan)
        if np.all(np.diff(np.append(start, len(order))) == 1):
            matrix[cells] = self.latency_us[order]
        else:
            groups = np.split(self.latency_us[order], start[1:])
            matrix[cells] = [float(np.median(group)) for group in groups]
        return problems, matrix.reshape(len(problems), len(self.configs))


def concatenate(tables: Sequence[MeasurementTable]) -> MeasurementTable:
    """Join tables of the same kernel family, dtype and layout.

    Raises
    ------
    MeasurementError
        If the tables differ in kernel, dtype or layout, or if one configuration was compiled to
        different registers or shared memory in two of them: those are two kernels.
    """
    first = tables[0]
    for table in tables[1:]:
        for name in ("dtype", "layout"):
            if getattr(table, name) != getattr(first, name):
                raise MeasurementError(
                    f"cannot join tables of {name} {getattr(first, name)} and {getattr(table, name)}"
                )
        if table.spec != first.spec:
            raise MeasurementError(f"cannot join tables of {first.spec.name} and {table.spec.name}")
    compiled: dict[KernelConfig, CompiledConfig] = {}
    for table in tables:
        for entry in table.configs:
            known = compiled.setdefault(entry.config, entry)
            if not known.is_same_kernel(entry):
                raise MeasurementError(f"{entry.config} was compiled to {known} in one file and to {entry} in another")
    configs = sort_configs(compiled.values())
    position = {entry.config: index for index, entry in enumerate(configs)}
    remap = [np.array([position[entry.config] for entry in table.configs], dtype=np.int64) for table in tables]
    return MeasurementTable(
        spec=first.spec,
        dtype=first.dtype,
        layout=first.layout,
        configs=configs,
        dims=np.concatenate([table.dims for table in tables]),
        config_index=np.concatenate([m[t.config_index] for m, t in zip(remap, tables, strict=True)]),
        latency_us=np.concatenate([table.latency_us for table in tables]),
        exhaustive=np.concatenate([table.exhaustive for table in tables]),
    )


def sort_configs(configs: Iterable[CompiledConfig]) -> tuple[CompiledConfig, ...]:
    """Order configurations by their field values: the one order used in tables and files."""
    return tuple(sorted(configs, key=lambda entry: tuple((str(type(v)), v) for v in entry.config.values())))
