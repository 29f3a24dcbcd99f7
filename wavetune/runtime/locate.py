"""Where model files are: the user's folders first, then those shipped with the package."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from wavetune.runtime.settings import settings

MODELS_VARIABLE = "WAVETUNE_MODELS"
"""Environment variable: folders, separated as in PATH, that are searched before the shipped models."""

_LAYOUT = "models lie in it by their GPU, as nvidia-h200/gemm-bf16.json"

_PACKAGE = Path(__file__).resolve().parent.parent


def model_folders() -> list[Path]:
    """Return the folders that are searched, in order; each holds ``<arch>/<kernel>-<dtype>.json``."""
    folders = list(settings().models)
    # An installed wheel carries the models inside the package; a checkout has them beside it.
    folders += [_PACKAGE / "_data" / "models", _PACKAGE.parent / "models"]
    return [folder for folder in folders if os.path.isdir(folder)]


def unusable_folders() -> Iterator[str]:
    """Yield what is wrong with folders that the settings name and in which no model can be found."""
    for folder in settings().models:
        try:
            names = os.listdir(folder)
        except OSError as error:
            yield f"models folder {folder.absolute()} cannot be listed: {error.strerror or error}; {_LAYOUT}"
            continue
        if any(name.endswith(".json") for name in names) and not any(folder.glob("*/*.json")):
            yield f"models folder {folder.absolute()}: the files that lie in it are not found; {_LAYOUT}"


def model_file_name(kernel: str, dtype: str, layout: str) -> str:
    """Return the file name of a model; the layout of linear layers is not spelled out."""
    suffix = "" if layout in ("", "nk") else f"-{layout}"
    return f"{kernel}-{dtype}{suffix}.json"


def all_model_files() -> Iterator[Path]:
    """Yield every model file that can be found, in search order."""
    for folder in model_folders():
        yield from sorted(folder.glob("*/*.json"))
