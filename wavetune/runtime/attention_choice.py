"""Choose configurations for attention: lengths are mapped as they are, not as a key summarizes them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from wavetune.core.attention_problem import AttentionDecodeProblem, AttentionProblem, check_sequences
from wavetune.core.config import KernelConfig
from wavetune.core.problem import MAX_DIMENSION, check_dimension
from wavetune.errors import ProblemError
from wavetune.mapping.attention import most_decode_trips
from wavetune.mapping.attention_shape import (
    AnyAttentionProblem,
    attention_decode_mapping,
    attention_mapping,
    map_problem,
)
from wavetune.mapping.kernel_mapping import LaunchShape
from wavetune.runtime.choice import RankedConfig
from wavetune.runtime.device import Device, resolve_device
from wavetune.runtime.families import nothing_legal
from wavetune.runtime.family_chooser import FamilyChoice, FamilyChooser
from wavetune.runtime.family_file import FamilyFile
from wavetune.runtime.family_source import KnownModels, find_answering_model, is_stand_in
from wavetune.runtime.settings import Settings, settings

MAX_REMEMBERED = 4096
"""Answers that are remembered; all are dropped when there are more, or when settings change."""

_NOTHING = LaunchShape(0, 0, 0, 0)


@dataclass
class _Memory:
    """What was found and answered under one state of the settings."""

    settings: Settings
    models: KnownModels
    answers: dict[tuple[AnyAttentionProblem, str, int], FamilyChoice]


_memory: list[_Memory] = []


Lengths = int | Iterable[int]
"""One length for every sequence, or one for each."""


def choose_attention_config(
    q_len: Lengths,
    kv_len: Lengths | None = None,
    *,
    heads: int,
    kv_heads: int | None = None,
    head_dim: int = 128,
    batch: int = 1,
    causal: bool = False,
    window: int = 0,
    dtype: str = "bf16",
    arch: str | None = None,
    num_sms: int | None = None,
) -> KernelConfig:
    """Choose the launch configuration for attention over whole sequences (prefill).

    Parameters
    ----------
    q_len, kv_len : int or iterable of int
        Queries and keys of each sequence, or of every one; as many keys as queries if not given.
    heads, kv_heads : int
        Query heads, and the key and value heads that they share; as many as query heads if not given.
    head_dim : {64, 96, 128, 256}, default=128
        Elements of a head.
    batch : int, default=1
        Sequences, where all have one length.
    causal : bool, default=False
        Whether queries see no later keys; the last query sees all keys.
    window : int, default=0
        Keys and queries at this distance or more do not see each other; 0 for no window.
    dtype : str, default="bf16"
        Element type.
    arch : str, optional
        GPU name; the current GPU if not given.
    num_sms : int, optional
        SMs that launches may use.

    Returns
    -------
    KernelConfig
        Legal for the problem.

    Raises
    ------
    ProblemTypeError, ProblemError
        If a size is impossible, or ``batch`` contradicts the lengths; names the argument.
    NoModelError
        If no model file covers the dtype, head dimension and GPU.
    ArchError
        If the GPU is unknown, or none was named and none found.
    """
    problem = attention_problem(
        q_len, kv_len, heads=heads, kv_heads=kv_heads, head_dim=head_dim, batch=batch, causal=causal, window=window,
        dtype=dtype,
    )  # fmt: skip
    return choose_attention(problem, arch=arch, num_sms=num_sms).config


def choose_attention_decode_config(
    kv_len: Lengths,
    *,
    heads: int,
    kv_heads: int | None = None,
    head_dim: int = 128,
    batch: int = 1,
    page_size: int = 16,
    window: int = 0,
    dtype: str = "bf16",
    arch: str | None = None,
    num_sms: int | None = None,
) -> KernelConfig:
    """Choose the launch configuration for one new query of each sequence against a paged cache (decode).

    Parameters
    ----------
    kv_len : int or iterable of int
        Keys of each sequence, or of every one.
    page_size : int, default=16
        Tokens of one page of the cache.
    heads, kv_heads, head_dim, batch, window, dtype, arch, num_sms
        As for `choose_attention_config`; a window keeps the last so many keys.

    Returns
    -------
    KernelConfig
        Legal for the problem: no more splits than the longest cache has work for.

    Raises
    ------
    ProblemTypeError, ProblemError, NoModelError, ArchError
        As `choose_attention_config` does.
    """
    problem = decode_problem(
        kv_len, heads=heads, kv_heads=kv_heads, head_dim=head_dim, batch=batch, page_size=page_size, window=window,
        dtype=dtype,
    )  # fmt: skip
    return choose_attention(problem, arch=arch, num_sms=num_sms).config


def attention_problem(
    q_len: Lengths, kv_len: Lengths | None = None, *, heads: int, kv_heads: int | None = None, head_dim: int = 128,
    batch: int = 1, causal: bool = False, window: int = 0, dtype: str = "bf16",
) -> AttentionProblem:  # fmt: skip
    """Return the prefill that the arguments of `choose_attention_config` describe."""
    q_lengths = _lengths("q_len", q_len, batch)
    kv_lengths = q_lengths if kv_len is None else _lengths("kv_len", kv_len, len(q_lengths))
    if len(q_lengths) == 1 < len(kv_lengths):
        q_lengths *= len(kv_lengths)
    return AttentionProblem(
        q_lengths, kv_lengths, heads, heads if kv_heads is None else kv_heads, head_dim, causal, window, dtype
    )


def decode_problem(
    kv_len: Lengths, *, heads: int, kv_heads: int | None = None, head_dim: int = 128, batch: int = 1,
    page_size: int = 16, window: int = 0, dtype: str = "bf16",
) -> AttentionDecodeProblem:  # fmt: skip
    """Return the decode step that the arguments of `choose_attention_decode_config` describe."""
    return AttentionDecodeProblem(
        _lengths("kv_len", kv_len, batch), heads, heads if kv_heads is None else kv_heads, head_dim, page_size, window,
        dtype,
    )  # fmt: skip


def _lengths(name: str, value: Lengths, batch: int) -> tuple[int, ...]:
    """Return one length a sequence."""
    batch = check_sequences("batch", batch)
    # An array without axes says that it can be iterated, and cannot.
    has_axes = getattr(value, "ndim", None) != 0
    if isinstance(value, Iterable) and not isinstance(value, str | bytes) and has_axes:
        lengths = tuple(value)
        if not lengths:
            raise ProblemError(f"{name} is empty: there is no sequence")
        if batch not in (1, len(lengths)):
            raise ProblemError(f"{name} has {len(lengths)} lengths, but there are {batch} sequences")
        return lengths
    return (check_dimension(name, value),) * batch


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
    model = find_model(problem, device)
    chooser = chooser_for(model, problem, device.num_sms)
    choice = chooser.forced(problem.dims, None if problem.is_empty else memory.settings.force_config)
    if choice is None:
        choice = chooser.default(problem.dims) if memory.settings.disable else chooser.choose(problem.dims)
    if choice is None:
        raise nothing_legal(model, problem)
    if len(memory.answers) >= MAX_REMEMBERED:
        memory.answers.clear()
    memory.answers[key] = choice
    return choice


def rank_attention(
    problem: AnyAttentionProblem, *, arch: str | None = None, num_sms: int | None = None
) -> list[RankedConfig]:  # fmt: skip
    """Order the legal configurations by predicted latency, best first; raises as `choose_attention` does."""
    device = resolve_device(arch, num_sms)
    return chooser_for(find_model(problem, device), problem, device.num_sms).rank(problem.dims)


def find_model(problem: AnyAttentionProblem, device: Device) -> FamilyFile:
    """Return the model that answers for a problem, see `wavetune.runtime.family_source.find_answering_model`.

    Raises
    ------
    NoModelError
        If no file covers the kernel, dtype, head dimension and GPU.
    """
    mapping_of = attention_decode_mapping if isinstance(problem, AttentionDecodeProblem) else attention_mapping
    return find_answering_model(
        problem.kernel, mapping_of, problem.dtype, problem.layout, device.arch.name, _current_memory().models
    )


def chooser_for(
    model: FamilyFile, problem: AnyAttentionProblem, num_sms: int | None = None, *, use_exact: bool = True
) -> FamilyChooser:  # fmt: skip
    """Return what chooses among the configurations of a model that are legal for a problem, mapped as it is.

    Parameters
    ----------
    model : FamilyFile
        Of the problem's kernel and head dimension, and of its dtype or one that stands in for it.
    problem : AttentionProblem or AttentionDecodeProblem
        To be asked about by its ``dims``.
    num_sms : int, optional
        SMs that launches may use; the model's own count if not given.
    use_exact : bool, default=True
        Whether a measured key is looked up.
    """

    def shape(dims: tuple[int, ...], config: KernelConfig) -> LaunchShape:
        return shapes[config.select(macro)]

    macro = tuple(name for name in model.forms[0].config if name in ("block_m", "block_n", "order", "splits"))
    possible = [form.config for form in model.forms if is_legal(problem, form.config)]
    distinct = {config.select(macro): config for config in possible}
    shapes = {
        part: _NOTHING if problem.is_empty else map_problem(problem, config).launch_shape()
        for part, config in distinct.items()
    }
    legal = set(possible)
    if any(launch.grid_size > MAX_DIMENSION for launch in shapes.values()):
        legal = {config for config in possible if shapes[config.select(macro)].grid_size <= MAX_DIMENSION}
    # What was measured is the problem of evenly spaced lengths; another of the same key is not it.
    dims = problem.dims
    is_measured = dims in model.exact and type(problem).from_dims(dims, problem.dtype, problem.layout) == problem
    return FamilyChooser(
        model, shape, num_sms, usable=legal, use_exact=use_exact and is_measured,
        is_stand_in=is_stand_in(model, problem.dtype, problem.layout),
    )  # fmt: skip


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
