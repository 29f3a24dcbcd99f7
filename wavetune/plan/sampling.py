"""The three stages of a calibration's plan.

Stage 1 is sparse over the whole space: wave-structured anchors of every configuration, and a few realistic layers with
all of them. Stage 2 is dense where it matters: many realistic layers, each with the configurations that stage 1's model
thinks can win there. Stage 3 tests the finalists: on shapes that nothing was measured on, what the model of both stages
would choose, since the choice among hundreds of predictions falls on those that are too optimistic.

On recorded H200 data, real shapes are worth more than anchors: dropping 80 % of the anchors costs 0.13 points of
efficiency, halving the real shapes 0.30 (data README).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from wavetune.core.arch import ArchSpec
from wavetune.core.dtype import find_dtype
from wavetune.core.problem import GemmProblem
from wavetune.errors import ProblemError
from wavetune.mapping.legality import gemm_illegal_reason
from wavetune.plan.anchors import gemm_anchors
from wavetune.plan.budget import Budget, MeasurementCost, Plan, rough_latency_us
from wavetune.plan.layers import plan_layers, spread_shapes
from wavetune.store.record import CompiledConfig, Point

LAYER_STRATUM = "layer"
DENSE_STRATUM = "layer-dense"
FINALIST_STRATUM = "layer-finalist"
EXHAUSTIVE_STRATA = (LAYER_STRATUM, DENSE_STRATUM, FINALIST_STRATUM)
"""Strata whose rows sweep many configurations over a realistic problem."""


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """Knobs of the plan. With the defaults, all stages together stay below 40,000 points and 70 s on an H200.

    Parameters
    ----------
    anchors_per_config : int
        Wave-structured points of each configuration.
    layer_shapes : int
        Realistic shapes that stage 1 measures with every configuration.
    dense_shapes : int
        Realistic shapes of stage 2.
    win_factor : float
        Stage 2 measures a configuration where it is predicted within this factor of the best.
    min_candidates : int
        And at least this many on each shape.
    finalist_shapes : int
        Shapes of stage 3. With 64 of them an earlier calibration's held-out efficiency rose from 0.944 to 0.961
        (H200, 2026-11).
    finalists : int
        Configurations that stage 3 measures on each, the best by prediction.
    max_points : int
        All stages together.
    max_seconds : float
        All stages together, predicted.
    stage1_share : float
        The most of both budgets that stage 1 may take.
    stage3_share : float
        What stages 1 and 2 leave of both budgets for stage 3.
    max_point_us : float
        Anchors and all-configuration layers guessed to take longer are left out.
    """

    anchors_per_config: int = 28
    layer_shapes: int = 12
    dense_shapes: int = 1200
    win_factor: float = 1.25
    min_candidates: int = 10
    finalist_shapes: int = 1200
    finalists: int = 6
    max_points: int = 36_000
    max_seconds: float = 64.0
    stage1_share: float = 0.55
    stage3_share: float = 0.2
    max_point_us: float = 4000.0


MAX_OPERAND_ELEMENTS = 2**31
"""Largest matrix of a point: 4 GiB of bf16, less than the 6 GiB of data that operands are cut from. Shapes drawn for
finalists can have a larger one."""

_Item = TypeVar("_Item")

DEFAULT_OPTIONS = PlanOptions()
DEFAULT_COST = MeasurementCost()


def realistic_shapes(options: PlanOptions = DEFAULT_OPTIONS) -> list[tuple[int, int, int]]:
    """Return the shapes of stage 2; those of stage 1 are its first ``options.layer_shapes``."""
    return spread_shapes(max(options.dense_shapes, options.layer_shapes), plan_layers())


def further_shapes(n_shapes: int, options: PlanOptions = DEFAULT_OPTIONS) -> list[tuple[int, int, int]]:
    """Return realistic shapes that stages 1 and 2 do not measure."""
    known = realistic_shapes(options)
    return spread_shapes(len(known) + n_shapes, plan_layers())[len(known) :]


def sparse_plan(
    compiled: Sequence[CompiledConfig],
    arch: ArchSpec,
    *,
    dtype: str = "bf16",
    layout: str = "nk",
    options: PlanOptions = DEFAULT_OPTIONS,
    cost: MeasurementCost = DEFAULT_COST,
    shapes: Sequence[tuple[int, int, int]] | None = None,
) -> Plan:
    """Plan stage 1: every configuration, sparsely. Deterministic.

    The points of all configurations take turns, so a budget that runs out has treated them alike.

    Parameters
    ----------
    shapes : sequence of tuple of int, optional
        Realistic ``(m, n, k)``; `realistic_shapes` by default. The first ``options.layer_shapes`` are used.
    """
    element = find_dtype(dtype)
    layers = (realistic_shapes(options) if shapes is None else shapes)[: options.layer_shapes]
    budget = Budget(int(options.max_points * options.stage1_share), options.max_seconds * options.stage1_share, cost)
    rounds: list[list[tuple[CompiledConfig, tuple[int, int, int], str]]] = []
    for entry in compiled:
        anchors = gemm_anchors(entry, arch, element)
        latency_us = {
            a.dims: rough_latency_us(a.dims, entry, arch, element.input_bytes, element.output_bytes) for a in anchors
        }
        affordable = [anchor for anchor in anchors if latency_us[anchor.dims] <= options.max_point_us]
        wanted = [(entry, anchor.dims, anchor.stratum) for anchor in affordable[: options.anchors_per_config]]
        rounds.append(_interleave([(entry, dims, LAYER_STRATUM) for dims in layers], wanted))
    for turn in range(max(map(len, rounds), default=0)):
        for queue in rounds:
            if turn < len(queue):
                entry, dims, stratum = queue[turn]
                rough_us = rough_latency_us(dims, entry, arch, element.input_bytes, element.output_bytes)
                if rough_us <= options.max_point_us:
                    _add(budget, dims, entry, stratum, rough_us, arch, dtype, layout)
    return budget.plan()


def dense_plan(
    compiled: Sequence[CompiledConfig],
    shapes: Sequence[tuple[int, int, int]],
    predicted_us: npt.NDArray[np.float64],
    arch: ArchSpec,
    *,
    done: Iterable[Point] = (),
    done_seconds: float = 0.0,
    dtype: str = "bf16",
    layout: str = "nk",
    options: PlanOptions = DEFAULT_OPTIONS,
    cost: MeasurementCost = DEFAULT_COST,
) -> Plan:
    """Plan stage 2: realistic shapes with the configurations that can win. Deterministic.

    Parameters
    ----------
    compiled : sequence of CompiledConfig
        Columns of ``predicted_us``.
    shapes : sequence of tuple of int
        Rows of ``predicted_us``.
    predicted_us : ndarray of shape (n_shapes, n_configs)
        Latencies that stage 1's model predicts, microseconds; NaN or infinite where a configuration is out.
    done : iterable of Point
        Points of stage 1: part of both budgets, and not measured again.
    done_seconds : float
        What they took.

    Returns
    -------
    Plan
        The likeliest winners of all shapes first. A shape's best predicted configurations are planned before
        any shape's unlikely ones.

    Raises
    ------
    ProblemError
        If ``predicted_us`` does not have a row for each shape and a column for each configuration.
    """
    room = 1.0 - options.stage3_share
    budget = _rest(done, options.max_points * room, options.max_seconds * room - done_seconds, cost)
    candidates = _Candidates(options.min_candidates, options.win_factor, DENSE_STRATUM)
    return _plan_candidates(compiled, shapes, predicted_us, arch, budget, candidates, dtype, layout)


def finalist_plan(
    compiled: Sequence[CompiledConfig],
    shapes: Sequence[tuple[int, int, int]],
    predicted_us: npt.NDArray[np.float64],
    arch: ArchSpec,
    *,
    done: Iterable[Point] = (),
    done_seconds: float = 0.0,
    dtype: str = "bf16",
    layout: str = "nk",
    options: PlanOptions = DEFAULT_OPTIONS,
    cost: MeasurementCost = DEFAULT_COST,
) -> Plan:
    """Plan stage 3: what the model of stages 1 and 2 would choose. Deterministic.

    Takes the parameters and raises the errors of `dense_plan`, with the points of both stages as ``done``.
    """
    budget = _rest(done, options.max_points, options.max_seconds - done_seconds, cost)
    candidates = _Candidates(options.finalists, 1.0, FINALIST_STRATUM)
    return _plan_candidates(compiled, shapes, predicted_us, arch, budget, candidates, dtype, layout)


@dataclass(frozen=True, slots=True)
class _Candidates:
    """Which configurations of a shape are measured: so many, and those within a factor of the best."""

    n_least: int
    factor: float
    stratum: str


def _rest(done: Iterable[Point], max_points: float, max_seconds: float, cost: MeasurementCost) -> Budget:
    """Return what the points that are done leave."""
    known = list(done)
    budget = Budget(max(int(max_points) - len(known), 0), max(max_seconds, 0.0), cost)
    budget.exclude(known)
    return budget


def _plan_candidates(
    compiled: Sequence[CompiledConfig],
    shapes: Sequence[tuple[int, int, int]],
    predicted_us: npt.NDArray[np.float64],
    arch: ArchSpec,
    budget: Budget,
    candidates: _Candidates,
    dtype: str,
    layout: str,
) -> Plan:
    """Plan the likeliest winners of every shape, those of all shapes before the next likely ones of any."""
    if predicted_us.shape != (len(shapes), len(compiled)):
        raise ProblemError(
            f"predicted_us must have shape {(len(shapes), len(compiled))}, one row a shape and one column a "
            f"configuration, got {predicted_us.shape}"
        )
    finite = np.where(np.isfinite(predicted_us), predicted_us, np.inf)
    order = np.argsort(finite, axis=1, kind="stable")
    wanted = []
    for row in range(len(shapes)):
        best_us = finite[row, order[row, 0]] if len(compiled) else np.inf
        for rank, column in enumerate(order[row].tolist()):
            ratio = finite[row, column] / best_us if np.isfinite(best_us) else np.inf
            if not np.isfinite(ratio) or (rank >= candidates.n_least and ratio > candidates.factor):
                break
            wanted.append((float(ratio), rank, row, column))
    for _, _, row, column in sorted(wanted):
        latency_us = float(finite[row, column])
        _add(budget, shapes[row], compiled[column], candidates.stratum, latency_us, arch, dtype, layout)
    return budget.plan()


def _interleave(first: Sequence[_Item], second: Sequence[_Item]) -> list[_Item]:
    """Merge two queues so that both are spread evenly over the result."""
    keyed = [
        ((i + 0.5) / len(queue), turn, item)
        for turn, queue in enumerate((first, second))
        for i, item in enumerate(queue)
    ]
    return [item for _, _, item in sorted(keyed, key=lambda entry: entry[:2])]


def _add(
    budget: Budget,
    dims: tuple[int, int, int],
    entry: CompiledConfig,
    stratum: str,
    latency_us: float,
    arch: ArchSpec,
    dtype: str,
    layout: str,
) -> None:
    m, n, k = dims
    if max(m * k, n * k, m * n) > MAX_OPERAND_ELEMENTS:
        return
    problem = GemmProblem(*dims, dtype=dtype, layout=layout)
    if gemm_illegal_reason(problem, entry.config, arch) is None:
        budget.add(Point(problem, entry.config, stratum), latency_us)
