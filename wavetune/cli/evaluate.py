"""``wavetune evaluate``: a model against exhaustive sweeps."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from wavetune.cli.options import JsonOption, SkipBadRowsOption
from wavetune.cli.output import data_table, describe_config, emit_json, format_us, show, two_columns, warn
from wavetune.core.arch import find_arch
from wavetune.core.config import find_kernel_spec
from wavetune.runtime.any_model import AnyModel, read_any_model
from wavetune.runtime.family_file import FamilyFile

MOST = 0.5
"""Share of choices that a sweep must have measured before figures of them are said to be the model's."""


def evaluate_command(
    model: Annotated[Path, typer.Option("--model", metavar="MODEL.json", help="The model file to judge.")],
    oracle: Annotated[
        list[Path],
        typer.Option("--oracle", metavar="FILE...", help="Exhaustive sweeps: every shape with every configuration."),
    ],
    with_exact: Annotated[
        bool, typer.Option("--with-exact", help="Let the exact table answer too; off, shapes count as never measured.")
    ] = False,
    skip_bad_rows: SkipBadRowsOption = False,
    as_json: JsonOption = False,
) -> None:
    """Ask the model about every shape of a sweep and compare with the best that was measured."""
    file = read_any_model(model)
    from wavetune.pipeline.recording import read_recording
    from wavetune.report.accuracy import evaluate_model
    from wavetune.report.evidence import coverage_of
    from wavetune.report.family_accuracy import evaluate_family

    spec = find_kernel_spec(file.kernel)
    recording = read_recording(
        [], oracle, spec, find_arch(file.arch), dtype=file.dtype, layout=file.layout, skip_bad_rows=skip_bad_rows
    )
    warnings = [
        f"{report.path} is part of the training data of {model} ({name}): the accuracy is not that on new shapes"
        for report in recording.files
        for name in [training_file(file, report.sha256)]
        if name
    ]
    warnings += [f"{line}" for report in recording.files if report.rows_skipped for line in report.lines()[1:]]
    if isinstance(file, FamilyFile):
        report = evaluate_family(file, recording.table, with_exact=with_exact)
    else:
        report = evaluate_model(file, recording.table, with_exact=with_exact)
    report.require_choices()
    coverage = coverage_of(recording.table, file)
    document = {**report.to_dict(spec.dims), "is_exhaustive": coverage.is_exhaustive, "arch": file.arch}
    if document["judged"] < MOST * document["shapes"]:
        warnings.append(
            f"{document['unmeasured']} of {document['shapes']} choices were not measured: the figures are of the rest "
            "alone, and may say little of the model; judge on a sweep of every configuration"
        )
    if not coverage.is_exhaustive:
        warnings.append(coverage.describe())
    for text in warnings:
        warn(text)
    document["warnings"] = warnings
    if as_json:
        emit_json(document)
    else:
        print_accuracy(document, spec.dims)


def training_file(model: AnyModel, sha256: str) -> str:
    """Return the name of the training file with this digest; empty if the model was not trained on it."""
    files = model.provenance.get("files", [])
    return next((str(entry.get("name", "unnamed")) for entry in files if entry.get("sha256") == sha256), "")


def _of(judged: int, shapes: int) -> str:
    """Say on how many shapes a figure stands, where it is not all."""
    return f"(on {judged} of {shapes} shapes) " if judged < shapes else ""


def _best_of(document: dict[str, Any], count: int) -> str:
    """Say what measuring the first of the ranking is worth, where the sweep has measured them."""
    judged = document[f"top{count}_judged"]
    if not judged:
        return f"best of top {count} not measured"
    return f"{_of(judged, document['shapes'])}best of top {count} {document[f'top{count}_efficiency']:.4f}"


def print_accuracy(document: dict[str, Any], dims: tuple[str, ...]) -> None:
    """Print an accuracy report on stdout."""
    efficiency, regret, default = document["efficiency"], document["regret"], document["default_efficiency"]
    sources = ", ".join(f"{count} {source}" for source, count in document["sources"].items())
    shapes, judged = document["shapes"], document["judged"]
    unmeasured = f"; {document['unmeasured']} choices were not measured" if document["unmeasured"] else ""
    # The best of few configurations bounds the best there is from one side only.
    at_most, at_least = ("", "") if document["is_exhaustive"] else ("at most: ", "at least: ")
    rows = (
        ("shapes", f"{shapes} ({sources}){unmeasured}"),
        ("gpu", f"{document['arch']}, the model's; measurement files name none and are taken to be of it"),
        (
            "efficiency",
            f"{_of(judged, shapes)}{at_most}geomean {efficiency['geomean']:.4f}   "
            f"5th percentile {efficiency['p5']:.4f}   min {efficiency['min']:.4f}",
        ),
        (
            "regret",
            f"{_of(judged, shapes)}{at_least}mean {regret['mean']:.2%}   95th percentile {regret['p95']:.2%}   "
            f"max {regret['max']:.2%}",
        ),
        ("if measured", at_most + "   ".join(_best_of(document, count) for count in (3, 8))),
        (
            "prediction",
            f"mean error {document['mape_chosen']:.2%} of the choices   "
            f"{document['mape_near_best']:.2%} within 1.5x of the best",
        ),
        ("default", f"one fixed configuration: geomean {default['geomean']:.4f}   min {default['min']:.4f}"),
    )
    # Two lines a shape: two configurations beside each other fit on no terminal.
    numeric = (*dims, "effic.", "us", "predicted")
    worst = data_table(*numeric, "chosen, and best", right=numeric, title="worst shapes")
    for row in document["worst"]:
        worst.add_row(
            *(str(row[name]) for name in dims), f"{row['efficiency']:.3f}", format_us(row["measured_us"]),
            format_us(row["predicted_us"]), describe_config(row["choice"]),
        )  # fmt: skip
        worst.add_row(*("" for _ in dims), "", format_us(row["best_us"]), "", describe_config(row["best"]))
    show(two_columns(rows), "", worst)
