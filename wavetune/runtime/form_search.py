"""Find the fastest of all forms, most of them by a bound alone.

Beyond the cells every form of a model takes part. Few come near the fastest, and a form that cannot is passed over
before its waves are counted: W is at least the grid over the wave width and at least 1, D at least the grid over the
SMs and at least 1. What both bounds let through is computed term by term in the order of `GemmForms.fastest`, so the
answer is the same, bit by bit, as that of all forms computed in full; a test holds it.
"""

from __future__ import annotations

import math

from wavetune.runtime.gemm_forms import GFLOP_PER_PRODUCT, Form, GemmForms
from wavetune.waves.terms import BYTES_PER_MB

ROUNDING = 1.0 + 1e-12
"""A bound is believed if it exceeds the fastest by more than the rounding of a dozen additions."""

MAX_HINTS = 4096
"""Cells whose last winner is remembered; it is only where to begin."""

Cell = tuple[int, int, int]
_Leaf = tuple[int, float, float, float, float, float, tuple[float, ...]]
_Branch = tuple[float, tuple[tuple[float, tuple[_Leaf, ...]], ...]]


class FormSearch:
    """All forms of one model, arranged by tile.

    Parameters
    ----------
    forms : GemmForms
        The forms on their GPU.
    """

    def __init__(self, forms: GemmForms) -> None:
        self._forms = forms
        entries = [form for _, form in forms.all_entries]
        self._block_k = tuple(sorted({entry[2] for entry in entries}))
        leaves = [self._leaf(index, entry) for index, entry in enumerate(entries)]
        tiles: dict[float, dict[float, list[_Leaf]]] = {}
        for entry, leaf in zip(entries, leaves, strict=True):
            tiles.setdefault(entry[0], {}).setdefault(entry[1], []).append(leaf)
        self._branches: tuple[_Branch, ...] = tuple(
            (block_m, tuple((block_n, tuple(members)) for block_n, members in columns.items()))
            for block_m, columns in tiles.items()
        )
        # A form alone, to begin with: a good first one excludes most others by their bounds.
        self._alone: list[_Branch] = [
            (entry[0], ((entry[1], (leaf,)),)) for entry, leaf in zip(entries, leaves, strict=True)
        ]
        self._hints: dict[Cell, _Branch] = {}

    def fastest(self, m: int, n: int, k: int, cell: Cell) -> tuple[int, float]:
        """Find the form with the smallest predicted latency.

        Parameters
        ----------
        m, n, k : int
            Positive sizes.
        cell : tuple of int
            Octaves of the sizes; only decides which form is looked at first.

        Returns
        -------
        index : int
            Of the form; of equal ones, the first; -1 if each of them splits k into more parts than there are trips.
        latency_us : float
            Its latency, microseconds.
        """
        # The names and the arithmetic are those of `GemmForms.fastest`.
        forms = self._forms
        num_sms = forms.num_sms
        minus_m, minus_n, minus_k = -m, -n, -k
        weight = n * k
        excess_mb = weight * forms.input_mb - forms.reusable_mb
        compulsory_mb = (weight + m * k) * forms.input_mb + m * n * forms.output_mb
        sustained_gflop = m * weight * GFLOP_PER_PRODUCT - forms.onset_gflop
        if sustained_gflop < 0.0:
            sustained_gflop = 0.0
        all_trips = [minus_k // block_k * -1.0 for block_k in self._block_k]
        fastest, fastest_us, limit_us = -1, math.inf, math.inf
        first = self._hints.get(cell, self._alone[0])
        for block_m, columns in (first, *self._branches):
            tiles_m = -(minus_m // block_m)
            for block_n, leaves in columns:
                minus_tiles = tiles_m * (minus_n // block_n)
                # Of the same value, for products with floats.
                tiles = minus_tiles * -1.0
                for position, launch, compulsory, sustained, per_tile, per_trip, rest in leaves:
                    trips = all_trips[position]
                    latency = launch + compulsory * compulsory_mb + sustained * sustained_gflop
                    if latency + tiles * (per_tile + per_trip * trips) > limit_us:
                        continue
                    (
                        index, split_k, group_m, width, one_trip, work_tile, wave, wave_trip, depth_trip,
                        work, work_trip, reread, workspace,
                    ) = rest  # fmt: skip
                    if latency + wave + one_trip * trips + tiles * (work_tile + work_trip * trips) > limit_us:
                        continue
                    minus_grid = minus_tiles
                    if split_k != 1:
                        if split_k > trips:
                            continue
                        minus_grid *= split_k
                        trips = -(-trips // split_k)
                        latency += workspace * (8 * m * n * split_k / BYTES_PER_MB)
                    latency -= minus_grid * (work + work_trip * trips)
                    latency -= minus_grid // width * (wave + wave_trip * trips)
                    if depth_trip:
                        latency -= minus_grid // num_sms * (depth_trip * trips)
                    if excess_mb > 0.0 and tiles_m > group_m:
                        latency += reread * excess_mb * (-(-tiles_m // group_m) - 1)
                    if latency < fastest_us or (latency == fastest_us and index < fastest):
                        fastest, fastest_us, limit_us = int(index), latency, latency * ROUNDING
        if fastest >= 0 and self._alone[fastest] is not first:
            if len(self._hints) >= MAX_HINTS:
                self._hints.clear()
            self._hints[cell] = self._alone[fastest]
        return fastest, fastest_us

    def _leaf(self, index: int, entry: Form) -> _Leaf:
        (
            _, _, block_k, split_k, group_m, width,
            launch, wave, wave_trip, depth_trip, work, work_trip, compulsory, reread, workspace, sustained,
        ) = entry  # fmt: skip
        # Of a tile, in all of its splits; their trips together are at least those of the whole k.
        per_tile = split_k * (work + wave / width)
        per_trip = work_trip + wave_trip / width + depth_trip / self._forms.num_sms
        rest = (
            index, split_k, group_m, width, (wave_trip + depth_trip) / split_k, split_k * work, wave,
            wave_trip, depth_trip, work, work_trip, reread, workspace,
        )  # fmt: skip
        return self._block_k.index(block_k), launch, compulsory, sustained, per_tile, per_trip, rest
