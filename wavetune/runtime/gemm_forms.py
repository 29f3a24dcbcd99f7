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

Entry = tuple[float, int, int, int, int, int, int, tuple[float, ...]]
"""One form made ready: correction factor, block_m, block_n, block_k, split_k, group_m, wave width, coefficients."""


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
    """

    def __init__(self, model: ModelFile, arch: ArchSpec, num_sms: int) -> None:
        dtype = find_dtype(model.dtype)
        self._input_bytes = dtype.input_bytes
        self._output_bytes = dtype.output_bytes
        self._num_sms = num_sms
        self._reusable_bytes = reusable_l2_bytes(arch.l2_bytes)
        self._onset_gflop = sustained_onset_gflop(arch)
        self._entries: list[Entry] = []
        for form in model.forms[: model.n_modelled]:
            config = form.config
            assert form.coefficients is not None
            self._entries.append(
                (
                    1.0,
                    *(int(config[name]) for name in ("block_m", "block_n", "block_k", "split_k", "group_m")),
                    form.ctas_per_sm * num_sms,
                    form.coefficients,
                )  # type: ignore[arg-type]
            )
        self.all_entries: tuple[Entry, ...] = tuple(self._entries)

    def corrected(self, cell: Cell, indices: Iterable[int]) -> tuple[Entry, ...]:
        """Make forms ready for one cell: with its correction factors, in the order of ``indices``."""
        return tuple(
            (math.exp(cell.correction_permille[index] / 1000), *self._entries[index][1:]) for index in indices
        )

    def latencies(self, m: int, n: int, k: int, entries: tuple[Entry, ...]) -> list[float]:
        """Predict microseconds for each entry.

        Parameters
        ----------
        m, n, k : int
            Positive sizes.
        entries : tuple of Entry
            From `corrected` or `all_entries`.

        Returns
        -------
        list of float
            One positive latency an entry.
        """
        num_sms = self._num_sms
        compulsory = ((m + n) * k * self._input_bytes + m * n * self._output_bytes) / BYTES_PER_MB
        excess = (n * k * self._input_bytes - self._reusable_bytes) / BYTES_PER_MB
        sustained = 2 * m * n * k / FLOPS_PER_GFLOP - self._onset_gflop
        if sustained < 0.0:
            sustained = 0.0
        result = []
        for factor, block_m, block_n, block_k, split_k, group_m, width, coefficients in entries:
            c_one, c_w, c_wl, c_dl, c_g, c_gl, c_mb, c_reread, c_workspace, c_sustained = coefficients
            tiles_m = -(-m // block_m)
            grid = tiles_m * -(-n // block_n) * split_k
            trips = -(-k // block_k)
            if split_k != 1:
                trips = -(-trips // split_k)
            waves = -(-grid // width)
            depth = -(-grid // num_sms)
            work = grid / num_sms
            latency = (
                c_one
                + c_w * waves
                + c_g * work
                + (c_wl * waves + c_dl * depth + c_gl * work) * trips
                + c_mb * compulsory
                + c_sustained * sustained
            )
            if excess > 0.0 and tiles_m > group_m:
                latency += c_reread * excess * (-(-tiles_m // group_m) - 1)
            if split_k != 1:
                latency += c_workspace * (8 * m * n * split_k / BYTES_PER_MB)
            result.append(latency * factor)
        return result
