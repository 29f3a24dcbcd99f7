"""Choose for the families that bring their own mapping: which module answers for which kind of problem.

Modules are loaded when they are first asked, so that a GEMM pays for none of them.
"""

from __future__ import annotations

from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from wavetune.core.config import KernelConfig
from wavetune.core.problem import Problem
from wavetune.errors import MissError, NoModelError
from wavetune.runtime.choice import RankedConfig, Source
from wavetune.runtime.numerics import check_numerics

if TYPE_CHECKING:
    from wavetune.runtime.family_chooser import FamilyChoice

CHOOSERS = MappingProxyType(
    {
        "grouped_gemm": ("wavetune.runtime.grouped_choice", "choose_grouped_gemm", "rank_grouped_gemm"),
        "attention": ("wavetune.runtime.attention_choice", "choose_attention", None),
        "attention_decode": ("wavetune.runtime.attention_choice", "choose_attention", None),
    }
)
"""Kernel to module, the function that returns a `FamilyChoice`, and the one that returns a ranking."""


def choose_of_family(
    problem: Problem, arch: str | None, num_sms: int | None, numerics: str, on_miss: str
) -> KernelConfig:
    """Return the configuration for a problem of one of `CHOOSERS`; see `wavetune.choose`.

    Raises
    ------
    NoModelError
        If no family answers for the problem, or under a numerics class that families do not have.
    MissError
        If the forms had to answer beyond what was measured, and ``on_miss`` is ``error``.
    """
    choice: FamilyChoice = _function(problem, 1, numerics)(problem, arch=arch, num_sms=num_sms)
    if on_miss == "error" and choice.source is Source.MODEL:
        raise MissError(
            f"{problem.kernel} {problem.dims} is beyond what was measured; calibrate it, or allow the model"
        )
    return choice.config


def rank_of_family(problem: Problem, arch: str | None, num_sms: int | None, numerics: str) -> list[RankedConfig]:
    """Order the legal configurations for a problem, best predicted first; raises as `choose_of_family`."""
    ranking: list[RankedConfig] = _function(problem, 2, numerics)(problem, arch=arch, num_sms=num_sms)
    return ranking


def _function(problem: Problem, which: int, numerics: str) -> Any:
    kernel = getattr(problem, "kernel", None)
    if check_numerics(numerics) == "batch_invariant":
        raise NoModelError(f"kernel {kernel!r} has no configurations that sum alike for every batch")
    entry = CHOOSERS.get(kernel) if isinstance(kernel, str) else None
    if entry is None or entry[which] is None:
        raise NoModelError(f"no model answers for problems of type {type(problem).__name__}")
    return getattr(import_module(entry[0]), str(entry[which]))
