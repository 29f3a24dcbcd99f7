"""The files that may answer: models, in search order, with what is wrong with those that may not.

A damaged or foreign file is passed over with one warning that names file and field; the next source answers.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wavetune.errors import ModelFileError
from wavetune.runtime.codec import read_model
from wavetune.runtime.locate import model_file_name, model_folders, unusable_folders
from wavetune.runtime.model_file import ModelFile

if TYPE_CHECKING:
    from wavetune.runtime.family_file import FamilyFile

logger = logging.getLogger("wavetune")

_warned: set[str] = set()


def find_model(kernel: str, dtype: str, layout: str, arch: str) -> tuple[ModelFile | None, tuple[str, ...]]:
    """Read the first model file of a key that is whole and belongs where it is.

    Returns
    -------
    model : ModelFile or None
        None if there is none.
    refused : tuple of str
        What is wrong with the files before it.
    """
    refused: list[str] = []
    for path in found_files(arch, model_file_name(kernel, dtype, layout)):
        try:
            model = read_model(path)
            check_key(model, (kernel, dtype, layout, arch))
            check_triton(str(path), model.provenance)
            return model, tuple(refused)
        except ModelFileError as error:
            refused.append(str(error))
            warn_once(f"{error}; the next source answers")
    return None, tuple(refused)


def found_files(arch: str, name: str) -> Iterator[Path]:
    """Yield the files of this name for a GPU, in search order; folders that cannot be searched are warned of once."""
    for complaint in unusable_folders():
        warn_once(complaint)
    for folder in model_folders():
        path = folder / arch / name
        # Where it cannot be told whether there is one, reading says why.
        if not _is_absent(path):
            yield path


def check_key(model: ModelFile | FamilyFile, key: tuple[str, str, str, str]) -> None:
    """Refuse a file that is for something else than was looked for.

    Parameters
    ----------
    model : ModelFile or FamilyFile
        As it was read.
    key : tuple of str
        Kernel, dtype, layout and GPU that its place stands for.

    Raises
    ------
    ModelFileError
        Naming the field.
    """
    found = (model.kernel, model.dtype, model.layout, model.arch)
    for field, value, expected in zip(("kernel", "dtype", "layout", "arch"), found, key, strict=True):
        if value != expected:
            raise ModelFileError(f"{model.path}: field {field}: {value!r}, but its place says {expected!r}; move it")


def check_triton(name: str, provenance: Any) -> None:
    """Refuse a file whose kernels another major release of Triton compiled.

    Raises
    ------
    ModelFileError
        If its provenance names a release, one is installed, and they differ.
    """
    for field in ("environment", "versions"):
        facts = provenance.get(field)
        recorded = facts.get("triton") if isinstance(facts, dict) else None
        if not isinstance(recorded, str) or not recorded[:1].isdecimal():
            continue
        from wavetune.runtime.installed import triton_release  # Looks a package up: only where it matters.

        installed = triton_release()
        if installed and installed.split(".")[0] != recorded.split(".")[0]:
            raise ModelFileError(
                f"{name}: field provenance.{field}.triton: measured with Triton {recorded}, this process has "
                f"{installed}; calibrate again"
            )


def warn_once(sentence: str) -> None:
    """Log a warning that was not logged since the caches were cleared."""
    if sentence not in _warned:
        _warned.add(sentence)
        logger.warning("%s", sentence)


def forget_warnings() -> None:
    """Let every warning be given again."""
    _warned.clear()


def _is_absent(path: Path) -> bool:
    try:
        os.stat(path)
    except OSError as error:
        return isinstance(error, FileNotFoundError | NotADirectoryError)
    return False
