"""Rows that nobody can have measured: no problem has their sizes, or their configuration cannot compute it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from wavetune.core.arch import ArchSpec
from wavetune.core.config import GEMM, KERNEL_SPECS, KernelSpec
from wavetune.core.problem import CONTIGUOUS, Problem
from wavetune.core.shorthand import format_sizes, name_sizes
from wavetune.errors import ProblemError
from wavetune.mapping.family_legality import illegal_reason
from wavetune.store.csv_rows import FileRows, Rejection
from wavetune.store.record import make_problem


def keep_legal(
    rows: FileRows, spec: KernelSpec, dtype: str, layout: str, arch: ArchSpec, reject: Rejection
) -> FileRows:
    """Refuse or leave out rows that cannot be: sizes in the wrong columns, for instance.

    Parameters
    ----------
    rows : FileRows
        Cells are possible each by itself.
    spec : KernelSpec
        The kernel family; of a kernel of the user's nothing is known, and every row is kept.
    dtype, layout : str
        Of the operands.
    arch : ArchSpec
        GPU that was measured.
    reject : Rejection
        What to do with bad rows.

    Raises
    ------
    MeasurementError
        At the first bad row, unless those are skipped.
    """
    if spec != KERNEL_SPECS.get(spec.name):
        return rows
    keys, key_index = np.unique(rows.dims, axis=0, return_inverse=True)
    pairs, pair_index = np.unique(
        np.column_stack([key_index.reshape(-1), rows.config_index]), axis=0, return_inverse=True
    )
    objections = list(_objections(rows, keys.tolist(), pairs.tolist(), spec, dtype, layout, arch))
    good = np.ones(len(rows.lines), dtype=np.bool_)
    for row, pair in enumerate(pair_index.reshape(-1).tolist()):
        objection = objections[pair]
        if objection is not None:
            good[row] = False
            sizes = rows.dims[row].tolist()
            named = format_sizes(sizes) if spec == GEMM else name_sizes(spec.dims, sizes)
            reject.bad_row(
                int(rows.lines[row]),
                objection.brief if reject.skips else f"{objection.brief}: {named} ({objection.why})",
                "check the columns of the sizes, or remove the row",
            )
    return rows.select(good)


class _Objection(NamedTuple):
    """What is wrong with a row, and why."""

    brief: str
    why: str


def _objections(
    rows: FileRows, keys: list[list[int]], pairs: list[list[int]], spec: KernelSpec, dtype: str, layout: str,
    arch: ArchSpec,
) -> Iterator[_Objection | None]:  # fmt: skip
    """Judge each pair of a key and a configuration; pairs are sorted by key."""
    last, problem, unreal = -1, None, ""
    for key, config in pairs:
        if key != last:
            # One problem at a time: each may hold a million lengths.
            last, (problem, unreal) = key, _find_problem(spec, tuple(keys[key]), dtype, layout)
        if problem is None:
            yield _Objection("there is no problem of these sizes", unreal)
        else:
            reason = illegal_reason(problem, rows.configs[config].config, arch)
            yield None if reason is None else _Objection("the configuration cannot compute the problem", reason)


def _find_problem(
    spec: KernelSpec, dims: tuple[int, ...], dtype: str, layout: str
) -> tuple[Problem | None, str]:  # fmt: skip
    """Return the problem of a key, or None and why there is none."""
    try:
        problem = make_problem(spec.name, dims, dtype, layout, CONTIGUOUS)
    except ProblemError as error:
        return None, str(error)
    if problem.dims != dims:
        return None, f"the nearest is {name_sizes(spec.dims, problem.dims)}"
    return problem, ""
