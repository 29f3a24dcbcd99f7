"""Choose for the families that bring their own mapping: which module answers for which kind of problem.

Modules are loaded when they are first asked, so that a GEMM pays for none of them.
"""

from __future__ import annotations

from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from wavetune.core.config import KernelConfig, find_kernel_spec
from wavetune.core.problem import Problem
from wavetune.core.shorthand import name_sizes
from wavetune.errors import MissError, NoModelError
from wavetune.runtime.choice import Choice, RankedConfig, Source
from wavetune.runtime.device import Device, resolve_device
from wavetune.runtime.family_source import stand_ins
from wavetune.runtime.numerics import check_numerics
from wavetune.waves.geometry import wave_geometry

if TYPE_CHECKING:
    from wavetune.runtime.family_chooser import FamilyChoice, FamilyChooser
    from wavetune.runtime.family_file import FamilyFile

CHOOSERS = MappingProxyType(
    {
        "grouped_gemm": ("wavetune.runtime.grouped_choice", "choose_grouped_gemm", "rank_grouped_gemm"),
        "attention": ("wavetune.runtime.attention_choice", "choose_attention", "rank_attention"),
        "attention_decode": ("wavetune.runtime.attention_choice", "choose_attention", "rank_attention"),
    }
)
"""Kernel to module, the function that returns a `FamilyChoice`, and the one that returns a ranking. Each module has
``find_model(problem, device)`` and ``chooser_for(model, problem, num_sms, use_exact=)`` as well."""


def choose_of_family(
    problem: Problem, arch: str | None, num_sms: int | None, numerics: str, on_miss: str
) -> KernelConfig:
    """Return the configuration for a problem of one of `CHOOSERS`; see `wavetune.choose`.

    Raises
    ------
    NoModelError
        If no family answers for the problem, or under a numerics class that families do not have.
    MissError
        If the forms had to answer beyond what was measured, and ``on_miss`` is ``error``; with ``default`` the
        model's default configuration answers there.
    """
    return _answer(problem, arch, num_sms, numerics, on_miss).config


def rank_of_family(problem: Problem, arch: str | None, num_sms: int | None, numerics: str) -> list[RankedConfig]:
    """Order the legal configurations for a problem, best predicted first; raises as `choose_of_family`."""
    ranking: list[RankedConfig] = _function(problem, 2, numerics)(problem, arch=arch, num_sms=num_sms)
    return ranking


def explain_of_family(problem: Problem, arch: str | None, num_sms: int | None, numerics: str, on_miss: str) -> Choice:
    """Return what `choose_of_family` returns, with its source, prediction, waves and runner-up; raises alike."""
    answer = _answer(problem, arch, num_sms, numerics, on_miss)
    device = resolve_device(arch, num_sms)
    return explain_from(_find_model(problem, device), problem, device.num_sms, answer)


def explain_from(
    model: FamilyFile, problem: Problem, num_sms: int | None = None, answer: FamilyChoice | None = None
) -> Choice:
    """Return the answer of one model file to a problem, and the reasons.

    Parameters
    ----------
    answer : FamilyChoice, optional
        What was answered from this file, where settings or a miss policy had a say.

    Raises
    ------
    NoModelError
        If no configuration is legal, or no family answers for the problem.
    """
    chooser = chooser_for(model, problem, num_sms)
    num_sms = num_sms or model.num_sms
    choice = answer or chooser.choose(problem.dims)
    if choice is None:
        raise nothing_legal(model, problem)
    ranked = chooser.rank(problem.dims)
    predicted_us = next(entry.latency_us for entry in ranked if entry.config == choice.config)
    rival = next((entry for entry in ranked if entry.config != choice.config), None)
    shape = chooser.launch(problem.dims, choice.config)
    form = next(form for form in model.forms if form.config == choice.config)
    waves = wave_geometry(shape.grid_size, form.ctas_per_sm, num_sms) if shape.grid_size else None
    return Choice(
        config=choice.config,
        source=choice.source,
        latency_us=choice.latency_us,
        grid_size=shape.grid_size,
        loop_trips=shape.loop_trips,
        waves=waves.waves if waves is not None else 0,
        tail_ctas=waves.tail_ctas if waves is not None else 0,
        runner_up=rival.config if rival is not None else None,
        margin=rival.latency_us / predicted_us - 1.0 if rival is not None and predicted_us > 0.0 else 0.0,
        table=model.path,
        num_sms=num_sms,
        is_scaled=num_sms != model.num_sms,
        model=model.path,
        is_measured=choice.source is Source.EXACT,
        is_stand_in=chooser.is_stand_in,
    )


def chooser_for(
    model: FamilyFile, problem: Problem, num_sms: int | None = None, *, use_exact: bool = True
) -> FamilyChooser:
    """Return what answers a problem of one of `CHOOSERS` from a model file.

    Raises
    ------
    NoModelError
        If the model is of another kernel, or of a dtype and layout that do not stand in for the problem's, or no
        family answers for the problem.
    """
    if model.kernel != problem.kernel:
        raise NoModelError(f"{_name(model)} is for kernel {model.kernel}, the problem for {problem.kernel}")
    wanted = problem.dtype, getattr(problem, "layout", "")
    if (model.dtype, model.layout) not in stand_ins(*wanted):
        raise NoModelError(f"{_name(model)} is for {model.dtype} {model.layout}, the problem for {' '.join(wanted)}")
    module = import_module(_entry(problem)[0])
    chooser: FamilyChooser = module.chooser_for(model, problem, num_sms, use_exact=use_exact)
    return chooser


def _name(model: FamilyFile) -> str:
    return model.path or "the model"


def nothing_legal(model: FamilyFile, problem: Problem) -> NoModelError:
    """Return the error of a problem that no configuration of a model may be launched on."""
    return NoModelError(
        f"{_name(model)}: no configuration is legal for {_describe(problem)}; a grid has at most "
        "2**31 - 1 CTAs, and TMA needs operands aligned to 16 bytes"
    )


def _answer(problem: Problem, arch: str | None, num_sms: int | None, numerics: str, on_miss: str) -> FamilyChoice:
    """Answer as `choose_of_family` does. Nothing measures a family live: ``measure`` leaves it to the forms."""
    choice: FamilyChoice = _function(problem, 1, numerics)(problem, arch=arch, num_sms=num_sms)
    if choice.source is not Source.MODEL or on_miss not in ("default", "error"):
        return choice
    device = resolve_device(arch, num_sms)
    chooser = chooser_for(_find_model(problem, device), problem, device.num_sms)
    if on_miss == "error":
        name = f"{_describe(problem)} in {problem.dtype} {getattr(problem, 'layout', '')}".rstrip()
        if chooser.is_stand_in:
            raise MissError(
                f"{name} is answered by a model that stands in, and on_miss is 'error'; calibrate {problem.kernel} for "
                "this dtype and layout, or choose another on_miss"
            )
        raise MissError(
            f"{name} is beyond what was measured, and on_miss is 'error'; calibrate with it in a workload, or choose "
            "another on_miss"
        )
    return chooser.default(problem.dims) or choice


def _find_model(problem: Problem, device: Device) -> FamilyFile:
    model: FamilyFile = import_module(_entry(problem)[0]).find_model(problem, device)
    return model


def _describe(problem: Problem) -> str:
    """Name a problem by its key: the lengths of a batch, or the groups of a layer, may be thousands."""
    return f"{problem.kernel} {name_sizes(find_kernel_spec(problem.kernel).dims, problem.dims)}"


def _function(problem: Problem, which: int, numerics: str) -> Any:
    entry = _entry(problem)
    if check_numerics(numerics) == "batch_invariant":
        raise NoModelError(f"kernel {problem.kernel!r} has no configurations that sum alike for every batch")
    return getattr(import_module(entry[0]), entry[which])


def _entry(problem: Problem) -> tuple[str, str, str]:
    kernel = getattr(problem, "kernel", None)
    entry = CHOOSERS.get(kernel) if isinstance(kernel, str) else None
    if entry is None:
        raise NoModelError(f"no model answers for problems of type {type(problem).__name__}")
    return entry
