"""What a fit did, for people and for programs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wavetune.cli.output import describe_config, format_sizes, format_us, show, two_columns
from wavetune.core.config import GEMM
from wavetune.core.shorthand import name_sizes
from wavetune.store.read_report import FileReport

if TYPE_CHECKING:
    from wavetune.pipeline.recording import Recording
    from wavetune.pipeline.refit import FittedModel
    from wavetune.tables.too_fast import FastReading

N_DISTURBED = 5
"""Problems with the most disturbed rows, and readings too fast, that are named in the text; JSON has them all."""


def summarise_fit(
    fitted: FittedModel, recording: Recording | None, out: Path, seconds: float, store: Path | None = None
) -> dict[str, Any]:
    """Return the summary as plain data; what was measured just now is in ``store``, and no recording."""
    model, estimator = fitted.file, fitted.estimator
    screening = estimator.screening_
    disturbed = [
        {
            **dict(zip(estimator.spec.dims, entry.dims, strict=True)),
            "rows": entry.rows,
            "slowdown": round(entry.factor, 3),
        }
        for entry in (screening.problems if screening is not None else ())
    ]
    held_out = fitted.held_out.to_dict(estimator.spec.dims) if fitted.held_out is not None else None
    return {
        "model": str(out),
        "arch": model.arch,
        "kernel": model.kernel,
        "dtype": model.dtype,
        "layout": model.layout,
        "files": [describe_file(report) for report in (recording.files if recording is not None else ())],
        "rows": model.provenance["rows"],
        "problems": len(estimator.measured_dims_),
        "disturbed_rows": int(screening.disturbed.sum()) if screening is not None else 0,
        "disturbed": disturbed,
        "too_fast": describe_too_fast(fitted.too_fast, estimator.spec.dims, recording, store),
        "configs": {
            "fitted": len(estimator.configs_),
            "too_few_rows": len(estimator.too_few_rows_),
            "survivors": model.n_modelled,
        },
        "default": dict(model.forms[model.default_index].config),
        "exact_problems": len(model.exact),
        "cells": len(model.cells),
        "held_out": held_out,
        "seconds": round(seconds, 2),
    }


def describe_file(report: FileReport) -> dict[str, Any]:
    """Return the account of one file as plain data."""
    return {
        "path": report.path,
        "sha256": report.sha256,
        "rows_read": report.rows_read,
        "rows_kept": report.rows_kept,
        "rows_merged": report.rows_merged,
        "rows_skipped": report.rows_skipped,
        "skipped": [
            {"reason": entry.reason, "rows": entry.rows, "first_line": entry.first_line} for entry in report.skipped
        ],
    }


def file_lines(file: dict[str, Any]) -> Iterable[tuple[str, str]]:
    """Yield what `describe_file` returns as lines of a text."""
    merged = f", {file['rows_merged']:,} repeats merged" if file["rows_merged"] else ""
    skipped = f", {file['rows_skipped']:,} skipped" if file["rows_skipped"] else ""
    yield "read", f"{file['path']}: {file['rows_kept']:,} of {file['rows_read']:,} rows{merged}{skipped}"
    for entry in file["skipped"]:
        yield "", f"{entry['rows']:,} rows from line {entry['first_line']}: {entry['reason']}"


def describe_too_fast(
    readings: Sequence[FastReading], dims: Sequence[str], recording: Recording | None, store: Path | None
) -> list[dict[str, Any]]:
    """Return readings that are not believed as plain data; what was measured just now is in ``store``."""
    return [
        {
            "file": str(store) if recording is None else recording.file_of(entry.dims, entry.config, entry.latency_us),
            **dict(zip(dims, entry.dims, strict=True)),
            "config": dict(entry.config),
            "latency_us": round(entry.latency_us, 4),
            "factor": round(entry.factor, 3),
        }
        for entry in readings
    ]


def too_fast_lines(found: Sequence[dict[str, Any]], dims: Sequence[str]) -> Iterable[tuple[str, str]]:
    """Yield what `describe_too_fast` returns as lines of a text; nothing if there is none."""
    if found:
        yield "too fast", f"{len(found):,} readings kept out of the exact answers; measure them again"
    for entry in found[:N_DISTURBED]:
        values = [entry[name] for name in dims]
        sizes = format_sizes(values) if tuple(dims) == GEMM.dims else name_sizes(dims, values)
        yield (
            "",
            f"{entry['file']}: {sizes}, {describe_config(entry['config'])}: {format_us(entry['latency_us'])} us, "
            f"{entry['factor']:.2f} times faster than its model",
        )


def print_summary(summary: dict[str, Any]) -> None:
    """Print the summary on stdout."""
    show(two_columns(_lines(summary)))


def _lines(summary: dict[str, Any]) -> Iterable[tuple[str, str]]:
    for file in summary["files"]:
        yield from file_lines(file)
    yield "rows", f"{summary['rows']:,} of {summary['problems']:,} problems"
    if summary["disturbed_rows"]:
        yield "disturbed", f"{summary['disturbed_rows']:,} rows down-weighted on {len(summary['disturbed']):,} problems"
        for entry in summary["disturbed"][:N_DISTURBED]:
            sizes = format_sizes([entry[name] for name in ("m", "n", "k") if name in entry])
            yield "", f"{sizes}: {entry['rows']} rows, {entry['slowdown']:.2f} times too slow"
    yield from too_fast_lines(summary["too_fast"], GEMM.dims)
    configs = summary["configs"]
    few = f", {configs['too_few_rows']} left out for too few rows" if configs["too_few_rows"] else ""
    yield "configs", f"{configs['survivors']} kept of {configs['fitted']} fitted{few}"
    yield "default", describe_config(summary["default"])
    yield "tables", f"{summary['exact_problems']:,} exact problems, {summary['cells']:,} cells"
    yield "held out", describe_accuracy(summary["held_out"])
    yield "wrote", f"{summary['model']} ({summary['seconds']:.1f} s)"


def describe_accuracy(held_out: dict[str, Any] | None) -> str:
    """Describe accuracy on held-out problems in a line."""
    if held_out is None:
        return "not estimated (no realistic layers to hold out, or told not to)"
    efficiency, default = held_out["efficiency"], held_out["default_efficiency"]
    # Files from before 2026-11-30 tell the error near the best only.
    error = held_out.get("mape_chosen", held_out["mape_near_best"])
    # What was not measured is unknown.
    judged = held_out.get("top3_judged", held_out["shapes"])
    on = f" (on {judged} shapes)" if judged < held_out["shapes"] else ""
    return (
        f"{held_out['shapes']} shapes at {_percent(efficiency['geomean'])} of the best "
        f"(5th percentile {_percent(efficiency['p5'])}, worst {_percent(efficiency['min'])}), "
        f"best of top 3 {_percent(held_out['top3_efficiency'])}{on}; "
        f"prediction error {_percent(error)}; default config {_percent(default['geomean'])}"
    )


def _percent(value: float | None) -> str:
    """Return a share as text; where there was nothing to average, a file has None and a fit NaN."""
    return "-" if value is None or math.isnan(value) else f"{value:.1%}"
