"""Answer problems from one loaded model: exact, then nearest, then model."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from wavetune.core.arch import ArchSpec
from wavetune.core.config import KernelConfig
from wavetune.core.problem import GemmProblem
from wavetune.mapping.gemm import map_gemm
from wavetune.mapping.legality import gemm_illegal_reason
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
        self._use_exact = use_exact
        self._forms = GemmForms(model, arch, self.num_sms)
        self._configs = tuple(form.config for form in model.forms)
        # Octaves are packed into one int: 32 octaves a size.
        self._cells = {(a << 10) | (b << 5) | c: cell for (a, b, c), cell in model.cells.items()}
        self._ready: dict[int, tuple[tuple[int, ...], tuple[Entry, ...]]] = {}
        self._needs_alignment = tuple(
            gemm_illegal_reason(GemmProblem(1, 1, 1, alignment=1), config, arch) is not None for config in self._configs
        )

    def choose_index(self, m: int, n: int, k: int, alignment: int = 16) -> int:
        """Return the form index for a positive, checked problem; the hot path of a new shape."""
        if alignment < 16:
            return self._choose_unaligned(GemmProblem(m, n, k, self.model.dtype, self.model.layout, alignment))[0]
        if self._use_exact:
            entry = self.model.exact.get((m, n, k))
            if entry is not None:
                return entry.config_index
        key = ((m - 1).bit_length() << 10) | ((n - 1).bit_length() << 5) | (k - 1).bit_length()
        ready = self._ready.get(key)
        if ready is None:
            cell = self._cells.get(key)
            if cell is None:
                latencies = self._forms.latencies(m, n, k, self._forms.all_entries)
                return latencies.index(min(latencies))
            ready = self._ready[key] = (cell.candidates, self._forms.corrected(cell, cell.candidates))
        candidates, entries = ready
        if len(candidates) == 1:
            return candidates[0]
        latencies = self._forms.latencies(m, n, k, entries)
        return candidates[latencies.index(min(latencies))]

    def choose(self, problem: GemmProblem) -> KernelConfig:
        """Return the configuration for a problem; see `explain`."""
        if problem.is_empty:
            return self._configs[self.model.default_index]
        return self._configs[self.choose_index(*problem.dims, problem.alignment)]

    def rank(self, problem: GemmProblem) -> list[RankedConfig]:
        """Order every modelled, legal configuration by predicted latency, best first."""
        latencies = self._all_latencies(problem)
        order = sorted((latency, index) for index, latency in enumerate(latencies) if self._legal(problem, index))
        return [RankedConfig(self._configs[index], latency) for latency, index in order]

    def predict(self, problem: GemmProblem) -> dict[KernelConfig, float]:
        """Return the predicted latency of every modelled configuration, microseconds, legal or not."""
        return dict(zip(self._configs, self._all_latencies(problem), strict=False))

    def explain(self, problem: GemmProblem) -> Choice:
        """Return the choice for a problem, with its source and reasons."""
        table = self.model.path
        if problem.is_empty:
            default = self._configs[self.model.default_index]
            return Choice(default, Source.EMPTY, 0.0, 0, 0, 0, 0, None, 0.0, table)
        source = self._source(problem)
        if problem.alignment < 16:
            index, modelled = self._choose_unaligned(problem)
            if not modelled:
                source = Source.DEFAULT
        else:
            index = self.choose_index(*problem.dims)
        form = self.model.forms[index]
        latency_us = dict(enumerate(self._all_latencies(problem))).get(index, float("nan"))
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

    def _source(self, problem: GemmProblem) -> Source:
        if self._use_exact and problem.alignment >= 16 and problem.dims in self.model.exact:
            return Source.EXACT
        return Source.NEAREST if self._cell_key(problem) in self._cells else Source.MODEL

    def _cell_key(self, problem: GemmProblem) -> int:
        a, b, c = ((size - 1).bit_length() for size in problem.dims)
        return (a << 10) | (b << 5) | c

    def _all_latencies(self, problem: GemmProblem) -> list[float]:
        cell = self._cells.get(self._cell_key(problem))
        entries = self._forms.all_entries
        if cell is not None:
            entries = self._forms.corrected(cell, range(len(entries)))
        return self._forms.latencies(*problem.dims, entries)

    def _legal(self, problem: GemmProblem, index: int) -> bool:
        return problem.alignment >= 16 or not self._needs_alignment[index]

    def _choose_unaligned(self, problem: GemmProblem) -> tuple[int, bool]:
        """Return the best legal form and whether it was modelled; the default where nothing modelled is legal."""
        latencies = self._all_latencies(problem)
        legal = [index for index in range(len(latencies)) if self._legal(problem, index)]
        if not legal:
            return self.model.default_index, False
        return min(legal, key=latencies.__getitem__), True
