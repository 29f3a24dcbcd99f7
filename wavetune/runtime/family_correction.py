"""What the forms of a kernel miss: a smooth factor on each, over the sizes of a key. Standard library only.

A form is a sum of terms, so where a launch goes over from being bound by memory to being bound by arithmetic it is off
by some percent, and by another number of percent than its neighbour. The factor of a form is

    exp(sum_i w_i exp(-gamma |z - c_i|^2)),    z = log2(1 + sizes), rounded to quarter octaves

with centres c_i among the keys that were measured. Far from all of them it is 1. Rounding makes cells: a factor is
computed once for each cell that is met.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass

STEPS_PER_OCTAVE = 4
"""Cells of an octave of each size."""

WEIGHT_UNIT = 1e-4
"""What an integer weight counts in: a file holds no digits that mean nothing."""

MAX_LOG_FACTOR = 0.7
"""A factor stays within 2 either way: beyond it, it would be repairing a broken form."""

MAX_CELLS = 4096
"""Cells that one model remembers; all are dropped when there are more."""


@dataclass(frozen=True, slots=True)
class FamilyCorrection:
    """Weights of one model.

    Parameters
    ----------
    gamma : float
        Inverse squared width of a centre, per square octave.
    centres : tuple of tuple of int
        Keys, sizes in the order of the model's dims.
    weights : tuple of tuple of int
        A row for each form, a weight for each centre, in `WEIGHT_UNIT`.
    """

    gamma: float
    centres: tuple[tuple[int, ...], ...]
    weights: tuple[tuple[int, ...], ...]


def cell_of(dims: Sequence[int]) -> tuple[int, ...]:
    """Return the cell of a key: ``log2(1 + size)`` in quarter octaves."""
    return tuple(round(STEPS_PER_OCTAVE * math.log2(1 + size)) for size in dims)


class CorrectionCells:
    """Factors by cell, computed when they are first asked for.

    Parameters
    ----------
    correction : FamilyCorrection
        Of a checked model.
    """

    def __init__(self, correction: FamilyCorrection) -> None:
        self._weights = correction.weights
        self._scale = -correction.gamma / STEPS_PER_OCTAVE**2
        self._centres = [cell_of(centre) for centre in correction.centres]
        # Single dictionary operations, which threads see whole; the worst race computes a cell twice.
        self._cells: dict[tuple[int, ...], tuple[float, ...]] = {}

    def factors(self, dims: Sequence[int]) -> tuple[float, ...]:
        """Return the factor of every form, in the model's order."""
        cell = cell_of(dims)
        known = self._cells.get(cell)
        if known is None:
            known = self._evaluate(cell)
            if len(self._cells) >= MAX_CELLS:
                self._cells.clear()
            self._cells[cell] = known
        return known

    def _evaluate(self, cell: tuple[int, ...]) -> tuple[float, ...]:
        nearness = [
            WEIGHT_UNIT * math.exp(self._scale * sum((a - b) ** 2 for a, b in zip(cell, centre, strict=True)))
            for centre in self._centres
        ]
        logs = (math.fsum(map(operator.mul, row, nearness)) for row in self._weights)
        return tuple(math.exp(min(max(log, -MAX_LOG_FACTOR), MAX_LOG_FACTOR)) for log in logs)
