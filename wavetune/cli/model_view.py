"""A model file as plain data, and as text."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from wavetune.cli.output import data_table, describe_config, note, show, two_columns
from wavetune.cli.summary import describe_accuracy
from wavetune.core.config import GEMM, find_kernel_spec
from wavetune.errors import ModelFileError
from wavetune.runtime.any_model import AnyModel
from wavetune.runtime.family_file import FamilyFile
from wavetune.runtime.locate import MODELS_VARIABLE
from wavetune.runtime.model_file import ModelFile
from wavetune.waves.family_terms import FAMILY_TERMS
from wavetune.waves.terms import TERMS


def note_use(path: Path, kernel: str, place: Path) -> None:
    """Say on stderr how to use a model file that was written; ``place`` is where a models folder would hold it."""
    if Path(*path.parts[-2:]) == place:
        note(f"to use the model: {MODELS_VARIABLE}={path.absolute().parent.parent}")
        return
    family = "" if kernel == GEMM.name else f"--kernel {kernel} "
    note(f"to use the model: `wavetune choose {family}--model {path}`, or move it to {place} below a models folder")


def model_entry(path: Path, read: Callable[[Path], AnyModel]) -> dict[str, Any]:
    """Return a line of a list; a file that ``read`` refuses has an ``error`` and little else."""
    try:
        file = read(path)
    except ModelFileError as error:
        return {"path": str(path), "digest": None, "error": str(error)}
    held_out = file.accuracy.get("held_out") or {}
    return {
        "path": str(path),
        "arch": file.arch,
        "kernel": file.kernel,
        "dtype": file.dtype,
        "layout": file.layout,
        "configs": len(file.forms) if isinstance(file, FamilyFile) else file.n_modelled,
        "exact": len(file.exact),
        "cells": 0 if isinstance(file, FamilyFile) else len(file.cells),
        "held_out_efficiency": held_out.get("efficiency", {}).get("geomean"),
        "created": file.provenance.get("created"),
        "digest": file.digest,
        "error": None,
    }


def family_document(file: FamilyFile) -> dict[str, Any]:
    """Return everything in the model of a kernel of the user's but the exact answers themselves."""
    return {
        "path": file.path,
        "digest": file.digest,
        "kernel": file.kernel,
        "dtype": file.dtype,
        "layout": file.layout,
        "arch": file.arch,
        "num_sms": file.num_sms,
        "dims": list(file.dims),
        "mapping_digest": file.mapping_digest,
        "fit_range": {name: list(bounds) for name, bounds in file.fit_range.items()},
        "exact": len(file.exact),
        "default": dict(file.forms[file.default_index].config),
        "forms": [
            {
                "config": dict(form.config),
                "ctas_per_sm": form.ctas_per_sm,
                "num_regs": form.num_regs,
                "smem_bytes": form.smem_bytes,
                "coefficients": dict(zip(FAMILY_TERMS, form.coefficients, strict=True)),
            }
            for form in file.forms
        ],
        "accuracy": dict(file.accuracy),
        "provenance": dict(file.provenance),
    }


def print_family(file: FamilyFile) -> None:
    """Print the model of a kernel of the user's on stdout."""
    numeric = ("CTAs/SM", "regs", "smem KB", "launch us")
    table = data_table("configuration", *numeric, right=numeric)
    for index, form in enumerate(file.forms):
        mark = " (default)" if index == file.default_index else ""
        table.add_row(
            describe_config(form.config) + mark, str(form.ctas_per_sm), str(form.num_regs),
            f"{form.smem_bytes / 1024:.0f}", f"{form.coefficients[0]:.2f}",
        )  # fmt: skip
    ranges = ", ".join(f"{name} {low:,} to {high:,}" for name, (low, high) in file.fit_range.items())
    lines = (
        ("file", file.path),
        ("digest", file.digest),
        ("model", f"{file.kernel} {file.dtype} {file.layout}".rstrip() + f" on {file.arch} ({file.num_sms} SMs)"),
        ("mapping", file.mapping_digest),
        ("measured", ranges),
        ("tables", f"{len(file.exact):,} exact keys, {len(file.forms)} modelled configs"),
        ("forms", f"median error {file.accuracy['relative_error']:.1%}" if "relative_error" in file.accuracy else "-"),
        ("held out", describe_accuracy(file.accuracy.get("held_out"))),
    )
    show(two_columns(lines), "", table)


def model_document(file: ModelFile) -> dict[str, Any]:
    """Return everything but the cells and exact answers themselves."""
    forms = []
    for index, form in enumerate(file.forms):
        coefficients = form.coefficients
        forms.append(
            {
                "config": dict(form.config),
                "ctas_per_sm": form.ctas_per_sm,
                "num_regs": form.num_regs,
                "smem_bytes": form.smem_bytes,
                "coefficients": dict(zip(TERMS, coefficients, strict=True)) if coefficients is not None else None,
                "candidate_cells": sum(index in cell.candidates for cell in file.cells.values()),
                "exact_problems": sum(entry.config_index == index for entry in file.exact.values()),
            }
        )
    return {
        "path": file.path,
        "digest": file.digest,
        "kernel": file.kernel,
        "dtype": file.dtype,
        "layout": file.layout,
        "arch": file.arch,
        "num_sms": file.num_sms,
        "dims": list(find_kernel_spec(file.kernel).dims),
        "fit_range": {name: list(bounds) for name, bounds in file.fit_range.items()},
        "bound_log2": file.bound_log2,
        "cells": len(file.cells),
        "exact": len(file.exact),
        "default": dict(file.forms[file.default_index].config),
        "forms": forms,
        "accuracy": dict(file.accuracy),
        "provenance": dict(file.provenance),
    }


def print_model(file: ModelFile, document: dict[str, Any]) -> None:
    """Print a model on stdout; ``document`` is its `model_document`."""
    numeric = ("CTAs/SM", "regs", "smem KB", "launch us", "cells", "exact")
    table = data_table("configuration", *numeric, right=numeric)
    for index, form in enumerate(document["forms"]):
        launch = f"{form['coefficients']['launch']:.2f}" if form["coefficients"] else "-"
        mark = " (default)" if index == file.default_index else ""
        table.add_row(
            describe_config(form["config"]) + mark, str(form["ctas_per_sm"]), str(form["num_regs"]),
            f"{form['smem_bytes'] / 1024:.0f}", launch, str(form["candidate_cells"]), str(form["exact_problems"]),
        )  # fmt: skip
    show(two_columns(_lines(file)), "", table)


def _lines(file: ModelFile) -> Iterator[tuple[str, str]]:
    origin = file.provenance
    yield "file", file.path
    yield "digest", file.digest
    yield "model", f"{file.kernel} {file.dtype} {file.layout} on {file.arch} ({file.num_sms} SMs)"
    if origin.get("rows"):
        yield (
            "fitted to",
            (
                f"{origin['rows']:,} rows, {origin.get('problems', 0):,} problems, "
                f"{origin.get('fitted_configs', 0)} configurations ({origin.get('created', 'date unknown')})"
            ),
        )
    for entry in origin.get("files", []):
        yield "", f"{entry['name']}: {entry['rows']:,} rows, sha256 {entry['sha256'][:12]}"
    ranges = ", ".join(f"{name} {low:,} to {high:,}" for name, (low, high) in file.fit_range.items())
    yield "measured", f"{ranges}; answers from cells reach {file.bound_log2:g} octaves further"
    yield "tables", f"{len(file.exact):,} exact problems, {len(file.cells):,} cells, {file.n_modelled} modelled configs"
    yield "held out", describe_accuracy(file.accuracy.get("held_out"))
