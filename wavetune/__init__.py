"""Near-best GPU kernel configurations in microseconds.

>>> import wavetune
>>> wavetune.choose_config(512, 4096, 4096, arch="h200")["block_m"] in (64, 128)
True

Importing this package loads the standard library only; names of the offline and GPU layers are loaded when used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from wavetune.core.arch import ARCHS, ArchSpec, find_arch
from wavetune.core.config import KernelConfig, KernelSpec
from wavetune.core.problem import GemmProblem, Problem
from wavetune.errors import WavetuneError
from wavetune.runtime.choose import choose, choose_config, clear_caches, explain_choice, rank_configs
from wavetune.runtime.chooser import Choice, RankedConfig, Source

if TYPE_CHECKING:
    from wavetune.fit.model import WaveLatencyModel

__version__ = "0.1.0"

__all__ = [
    "ARCHS",
    "ArchSpec",
    "Choice",
    "GemmProblem",
    "KernelConfig",
    "KernelSpec",
    "Problem",
    "RankedConfig",
    "Source",
    "WaveLatencyModel",
    "WavetuneError",
    "__version__",
    "choose",
    "choose_config",
    "clear_caches",
    "explain_choice",
    "find_arch",
    "rank_configs",
]

_LAZY = {"WaveLatencyModel": "wavetune.fit.model"}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        import importlib

        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'wavetune' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
