"""Answer problems from one loaded model: exact, then nearest, then model."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from wavetune.core.arch import ArchSpec
from wavetune.core.config import KernelConfig
from wavetune.core.dtype import find_dtype
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

_SPLIT_K = 3
"""Position in an `Entry`."""


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

    def __init__(self, model: ModelFile, arch: ArchSpec, num_sms: int | None = None, *, use_exact: bool = True) -> None:
        self.model = model
        self.arch = arch
        self.num_sms = num_sms or model.num_sms
        element = find_dtype(model.dtype)
        # Contiguous rows of n or k elements are aligned for TMA if none of these bits is set.
        self.row_mask = TMA_ALIGNMENT // min(element.input_bytes, element.output_bytes) - 1
        self._forms = GemmForms(model, arch, self.num_sms)
        self._configs = tuple(form.config for form in model.forms)
        self._exact = {sizes: entry.config_index for sizes, entry in model.exact.items()} if use_exact else {}
        self._ready: dict[tuple[int, int, int], _Candidates] = {}
        # The default first: it is the best alone, so it excludes most others early.
        # The default comes first: it is fast on most shapes, so that the forms after it are soon seen to be slower.
        everything = sorted(range(model.n_modelled), key=lambda index: index != model.default_index)
        self._everything: _Candidates = (
            tuple(everything),
            tuple(self._forms.all_entries[index] for index in everything),
        )

    def choose_sizes(self, m: int, n: int, k: int) -> KernelConfig:
        """Return the configuration for positive, checked sizes at full alignment; the hot path of a new shape."""
        index = self._exact.get((m, n, k))
        if index is None:
            cell = ((m - 1).bit_length(), (n - 1).bit_length(), (k - 1).bit_length())
            candidates, entries = self._ready.get(cell) or self._make_ready(cell)
            if len(candidates) == 1 and entries[0][_SPLIT_K] == 1.0:
                index = candidates[0]
            else:
                position = self._forms.fastest(m, n, k, entries)[0]
                if position < 0:
                    return self.choose_legal(GemmProblem(m, n, k, self.model.dtype, self.model.layout, TMA_ALIGNMENT))[
                        0
                    ]
                index = candidates[position]
        return self._configs[index]

    def choose(self, problem: GemmProblem) -> KernelConfig:
        """Return the configuration for a problem; see `explain`."""
        if problem.is_empty:
            return self._configs[self.model.default_index]
        if problem.alignment < TMA_ALIGNMENT:
            return self.choose_legal(problem)[0]
        return self.choose_sizes(*problem.dims)

    def choose_legal(self, problem: GemmProblem) -> tuple[KernelConfig, bool]:
        """Return the best legal configuration and whether it was modelled; the default where nothing modelled is legal.

        Raises
        ------
        NoModelError
            If no configuration of the model is legal for the problem.
        """
        ranked = self.rank(problem)
        if ranked:
            return ranked[0].config, True
        for index in (self.model.default_index, *range(len(self._configs))):
            if self._is_legal(problem, index):
                return self._configs[index], False
        reason = gemm_illegal_reason(problem, self._configs[self.model.default_index], self.arch)
        raise NoModelError(
            f"{self.model.path or 'the model'}: no configuration is legal for {problem}; of the default: {reason}. "
            "Calibrate with configurations that load without TMA and do not split k"
        )

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
        config, ranked = self.choose(problem), self.rank(problem)
        if problem.alignment >= TMA_ALIGNMENT and problem.dims in self._exact:
            source = Source.EXACT
        elif not ranked:
            source = Source.DEFAULT
        else:
            source = Source.NEAREST if _cell_of(problem) in self.model.cells else Source.MODEL
        index = self._configs.index(config)
        form = self.model.forms[index]
        latencies = self._all_latencies(problem)
        latency_us = latencies[index] if index < len(latencies) else float("nan")
        if source is Source.EXACT:
            latency_us = self.model.exact[problem.dims].latency_us
        others = [entry for entry in ranked if entry.config != config]
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


def _cell_of(problem: GemmProblem) -> tuple[int, ...]:
    return tuple((size - 1).bit_length() for size in problem.dims)
