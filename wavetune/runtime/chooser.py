"""Answer problems from one loaded model: exact, then nearest, then model."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from wavetune.core.arch import ArchSpec
from wavetune.core.config import KernelConfig
from wavetune.core.problem import GemmProblem
from wavetune.errors import NoModelError
from wavetune.mapping.gemm import map_gemm
from wavetune.mapping.legality import TMA_ALIGNMENT, gemm_illegal_reason
from wavetune.runtime.gemm_forms import Entry, GemmForms
from wavetune.runtime.model_file import ModelFile
from wavetune.waves.geometry import wave_geometry


class Source(StrEnum):
    """Where an answer comes from, most certain first."""

    EXACT = "exact"
    NEAREST = "nearest"
    MODEL = "model"
    DEFAULT = "default"
    EMPTY = "empty"


@dataclass(frozen=True, slots=True)
class RankedConfig:
    """A configuration and its predicted latency in microseconds."""

    config: KernelConfig
    latency_us: float


@dataclass(frozen=True, slots=True)
class Choice:
    """An answer and the reasons for it.

    Parameters
    ----------
    config : KernelConfig
        What to launch. For ``source == "empty"`` it is the default, and there is nothing to launch.
    source : Source
        ``exact``: this problem was measured. ``nearest``: inside the measured range, the cell's candidates and
        their forms decide. ``model``: beyond it, all forms decide. ``default``: no modelled configuration is
        legal here. ``empty``: a size is zero.
    latency_us : float
        Predicted latency (measured, for ``exact``); 0 if empty, NaN where there is no form.
    grid_size, loop_trips, waves, tail_ctas : int
        The launch as the GPU sees it; 0 if empty.
    runner_up : KernelConfig or None
        The next best legal configuration by prediction.
    margin : float
        Predicted latency of the runner-up over that of the choice, minus 1. For ``exact`` it can be negative.
    table : str
        Path of the model file.
    """

    config: KernelConfig
    source: Source
    latency_us: float
    grid_size: int
    loop_trips: int
    waves: int
    tail_ctas: int
    runner_up: KernelConfig | None
    margin: float
    table: str


_Candidates = tuple[tuple[int, ...], tuple[Entry, ...]]
"""Indices of forms, and the forms made ready."""


class GemmChooser:
    """Chooses among the configurations of one GEMM model.

    Parameters
    ----------
    model : ModelFile
        A checked model.
    arch : ArchSpec
        The GPU.
    num_sms : int, optional
        SMs that launches may use; the model's own count if not given.
    use_exact : bool, default=True
        Whether the exact table may answer; evaluation on held-out sweeps turns it off.
    """

    def __init__(
        self, model: ModelFile, arch: ArchSpec, num_sms: int | None = None, *, use_exact: bool = True
    ) -> None:
        self.model = model
        self.arch = arch
        self.num_sms = num_sms or model.num_sms
        self._forms = GemmForms(model, arch, self.num_sms)
        self._configs = tuple(form.config for form in model.forms)
        self._exact = {sizes: entry.config_index for sizes, entry in model.exact.items()} if use_exact else {}
        self._ready: dict[tuple[int, int, int], _Candidates] = {}
        self._everything: _Candidates = (tuple(range(model.n_modelled)), self._forms.all_entries)

    def choose_sizes(self, m: int, n: int, k: int) -> KernelConfig:
        """Return the configuration for positive, checked sizes at full alignment; the hot path of a new shape."""
        index = self._exact.get((m, n, k))
        if index is None:
            cell = ((m - 1).bit_length(), (n - 1).bit_length(), (k - 1).bit_length())
            candidates, entries = self._ready.get(cell) or self._make_ready(cell)
            index = candidates[0] if len(entries) == 1 else candidates[self._forms.fastest(m, n, k, entries)[0]]
        return self._configs[index]

    def choose(self, problem: GemmProblem) -> KernelConfig:
        """Return the configuration for a problem; see `explain`."""
        if problem.is_empty:
            return self._configs[self.model.default_index]
        if problem.alignment < TMA_ALIGNMENT:
            return self._configs[self._choose_unaligned(problem)[0]]
        return self.choose_sizes(*problem.dims)

    def rank(self, problem: GemmProblem) -> list[RankedConfig]:
        """Order every modelled, legal configuration by predicted latency, best first."""
        latencies = self._all_latencies(problem)
        order = sorted((latency, index) for index, latency in enumerate(latencies) if self._is_legal(problem, index))
        return [RankedConfig(self._configs[index], latency) for latency, index in order]

    def predict(self, problem: GemmProblem) -> dict[KernelConfig, float]:
        """Return the predicted latency of every modelled configuration, microseconds, legal or not."""
        return dict(zip(self._configs, self._all_latencies(problem), strict=False))

    def explain(self, problem: GemmProblem) -> Choice:
        """Return the choice for a problem, with its source and reasons.

        Raises
        ------
        NoModelError
            If no configuration of the model is legal for the problem.
        """
        table = self.model.path
        if problem.is_empty:
            default = self._configs[self.model.default_index]
            return Choice(default, Source.EMPTY, 0.0, 0, 0, 0, 0, None, 0.0, table)
        source = Source.NEAREST if _cell_of(problem) in self.model.cells else Source.MODEL
        if problem.alignment < TMA_ALIGNMENT:
            index, is_modelled = self._choose_unaligned(problem)
            source = source if is_modelled else Source.DEFAULT
        else:
            index = self._configs.index(self.choose_sizes(*problem.dims))
            source = Source.EXACT if problem.dims in self._exact else source
        form = self.model.forms[index]
        latencies = self._all_latencies(problem)
        latency_us = latencies[index] if index < len(latencies) else float("nan")
        if source is Source.EXACT:
            latency_us = self.model.exact[problem.dims].latency_us
        others = [ranked for ranked in self.rank(problem) if ranked.config != form.config]
        mapping = map_gemm(problem, form.config, self.arch)
        waves = wave_geometry(mapping.grid_size, form.ctas_per_sm, self.num_sms)
        return Choice(
            config=form.config,
            source=source,
            latency_us=latency_us,
            grid_size=mapping.grid_size,
            loop_trips=mapping.loop_trips,
            waves=waves.waves,
            tail_ctas=waves.tail_ctas,
            runner_up=others[0].config if others else None,
            margin=others[0].latency_us / latency_us - 1.0 if others else float("inf"),
            table=table,
        )

    def _make_ready(self, key: tuple[int, int, int]) -> _Candidates:
        """Return a cell's candidates, everything where there is no cell."""
        cell = self.model.cells.get(key)
        if cell is None:
            return self._everything
        ready = self._ready[key] = (cell.candidates, self._forms.corrected(cell, cell.candidates))
        return ready

    def _all_latencies(self, problem: GemmProblem) -> list[float]:
        cell = self.model.cells.get(_cell_of(problem))
        entries = self._forms.all_entries
        if cell is not None:
            entries = self._forms.corrected(cell, range(len(entries)))
        return self._forms.latencies(*problem.dims, entries)

    def _is_legal(self, problem: GemmProblem, index: int) -> bool:
        return gemm_illegal_reason(problem, self._configs[index], self.arch) is None

    def _choose_unaligned(self, problem: GemmProblem) -> tuple[int, bool]:
        """Return the best legal form and whether it was modelled; the default where nothing modelled is legal."""
        latencies = self._all_latencies(problem)
        legal = [index for index in range(len(latencies)) if self._is_legal(problem, index)]
        if legal:
            return min(legal, key=latencies.__getitem__), True
        for index in (self.model.default_index, *range(len(self._configs))):
            if self._is_legal(problem, index):
                return index, False
        reason = gemm_illegal_reason(problem, self._configs[self.model.default_index], self.arch)
        raise NoModelError(
            f"{self.model.path or 'the model'}: no configuration is legal for {problem}; the default is not because: "
            f"{reason}. Calibrate with configurations that load without TMA"
        )


def _cell_of(problem: GemmProblem) -> tuple[int, ...]:
    return tuple((size - 1).bit_length() for size in problem.dims)
