"""Find what an accuracy report is made from: the files given, or the evidence that belongs to the model."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wavetune.core.arch import find_arch
from wavetune.core.config import find_kernel_spec
from wavetune.errors import MeasurementError
from wavetune.pipeline.evidence import evidence_names
from wavetune.pipeline.recording import Recording, read_recording
from wavetune.pipeline.shipped import calibration_folders
from wavetune.report.document import ReportInputs, SourceFile
from wavetune.runtime.locate import model_file_name
from wavetune.runtime.model_file import ModelFile
from wavetune.store.table import MeasurementTable


@dataclass(frozen=True)
class ReportFiles:
    """Files that the user named; what is left out is looked for.

    Parameters
    ----------
    sweeps : sequence of Path
        Exhaustive sweeps to judge on.
    points : sequence of Path
        Wave-structured points for the staircase.
    repeat : Path or None
        A second measurement of some of the sweep's problems.
    skip_bad_rows : bool
        Count and skip impossible rows instead of refusing a file.
    """

    sweeps: Sequence[Path] = ()
    points: Sequence[Path] = ()
    repeat: Path | None = None
    skip_bad_rows: bool = False


def gather_inputs(model: ModelFile, files: ReportFiles) -> ReportInputs:
    """Read everything that a report of this model needs.

    Raises
    ------
    MeasurementError
        If a file is bad, or no sweep was given and none ships for the model.
    """
    stem = model_file_name(model.kernel, model.dtype, model.layout).removesuffix(".json")
    sweeps, repeat = list(files.sweeps), files.repeat
    if not sweeps:
        sweeps = [_find(model, f"{stem}-holdout.csv.gz") or _no_sweep(model)]
        repeat = repeat or _find(model, f"{stem}-holdout-repeat.csv.gz")
    recording = _read(model, sweeps, files, exhaustive=True)
    fitted = _fitted_rows(model, files)
    points = _read(model, files.points, files, exhaustive=False).table if files.points else None
    if points is None and fitted is not None:
        points = fitted.select(~fitted.exhaustive)
    return ReportInputs(
        model=model,
        sweep=recording.table,
        sweep_files=tuple(
            SourceFile(Path(report.path).name, report.sha256, report.rows_kept) for report in recording.files
        ),
        points=points if points is not None and len(points) else None,
        fitted=fitted,
        repeat=_read(model, [repeat], files, exhaustive=True).table if repeat is not None else None,
        calibration=_calibration_facts(model),
    )


def _read(model: ModelFile, paths: Sequence[Path], files: ReportFiles, *, exhaustive: bool) -> Recording:
    return read_recording(
        [] if exhaustive else paths,
        paths if exhaustive else [],
        find_kernel_spec(model.kernel),
        find_arch(model.arch),
        dtype=model.dtype,
        layout=model.layout,
        skip_bad_rows=files.skip_bad_rows,
    )


def _fitted_rows(model: ModelFile, files: ReportFiles) -> MeasurementTable | None:
    """Read what the model was fitted to, if every file of its provenance is found, byte for byte."""
    found = []
    for entry in model.provenance.get("files", ()):
        path = _find(model, str(entry.get("name", "")), sha256=str(entry.get("sha256", "")))
        if path is None:
            return None
        found.append(path)
    if not found:
        return None
    recording = read_recording(
        found,
        [],
        find_kernel_spec(model.kernel),
        find_arch(model.arch),
        dtype=model.dtype,
        layout=model.layout,
        skip_bad_rows=files.skip_bad_rows or any(entry.get("skipped") for entry in model.provenance["files"]),
        detect=True,
    )
    return recording.table


def _calibration_facts(model: ModelFile) -> dict[str, Any]:
    """Read the facts of the calibration behind the model; empty if there are none, or they count other rows."""
    path = _find(model, evidence_names(model.kernel, model.dtype, model.layout)[2])
    if path is None:
        return {}
    try:
        facts = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    wanted = ("environment", "conditions", "seconds", "points", "measured", "configs", "failures")
    if not isinstance(facts, dict) or facts.get("measured") != model.provenance.get("rows"):
        return {}
    return {name: facts[name] for name in wanted if name in facts}


def _find(model: ModelFile, name: str, sha256: str = "") -> Path | None:
    """Look for a file beside the model and where evidence ships; with a digest, only that very file will do."""
    folders = [Path(model.path).parent] if model.path else []
    for folder in calibration_folders():
        folders += [folder / model.arch, folder / model.arch / "recorded"]
    for path in (folder / name for folder in folders):
        if name and path.is_file() and (not sha256 or hashlib.sha256(path.read_bytes()).hexdigest() == sha256):
            return path
    return None


def _no_sweep(model: ModelFile) -> Path:
    raise MeasurementError(
        f"no held-out sweep ships for {model.kernel} {model.dtype} {model.layout} on {model.arch}; "
        "name an exhaustive sweep with --oracle"
    )
