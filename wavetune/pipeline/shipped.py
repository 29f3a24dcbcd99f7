"""Where the recorded measurements are that ship with the package."""

from __future__ import annotations

from pathlib import Path

from wavetune.errors import MeasurementError

_PACKAGE = Path(__file__).resolve().parent.parent


def calibration_folders() -> list[Path]:
    """Return the folders that hold evidence, in search order; each holds ``<arch>/...``."""
    # An installed wheel carries the evidence inside the package; a checkout and an editable install have it beside it.
    folders = (_PACKAGE / "_data" / "calibration", _PACKAGE.parent / "calibration")
    return [folder for folder in folders if folder.is_dir()]


def find_recording(arch: str, name: str) -> Path:
    """Return a recorded measurement file.

    Parameters
    ----------
    arch : str
        Folder of the GPU.
    name : str
        Path below it.

    Raises
    ------
    MeasurementError
        If the installation lacks it.
    """
    for folder in calibration_folders():
        path = folder / arch / name
        if path.is_file():
            return path
    searched = ", ".join(map(str, calibration_folders())) or "no calibration folder was found"
    raise MeasurementError(f"the shipped recording {arch}/{name} is missing ({searched}); install wavetune again")
