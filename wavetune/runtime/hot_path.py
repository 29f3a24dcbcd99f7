"""Answer a new shape at full alignment, fast."""

from __future__ import annotations

import logging

from wavetune.core.config import KernelConfig
from wavetune.core.problem import CONTIGUOUS, GemmProblem
from wavetune.mapping.legality import TMA_ALIGNMENT
from wavetune.runtime.choice import Source
from wavetune.runtime.chooser import NO_CELL, GemmChooser
from wavetune.runtime.misses import MissList

INFO = logging.INFO

_is_logged = logging.getLogger("wavetune").isEnabledFor


class HotPath:
    """Tables, cells and forms of one resolver without a policy, flattened into one method.

    It gives the answers of `wavetune.runtime.resolver.Resolver.answer` under the policy ``model``; a test holds it.

    Parameters
    ----------
    chooser : GemmChooser
        Without a numerics class that excludes anything.
    exact : dict of (m, n, k) to KernelConfig
        Exact answers at full alignment; may grow while programs run.
    misses : MissList
        Lists what is not exact: at once if a line is to be logged, otherwise in `list_answered`.

    Attributes
    ----------
    safe_side : int
        Largest m and n that may be asked for.
    row_mask : int
        Contiguous rows of n or k elements are fully aligned if none of these bits is set.
    """

    def __init__(self, chooser: GemmChooser, exact: dict[tuple[int, int, int], KernelConfig], misses: MissList) -> None:
        self.safe_side, self.row_mask = chooser.safe_side, chooser.row_mask
        self._exact, self._misses = exact, misses
        self._chooser, self._configs = chooser, chooser.configs
        self._ready_cell, self._ready = chooser.ready_cell, chooser.ready
        self._fastest, self._search = chooser.forms.fastest, chooser.search.fastest

    def choose(self, m: int, n: int, k: int) -> KernelConfig:
        """Return the configuration for positive sizes, m and n up to `safe_side`."""
        sizes = (m, n, k)
        config = self._exact.get(sizes)
        if config is not None:
            return config
        cell = ((m - 1).bit_length(), (n - 1).bit_length(), (k - 1).bit_length())
        index, entries = self._ready.get(cell) or self._ready_cell(cell)
        if entries:
            index = self._fastest(m, n, k, entries)[0]
        elif index < 0:
            index = self._search(m, n, k, cell)[0]
        # Without an index every candidate splits k into more parts than there are trips.
        config = self._configs[index] if index >= 0 else self._without_candidates(m, n, k)
        if _is_logged(INFO):
            self._misses.add(sizes, TMA_ALIGNMENT, self.source_of(m, n, k))
        return config

    def covers(self, m: int, n: int, k: int, alignment: int) -> bool:
        """Whether `choose` answers checked sizes of this alignment class."""
        is_aligned = alignment == TMA_ALIGNMENT or (alignment == CONTIGUOUS and not (n | k) & self.row_mask)
        return is_aligned and 0 < m <= self.safe_side and 0 < n <= self.safe_side and k > 0

    def list_answered(self, m: int, n: int, k: int) -> None:
        """List sizes that `choose` has answered, if they were not exact."""
        if (m, n, k) not in self._exact:
            self._misses.add((m, n, k), TMA_ALIGNMENT, self.source_of(m, n, k))

    def source_of(self, m: int, n: int, k: int) -> Source:
        """Return where an answer of `choose` that is not exact comes from."""
        cell = ((m - 1).bit_length(), (n - 1).bit_length(), (k - 1).bit_length())
        # On part of the GPU, forms decide that were measured on the whole of it.
        is_near = not self._chooser.is_scaled and self._ready_cell(cell) is not NO_CELL
        return Source.NEAREST if is_near else Source.MODEL

    def _without_candidates(self, m: int, n: int, k: int) -> KernelConfig:
        model = self._chooser.model
        problem = GemmProblem(m, n, k, model.dtype, model.layout, TMA_ALIGNMENT)
        return self._chooser.choose_modelled(problem)[0]
