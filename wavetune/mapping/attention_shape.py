"""The attention families as kernels that bring their own mapping: keys of integers to launches.

A key stands for evenly spaced lengths, see `wavetune.core.attention_problem.spaced_lengths`. The plan, the fit and the
exact table work with keys; a choice for given lengths maps those themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from wavetune.core.attention_problem import AttentionDecodeProblem, AttentionProblem
from wavetune.core.config import ATTENTION, ATTENTION_DECODE, KernelConfig
from wavetune.mapping.attention import AttentionMapping, map_attention, map_attention_decode
from wavetune.mapping.kernel_mapping import KernelMapping, Key, LaunchShape, Meta

AnyAttentionProblem = AttentionProblem | AttentionDecodeProblem

MAX_REMEMBERED = 4096
"""Problems and launches that a shaper remembers: configurations of one tile have the same launch."""


def map_problem(problem: AnyAttentionProblem, config: KernelConfig) -> AttentionMapping:
    """Map a problem of either family."""
    if isinstance(problem, AttentionProblem):
        return map_attention(problem, config)
    return map_attention_decode(problem, config)


def attention_mapping(dtype: str, layout: str) -> KernelMapping:
    """Return the mapping of the prefill family, for one element type and head dimension."""

    def mapped(key: Key, config: Meta) -> AttentionMapping:
        problem = AttentionProblem.from_dims([key[name] for name in ATTENTION.dims], dtype, layout)
        return map_attention(problem, ATTENTION.config(config))

    return _kernel_mapping(ATTENTION.name, ATTENTION.dims, mapped)


def attention_decode_mapping(dtype: str, layout: str) -> KernelMapping:
    """Return the mapping of the decode family, for one element type and head dimension."""

    def mapped(key: Key, config: Meta) -> AttentionMapping:
        problem = AttentionDecodeProblem.from_dims([key[name] for name in ATTENTION_DECODE.dims], dtype, layout)
        return map_attention_decode(problem, ATTENTION_DECODE.config(config))

    return _kernel_mapping(ATTENTION_DECODE.name, ATTENTION_DECODE.dims, mapped)


def key_problem(kernel: str, dims: tuple[int, ...], dtype: str, layout: str) -> AnyAttentionProblem:
    """Return the problem that a key of either family stands for."""
    family = AttentionProblem if kernel == ATTENTION.name else AttentionDecodeProblem
    return family.from_dims(dims, dtype, layout)


def attention_shaper(
    kernel: str, dtype: str, layout: str
) -> Callable[[tuple[int, ...], KernelConfig], LaunchShape]:  # fmt: skip
    """Return the mapping of keys of either family as one function that remembers what it mapped."""
    macro = (ATTENTION if kernel == ATTENTION.name else ATTENTION_DECODE).macro

    @lru_cache(maxsize=MAX_REMEMBERED)
    def problem_of(dims: tuple[int, ...]) -> AnyAttentionProblem:
        return key_problem(kernel, dims, dtype, layout)

    @lru_cache(maxsize=MAX_REMEMBERED)
    def of_macro(dims: tuple[int, ...], config: KernelConfig) -> LaunchShape:
        return map_problem(problem_of(dims), config).launch_shape()

    def shape(dims: tuple[int, ...], config: KernelConfig) -> LaunchShape:
        return of_macro(dims, config.select(macro))

    return shape


def _kernel_mapping(
    name: str, dims: tuple[str, ...], mapped: Callable[[Key, Meta], AttentionMapping]
) -> KernelMapping:  # fmt: skip
    def grid_size(key: Key, config: Meta) -> int:
        return mapped(key, config).launch_shape().grid_size

    def loop_trips(key: Key, config: Meta) -> int:
        return mapped(key, config).launch_shape().loop_trips

    def bytes_moved(key: Key, config: Meta) -> int:
        return mapped(key, config).launch_shape().moved_bytes

    def total_trips(key: Key, config: Meta) -> int:
        return mapped(key, config).launch_shape().total_trips

    return KernelMapping(name, dims, grid_size, loop_trips, bytes_moved, total_trips)
