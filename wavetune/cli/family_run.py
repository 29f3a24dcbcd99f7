"""One calibration on a GPU, from its job to its files: of a kernel family, or of a kernel of the user's."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wavetune.cli.live import conditions_of, make_folder, note_conditions, stop_interrupted
from wavetune.cli.output import describe_config, note
from wavetune.cli.progress import watch
from wavetune.cli.summary import describe_accuracy, describe_file, describe_too_fast, file_lines, too_fast_lines
from wavetune.runtime.family_file import write_family

if TYPE_CHECKING:
    from wavetune.measure.runner import Runner
    from wavetune.pipeline.family_fit import FittedFamily
    from wavetune.pipeline.family_job import FamilyJob
    from wavetune.pipeline.recording import Recording

N_FAILURES = 5
"""Failures that are named; the store has all of them."""


def run_family(
    runner: Runner,
    job: FamilyJob,
    path: Path,
    *,
    store: Path | None,
    budget_s: float,
    holdout: bool = True,
    evidence: Path | None = None,
) -> dict[str, Any]:
    """Calibrate, write the model and the evidence, and return a summary as plain data.

    Parameters
    ----------
    runner : Runner
        Measures.
    job : FamilyJob
        What.
    path : Path
        Of the model.
    store : Path, optional
        Measurement store; beside the model if not given.
    budget_s : float
        Seconds of measuring.
    holdout : bool, default=True
        Whether to judge choices on held-out keys.
    evidence : Path, optional
        Folder for what the model can be fitted from again.
    """
    from wavetune.pipeline.evidence import write_evidence
    from wavetune.pipeline.family_calibration import calibrate_family
    from wavetune.store.database import MeasurementStore

    start = time.perf_counter()
    database = store or path.with_suffix(".sqlite")
    make_folder(database.parent)
    try:
        with MeasurementStore(database, runner.environment()) as opened, watch() as observer:
            result = calibrate_family(runner, job, opened, budget_s=budget_s, holdout=holdout, observer=observer)
    except KeyboardInterrupt:
        stop_interrupted(f"everything measured so far is in {database}")
    write_family(result.file, path)
    note_conditions(runner)
    if evidence is not None:
        for written in write_evidence(evidence, result, runner.environment(), conditions_of(runner)):
            note(f"wrote {written}")
    for failure in result.failures[:N_FAILURES]:
        note(f"not used: {failure.config}: {failure.status.value}: {failure.detail}")
    return {
        **summarise_family(result.fitted, None, path, time.perf_counter() - start, database),
        "points": result.points,
        "resumed_points": result.resumed,
        "skipped_points": result.skipped,
        "failures": dict(Counter(entry.status.value for entry in result.failures).most_common()),
        "store": str(database),
        "stage_seconds": {name: round(value, 2) for name, value in result.seconds.items()},
    }


def summarise_family(
    fitted: FittedFamily, recording: Recording | None, path: Path, seconds: float, store: Path | None = None
) -> dict[str, Any]:
    """Return what a fit gave, as plain data; what was measured just now is in ``store``, and no recording."""
    file = fitted.file
    return {
        "model": str(path),
        "arch": file.arch,
        "kernel": file.kernel,
        "dtype": file.dtype,
        "layout": file.layout,
        "dims": list(file.dims),
        "files": [describe_file(report) for report in (recording.files if recording is not None else ())],
        "rows": len(fitted.table),
        "problems": file.provenance["problems"],
        "too_fast": describe_too_fast(fitted.too_fast, file.dims, recording, store),
        "configs": {"fitted": file.provenance["fitted_configs"], "survivors": len(file.forms)},
        "default": dict(file.forms[file.default_index].config),
        "exact_problems": len(file.exact),
        "median_error": round(fitted.fit.relative_error, 4),
        "held_out": fitted.held_out.to_dict(file.dims) if fitted.held_out is not None else None,
        "seconds": round(seconds, 1),
    }


def family_rows(summary: dict[str, Any]) -> list[tuple[str, str]]:
    """Return a summary as lines of a text."""
    lines = [
        ("model", f"{summary['kernel']} {summary['dtype']} {summary['layout']}".rstrip() + f" on {summary['arch']}"),
        *(line for file in summary["files"] for line in file_lines(file)),
        ("rows", f"{summary['rows']:,} of {summary['problems']:,} problems"),
    ]
    if "points" in summary:
        planned = ", ".join(f"{count:,} {stratum}" for stratum, count in summary["points"].items())
        rest = f"; {summary['resumed_points']:,} were in the store, {summary['skipped_points']:,} left out for time"
        lines.append(("points", planned + rest))
        lines.append(("time", ", ".join(f"{name} {value:.1f} s" for name, value in summary["stage_seconds"].items())))
        lines.extend(("failed", f"{count:,} {status}") for status, count in summary["failures"].items())
    lines.extend(too_fast_lines(summary["too_fast"], summary["dims"]))
    configs = summary["configs"]
    lines += [
        (
            "configs",
            f"{configs['survivors']} kept of {configs['fitted']} fitted, median error {summary['median_error']:.1%}",
        ),
        ("default", describe_config(summary["default"])),
        ("tables", f"{summary['exact_problems']:,} exact problems"),
        ("held out", describe_accuracy(summary["held_out"])),
        ("wrote", f"{summary['model']} ({summary['seconds']:.1f} s)"),
    ]
    return lines
