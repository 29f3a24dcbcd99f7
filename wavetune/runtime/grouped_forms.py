"""The forms of a grouped GEMM model, evaluated for one histogram after another. Standard library only.

A router gives another histogram at every call, so nothing can be looked up: what a call costs is the forms. Tile rows
are counted once for each tile height, and forms of one height and width share a grid.
"""

from __future__ import annotations

from collections.abc import Sequence

from wavetune.core.arch import ArchSpec, find_arch
from wavetune.core.config import KernelConfig
from wavetune.core.grouped_problem import GroupedGemmProblem
from wavetune.core.problem import MAX_DIMENSION
from wavetune.mapping.grouped_gemm import (
    grouped_bytes,
    grouped_reread_bytes,
    launched_tile_rows,
    tile_rows,
)
from wavetune.mapping.grouped_shape import GroupedShaper
from wavetune.mapping.kernel_mapping import LaunchShape
from wavetune.mapping.legality import TMA_ALIGNMENT
from wavetune.runtime.family_chooser import FamilyChooser
from wavetune.runtime.family_file import FamilyFile
from wavetune.runtime.family_forms import forms_of

_Tile = tuple[int, int, int, int]
"""block_m, block_n, block_k, group_m."""

SURPLUS_CTA_US = 0.5
"""Time that a CTA beyond the last tile takes from its SM: it reads the group sizes, sums them up and ends. Not measured
yet."""


class GroupedForms:
    """Predicts the configurations of one model.

    Parameters
    ----------
    model : FamilyFile
        A checked model of grouped GEMM.
    num_sms : int, optional
        SMs that launches may use; the model's own count if not given.
    is_stand_in : bool, default=False
        Whether the model answers for a layout that has none of its own.

    Attributes
    ----------
    configs : tuple of KernelConfig
        Of the forms, in their order.
    shape : GroupedShaper
        The mapping of keys that the forms were fitted with.
    is_near : callable
        Whether a key is near what was measured, see `wavetune.runtime.family_chooser.FamilyChooser.is_near`.
    """

    def __init__(self, model: FamilyFile, num_sms: int | None = None, *, is_stand_in: bool = False) -> None:
        self.model = model
        self.arch: ArchSpec = find_arch(model.arch)
        self.num_sms = num_sms or model.num_sms
        self.configs = tuple(form.config for form in model.forms)
        self.shape = GroupedShaper(model.dtype, model.layout, self.arch)
        self.is_near = FamilyChooser(model, self.shape, self.num_sms, is_stand_in=is_stand_in).is_near
        self._tiles = [_tile(config) for config in self.configs]
        self._heights = sorted({block_m for block_m, *_ in self._tiles})
        self._least_width = min(block_n for _, block_n, *_ in self._tiles)
        self._ready = forms_of(model, self.num_sms)
        self._has_surplus = [config["schedule"] == "tile" for config in self.configs]
        self._needs_alignment = [config["load"] == "tma" for config in self.configs]

    def legal(self, problem: GroupedGemmProblem) -> list[int]:
        """Return the forms that may be launched on a problem."""
        places = list(range(len(self.configs)))
        if not _fits_grid(problem, self._heights[0], self._least_width):
            places = [index for index in places if _fits_grid(problem, *self._tiles[index][:2])]
        if problem.alignment >= TMA_ALIGNMENT:
            return places
        return [index for index in places if not self._needs_alignment[index]]

    def latencies(self, problem: GroupedGemmProblem, indices: Sequence[int], *, is_known: bool = True) -> list[float]:
        """Predict a problem, microseconds.

        Parameters
        ----------
        problem : GroupedGemmProblem
            Not empty.
        indices : sequence of int
            The forms to evaluate.
        is_known : bool, default=True
            Whether the launch knows the histogram; if not, it holds surplus CTAs, see
            `wavetune.mapping.grouped_gemm.GroupedGemmMapping`.

        Returns
        -------
        list of float
            In the order of ``indices``; with ``is_known`` what `wavetune.runtime.family_chooser.FamilyChooser`
            predicts.
        """
        n, k, num_sms, l2_bytes = problem.n, problem.k, self.num_sms, self.arch.l2_bytes
        rows = {block_m: tile_rows(problem.group_sizes, block_m)[0] for block_m in self._heights}
        compulsory = grouped_bytes(problem)
        # Weights that fit in the cache are read once, whatever the tiles: the usual case.
        is_reread = grouped_reread_bytes(problem, 1, 1, l2_bytes) > 0
        shapes: dict[_Tile, LaunchShape] = {}
        for index in indices:
            tile = self._tiles[index]
            if tile not in shapes:
                block_m, block_n, block_k, group_m = tile
                # All CTAs run equally many trips.
                grid, trips = rows[block_m] * -(-n // block_n), -(-k // block_k)
                reread = grouped_reread_bytes(problem, block_m, group_m, l2_bytes) if is_reread else 0
                shapes[tile] = LaunchShape(grid, trips, grid * trips, compulsory + reread)
        of_indices = [shapes[self._tiles[index]] for index in indices]
        latencies = self._ready.latencies(problem.dims, indices, of_indices)
        if is_known:
            return latencies
        experts, tokens = problem.experts, problem.tokens
        extra = {block_m: launched_tile_rows(experts, tokens, block_m) - rows[block_m] for block_m in rows}
        for position, index in enumerate(indices):
            if self._has_surplus[index]:
                block_m, block_n, *_ = self._tiles[index]
                latencies[position] += SURPLUS_CTA_US * extra[block_m] * -(-n // block_n) / num_sms
        return latencies


def _fits_grid(problem: GroupedGemmProblem, block_m: int, block_n: int) -> bool:
    """Whether a launch for any histogram of the tokens has fewer CTAs than a grid may have."""
    rows = launched_tile_rows(problem.experts, problem.tokens, block_m)
    return rows * -(-problem.n // block_n) <= MAX_DIMENSION


def _tile(config: KernelConfig) -> _Tile:
    block_m, block_n, block_k, group_m = (int(config[name]) for name in ("block_m", "block_n", "block_k", "group_m"))
    return block_m, block_n, block_k, group_m
