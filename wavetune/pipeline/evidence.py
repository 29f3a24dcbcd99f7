"""The evidence of a calibration: measurement files and the facts around them, enough to fit the model again.

``wavetune fit`` with the files as ``--measurements``, ``--oracle`` and ``--facts`` gives the same tables,
without a GPU.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from wavetune.core.arch import ArchSpec
from wavetune.core.config import GEMM, find_kernel_spec
from wavetune.errors import MeasurementError
from wavetune.pipeline.calibrate import CalibrationResult
from wavetune.pipeline.family_calibration import FamilyCalibration
from wavetune.pipeline.family_fit import FittedFamily, fit_family_file
from wavetune.pipeline.family_jobs import find_job
from wavetune.pipeline.recording import read_recording
from wavetune.runtime.family_file import family_file_name
from wavetune.runtime.locate import model_file_name
from wavetune.store.csv_io import write_measurements


def evidence_names(kernel: str, dtype: str, layout: str) -> tuple[str, str, str]:
    """Return the file names of points, exhaustive sweeps, and facts.

    For a GEMM these are wave-structured points and realistic layers. For other families they are keys measured with the
    configurations that are likely to win, and keys measured with all; there may be none of the former.
    """
    if kernel == GEMM.name:
        stem = model_file_name(kernel, dtype, layout).removesuffix(".json")
        return f"{stem}-anchors.csv.gz", f"{stem}-layers.csv.gz", f"{stem}-calibration.json"
    stem = family_file_name(kernel, dtype, layout).removesuffix(".json")
    return f"{stem}-likely.csv.gz", f"{stem}-sweep.csv.gz", f"{stem}-calibration.json"


def write_evidence(
    folder: Path,
    result: CalibrationResult | FamilyCalibration,
    environment: Mapping[str, str],
    conditions: Mapping[str, str],
) -> list[Path]:
    """Write the evidence of a calibration.

    Parameters
    ----------
    folder : Path
        Made if needed; existing files of the same kernel, dtype and layout are replaced.
    result : CalibrationResult or FamilyCalibration
        Its table holds what is written, in the order in which a fit of the files reads it.
    environment : mapping of str to str
        Fingerprint of the machine.
    conditions : mapping of str to str
        Clocks, temperature, power and the launch floor during the run.

    Returns
    -------
    list of Path
        What was written.

    Raises
    ------
    MeasurementError
        If a file cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    table = result.table
    points, sweeps, facts = (folder / name for name in evidence_names(table.spec.name, table.dtype, table.layout))
    written = []
    for path, rows in ((points, ~table.exhaustive), (sweeps, table.exhaustive)):
        if rows.any():
            write_measurements(path, table.select(rows))
            written.append(path)
    facts.write_text(json.dumps(_facts(result, environment, conditions), indent=2, sort_keys=True) + "\n")
    return [*written, facts]


def read_environment(facts: Path, arch: ArchSpec, *, kernel: str, dtype: str, layout: str) -> dict[str, str]:
    """Read the fingerprint of the measuring machine from the facts of a calibration.

    Raises
    ------
    MeasurementError
        If the file cannot be read, has no environment, or tells of another GPU, kernel, dtype or layout.
    """
    try:
        document = json.loads(facts.read_text())
        environment = document["environment"]
        fingerprint = {str(name): str(value) for name, value in environment.items()}
    except OSError as error:
        raise MeasurementError(f"{facts}: cannot read ({error.strerror})") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise MeasurementError(f"{facts}: not the facts of a calibration: no field 'environment'") from None
    if fingerprint.get("arch") != arch.name:
        raise MeasurementError(f"{facts}: measured on {fingerprint.get('arch')}, not on {arch.name}")
    for name, asked in (("kernel", kernel), ("dtype", dtype), ("layout", layout)):
        # Facts of earlier versions do not say it.
        if document.get(name, asked) != asked:
            raise MeasurementError(f"{facts}: facts of {name} {document[name]}, asked for was {asked}")
    return fingerprint


def fit_family_evidence(
    folder: Path, kernel: str, arch: ArchSpec, *, dtype: str, layout: str, holdout: bool = True
) -> FittedFamily:
    """Fit the model of a family again from the evidence of its calibration.

    Parameters
    ----------
    folder : Path
        Where the evidence is.
    kernel, dtype, layout : str
        What was calibrated.
    arch : ArchSpec
        GPU that was measured.
    holdout : bool, default=True
        Whether to judge it on held-out keys, as `wavetune.pipeline.family_fit.fit_family_file` does.

    Raises
    ------
    MeasurementError
        If the sweeps or the facts are missing, or a file is bad.
    ConfigError
        If no calibration plan is written for the family.
    """
    points, sweeps, facts = (folder / name for name in evidence_names(kernel, dtype, layout))
    environment = read_environment(facts, arch, kernel=kernel, dtype=dtype, layout=layout)
    recording = read_recording(
        [points] if points.exists() else [], [sweeps], find_kernel_spec(kernel), arch, dtype=dtype, layout=layout
    )
    job = find_job(kernel, arch, dtype=dtype, layout=layout)
    return fit_family_file(
        recording.table, job, arch, sources=recording.files, environment=environment, holdout=holdout
    )


def _facts(
    result: CalibrationResult | FamilyCalibration, environment: Mapping[str, str], conditions: Mapping[str, str]
) -> dict[str, Any]:
    held_out = result.fitted.held_out
    table = result.table
    return {
        "kernel": table.spec.name,
        "dtype": table.dtype,
        "layout": table.layout,
        "environment": dict(environment),
        "conditions": dict(conditions),
        "seconds": {stage: round(seconds, 2) for stage, seconds in result.seconds.items()},
        "points": result.points,
        "measured": len(table),
        "configs": len(table.configs),
        "failures": dict(Counter(str(entry.status) for entry in result.failures)),
        "failed": [
            {"config": dict(entry.config), "status": str(entry.status), "detail": entry.detail[:200]}
            for entry in result.failures[:50]
        ],
        "held_out": held_out.to_dict(table.spec.dims) if held_out is not None else None,
    }
