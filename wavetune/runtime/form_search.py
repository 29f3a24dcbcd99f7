"""Find the fastest of all forms, most of them by a bound alone.

Beyond the cells every form of a model takes part. Few come near the fastest, and a form that cannot is passed over
before its waves are counted: W is at least the grid over the wave width, D at least the grid over the SMs. Forms of one
block_m are passed over together where the smallest of their coefficients, on tiles that nowhere hang over, would be too
slow. What the bounds let through is computed term by term in the order of `GemmForms.fastest`, so the
answer is the same, bit by bit, as that of all forms computed in full; a test holds it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from wavetune.runtime.gemm_forms import GFLOP_PER_PRODUCT, Form, GemmForms
from wavetune.waves.terms import BYTES_PER_MB

ROUNDING = 1.0 + 1e-12
"""A bound is believed if it exceeds the fastest by more than the rounding of a dozen additions."""

MAX_HINTS = 4096
"""Cells whose last winner is remembered; it is only where to begin."""

CellKey = tuple[int, int, int]
"""The octaves of the sizes."""

_Leaf = tuple[int, float, float, float, float, float, tuple[float, ...]]
_Columns = tuple[tuple[float, tuple[_Leaf, ...]], ...]
_Branch = tuple[float, tuple[float, ...], _Columns]
"""Minus block_m; what each of its forms takes at least; its forms by minus block_n."""


class FormSearch:
    """All forms of one model, arranged by tile.

    Parameters
    ----------
    forms : GemmForms
        The forms on their GPU.
    """

    def __init__(self, forms: GemmForms) -> None:
        self._forms = forms
        entries = [form for _, _, form in forms.all_entries]
        self._minus_block_k = tuple(sorted({entry[2] for entry in entries}))
        leaves = [self._leaf(index, entry) for index, entry in enumerate(entries)]
        by_rows: dict[float, list[int]] = {}
        for index, entry in enumerate(entries):
            by_rows.setdefault(entry[0], []).append(index)
        self._branches = tuple(
            _branch([entries[i] for i in same], [leaves[i] for i in same]) for same in by_rows.values()
        )
        # A form alone, to begin with: a good first one excludes most others by their bounds.
        self._alone = [_branch([entry], [leaf]) for entry, leaf in zip(entries, leaves, strict=True)]
        self._hints: dict[CellKey, _Branch] = {}

    def fastest(self, m: int, n: int, k: int, cell: CellKey) -> tuple[int, float]:
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
        rows, columns, inner = 1.0 * m, 1.0 * n, 1.0 * k
        minus_sms = forms.minus_sms
        weight, area = columns * inner, rows * columns
        excess_mb = weight * forms.input_mb - forms.reusable_mb
        compulsory_mb = (weight + rows * inner) * forms.input_mb + area * forms.output_mb
        sustained_gflop = rows * weight * GFLOP_PER_PRODUCT - forms.onset_gflop
        if sustained_gflop < 0.0:
            sustained_gflop = 0.0
        all_trips = [-(inner // minus_block_k) for minus_block_k in self._minus_block_k]
        fastest, fastest_us, limit_us = -1, math.inf, math.inf
        first = self._hints.get(cell, self._alone[0])
        for minus_block_m, (launch, compulsory, sustained, per_column, per_weight), tiles_of in (
            first,
            *self._branches,
        ):
            minus_tiles_m = rows // minus_block_m
            latency = launch + compulsory * compulsory_mb + sustained * sustained_gflop
            if latency - minus_tiles_m * (per_column * columns + per_weight * weight) > limit_us:
                continue
            for minus_block_n, leaves in tiles_of:
                tiles = minus_tiles_m * (columns // minus_block_n)
                for position, launch, compulsory, sustained, per_tile, per_trip, rest in leaves:
                    trips = all_trips[position]
                    latency = launch + compulsory * compulsory_mb + sustained * sustained_gflop
                    if latency + tiles * (per_tile + per_trip * trips) > limit_us:
                        continue
                    (
                        index, split_k, group_m, minus_width, wave, wave_trip, depth_trip, work, work_trip,
                        reread, workspace,
                    ) = rest  # fmt: skip
                    grid = tiles
                    if split_k != 1.0:
                        if split_k > trips:
                            continue
                        grid *= split_k
                        trips = -(-trips // split_k)
                        latency += workspace * (8.0 * area * split_k / BYTES_PER_MB)
                    latency += grid * (work + work_trip * trips)
                    latency -= grid // minus_width * (wave + wave_trip * trips)
                    if latency > limit_us:
                        continue
                    if depth_trip:
                        latency -= grid // minus_sms * (depth_trip * trips)
                    if excess_mb > 0.0 and -minus_tiles_m > group_m:
                        latency -= reread * excess_mb * (minus_tiles_m // group_m + 1.0)
                    if latency < fastest_us or (latency == fastest_us and index < fastest):
                        fastest, fastest_us, limit_us = int(index), latency, latency * ROUNDING
        if fastest >= 0 and self._alone[fastest] is not first:
            if len(self._hints) >= MAX_HINTS:
                self._hints.clear()
            self._hints[cell] = self._alone[fastest]
        return fastest, fastest_us

    def _leaf(self, index: int, entry: Form) -> _Leaf:
        (
            _, _, minus_block_k, split_k, group_m, minus_width,
            launch, wave, wave_trip, depth_trip, work, work_trip, compulsory, reread, workspace, sustained,
        ) = entry  # fmt: skip
        # Of a tile, in all of its splits; their trips together are at least those of the whole k.
        per_tile = split_k * (work - wave / minus_width)
        per_trip = work_trip - wave_trip / minus_width - depth_trip / self._forms.minus_sms
        rest = (
            index, split_k, group_m, minus_width, wave, wave_trip, depth_trip, work, work_trip,
            reread, workspace,
        )  # fmt: skip
        return self._minus_block_k.index(minus_block_k), launch, compulsory, sustained, per_tile, per_trip, rest


def _branch(entries: Sequence[Form], leaves: Sequence[_Leaf]) -> _Branch:
    tiles_of: dict[float, list[_Leaf]] = {}
    for entry, leaf in zip(entries, leaves, strict=True):
        tiles_of.setdefault(entry[1], []).append(leaf)
    launch = min(leaf[1] for leaf in leaves)
    compulsory = min(leaf[2] for leaf in leaves)
    sustained = min(leaf[3] for leaf in leaves)
    # Tiles in a row of them are at least n over block_n, trips at least k over block_k.
    per_column = min(leaf[4] / -entry[1] for entry, leaf in zip(entries, leaves, strict=True))
    per_weight = min(leaf[5] / (entry[1] * entry[2]) for entry, leaf in zip(entries, leaves, strict=True))
    floor = (launch, compulsory, sustained, per_column, per_weight)
    return entries[0][0], floor, tuple((minus_n, tuple(members)) for minus_n, members in tiles_of.items())
