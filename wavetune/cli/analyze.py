"""``wavetune analyze``: what measured configurations are worth on a workload."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wavetune.cli.options import (
    ArchOption,
    DtypeOption,
    JsonOption,
    LayoutOption,
    NumSmsOption,
    SkipBadRowsOption,
    refuse_overwriting,
)
from wavetune.cli.output import data_table, describe_config, emit_json, format_sizes, format_us, note, show
from wavetune.core.config import GEMM
from wavetune.core.dtype import find_dtype
from wavetune.core.whole_file import describe_os_error, write_whole
from wavetune.core.workload import Workload
from wavetune.errors import WorkloadError
from wavetune.runtime.device import resolve_device

if TYPE_CHECKING:
    from wavetune.report.workload_analysis import Analysis, Totals

LISTED = 20
"""Entries that are listed, those with the most baseline time first."""


def analyze_command(
    workload: Annotated[Path, typer.Argument(metavar="WORKLOAD", help="Workload: JSON, or CSV.", show_default=False)],
    measurements: Annotated[
        Path, typer.Option("--measurements", metavar="FILE", help="What `wavetune measure` wrote.", show_default=False)
    ],
    arch: ArchOption = None,
    num_sms: NumSmsOption = None,
    dtype: DtypeOption = "bf16",
    layout: LayoutOption = "nk",
    gemm_share: Annotated[
        float | None,
        typer.Option(
            "--gemm-share", metavar="SHARE", min=0.0, max=1.0, show_default=False,
            help="Share of the model's time that the workload takes: estimates the whole model (Amdahl).",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE.csv", help="Write QuickTune's columns and ours.", show_default=False),
    ] = None,
    skip_bad_rows: SkipBadRowsOption = False,
    as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Analyze measurements of a workload: best against default configuration, weighted by call count.

    --dtype and --layout are those that were measured. Calls without a result are listed, and never count as zero.
    """
    refuse_overwriting(out, [workload, measurements])
    from wavetune.report.workload_analysis import analyse_workload
    from wavetune.store.csv_io import read_measurements

    element = find_dtype(dtype).name
    read = Workload.read(workload, dtype=element, layout=layout)
    device = resolve_device(arch, num_sms)
    policy = "skip" if skip_bad_rows else "error"
    table = read_measurements(
        measurements, GEMM, element, device.arch, exhaustive=True, layout=layout, on_bad_row=policy
    ).table
    analysis = analyse_workload(read, table, device)
    if out is not None:
        _write(analysis, out)
    if analysis.plainer_calls:
        note(f"{analysis.plainer_calls:,} calls add a bias or the like: measured was the product alone")
    if as_json:
        emit_json(_document(analysis, gemm_share))
    else:
        _print(analysis, gemm_share)


def _write(analysis: Analysis, out: Path) -> None:
    from wavetune.report.analysis_csv import analysis_csv

    try:
        write_whole(out, analysis_csv(analysis))
    except OSError as error:
        raise WorkloadError(describe_os_error(out, error)) from None
    note(f"wrote {out}")


def _print(analysis: Analysis, gemm_share: float | None) -> None:
    total = analysis.total
    right = ("calls", "default us", "best us", "speed-up", "share")
    table = data_table("m x n x k", *right, "best", "below 1.1x: best is at", right=right)
    found = [row for row in analysis.rows if not row.reason]
    for row in found[:LISTED]:
        key = row.entry.key
        table.add_row(
            format_sizes((key.m, key.n, key.k)), f"{row.entry.count:,}", format_us(row.baseline_us),
            format_us(row.best_us), f"{row.speedup:.2f}x",
            f"{row.total_baseline_us / total.baseline_us:.1%}", describe_config(row.best or {}), row.roofline_note,
        )  # fmt: skip
    table.add_row("TOTAL", f"{total.calls:,}", "", "", f"{total.speedup:.2f}x", "100.0%", "", "")
    show(table)
    if len(found) > LISTED:
        typer.echo(f"and {len(found) - LISTED:,} more")
    for row in analysis.missing[:LISTED]:
        key = row.entry.key
        typer.echo(
            f"no result: {key.operation} {format_sizes((key.m, key.n, key.k))} {key.dtype}, "
            f"{row.entry.count:,} calls: {row.reason}"
        )
    if len(analysis.missing) > LISTED:
        typer.echo(f"and {len(analysis.missing) - LISTED:,} more without a result")
    typer.echo()
    columns = ("calls", "without result", "default us", "best us", "speed-up")
    classes = data_table("class", *columns, right=columns)
    for name, part in (*analysis.by_class.items(), ("TOTAL", total)):
        speedup = f"{part.speedup:.2f}x" if part.calls else ""
        times = (f"{part.baseline_us:,.1f}", f"{part.best_us:,.1f}") if part.calls else ("", "")
        classes.add_row(name, f"{part.calls:,}", f"{part.missing_calls:,}", *times, speedup)
    show(classes)
    typer.echo(f"coverage: {total.coverage:.1%} of calls, {total.time_covered:.1%} of their time at peak rates")
    chosen, calls = analysis.chosen_speedup()
    if calls:
        typer.echo(f"tables' answers: {chosen:.2f}x over {calls:,} calls whose answer was measured")
    _print_model(total, gemm_share)
    note("the best of many readings is a lucky one as well: measure winners again before believing the last percent")


def _print_model(total: Totals, gemm_share: float | None) -> None:
    if gemm_share is None:
        return
    from wavetune.report.workload_analysis import model_speedup

    typer.echo(
        f"whole model: {model_speedup(total, gemm_share):.3f}x, if GEMMs take {gemm_share:.0%} of its time; calls "
        "without a result gain nothing"
    )


def _document(analysis: Analysis, gemm_share: float | None) -> dict[str, object]:
    from wavetune.report.workload_analysis import model_speedup

    chosen, calls = analysis.chosen_speedup()
    total = analysis.total
    return {
        "total": _totals(total),
        "classes": {name: _totals(part) for name, part in analysis.by_class.items()},
        "chosen": {"speedup": chosen, "calls": calls},
        "model_speedup": None if gemm_share is None else model_speedup(total, gemm_share),
        "plainer_calls": analysis.plainer_calls,
        "problems": [
            {
                **row.entry.document(), "reason": row.reason, "baseline_us": row.baseline_us, "best_us": row.best_us,
                "chosen_us": row.chosen_us, "candidates": row.candidates,
                "bound": row.bound, "peak_share": row.peak_share,
                "baseline": dict(row.baseline or {}), "best": dict(row.best or {}),
            }
            for row in analysis.rows
        ],
    }  # fmt: skip


def _totals(part: Totals) -> dict[str, object]:
    return {
        "calls": part.calls, "missing_calls": part.missing_calls, "coverage": part.coverage,
        "time_covered": part.time_covered, "baseline_us": part.baseline_us, "best_us": part.best_us,
        "speedup": part.speedup,
    }  # fmt: skip
