"""One short string for everything that decides answers: ranks that have the same one answer alike."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator
from pathlib import Path

from wavetune.core.dtype import DTYPES
from wavetune.core.problem import GEMM_LAYOUTS, GemmProblem
from wavetune.errors import ArchError, ModelFileError
from wavetune.runtime.device import resolve_device
from wavetune.runtime.json_document import read_bytes
from wavetune.runtime.locate import all_model_files
from wavetune.runtime.settings import settings
from wavetune.runtime.tables import load_stored

DIGITS = 16


def fingerprint(arch: str | None = None, num_sms: int | None = None) -> str:
    """Return a digest of the tables in use and of the settings that decide between them.

    It covers the version of wavetune, the content of every model file that is found (by its place under a models
    folder, not by the folder), the pinned table, the choices in the user's store, and the settings ``disable``,
    ``force_config`` and ``on_miss``. Ranks compare theirs before they start; where ``on_miss`` is ``measure``, they may
    learn different things afterwards.

    Parameters
    ----------
    arch : str, optional
        GPU whose stored choices are meant; the current one if not given. Without a GPU there are none.
    num_sms : int, optional
        SMs that launches may use there.

    Returns
    -------
    str
        16 hexadecimal digits.

    Raises
    ------
    ArchError
        If ``arch`` is unknown.
    """
    lines = [*_settings_lines(), *_model_lines(), *_stored_lines(arch, num_sms)]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:DIGITS]


def _settings_lines() -> Iterator[str]:
    current = settings()
    forced = sorted(current.force_config.items()) if current.force_config is not None else None
    yield f"wavetune {getattr(sys.modules.get('wavetune'), '__version__', '')}"
    yield f"disable {current.disable} force_config {forced} on_miss {current.on_miss}"
    if current.pinned is not None:
        yield f"pinned {_content(current.pinned)}"


def _model_lines() -> Iterator[str]:
    # The first file of a name answers, unless it is refused; so all of them count, in order.
    for path in all_model_files():
        yield f"model {path.parent.name}/{path.name} {_content(path)}"


def _stored_lines(arch: str | None, num_sms: int | None) -> Iterator[str]:
    try:
        device = resolve_device(arch, num_sms)
    except ArchError:
        if arch is not None:
            raise
        return
    for dtype in DTYPES:
        for layout in GEMM_LAYOUTS:
            found = load_stored((GemmProblem.kernel, dtype, layout), device, settings())
            for (dims, alignment), choice in sorted(found.items()):
                yield f"stored {dtype} {layout} {dims} {alignment} {sorted(choice.config.items())}"


def _content(path: Path) -> str:
    try:
        return hashlib.sha256(read_bytes(path)).hexdigest()
    except ModelFileError:
        return "unreadable"
