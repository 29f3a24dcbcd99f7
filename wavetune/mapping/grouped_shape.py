"""The grouped GEMM family as a kernel that brings its own mapping: keys of integers to launches.

A key stands for the histogram of `wavetune.core.grouped_problem.spread_groups`. The plan, the fit and the exact table
work with keys; a choice for given groups maps those themselves.
"""

from __future__ import annotations

from functools import lru_cache

from wavetune.core.arch import ArchSpec
from wavetune.core.config import GROUPED_GEMM, KernelConfig
from wavetune.core.grouped_problem import GroupedGemmProblem
from wavetune.mapping.grouped_gemm import map_grouped_gemm
from wavetune.mapping.kernel_mapping import KernelMapping, Key, LaunchShape, Meta

MAX_REMEMBERED = 65536
"""Launches that a shaper remembers: configurations that differ in micro fields have the same one, but for re-reads."""


def grouped_mapping(dtype: str, layout: str, arch: ArchSpec) -> KernelMapping:
    """Return the mapping of the family, for one element type, layout and GPU."""

    def mapped(key: Key, config: Meta) -> LaunchShape:
        problem = GroupedGemmProblem.from_dims([key[name] for name in GROUPED_GEMM.dims], dtype, layout)
        return map_grouped_gemm(problem, GROUPED_GEMM.config(config), arch).launch_shape()

    def grid_size(key: Key, config: Meta) -> int:
        return mapped(key, config).grid_size

    def loop_trips(key: Key, config: Meta) -> int:
        return mapped(key, config).loop_trips

    def bytes_moved(key: Key, config: Meta) -> int:
        return mapped(key, config).moved_bytes

    return KernelMapping(GROUPED_GEMM.name, GROUPED_GEMM.dims, grid_size, loop_trips, bytes_moved)


class GroupedShaper:
    """Maps keys; `wavetune.runtime.family_chooser.Shaper`.

    Parameters
    ----------
    dtype, layout : str
        Of the problems.
    arch : ArchSpec
        Gives the cache that re-reads are counted against.
    """

    def __init__(self, dtype: str, layout: str, arch: ArchSpec) -> None:
        names = (*GROUPED_GEMM.macro, "group_m")

        @lru_cache(maxsize=MAX_REMEMBERED)
        def mapped(dims: tuple[int, ...], part: KernelConfig) -> LaunchShape:
            problem = GroupedGemmProblem.from_dims(dims, dtype, layout)
            return map_grouped_gemm(problem, part, arch).launch_shape()

        self._names, self._mapped = names, mapped

    def __call__(self, dims: tuple[int, ...], config: KernelConfig) -> LaunchShape:
        """Map the problem that a key stands for to a launch."""
        return self._mapped(dims, config.select(self._names))
