"""Answer problems from one loaded model: exact, then nearest, then model."""

from __future__ import annotations

import math

from wavetune.core.arch import ArchSpec
from wavetune.core.config import KernelConfig
from wavetune.core.dtype import find_dtype
from wavetune.core.problem import MAX_DIMENSION, GemmProblem
from wavetune.errors import NoModelError
from wavetune.mapping.gemm import map_gemm
from wavetune.mapping.legality import TMA_ALIGNMENT, gemm_illegal_reason, grid_limit_reason
from wavetune.mapping.numerics import ReductionOrder
from wavetune.runtime.choice import Choice, RankedConfig, Source
from wavetune.runtime.form_search import CellKey, FormSearch
from wavetune.runtime.gemm_forms import Entry, GemmForms
from wavetune.runtime.model_file import ModelFile
from wavetune.runtime.numerics import LayerForms, NumericsFilter
from wavetune.waves.geometry import wave_geometry

__all__ = ["Choice", "GemmChooser", "RankedConfig", "Source"]

MAX_READY = 4096
"""Cells that are remembered for a numerics class, or because the file has nothing there; the file's own are as many as
it has."""

ReadyCell = tuple[int, tuple[Entry, ...]]
"""The form that answers everywhere, -1 if there are several; those, made ready."""

NO_CELL: ReadyCell = (-1, ())


class GemmChooser:
    """Chooses among the configurations of one GEMM model.

    Parameters
    ----------
    model : ModelFile
        A checked model.
    arch : ArchSpec
        The GPU.
    num_sms : int, optional
        SMs that launches may use; the model's own count if not given. With another one, what was measured or is best
        inside a cell says little: all forms decide, with waves of the width that is there.
    use_exact : bool, default=True
        Whether the exact table may answer; evaluation on held-out sweeps turns it off.
    numerics : {"any", "deterministic", "batch_invariant"}, default="any"
        Which configurations may answer, see `wavetune.runtime.numerics`.
    """

    def __init__(
        self,
        model: ModelFile,
        arch: ArchSpec,
        num_sms: int | None = None,
        *,
        use_exact: bool = True,
        numerics: str = "any",
    ) -> None:
        self.model = model
        self.arch = arch
        self.num_sms = num_sms or model.num_sms
        self.is_scaled = self.num_sms != model.num_sms
        element = find_dtype(model.dtype)
        # Contiguous rows of n or k elements are aligned for TMA if none of these bits is set.
        self.row_mask = TMA_ALIGNMENT // min(element.input_bytes, element.output_bytes) - 1
        self.configs = tuple(form.config for form in model.forms)
        # Up to this m and n, no form of the model has a grid that is too large.
        self.safe_side = _safe_side(self.configs)
        self.forms = GemmForms(model, arch, self.num_sms)
        self.search = FormSearch(self.forms)
        has_exact = use_exact and not self.is_scaled
        self._exact = {sizes: entry.config_index for sizes, entry in model.exact.items()} if has_exact else {}
        self.ready: dict[CellKey, ReadyCell] = {}
        self._ready_members: dict[tuple[CellKey, LayerForms], tuple[Entry, ...]] = {}
        found = NumericsFilter(model, arch, numerics, lambda *dims: self._all_latencies(dims), self._fits_layer)
        self._filter = None if found.excludes_nothing else found

    @property
    def is_filtered(self) -> bool:
        """Whether the numerics class excludes configurations."""
        return self._filter is not None

    def ready_cell(self, key: CellKey) -> ReadyCell:
        """Return the candidates of a cell, the first time made ready; nothing where the file has no cell."""
        ready = self.ready.get(key)
        if ready is None:
            cell = self.model.cells.get(key)
            if cell is None:
                if len(self.ready) < len(self.model.cells) + MAX_READY:
                    self.ready[key] = NO_CELL
                return NO_CELL
            # Which forms can win was found for the whole GPU; their corrections hold on a part of it as well.
            candidates = range(self.model.n_modelled) if self.is_scaled else cell.candidates
            # A lone candidate that is always legal needs no evaluation.
            if len(candidates) == 1 and self.configs[candidates[0]]["split_k"] == 1:
                ready = (candidates[0], ())
            else:
                ready = (-1, self.forms.corrected(cell, candidates))
            self.ready[key] = ready
        return ready

    def choose(self, problem: GemmProblem) -> KernelConfig:
        """Return the configuration for a problem; see `explain`."""
        return self._choose(problem)[0]

    def choose_modelled(self, problem: GemmProblem, order: ReductionOrder | None = None) -> tuple[KernelConfig, Source]:
        """Choose without the exact table; see `explain`.

        Parameters
        ----------
        problem : GemmProblem
            Must not be empty.
        order : tuple, optional
            For ``batch_invariant``: the order to sum in, where it is given from outside.
        """
        m, n, k = problem.dims
        cell = ((m - 1).bit_length(), (n - 1).bit_length(), (k - 1).bit_length())
        source = Source.MODEL if self.is_scaled or cell not in self.model.cells else Source.NEAREST
        if max(m, n) <= self.safe_side:
            layer, config = self.layer(problem, order), None
            if layer is not None:
                config = self._fastest_of(m, n, k, cell, layer)
            elif problem.alignment >= TMA_ALIGNMENT:
                config = self._fastest(m, n, k, cell)
            if config is not None:
                return config, source
        ranked = self.rank(problem, order)
        return (ranked[0].config, source) if ranked else (self.default_for(problem, order), Source.DEFAULT)

    def default_for(self, problem: GemmProblem, order: ReductionOrder | None = None) -> KernelConfig:
        """Return the file's default, or the best or first configuration that is legal where the default is not.

        Raises
        ------
        NoModelError
            If no configuration of the model is legal for the problem.
        """
        layer, default = self.layer(problem, order), self.model.default_index
        reasons: dict[str, None] = {}
        preferred = [default] if layer is None or layer.best < 0 else [default, layer.best]
        for index in preferred + list(range(len(self.configs))):
            reason = self._illegal_reason(problem, index)
            if reason is None and self._may_answer(index, layer):
                return self.configs[index]
            reasons[reason or "it is not of the numerics class"] = None
        some = "; ".join(list(reasons)[:3])
        raise NoModelError(
            f"{self.model.path or 'the model'}: no configuration is legal for {problem}: {some}. "
            "Split the product, or calibrate with configurations that load without TMA and do not split k"
        )

    def rank(self, problem: GemmProblem, order: ReductionOrder | None = None) -> list[RankedConfig]:
        """Order every modelled, legal configuration of the numerics class by predicted latency, best first."""
        latencies, layer = self._all_latencies(problem.dims), self.layer(problem, order)
        indices = range(len(latencies)) if layer is None else layer.members
        ranked = sorted((latencies[i], i) for i in indices if self._illegal_reason(problem, i) is None)
        return [RankedConfig(self.configs[index], latency) for latency, index in ranked]

    def layer(self, problem: GemmProblem, order: ReductionOrder | None = None) -> LayerForms | None:
        """Return the forms that the numerics class lets answer for all m of a problem; None for every form."""
        if self._filter is None:
            return None
        return self._filter.layer(problem.n, problem.k, problem.alignment >= TMA_ALIGNMENT, order)

    def predict(self, problem: GemmProblem) -> dict[KernelConfig, float]:
        """Return the predicted latency of every modelled configuration, microseconds, legal or not."""
        return dict(zip(self.configs, self._all_latencies(problem.dims), strict=False))

    def explain(self, problem: GemmProblem) -> Choice:
        """Return the choice for a problem, with its source and reasons.

        Raises
        ------
        NoModelError
            If no configuration of the model is legal for the problem.
        """
        config, source = self._choose(problem)
        if source is Source.EXACT:
            return self.describe(problem, config, source, self.model.exact[problem.dims].latency_us, is_measured=True)
        return self.describe(problem, config, source)

    def describe(
        self,
        problem: GemmProblem,
        config: KernelConfig,
        source: Source,
        latency_us: float | None = None,
        table: str | None = None,
        *,
        is_measured: bool = False,
    ) -> Choice:
        """Return everything about an answer, whoever gave it.

        Parameters
        ----------
        problem : GemmProblem
            The question.
        config : KernelConfig
            The answer.
        source : Source
            Where it comes from.
        latency_us : float, optional
            Measured, or predicted by another model; predicted by this one if not given.
        table : str, optional
            File that answered, if not the model's.
        is_measured : bool, default=False
            Whether the latency was measured.
        """
        path = self.model.path
        table = path if table is None else table
        if problem.is_empty:
            return Choice(config, source, 0.0, 0, 0, 0, 0, None, 0.0, table, self.num_sms, self.is_scaled, path)
        if latency_us is None:
            latency_us = self.predict(problem).get(config, math.nan)
        runner_up = next((entry for entry in self.rank(problem) if entry.config != config), None)
        mapping = map_gemm(problem, config, self.arch)
        resident = next((form.ctas_per_sm for form in self.model.forms if form.config == config), 0)
        waves = wave_geometry(mapping.grid_size, resident, self.num_sms) if resident else None
        return Choice(
            config=config,
            source=source,
            latency_us=latency_us,
            grid_size=mapping.grid_size,
            loop_trips=mapping.loop_trips,
            waves=waves.waves if waves is not None else 0,
            tail_ctas=waves.tail_ctas if waves is not None else 0,
            runner_up=runner_up.config if runner_up is not None else None,
            margin=runner_up.latency_us / latency_us - 1.0 if runner_up is not None else math.inf,
            table=table,
            num_sms=self.num_sms,
            is_scaled=self.is_scaled,
            model=path,
            is_measured=is_measured,
        )

    def _choose(self, problem: GemmProblem) -> tuple[KernelConfig, Source]:
        if problem.is_empty:
            return self.configs[self.model.default_index], Source.EMPTY
        if problem.alignment >= TMA_ALIGNMENT:
            index = self._exact.get(problem.dims)
            if index is not None and self._may_answer(index, self.layer(problem)):
                return self.configs[index], Source.EXACT
        return self.choose_modelled(problem)

    def _may_answer(self, index: int, layer: LayerForms | None) -> bool:
        return self._filter is None or layer is None or self._filter.may_answer(index, layer)

    def _fits_layer(self, index: int, n: int, k: int, aligned: bool) -> bool:
        alignment = TMA_ALIGNMENT if aligned else 1
        problem = GemmProblem(1, n, k, self.model.dtype, self.model.layout, alignment)
        return self._illegal_reason(problem, index) is None

    def _fastest(self, m: int, n: int, k: int, cell: CellKey) -> KernelConfig | None:
        index, entries = self.ready_cell(cell)
        if entries:
            index = self.forms.fastest(m, n, k, entries)[0]
        elif index < 0:
            index = self.search.fastest(m, n, k, cell)[0]
        return self.configs[index] if index >= 0 else None

    def _fastest_of(self, m: int, n: int, k: int, key: CellKey, layer: LayerForms) -> KernelConfig | None:
        entries = self._ready_members.get((key, layer))
        if entries is None:
            cell, forms, members = self.model.cells.get(key), self.forms, layer.members
            entries = forms.corrected(cell, members) if cell else tuple(forms.all_entries[i] for i in members)
            if len(self._ready_members) >= MAX_READY:
                self._ready_members.clear()
            self._ready_members[key, layer] = entries
        index = self.forms.fastest(m, n, k, entries)[0]
        return self.configs[index] if index >= 0 else None

    def _all_latencies(self, dims: tuple[int, int, int]) -> list[float]:
        cell = self.model.cells.get(tuple((size - 1).bit_length() for size in dims))
        entries = self.forms.all_entries
        if cell is not None:
            entries = self.forms.corrected(cell, range(len(entries)))
        return self.forms.latencies(*dims, entries)

    def _illegal_reason(self, problem: GemmProblem, index: int) -> str | None:
        config = self.configs[index]
        # No configuration makes up for a grid that is too large; all else depends on the configuration.
        return grid_limit_reason(problem, config) or gemm_illegal_reason(problem, config, self.arch)


def _safe_side(configs: tuple[KernelConfig, ...]) -> int:
    """Return the largest power of two up to which m and n may grow with any of the configurations."""
    side = 1
    while side < MAX_DIMENSION // 2 and all(
        (-(-2 * side // int(config["block_m"]))) * (-(-2 * side // int(config["block_n"]))) * int(config["split_k"])
        <= MAX_DIMENSION
        for config in configs
    ):
        side *= 2
    return side
