"""Ask the runtime about every problem of an exhaustive sweep and compare with what was measured."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol

import numpy as np

from wavetune.core.arch import find_arch
from wavetune.core.config import KernelConfig
from wavetune.core.problem import GemmProblem
from wavetune.errors import MeasurementError
from wavetune.report.metrics import (
    NEAR_BEST,
    Efficiency,
    Regret,
    geometric_mean,
    rounded,
    summarise_efficiency,
    summarise_regret,
)
from wavetune.runtime.choice import Source
from wavetune.runtime.chooser import GemmChooser
from wavetune.runtime.family_file import FamilyFile
from wavetune.runtime.model_file import ModelFile
from wavetune.store.table import FloatArray, MeasurementTable

N_WORST = 10

SAME_LATENCY = 1.01
"""Latencies within this ratio count as equal: near-best ones repeat only within 1 to 2.5 % (H200, 2026-11)."""


@dataclass(frozen=True, slots=True)
class ShapeResult:
    """One problem of the sweep.

    Parameters
    ----------
    dims : tuple of int
        Sizes.
    choice, best : KernelConfig
        What the runtime chose, and what was measured fastest.
    source : str
        Source of the choice.
    predicted_us, measured_us, best_us : float
        Latency of the choice as predicted and as measured (NaN if unmeasured), and of the best.
    default_us, top3_us, top8_us : float
        Measured latency of the model's default configuration, and of the fastest among the best three (eight) of the
        ranking; NaN if one of those was not measured.
    """

    dims: tuple[int, ...]
    choice: KernelConfig
    best: KernelConfig
    source: str
    predicted_us: float
    measured_us: float
    best_us: float
    default_us: float = float("nan")
    top3_us: float = float("nan")
    top8_us: float = float("nan")

    @property
    def efficiency(self) -> float:
        """Best over chosen latency; NaN if the choice was not measured."""
        return self.best_us / self.measured_us


@dataclass(frozen=True)
class AccuracyReport:
    """Accuracy of a model on an exhaustive sweep.

    Parameters
    ----------
    results : tuple of ShapeResult
        One a problem, in the order of the sizes.
    top3_efficiency, top8_efficiency : float
        Geometric-mean efficiency if the best three (eight) of the ranking were measured and the fastest kept, over the
        problems where the sweep has all of them.
    mape_chosen : float
        Mean absolute relative error of the chosen configurations' predicted latencies.
    mape_near_best : float
        Mean absolute relative prediction error of modelled configurations within 1.5 times the best.
    default_efficiency : Efficiency
        The model's default configuration everywhere, where it was measured.
    """

    results: tuple[ShapeResult, ...]
    efficiency: Efficiency
    regret: Regret
    top3_efficiency: float
    top8_efficiency: float
    mape_chosen: float
    mape_near_best: float
    unmeasured: int
    default_efficiency: Efficiency

    def known(self, latency: str) -> int:
        """Return on how many problems a latency, such as ``top3_us`` of `ShapeResult`, was measured."""
        return sum(not math.isnan(getattr(result, latency)) for result in self.results)

    @property
    def sources(self) -> dict[str, int]:
        """Number of answers by source."""
        return dict(sorted(Counter(result.source for result in self.results).items()))

    @property
    def never_slower_rate(self) -> float:
        """Share of problems on which the choice is no slower than the default, to `SAME_LATENCY`; NaN for none."""
        slower = [
            result.measured_us > SAME_LATENCY * result.default_us
            for result in self.results
            if not np.isnan(result.measured_us + result.default_us)
        ]
        return 1.0 - float(np.mean(slower)) if slower else float("nan")

    def hit_rate(self, count: int) -> float:
        """Share of problems whose best configuration, to `SAME_LATENCY`, is among the first 1, 3 or 8; NaN for none."""
        latency = {1: "measured_us", 3: "top3_us", 8: "top8_us"}[count]
        pairs = np.array([(getattr(result, latency), result.best_us) for result in self.results])
        known = pairs[~np.isnan(pairs[:, 0])]
        return float(np.mean(known[:, 0] <= SAME_LATENCY * known[:, 1])) if len(known) else float("nan")

    def require_choices(self) -> None:
        """Refuse a sweep that judges nothing.

        Raises
        ------
        MeasurementError
            If not one choice was measured.
        """
        if self.unmeasured == len(self.results):
            raise MeasurementError(
                "the sweep has no measurement of anything that the model chooses; judge on a sweep of every "
                "configuration, such as `wavetune measure --all-configs` writes"
            )

    @property
    def worst(self) -> tuple[ShapeResult, ...]:
        """The problems with the lowest efficiency, worst first."""
        measured = [result for result in self.results if not np.isnan(result.measured_us)]
        return tuple(sorted(measured, key=lambda result: result.efficiency)[:N_WORST])

    def to_dict(self, spec_dims: tuple[str, ...]) -> dict[str, Any]:
        """Return the report as plain data; NaN where there is nothing to average."""
        return {
            "shapes": len(self.results),
            "judged": self.known("measured_us"),
            "efficiency": rounded(self.efficiency),
            "regret": rounded(self.regret),
            "top3_efficiency": round(self.top3_efficiency, 5),
            "top3_judged": self.known("top3_us"),
            "top8_efficiency": round(self.top8_efficiency, 5),
            "top8_judged": self.known("top8_us"),
            "mape_chosen": round(self.mape_chosen, 5),
            "mape_near_best": round(self.mape_near_best, 5),
            "default_efficiency": rounded(self.default_efficiency),
            "unmeasured": self.unmeasured,
            "sources": self.sources,
            "worst": [
                {
                    **dict(zip(spec_dims, result.dims, strict=True)),
                    "efficiency": round(result.efficiency, 4),
                    "source": result.source,
                    "choice": dict(result.choice),
                    "best": dict(result.best),
                    "predicted_us": round(result.predicted_us, 3),
                    "measured_us": round(result.measured_us, 3),
                    "best_us": round(result.best_us, 3),
                }
                for result in self.worst
            ],
        }


def evaluate_model(model: ModelFile, sweep: MeasurementTable, *, with_exact: bool = False) -> AccuracyReport:
    """Evaluate a model on an exhaustive sweep.

    Parameters
    ----------
    model : ModelFile
        The model.
    sweep : MeasurementTable
        Every problem measured with many configurations.
    with_exact : bool, default=False
        Whether the exact table may answer. Off, the question is how well unmeasured problems are answered.

    Returns
    -------
    AccuracyReport
        One result for every problem; a choice without a row counts as unmeasured, and in no mean.

    Raises
    ------
    MeasurementError
        If sweep and model are of different kernels, dtypes or layouts, or the sweep is empty.
    """
    check_sweep(model, sweep)
    chooser = GemmChooser(model, find_arch(model.arch), use_exact=with_exact)
    judge = SweepJudge(sweep, model.forms[model.default_index].config)
    for dims, measured in judge.problems():
        m, n, k = dims
        problem = GemmProblem(m, n, k, model.dtype, model.layout)
        choice, ranking = chooser.explain(problem), chooser.rank(problem)
        judge.add(dims, measured, choice, [entry.config for entry in ranking], chooser.predict(problem))
    return summarise_results(judge.results, judge.errors)


class AnyChoice(Protocol):
    """What is judged of an answer."""

    @property
    def config(self) -> KernelConfig:
        """The configuration."""

    @property
    def source(self) -> Source:
        """Where it comes from."""

    @property
    def latency_us(self) -> float:
        """Its latency as predicted, or as measured where the exact table answered."""


class SweepJudge:
    """Compares answers with the best of a sweep, problem by problem.

    Parameters
    ----------
    sweep : MeasurementTable
        Every problem measured with many configurations.
    default : KernelConfig
        The model's default.
    """

    def __init__(self, sweep: MeasurementTable, default: KernelConfig) -> None:
        self.results: list[ShapeResult] = []
        self.errors: list[float] = []
        self._sweep = sweep
        self._position = {entry.config: index for index, entry in enumerate(sweep.configs)}
        self._default = default

    def problems(self) -> Iterator[tuple[tuple[int, ...], FloatArray]]:
        """Yield the sizes of each problem and the latencies of the sweep's configurations, NaN where unmeasured."""
        for sizes, measured in zip(*self._sweep.latency_matrix(), strict=True):
            yield tuple(sizes.tolist()), measured

    def add(
        self,
        dims: tuple[int, ...],
        measured: FloatArray,
        choice: AnyChoice,
        ranking: Iterable[KernelConfig],
        predicted_us: Mapping[KernelConfig, float],
    ) -> None:
        """Judge one answer.

        Parameters
        ----------
        dims, measured
            As `problems` yields them.
        choice : AnyChoice
            What the model chose.
        ranking : iterable of KernelConfig
            What it would have chosen next, best first.
        predicted_us : mapping of KernelConfig to float
            Predicted latencies whose errors count where a configuration is near the best.
        """
        position = self._position
        winner = int(np.nanargmin(measured))
        best_us = float(measured[winner])

        def of(config: KernelConfig) -> float:
            return float(measured[position[config]]) if config in position else math.nan

        tops = [of(config) for config in islice(ranking, 8)]
        self.results.append(
            ShapeResult(
                dims,
                choice.config,
                self._sweep.configs[winner].config,
                choice.source,
                choice.latency_us,
                of(choice.config),
                best_us,
                default_us=of(self._default),
                top3_us=fastest(tops[:3]),
                top8_us=fastest(tops),
            )
        )
        for config, latency_us in predicted_us.items():
            if of(config) <= NEAR_BEST * best_us:
                self.errors.append(abs(latency_us / of(config) - 1.0))


def check_sweep(model: ModelFile | FamilyFile, sweep: MeasurementTable) -> None:
    """Check that a sweep is of what a model answers for.

    Raises
    ------
    MeasurementError
        If they are of different kernels, dtypes or layouts, or the sweep is empty.
    """
    for name, ours, theirs in (
        ("kernel", model.kernel, sweep.spec.name),
        ("dtype", model.dtype, sweep.dtype),
        ("layout", model.layout, sweep.layout),
    ):
        if ours != theirs:
            raise MeasurementError(f"the model is for {name} {ours}, the sweep for {theirs}")
    if not len(sweep):
        raise MeasurementError("the sweep has no measurements to compare with")


def summarise_results(results: Sequence[ShapeResult], errors: Sequence[float]) -> AccuracyReport:
    """Return the report of problems that were judged one by one.

    Parameters
    ----------
    results : sequence of ShapeResult
        The problems.
    errors : sequence of float
        Absolute relative prediction errors of configurations near the best of their problem.
    """
    best, *others = (
        np.array([getattr(result, name) for result in results])
        for name in ("best_us", "measured_us", "default_us", "top3_us", "top8_us")
    )
    known, default_known, top3, top8 = (_known(best / latency) for latency in others)
    predicted = np.array([result.predicted_us for result in results])
    missed = _known(np.abs(predicted / others[0] - 1.0))
    return AccuracyReport(
        results=tuple(results),
        efficiency=summarise_efficiency(known),
        regret=summarise_regret(known),
        top3_efficiency=geometric_mean(top3),
        top8_efficiency=geometric_mean(top8),
        mape_chosen=float(missed.mean()) if len(missed) else float("nan"),
        mape_near_best=float(np.mean(errors)) if errors else float("nan"),
        unmeasured=len(results) - len(known),
        default_efficiency=summarise_efficiency(default_known),
    )


def fastest(measured: Sequence[float]) -> float:
    """Return the least latency; NaN if one of them is unknown, since that might be it, or if there is none."""
    return float(np.min(measured)) if measured else math.nan


def _known(values: FloatArray) -> FloatArray:
    return values[~np.isnan(values)]
