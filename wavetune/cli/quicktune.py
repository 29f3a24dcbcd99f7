"""``wavetune quicktune``: from a log of what a model ran to tables that are proven to be in use, in one command."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from wavetune.cli.options import (
    CANDIDATES,
    ArchOption,
    DtypeOption,
    GpuOption,
    JsonOption,
    LayoutOption,
    TopOption,
    require_candidates,
)
from wavetune.cli.output import emit_json, note
from wavetune.cli.tune import (
    MIN_IMPROVEMENT,
    MinImprovementOption,
    PatternCacheOption,
    RememberOption,
    SkipSlowOption,
    tune_options,
)
from wavetune.core.workload import Workload
from wavetune.runtime.device import Device, resolve_device

if TYPE_CHECKING:
    from wavetune.cli.tune_run import TuneRun

EXIT_MISMATCH = 1
"""Where a problem that was pinned is answered otherwise."""

EXPORTS = {"quicktune-csv": "quicktune.csv", "json": "answers.json"}
"""Formats that hold any configuration, and their files."""

EXPORT_MARGIN = 0.02
"""As of ``wavetune export``; measured answers stay whatever it is."""


def quicktune_command(
    logs: Annotated[
        list[str],
        typer.Argument(
            metavar="LOG...", help="Logs and tables of other tools, or workloads; - is standard input.",
            show_default=False,
        ),
    ],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder for everything.")],
    format: Annotated[
        str, typer.Option("--format", metavar="NAME", help="Format of the logs; told by content, if not named.")
    ] = "auto",
    top: TopOption = CANDIDATES,
    arch: ArchOption = None,
    dtype: DtypeOption = "bf16",
    layout: LayoutOption = "nk",
    gpu: GpuOption = 0,
    skip_slow: SkipSlowOption = False,
    min_improvement: MinImprovementOption = MIN_IMPROVEMENT,
    pattern_cache: PatternCacheOption = None,
    remember: RememberOption = False,
    as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Import logs, estimate, tune, analyze, export and verify: one folder with everything.

    Each step is a verb of its own, too. The same command goes on where it was stopped.
    """
    require_candidates(top)
    from wavetune.cli.live import make_folder
    from wavetune.cli.tune_run import run_tuning
    from wavetune.cli.tune_view import note_not_tuned, print_tuning, tuning_document

    make_folder(out)
    workload, lines = _import(logs, format, dtype, layout, out / "workload.json")
    device = resolve_device(arch)
    estimate = _estimate(workload, device, top)
    run = run_tuning(
        workload, device, out, top=top, options=tune_options(min_improvement, skip_slow), gpu=gpu,
        pattern_cache=pattern_cache, remember=remember,
    )  # fmt: skip
    if not as_json:
        note_not_tuned(run, len(workload.entries))
        print_tuning(run, as_json=False)
    with pinned_in_force(run.files.get("pinned")):
        analysis = _analyze(workload, run, device, out)
        exports = _export(workload, device, out)
        verified = _verify(workload, run, device)
    if as_json:
        emit_json(
            {
                "import": {"workload": str(out / "workload.json"), "problems": len(workload.entries), "lines": lines},
                "estimate": estimate, "tune": tuning_document(run), "analyze": analysis, "export": exports,
                "verify": verified,
            }
        )  # fmt: skip
    if verified["pinned_but_not_matched"]:
        raise typer.Exit(EXIT_MISMATCH)


@contextmanager
def pinned_in_force(path: Path | None) -> Iterator[None]:
    """Answer from a pinned table as long as the context lasts, whatever table was pinned before."""
    from wavetune.runtime.settings import configure, settings

    if path is None:
        yield
        return
    before = settings().pinned
    configure(pinned=path.resolve())
    try:
        yield
    finally:
        # Back to the environment; what a program had configured is configured again.
        if configure(pinned=None).pinned != before:
            configure(pinned=before)


def _import(logs: list[str], format: str, dtype: str, layout: str, path: Path) -> tuple[Workload, dict[str, Any]]:
    from wavetune.workloads.importing import import_files
    from wavetune.workloads.intake import ImportOptions

    with import_files(logs, format=format, options=ImportOptions(dtype, layout)) as imported:
        workload, lines = imported.workload(), imported.lines
    workload.write(path)
    note(
        f"import: {lines['recognised']:,} of {lines['read']:,} lines, {len(workload.entries)} problems, "
        f"{workload.calls:,} calls -> {path}"
    )
    if lines["bad"]:
        bad = lines["first_bad"]
        note(f"{lines['bad']:,} bad lines; the first is {bad['file']}:{bad['line']}: {bad['reason']}")
    return workload, lines


def _estimate(workload: Workload, device: Device, top: int) -> dict[str, Any]:
    from wavetune.cli.live import whole_space
    from wavetune.cli.tune_run import TIMED_OTHERWISE
    from wavetune.pipeline.tuning_estimate import estimate_tuning

    cores = len(os.sched_getaffinity(0))
    estimate = estimate_tuning(workload, device, top=top, space=whole_space(device, TIMED_OTHERWISE), cores=cores)
    candidates = sum(key.candidates for key in estimate.keys)
    note(
        f"estimate: {len(estimate.keys)} problems, {candidates:,} candidates: launches "
        f"{estimate.measure_seconds:,.1f} s at most, compiling {estimate.n_configs} configurations "
        f"{estimate.prepare_seconds:,.1f} s on {cores} cores"
    )
    return {
        "problems": len(estimate.keys), "candidates": candidates, "configs": estimate.n_configs, "cores": cores,
        "measure_seconds": estimate.measure_seconds, "prepare_seconds": estimate.prepare_seconds,
    }  # fmt: skip


def _analyze(workload: Workload, run: TuneRun, device: Device, out: Path) -> dict[str, Any]:
    """Analyze the readings on fresh buffers, each element type and layout by itself."""
    from wavetune.core.config import GEMM
    from wavetune.errors import MeasurementError
    from wavetune.report.analysis_csv import analysis_csv
    from wavetune.report.workload_analysis import analyse_workload
    from wavetune.store.csv_io import read_measurements

    found: dict[str, Any] = {}
    for (dtype, layout), measurements in run.confirmed.items():
        entries = [entry for entry in workload.entries if _is_of(entry.key.gemm_problem(), dtype, layout)]
        try:
            table = read_measurements(
                measurements, GEMM, dtype, device.arch, exhaustive=True, layout=layout, on_bad_row="skip"
            ).table
            analysis = analyse_workload(Workload(tuple(entries)), table, device)
        except MeasurementError as error:
            note(f"analyze: {error}")
            continue
        path = out / f"analysis-{dtype}-{layout}.csv"
        path.write_text(analysis_csv(analysis), encoding="utf-8")
        total = analysis.total
        chosen, calls = analysis.chosen_speedup()
        note(
            f"analyze: {dtype} {layout}: tables' answers {chosen:.3f}x over the default, over {calls:,} of "
            f"{total.calls + total.missing_calls:,} calls -> {path}"
        )
        found[f"{dtype} {layout}"] = {
            "file": str(path), "speedup": chosen, "calls": calls, "missing_calls": total.missing_calls,
            "coverage": total.coverage, "baseline_us": total.baseline_us,
        }  # fmt: skip
    return found


def _is_of(problem: Any, dtype: str, layout: str) -> bool:
    return problem is not None and (problem.dtype, problem.layout) == (dtype, layout)


def _export(workload: Workload, device: Device, out: Path) -> dict[str, Any]:
    from wavetune.errors import WorkloadError
    from wavetune.workloads.exporting import export_workload

    written: dict[str, Any] = {}
    for format, name in EXPORTS.items():
        try:
            export = export_workload(workload, format, device, margin=EXPORT_MARGIN)
        except WorkloadError as error:
            note(f"export: {error}")
            continue
        (out / name).write_text(export.files[""], encoding="utf-8")
        written[format] = {"file": str(out / name), "rows": export.rows, "left_out": dict(export.left_out)}
        note(f"export: {format}: {export.rows} rows -> {out / name}")
    return written


def _verify(workload: Workload, run: TuneRun, device: Device) -> dict[str, Any]:
    from wavetune.pipeline.tune_verdict import Outcome
    from wavetune.workloads.verification import Status, summary_counts, verify_workload

    verified = verify_workload(workload, device)
    counts = summary_counts(verified)
    pinned = {tuned.plan.problem for tuned in run.problems if tuned.outcome is not Outcome.FAILED}
    lost = [entry.problem for entry in verified if entry.problem in pinned and entry.status is not Status.MATCHED]
    typer.echo("verify: " + " ".join(f"{name}={count}" for name, count in counts.items()), err=True)
    for problem in lost:
        note(f"verify: {problem} is pinned, and answered otherwise")
    return {"summary": counts, "pinned_but_not_matched": len(lost)}
