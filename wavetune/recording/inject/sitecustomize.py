"""Put first on PYTHONPATH, this is loaded by every Python that starts: it waits for torch, then counts its products.

A process leaves marks in the folder of the recording: that it ran, that it loaded torch, or why it is not recorded.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from typing import Any

_FOLDER = os.environ.get("WAVETUNE_RECORD_FOLDER", "")
_HERE = os.path.dirname(os.path.abspath(__file__))


class _TorchWatcher(importlib.abc.MetaPathFinder):
    """Finds torch as everybody else would, and does something when it is loaded."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        if fullname != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec("torch")
        if spec is None or spec.loader is None:
            return spec
        loader: Any = spec.loader
        load = loader.exec_module

        def load_and_record(module: Any) -> None:
            load(module)
            _record()

        loader.exec_module = load_and_record
        return spec


def _record() -> None:
    _mark("torch")
    try:
        recording = os.path.dirname(_HERE)
        products = _load(os.path.join(recording, "products.py"), "_wavetune_recording_products")
        _load(os.path.join(recording, "recorder.py"), "_wavetune_recorder").install(_FOLDER, products)
    except Exception as error:
        # The program is not ours: it runs on, unrecorded, and the reader says so.
        _mark("failed", f"{type(error).__name__}: {error}")


def _load(path: str, name: str) -> Any:
    spec: Any = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _mark(state: str, text: str = "") -> None:
    try:
        with open(os.path.join(_FOLDER, f"{os.getpid()}.{state}"), "w", encoding="utf-8") as file:
            file.write(text)
    except OSError:
        pass


def _load_the_users() -> None:
    """Load the sitecustomize that this one hides, if there is one."""
    others = [entry for entry in sys.path if os.path.abspath(entry or ".") != _HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.origin is not None:
        _load(spec.origin, "sitecustomize")


if _FOLDER and os.path.isdir(_FOLDER):
    _mark("python")
    sys.meta_path.insert(0, _TorchWatcher())
_load_the_users()
