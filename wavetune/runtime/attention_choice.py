"""Choose configurations for attention: lengths are mapped as they are, not as a key summarizes them."""

from __future__ import annotations

from dataclasses import dataclass

from wavetune.core.attention_problem import AttentionDecodeProblem
from wavetune.core.config import KernelConfig
from wavetune.errors import NoModelError
from wavetune.mapping.attention import most_decode_trips
from wavetune.mapping.attention_shape import (
    AnyAttentionProblem,
    attention_decode_mapping,
    attention_mapping,
    map_problem,
)
from wavetune.mapping.kernel_mapping import LaunchShape
from wavetune.runtime.device import resolve_device
from wavetune.runtime.family_chooser import FamilyChoice, FamilyChooser
from wavetune.runtime.family_file import FamilyFile
from wavetune.runtime.family_source import find_family_model
from wavetune.runtime.settings import Settings, settings

MAX_REMEMBERED = 4096
"""Answers that are remembered; all are dropped when there are more, or when settings change."""


@dataclass
class _Memory:
    """What was found and answered under one state of the settings."""

    settings: Settings
    models: dict[tuple[str, str, str, str], FamilyFile | None]
    answers: dict[tuple[AnyAttentionProblem, str, int], FamilyChoice]


_memory: list[_Memory] = []


def choose_attention(
    problem: AnyAttentionProblem, *, arch: str | None = None, num_sms: int | None = None
) -> FamilyChoice:  # fmt: skip
    """Return the configuration for a prefill or a decode step.

    Parameters
    ----------
    problem : AttentionProblem or AttentionDecodeProblem
        Its lengths may be anything; `AttentionProblem.dims` decides only whether a measured key is it.
    arch : str, optional
        GPU name; the current GPU if not given.
    num_sms : int, optional
        SMs that launches may use.

    Raises
    ------
    NoModelError
        If no model file covers the kernel, dtype, head dimension and GPU.
    ArchError
        If the GPU is unknown, or none was named and none found.
    """
    device = resolve_device(arch, num_sms)
    memory = _current_memory()
    key = (problem, device.arch.name, device.num_sms)
    known = memory.answers.get(key)
    if known is not None:
        return known
    model = _find_model(memory, problem, device.arch.name)
    if model is None:
        raise NoModelError(
            f"no model of {problem.kernel} for {problem.dtype} and {problem.layout} on {device.arch.name}; "
            "calibrate one, or let the launcher use its fixed rule"
        )
    choice = _choose(model, problem, device.num_sms)
    if len(memory.answers) >= MAX_REMEMBERED:
        memory.answers.clear()
    memory.answers[key] = choice
    return choice


def rank_attention(
    model: FamilyFile, problem: AnyAttentionProblem, num_sms: int | None = None
) -> list[tuple[KernelConfig, float]]:  # fmt: skip
    """Order the legal configurations of a model by predicted latency in microseconds, best first."""
    chooser = _chooser(model, problem, num_sms)
    return [(ranked.config, ranked.latency_us) for ranked in chooser.rank(problem.dims)]


def _choose(model: FamilyFile, problem: AnyAttentionProblem, num_sms: int) -> FamilyChoice:
    choice = _chooser(model, problem, num_sms).choose(problem.dims)
    if choice is None:
        raise NoModelError(f"{model.path}: no configuration is legal for {problem}")
    return choice


def _chooser(model: FamilyFile, problem: AnyAttentionProblem, num_sms: int | None) -> FamilyChooser:
    def shape(dims: tuple[int, ...], config: KernelConfig) -> LaunchShape:
        return shapes[config.select(macro)]

    macro = tuple(name for name in model.forms[0].config if name in ("block_m", "block_n", "order", "splits"))
    legal = {form.config for form in model.forms if is_legal(problem, form.config)}
    distinct = {config.select(macro): config for config in legal}
    shapes = {part: map_problem(problem, config).launch_shape() for part, config in distinct.items()}
    # What was measured is the problem of evenly spaced lengths; another of the same key is not it.
    is_measured = type(problem).from_dims(problem.dims, problem.dtype, problem.layout) == problem
    return FamilyChooser(model, shape, num_sms, usable=legal, use_exact=is_measured)


def is_legal(problem: AnyAttentionProblem, config: KernelConfig) -> bool:
    """Whether a configuration of a model for the problem's head dimension may be launched on it."""
    if isinstance(problem, AttentionDecodeProblem):
        return int(config["splits"]) <= most_decode_trips(problem, int(config["block_n"]))
    return True


def _current_memory() -> _Memory:
    now = settings()
    if not _memory or _memory[0].settings is not now:
        _memory[:] = [_Memory(now, {}, {})]
    return _memory[0]


def _find_model(memory: _Memory, problem: AnyAttentionProblem, arch: str) -> FamilyFile | None:
    key = (problem.kernel, problem.dtype, problem.layout, arch)
    if key not in memory.models:
        mapping_of = attention_decode_mapping if isinstance(problem, AttentionDecodeProblem) else attention_mapping
        mapping = mapping_of(problem.dtype, problem.layout)
        memory.models[key] = find_family_model(mapping, problem.dtype, problem.layout, arch)
    return memory.models[key]
