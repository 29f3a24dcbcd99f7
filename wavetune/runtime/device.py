"""Which GPU an answer is for."""

from __future__ import annotations

import os

from wavetune.core.arch import ARCHS, ArchSpec, find_arch
from wavetune.errors import ArchError

ARCH_VARIABLE = "WAVETUNE_ARCH"
"""Environment variable: the architecture to answer for when a call names none."""


def resolve_arch(arch: str | None) -> ArchSpec:
    """Resolve an explicit name, or else the environment variable; never guesses.

    Raises
    ------
    ArchError
        If the name is unknown, or none was given.
    """
    name = os.environ.get(ARCH_VARIABLE) if arch is None else arch
    if not name:
        raise ArchError(f"no GPU architecture given: pass arch=... or set {ARCH_VARIABLE}; known: {', '.join(ARCHS)}")
    return find_arch(name)
