"""A workload as the list of problems that one model can answer."""

from __future__ import annotations

from pathlib import Path

from wavetune.cli.output import note
from wavetune.core.problem import GemmProblem
from wavetune.core.workload import Workload
from wavetune.errors import WorkloadError


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
    wanted = f"GEMM of dtype {dtype} and layout {layout}"
    if not problems:
        others = sorted({f"{e.key.operation} {e.key.dtype} {e.key.layout}" for e in workload.entries})
        raise WorkloadError(f"{path}: no {wanted}; the file holds {', '.join(others)}")
    if len(problems) < len(workload.entries):
        note(
            f"{path}: {len(problems)} shapes of {len(workload.entries)} entries are a {wanted}; the others are left out"
        )
    return problems
