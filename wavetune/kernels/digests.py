"""Digests that tell one state of a kernel family from another."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

from wavetune.core.config import KernelConfig


def sources_digest(modules: Iterable[ModuleType]) -> str:
    """Return a digest of the source files of modules, in order."""
    digest = hashlib.sha256()
    for module in modules:
        digest.update(Path(str(module.__file__)).read_bytes())
    return digest.hexdigest()[:16]


def configs_digest(configs: Iterable[KernelConfig]) -> str:
    """Return a digest of configurations, in order."""
    return hashlib.sha256("\n".join(map(repr, configs)).encode()).hexdigest()[:16]
