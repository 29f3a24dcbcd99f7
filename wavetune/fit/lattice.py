"""Distil the correction into cells: one factor for each configuration and octave of each size.

A cell covers the sizes whose ``(size - 1).bit_length()`` equal its octaves, so ``(64, 128]`` is one octave and
powers of two sit at its upper end. The correction is smooth, so a constant in each cell keeps what it knows, and the
forms keep their wave precision inside the cell.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from wavetune.core.problem import MAX_DIMENSION
from wavetune.store.table import FloatArray, IntArray

MAX_CANDIDATES = 12
"""Most candidates of a cell: each costs about half a microsecond at run time."""

CANDIDATE_REGRET = 0.0005
"""Candidates are added until the mean regret inside the cell is below this (relative): at 0.002 held-out
efficiency was 0.001 lower (H200, 2026-11)."""

CORNERS = (1.0, 0.75)
"""Where a cell is sampled for its correction, as fractions of its upper ends (a cell is ``(0.5, 1]``)."""

PROBES = (
    (1.0, 0.875, 0.75, 0.625),
    (1.0, 0.9375, 0.875, 0.8125, 0.75, 0.6875, 0.625, 0.5625),
    (1.0, 0.75),
)
"""Where a cell is sampled for its candidates, by size: the forms are cheap. Densest along n, where tile widths that are
no powers of two (160, 192) fit some sizes exactly and waste a tile on others."""


def octaves(dims: IntArray) -> IntArray:
    """Return the octave of each size: ``(size - 1).bit_length()``."""
    # frexp is exact on int32 and exactly what bit_length is.
    lengths: IntArray = np.where(dims > 1, np.frexp((dims - 1).astype(np.float64))[1], 0).astype(np.int64)
    return lengths


def cells_around(dims: IntArray, bound_log2: float) -> IntArray:
    """List the cells within ``bound_log2`` octaves of a measured problem, in every size.

    Returns
    -------
    ndarray of shape (n_cells, n_dims)
        Sorted octaves.
    """
    reach = int(bound_log2)
    steps = np.array(list(itertools.product(range(-reach, reach + 1), repeat=dims.shape[1])), dtype=np.int64)
    around = (np.unique(octaves(dims), axis=0)[:, None, :] + steps).reshape(-1, dims.shape[1])
    # 31 octaves hold every size below 2**31.
    return np.unique(around[np.all((around >= 0) & (around <= 31), axis=1)], axis=0)


def cells_of(dims: IntArray, cells: IntArray) -> IntArray:
    """Return those of ``cells`` that hold one of the problems ``dims``."""
    wanted = np.unique(octaves(dims), axis=0)
    held: IntArray = cells[(cells[:, None, :] == wanted[None]).all(axis=2).any(axis=1)]
    return held


def sample_corrections(cells: IntArray) -> IntArray:
    """Place the problems that a cell's correction is averaged over: every other corner of `CORNERS`.

    Each size is at its upper end in half of them, and so is each pair of sizes: with a smooth correction this
    half fraction averages like all corners.

    Returns
    -------
    ndarray of shape (n_cells, 2 ** (n_dims - 1), n_dims)
    """
    signs = np.array(list(itertools.product((0, 1), repeat=cells.shape[1])))
    return _sizes(cells, np.array(CORNERS)[signs[signs.sum(axis=1) % 2 == 0]])


def sample_candidates(cells: IntArray) -> IntArray:
    """Place the problems that a cell's candidates are chosen on: every combination of `PROBES`.

    Returns
    -------
    ndarray of shape (n_cells, n_probes, n_dims)
    """
    return _sizes(cells, np.array(list(itertools.product(*PROBES))))


def _sizes(cells: IntArray, fractions: FloatArray) -> IntArray:
    """Return sizes inside the cells, at least 1."""
    sizes = np.ceil(np.exp2(cells.astype(np.float64))[:, None, :] * fractions[None, :, :]).astype(np.int64)
    return np.minimum(np.maximum(sizes, 1), MAX_DIMENSION)


@dataclass(frozen=True)
class Lattice:
    """The distilled correction.

    Parameters
    ----------
    cells : ndarray of shape (n_cells, n_dims)
        Octaves, sorted.
    correction_permille : ndarray of shape (n_cells, n_configs)
        1000 ln(factor), rounded: the precision of the file is the precision of the estimator.
    candidates : tuple of tuple of int
        For each cell, the configurations that can win inside it.
    """

    cells: IntArray
    correction_permille: IntArray
    candidates: tuple[tuple[int, ...], ...]

    def find(self, dims: IntArray) -> IntArray:
        """Return the row of each problem's cell, or -1 where there is none, shape (n_problems,)."""
        position = {tuple(cell): row for row, cell in enumerate(self.cells.tolist())}
        return np.array([position.get(tuple(octave), -1) for octave in octaves(dims).tolist()], dtype=np.int64)


def choose_candidates(latency_us: FloatArray) -> tuple[int, ...]:
    """Choose the candidates of one cell.

    Parameters
    ----------
    latency_us : ndarray of shape (n_probes, n_configs)
        Predicted latencies of problems inside the cell.

    Returns
    -------
    tuple of int
        In ascending order, at most `MAX_CANDIDATES`; together they cover the cell's winners up to
        `CANDIDATE_REGRET`.
    """
    regret = latency_us / latency_us.min(axis=1, keepdims=True) - 1.0
    chosen = [int(np.argmin(regret.mean(axis=0)))]
    current = regret[:, chosen[0]]
    while current.mean() > CANDIDATE_REGRET and len(chosen) < MAX_CANDIDATES:
        best = int(np.argmin(np.minimum(current[:, None], regret).mean(axis=0)))
        if best in chosen:
            break
        chosen.append(best)
        current = np.minimum(current, regret[:, best])
    return tuple(sorted(chosen))


def distil(
    cells: IntArray,
    n_configs: int,
    log_factor: Callable[[IntArray], FloatArray],
    form_latency: Callable[[IntArray], FloatArray],
) -> Lattice:
    """Turn a smooth correction into cells, and choose each cell's candidates.

    Parameters
    ----------
    cells : ndarray of shape (n_cells, n_dims)
        Octaves.
    n_configs : int
        Configurations, the columns of the lattice.
    log_factor, form_latency : callable
        Take problems (shape (n, n_dims)); return the natural logarithm of the correction and the uncorrected latency
        in microseconds of every configuration, shape (n, n_configs).
    """
    samples = sample_corrections(cells)
    flat = samples.reshape(-1, samples.shape[2])
    factor = log_factor(flat).reshape(*samples.shape[:2], n_configs).mean(axis=1)
    permille = np.rint(1000.0 * factor).astype(np.int64)
    probes = sample_candidates(cells)
    form = form_latency(probes.reshape(-1, probes.shape[2]))
    corrected = form.reshape(*probes.shape[:2], n_configs) * np.exp(permille / 1000.0)[:, None, :]
    return Lattice(cells, permille, tuple(choose_candidates(latency) for latency in corrected))
