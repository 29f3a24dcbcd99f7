"""Evaluate the latency forms of a GEMM model on Python numbers, fast.

This is the hot path of a decision, so the formulas of `wavetune.mapping.gemm` and `wavetune.waves.terms` are
written out in one loop; a test holds them equal to the definitions.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from wavetune.core.arch import ArchSpec
from wavetune.core.dtype import find_dtype
from wavetune.mapping.gemm import reusable_l2_bytes
from wavetune.runtime.model_file import Cell, ModelFile
from wavetune.waves.terms import BYTES_PER_MB, FLOPS_PER_GFLOP, sustained_onset_gflop

GFLOP_PER_PRODUCT = 2.0 / FLOPS_PER_GFLOP
"""A multiply-add counts as two."""

Form = tuple[float, ...]
"""One form made ready, in floats: minus block_m, minus block_n, minus block_k, split_k, group_m, minus the wave width;
then its coefficients in the order of `wavetune.waves.terms.TERMS`, those of ``work`` and ``work_trip`` for one CTA
instead of one CTA an SM. What sizes are divided by is negative: floor division then gives minus the ceiling."""

Entry = tuple[int, float, Form]
"""Index of a form in the file, a correction factor, and the form. Cells share the forms: a few dozen of them stay in
the CPU's cache, where numbers of its own for every cell would not (1.5 times the time of a new shape)."""


class GemmForms:
    """The forms of one model on one GPU.

    Parameters
    ----------
    model : ModelFile
        A GEMM model.
    arch : ArchSpec
        The GPU that answers are for.
    num_sms : int
        SMs that the launch may use; wave widths scale with it.

    Attributes
    ----------
    input_mb, output_mb : float
        Megabytes of an element.
    minus_sms : float
        Minus the SMs.
    reusable_mb : float
        What of B can stay in the cache.
    onset_gflop : float
        Work from which on the clock falls.
    all_entries : tuple of Entry
        The forms without a correction, in the order of the file.
    """

    def __init__(self, model: ModelFile, arch: ArchSpec, num_sms: int) -> None:
        dtype = find_dtype(model.dtype)
        self.input_mb = dtype.input_bytes / BYTES_PER_MB
        self.output_mb = dtype.output_bytes / BYTES_PER_MB
        self.minus_sms = -float(num_sms)
        self.reusable_mb = reusable_l2_bytes(arch.l2_bytes) / BYTES_PER_MB
        self.onset_gflop = sustained_onset_gflop(arch)
        entries: list[Entry] = []
        for form in model.forms[: model.n_modelled]:
            assert form.coefficients is not None
            block_m, block_n, block_k, split_k, group_m = (
                int(form.config[name]) for name in ("block_m", "block_n", "block_k", "split_k", "group_m")
            )
            launch, wave, wave_trip, depth_trip, work, work_trip, *rest = form.coefficients
            if form.ctas_per_sm == 1:
                # Waves and depth are the same number; the loop skips a depth that counts for nothing.
                wave_trip, depth_trip = wave_trip + depth_trip, 0.0
            ready = (
                *map(float, (-block_m, -block_n, -block_k, split_k, group_m, -form.ctas_per_sm * num_sms)),
                launch, wave, wave_trip, depth_trip, work / num_sms, work_trip / num_sms, *rest,
            )  # fmt: skip
            entries.append((len(entries), 1.0, ready))
        self.all_entries: tuple[Entry, ...] = tuple(entries)

    def corrected(self, cell: Cell, indices: Iterable[int]) -> tuple[Entry, ...]:
        """Make forms ready for one cell: with its correction factors, in the order of ``indices``."""
        return tuple(
            (index, math.exp(cell.correction_permille[index] / 1000), self.all_entries[index][2]) for index in indices
        )

    def latencies(self, m: int, n: int, k: int, entries: Iterable[Entry]) -> list[float]:
        """Predict microseconds for each entry: one positive latency each, legal or not; parameters as `fastest`."""
        return [self.fastest(m, n, k, (entry,), False)[1] for entry in entries]

    def fastest(self, m: int, n: int, k: int, entries: Iterable[Entry], only_legal: bool = True) -> tuple[int, float]:
        """Find the entry with the smallest predicted latency.

        Parameters
        ----------
        m, n, k : int
            Positive sizes.
        entries : iterable of Entry
            From `corrected` or `all_entries`.
        only_legal : bool, default=True
            Pass over entries that split k into more parts than there are trips.

        Returns
        -------
        index : int
            Of the form; of equal ones, that of the first entry; -1 if there is none.
        latency_us : float
            Its latency, microseconds.
        """
        # All in floats, exact below 2**53: Python computes with two of them three times as fast as with an int and one.
        rows, columns, inner = 1.0 * m, 1.0 * n, 1.0 * k
        minus_sms = self.minus_sms
        weight, area = columns * inner, rows * columns
        excess_mb = weight * self.input_mb - self.reusable_mb
        compulsory_mb = (weight + rows * inner) * self.input_mb + area * self.output_mb
        sustained_gflop = rows * weight * GFLOP_PER_PRODUCT - self.onset_gflop
        if sustained_gflop < 0.0:
            sustained_gflop = 0.0
        fastest, fastest_us = -1, math.inf
        for index, factor, (
            minus_block_m, minus_block_n, minus_block_k, split_k, group_m, minus_width,
            launch, wave, wave_trip, depth_trip, work, work_trip, compulsory, reread, workspace, sustained,
        ) in entries:  # fmt: skip
            minus_tiles_m = rows // minus_block_m
            grid = minus_tiles_m * (columns // minus_block_n)
            minus_trips = inner // minus_block_k
            latency = launch + compulsory * compulsory_mb + sustained * sustained_gflop
            if split_k != 1.0:
                if split_k > -minus_trips and only_legal:
                    continue
                grid *= split_k
                minus_trips = minus_trips // split_k
                latency += workspace * (8.0 * area * split_k / BYTES_PER_MB)
            latency += grid * (work - work_trip * minus_trips)
            latency -= grid // minus_width * (wave - wave_trip * minus_trips)
            # Every term only adds: a form that is too slow already needs no more of them.
            if latency * factor >= fastest_us:
                continue
            if depth_trip:
                latency += grid // minus_sms * (depth_trip * minus_trips)
            if excess_mb > 0.0 and -minus_tiles_m > group_m:
                latency -= reread * excess_mb * (minus_tiles_m // group_m + 1.0)
            latency *= factor
            if latency < fastest_us:
                fastest, fastest_us = index, latency
        return fastest, fastest_us
