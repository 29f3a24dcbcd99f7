"""What a calibration will do and what it did, as text and as JSON."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from wavetune.cli.calibration_job import CalibrationJob
from wavetune.cli.model_view import note_use
from wavetune.cli.output import emit_json, note, show, two_columns
from wavetune.cli.summary import print_summary, summarise_fit
from wavetune.pipeline.calibrate import CalibrationResult
from wavetune.pipeline.dry_run import dry_run
from wavetune.runtime.locate import model_file_name

N_FAILURES = 5
"""Kinds of failure that are named in the text; JSON counts all of them."""


def print_replay_plan(job: CalibrationJob, as_json: bool) -> None:
    """Print what a replay would replay."""
    plan = dict(job.strategy.stages((), lambda: None))["replay"]  # type: ignore[arg-type, return-value]
    document = {"configs": len(job.strategy.configs()), "points": len(plan), "seconds": 0.0}
    if as_json:
        emit_json(document)
    else:
        note("a replay measures nothing; it fits what was recorded")
        show(
            two_columns(
                (("configs", f"{document['configs']:,} recorded"), ("points", f"{document['points']:,} recorded"))
            )
        )


def print_live_plan(job: CalibrationJob, as_json: bool) -> None:
    """Print what a live calibration would measure, and how long that would take."""
    assert job.options is not None
    key = job.key
    plan = dry_run(job.strategy.configs(), key.arch, dtype=key.dtype, layout=key.layout, options=job.options)
    document = {
        "configs": plan.n_configs,
        "sparse": {"points": plan.sparse_points, "seconds": round(plan.sparse_seconds, 1)},
        "max_points": plan.max_points,
        "max_seconds": plan.max_seconds,
    }
    if as_json:
        emit_json(document)
        return
    rows = (
        ("calibrates", f"{key.kernel} {key.dtype} {key.layout} on {key.arch.name}"),
        ("configs", f"{plan.n_configs:,} to compile and check"),
        ("sparse", f"{plan.sparse_points:,} points, about {plan.sparse_seconds:.0f} s: every configuration"),
        ("dense", "layers of public models and of the workload, with the configurations that can still win there"),
        ("finalists", "other shapes, with what the model would choose there"),
        ("in all", f"at most {plan.max_points:,} points and {plan.max_seconds:.0f} s, beside compiling and fitting"),
    )
    show(two_columns(rows))


def print_result(
    result: CalibrationResult, job: CalibrationJob, path: Path, store: Path | None, seconds: float, as_json: bool
) -> None:
    """Print what was measured and fitted, and where it is."""
    failures = Counter(entry.status.value for entry in result.failures)
    document: dict[str, Any] = {
        **summarise_fit(result.fitted, job.recording, path, seconds, store),
        "points": result.points,
        "resumed_points": result.resumed,
        "stage_seconds": {name: round(value, 2) for name, value in result.seconds.items()},
        "failures": dict(failures.most_common()),
        "store": str(store) if store is not None else None,
    }
    if as_json:
        emit_json(document)
        return
    rows = [("points", ", ".join(f"{count:,} {stage}" for stage, count in result.points.items()))]
    if result.resumed:
        rows.append(("resumed", f"{result.resumed:,} of them were in the store already"))
    rows.append(("time", ", ".join(f"{name} {value:.1f} s" for name, value in result.seconds.items())))
    examples = {entry.status.value: entry.detail for entry in reversed(result.failures)}
    for status, count in failures.most_common(N_FAILURES):
        rows.append(("failed", f"{count:,} {status}: {examples[status]}"))
    show(two_columns(rows))
    print_summary(document)
    if store is not None:
        note(f"measurements are in {store}")
    key = job.key
    note_use(path, key.kernel, Path(key.arch.name, model_file_name(key.kernel, key.dtype, key.layout)))
