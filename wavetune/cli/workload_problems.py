"""A workload as the list of problems that one model can answer."""

from __future__ import annotations

import csv
from pathlib import Path

from wavetune.cli.output import note
from wavetune.core.config import find_kernel_spec
from wavetune.core.family_workload import FAMILY_DEFAULTS, problem_of_key, problem_of_sizes
from wavetune.core.problem import GemmProblem, Problem
from wavetune.core.workload import Workload
from wavetune.errors import ProblemError, WavetuneError, WorkloadError


def read_problems(path: Path, *, dtype: str, layout: str) -> list[GemmProblem]:
    """Read the GEMMs of one dtype and layout; problems that do not say have these.

    Returns
    -------
    list of GemmProblem
        Distinct, in file order, never empty. What is left out is counted on stderr.

    Raises
    ------
    WorkloadError
        If the file is no workload, or nothing of it is left.
    """
    workload = Workload.read(path, dtype=dtype, layout=layout)
    problems = [
        problem for problem, _ in workload.gemm_problems() if (problem.dtype, problem.layout) == (dtype, layout)
    ]
    _account(path, workload, len(problems), f"GEMM of dtype {dtype} and layout {layout}")
    return problems


def read_family_problems(path: Path, kernel: str, *, dtype: str, layout: str) -> list[Problem]:
    """Read the problems of a family, dtype and layout.

    Parameters
    ----------
    path : Path
        A workload, or CSV whose first line names sizes of the family's key; see
        `wavetune.core.family_workload.FAMILY_DEFAULTS` for those that may be left out.
    kernel, dtype, layout : str
        What is wanted.

    Returns
    -------
    list of Problem
        Distinct, in file order, never empty. What is left out is counted on stderr.

    Raises
    ------
    WorkloadError
        If the file is neither, or nothing of it is left.
    """
    dims = find_kernel_spec(kernel).dims
    if kernel in FAMILY_DEFAULTS and (rows := _rows_of_sizes(path, dims)) is not None:
        return _problems_of_rows(path, rows, kernel, dtype, layout)
    try:
        workload = Workload.read(path, dtype=dtype)
    except WorkloadError as error:
        # What is wrong with the workload may be that it was not meant as one.
        raise WorkloadError(f"{error}; or, for {kernel}, the columns {','.join(row_names(kernel))}") from None
    problems: dict[Problem, None] = {}
    for number, entry in enumerate(workload.entries, start=1):
        try:
            problem = problem_of_key(entry.key)
        except ProblemError as error:
            raise WorkloadError(f"{path}: problem {number}: {error}") from None
        if problem is not None and (problem.kernel, problem.dtype, problem.layout) == (kernel, dtype, layout):
            problems[problem] = None
    _account(path, workload, len(problems), f"{kernel} of dtype {dtype} and layout {layout}")
    return list(problems)


def _account(path: Path, workload: Workload, n_problems: int, wanted: str) -> None:
    if not n_problems:
        others = sorted({f"{e.key.operation} {e.key.dtype} {e.key.layout}" for e in workload.entries})
        raise WorkloadError(f"{path}: no {wanted}; the file holds {', '.join(others)}")
    if n_problems < len(workload.entries):
        note(f"{path}: {n_problems} shapes of {len(workload.entries)} entries are a {wanted}; the others are left out")


def _rows_of_sizes(path: Path, dims: tuple[str, ...]) -> list[tuple[int, dict[str, str]]] | None:
    """Return the rows of a CSV file by line, or None if its first line names other columns than sizes of a key."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file, skipinitialspace=True)
            header = [name.strip() for name in next(reader, [])]
            if not header or not set(header) <= set(dims):
                return None
            return [(reader.line_num, dict(zip(header, cells, strict=False))) for cells in reader if any(cells)]
    except (OSError, UnicodeDecodeError, csv.Error):
        # A missing file, or one that is packed: the reader of workloads says so.
        return None


def _problems_of_rows(
    path: Path, rows: list[tuple[int, dict[str, str]]], kernel: str, dtype: str, layout: str
) -> list[Problem]:
    problems: dict[Problem, None] = {}
    for line, row in rows:
        try:
            sizes = {name: int(text) for name, text in row.items() if text.strip()}
            problems[problem_of_sizes(kernel, sizes, dtype=dtype, layout=layout)] = None
        except ValueError as error:
            reason = error if isinstance(error, WavetuneError) else f"sizes must be integers, got {list(row.values())}"
            raise WorkloadError(f"{path}:{line}: {reason}") from None
    if not problems:
        raise WorkloadError(f"{path}: no shapes; add lines of {','.join(row_names(kernel))}")
    return list(problems)


def row_names(kernel: str) -> tuple[str, ...]:
    """Return the sizes of a family's key that a file must name."""
    return tuple(name for name in find_kernel_spec(kernel).dims if name not in FAMILY_DEFAULTS[kernel])
