"""Numerics classes: which configurations may answer, by what the results must not depend on."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from wavetune.core.arch import ArchSpec
from wavetune.core.config import find_kernel_spec
from wavetune.errors import ProblemError
from wavetune.mapping.numerics import ReductionOrder, is_deterministic, reduction_order
from wavetune.runtime.model_file import ModelFile

NUMERICS = ("any", "deterministic", "batch_invariant")
"""``any``: every configuration. ``deterministic``: two runs give the same bits. ``batch_invariant``: moreover, the
result of a row does not depend on m, since every m of a layer sums in one order."""

ROWS = tuple(2**exponent for exponent in range(15))
"""Values of m that the order of a layer is chosen on: decode and prefill count alike."""

MAX_LAYERS = 4096
"""Layers that are remembered; chosen again they are the same."""


class LayerForms(NamedTuple):
    """The forms that may answer for a layer, whatever m.

    Parameters
    ----------
    members : tuple of int
        Indices of modelled, legal forms, in the order of the file; empty if there are none.
    best : int
        The one that is best alone over `ROWS`; -1 if there are none.
    order : tuple or None
        For ``batch_invariant``, in which order they all sum.
    """

    members: tuple[int, ...]
    best: int
    order: ReductionOrder | None


class NumericsFilter:
    """Which forms of a model may answer for a layer.

    Parameters
    ----------
    model : ModelFile
        A GEMM model.
    arch : ArchSpec
        The GPU.
    numerics : {"any", "deterministic", "batch_invariant"}
        The class.
    latencies : callable
        Predicts microseconds of every modelled form for m, n, k.
    is_legal : callable
        Says whether a form may be launched on a layer: index, n, k, whether the operands are aligned for TMA.
    """

    def __init__(
        self,
        model: ModelFile,
        arch: ArchSpec,
        numerics: str,
        latencies: Callable[[int, int, int], Sequence[float]],
        is_legal: Callable[[int, int, int, bool], bool],
    ) -> None:
        spec = find_kernel_spec(model.kernel)
        self._latencies, self._is_legal = latencies, is_legal
        self._is_invariant = numerics == "batch_invariant"
        self._n_modelled = model.n_modelled
        self.repeatable = tuple(numerics == "any" or is_deterministic(form.config, spec) for form in model.forms)
        self.orders = tuple(reduction_order(form.config, arch) for form in model.forms)
        self._layers: dict[tuple[object, ...], LayerForms] = {}

    @property
    def excludes_nothing(self) -> bool:
        """Whether every form may answer."""
        return not self._is_invariant and all(self.repeatable)

    def may_answer(self, index: int, layer: LayerForms) -> bool:
        """Whether a form, modelled or not, belongs to the class in this layer."""
        if not self._is_invariant:
            return self.repeatable[index]
        order = self.orders[index]
        return order is not None and layer.order in (None, order)

    def layer(self, n: int, k: int, aligned: bool, order: ReductionOrder | None = None) -> LayerForms:
        """Return the forms that may answer for a layer.

        Parameters
        ----------
        n, k : int
            Sizes of the layer.
        aligned : bool
            Whether TMA is possible.
        order : tuple, optional
            For ``batch_invariant``: the order to sum in, where it is given from outside. Otherwise it is the one whose
            best forms lose least to the best of all legal forms, as a geometric mean over `ROWS`; of equal ones the
            first in the file.
        """
        key = (n, k, aligned, order)
        layer = self._layers.get(key)
        if layer is None:
            if len(self._layers) >= MAX_LAYERS:
                self._layers.clear()
            layer = self._layers[key] = self._find_layer(n, k, aligned, order)
        return layer

    def _find_layer(self, n: int, k: int, aligned: bool, order: ReductionOrder | None) -> LayerForms:
        logs = [[math.log(latency) for latency in self._latencies(m, n, k)] for m in ROWS]
        classes: dict[ReductionOrder | None, list[int]] = {}
        for index in range(self._n_modelled):
            found = self.orders[index] if self._is_invariant else None
            is_member = self.repeatable[index] and (found is not None if self._is_invariant else True)
            if is_member and order in (None, found) and self._is_legal(index, n, k, aligned):
                classes.setdefault(found, []).append(index)
        if not classes:
            return LayerForms((), -1, order)
        # Dictionaries keep the order of the file, and min returns the first of equal ones.
        order = min(classes, key=lambda name: math.fsum(min(row[i] for i in classes[name]) for row in logs))
        best = min(classes[order], key=lambda index: math.fsum(row[index] for row in logs))
        return LayerForms(tuple(classes[order]), best, order)


def check_numerics(numerics: object) -> str:
    """Return a numerics class.

    Raises
    ------
    ProblemError
        If it is unknown.
    """
    if not isinstance(numerics, str) or numerics not in NUMERICS:
        raise ProblemError(f"unknown numerics {numerics!r}; known: {', '.join(NUMERICS)}")
    return numerics
