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
from wavetune.errors import MeasurementError
from wavetune.pipeline.calibrate import CalibrationResult
from wavetune.runtime.locate import model_file_name
from wavetune.store.csv_io import write_measurements


def evidence_names(kernel: str, dtype: str, layout: str) -> tuple[str, str, str]:
    """Return the file names of wave-structured points, realistic layers, and facts."""
    stem = model_file_name(kernel, dtype, layout).removesuffix(".json")
    return f"{stem}-anchors.csv.gz", f"{stem}-layers.csv.gz", f"{stem}-calibration.json"


def write_evidence(
    folder: Path, result: CalibrationResult, environment: Mapping[str, str], conditions: Mapping[str, str]
) -> list[Path]:
    """Write the evidence of a calibration.

    Parameters
    ----------
    folder : Path
        Made if needed; existing files of the same kernel, dtype and layout are replaced.
    result : CalibrationResult
        Its table holds wave-structured points first, then realistic layers.
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
    anchors, layers, facts = (folder / name for name in evidence_names(table.spec.name, table.dtype, table.layout))
    written = []
    for path, rows in ((anchors, ~table.exhaustive), (layers, table.exhaustive)):
        if rows.any():
            write_measurements(path, table.select(rows))
            written.append(path)
    facts.write_text(json.dumps(_facts(result, environment, conditions), indent=2, sort_keys=True) + "\n")
    return [*written, facts]


def read_environment(facts: Path, arch: ArchSpec) -> dict[str, str]:
    """Read the fingerprint of the measuring machine from the facts of a calibration.

    Raises
    ------
    MeasurementError
        If the file cannot be read, has no environment, or tells of another GPU.
    """
    try:
        environment = json.loads(facts.read_text())["environment"]
        fingerprint = {str(name): str(value) for name, value in environment.items()}
    except OSError as error:
        raise MeasurementError(f"{facts}: cannot read ({error.strerror})") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise MeasurementError(f"{facts}: not the facts of a calibration: no field 'environment'") from None
    if fingerprint.get("arch") != arch.name:
        raise MeasurementError(f"{facts}: measured on {fingerprint.get('arch')}, not on {arch.name}")
    return fingerprint


def _facts(result: CalibrationResult, environment: Mapping[str, str], conditions: Mapping[str, str]) -> dict[str, Any]:
    held_out = result.fitted.held_out
    return {
        "environment": dict(environment),
        "conditions": dict(conditions),
        "seconds": {stage: round(seconds, 2) for stage, seconds in result.seconds.items()},
        "points": result.points,
        "measured": len(result.table),
        "configs": len(result.table.configs),
        "failures": dict(Counter(str(entry.status) for entry in result.failures)),
        "failed": [
            {"config": dict(entry.config), "status": str(entry.status), "detail": entry.detail[:200]}
            for entry in result.failures[:50]
        ],
        "held_out": held_out.to_dict(result.table.spec.dims) if held_out is not None else None,
    }
