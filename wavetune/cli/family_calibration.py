"""``wavetune calibrate --kernel grouped_gemm`` and the other families that choose by their own problems."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from wavetune.cli.family_run import family_rows, run_family
from wavetune.cli.live import CalibrationKey, candidate_configs, live_runner, output_folder
from wavetune.cli.model_view import note_use
from wavetune.cli.output import emit_json, note, show, two_columns
from wavetune.cli.workload_problems import read_family_problems
from wavetune.runtime.family_file import family_file_name

if TYPE_CHECKING:
    from wavetune.pipeline.family_job import FamilyJob

NO_GPU = (
    "calibrating needs the GPU itself; --dry-run shows the plan, and `wavetune fit --kernel` fits what was measured "
    "elsewhere"
)


def calibrate_one_family(
    key: CalibrationKey,
    *,
    out: Path | None,
    store: Path | None,
    gpu: int,
    budget_s: float,
    workload: Path | None,
    evidence: Path | None,
    dry_run: bool,
    n_configs: int | None,
    holdout: bool,
    as_json: bool,
) -> None:
    """Measure one family, element type and layout, and write its model."""
    from wavetune.pipeline.family_job import N_SURVIVORS
    from wavetune.pipeline.family_jobs import find_job

    problems = read_family_problems(workload, key.kernel, dtype=key.dtype, layout=key.layout) if workload else []
    job = find_job(
        key.kernel, key.arch, dtype=key.dtype, layout=key.layout, configs=candidate_configs(key), problems=problems,
        budget_s=budget_s, n_survivors=n_configs or N_SURVIVORS,
    )  # fmt: skip
    if dry_run:
        _print_plan(key, job, budget_s, as_json)
        return
    path = out or output_folder() / key.arch.name / family_file_name(key.kernel, key.dtype, key.layout)
    runner = live_runner(key, gpu, instead=NO_GPU)
    summary = run_family(runner, job, path, store=store, budget_s=budget_s, holdout=holdout, evidence=evidence)
    if as_json:
        emit_json(summary)
        return
    show(two_columns(family_rows(summary)))
    note(f"measurements are in {summary['store']}")
    note_use(path, key.kernel, Path(key.arch.name, family_file_name(key.kernel, key.dtype, key.layout)))


def _print_plan(key: CalibrationKey, job: FamilyJob, budget_s: float, as_json: bool) -> None:
    from wavetune.pipeline.dry_run import dry_run_family

    plan = dry_run_family(job, key.arch)
    document = {
        "kernel": key.kernel,
        "dtype": key.dtype,
        "layout": key.layout,
        "arch": key.arch.name,
        "configs": plan.n_configs,
        "problems": plan.problems,
        "points": plan.points,
        "seconds": round(plan.seconds, 1),
        "max_seconds": budget_s,
    }
    if as_json:
        emit_json(document)
        return
    strata = ", ".join(f"{count:,} {stratum}" for stratum, count in plan.points.items())
    show(
        two_columns(
            (
                ("calibrates", f"{key.kernel} {key.dtype} {key.layout} on {key.arch.name}"),
                ("configs", f"{plan.n_configs:,} to compile and check"),
                ("points", f"{strata}, of {plan.problems:,} problems"),
                ("time", f"{_seconds(plan.seconds, budget_s)}, beside compiling and fitting"),
            )
        )
    )


def _seconds(planned: float, budget: float) -> str:
    if planned <= budget:
        return f"about {planned:.0f} s of measuring, at most {budget:.0f} s"
    return f"about {planned:.0f} s of measuring, of which --budget allows {budget:.0f} s and leaves the rest out"
