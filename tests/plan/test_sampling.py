"""The two stages of the plan, and their budget."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

from wavetune.core.arch import find_arch
from wavetune.core.problem import GemmProblem
from wavetune.errors import ProblemError
from wavetune.mapping.legality import gemm_illegal_reason
from wavetune.plan.anchors import STRATA
from wavetune.plan.budget import MeasurementCost, rough_latency_us
from wavetune.plan.sampling import (
    DENSE_STRATUM,
    FINALIST_STRATUM,
    LAYER_STRATUM,
    PlanOptions,
    dense_plan,
    finalist_plan,
    further_shapes,
    realistic_shapes,
    sparse_plan,
)
from wavetune.store.record import CompiledConfig

H200 = find_arch("h200")
OPTIONS = PlanOptions(anchors_per_config=12, layer_shapes=6, dense_shapes=30)


def rough_matrix(space: tuple[CompiledConfig, ...], shapes: list[tuple[int, int, int]]) -> npt.NDArray[np.float64]:
    """Guess the latency of every shape with every configuration; those that differ in group_m alone share theirs."""
    keys = [(entry.config.replace(group_m=1), entry.num_regs, entry.smem_bytes) for entry in space]
    guesses = {
        key: [rough_latency_us(dims, entry, H200, 2, 2) for dims in shapes]
        for key, entry in dict(zip(keys, space, strict=True)).items()
    }
    return np.array([guesses[key] for key in keys]).T


@pytest.fixture(scope="module")
def large_space(space: tuple[CompiledConfig, ...]) -> tuple[CompiledConfig, ...]:
    """As many configurations as the recorded space has."""
    variants = [
        replace(entry, config=entry.config.replace(group_m=group_m)) for group_m in range(1, 10) for entry in space
    ]
    return tuple(variants[:330])


def test_the_default_plan_stays_below_forty_thousand_points_and_seventy_seconds(
    large_space: tuple[CompiledConfig, ...],
) -> None:
    """The default plan stays below forty thousand points and seventy seconds."""
    assert len(large_space) == 330
    first = sparse_plan(large_space, H200)
    shapes = realistic_shapes()
    second = dense_plan(
        large_space, shapes, rough_matrix(large_space, shapes), H200, done=first.points,
        done_seconds=first.predicted_seconds,
    )  # fmt: skip
    other = further_shapes(PlanOptions().finalist_shapes)
    third = finalist_plan(
        large_space, other, rough_matrix(large_space, other), H200, done=[*first.points, *second.points],
        done_seconds=first.predicted_seconds + second.predicted_seconds,
    )  # fmt: skip
    assert 12_000 < len(first) < len(first) + len(second) + len(third) < 40_000
    assert first.predicted_seconds + second.predicted_seconds + third.predicted_seconds < 70
    assert len(second) > 3_000
    assert len(third) > 3_000
    per_config = Counter(point.config for point in first.points)
    assert len(per_config) == 330
    assert min(per_config.values()) > 35
    assert set(first.strata()) == {*STRATA, LAYER_STRATUM}
    assert set(second.strata()) == {DENSE_STRATUM}


def test_plans_are_deterministic_and_have_no_point_twice(space: tuple[CompiledConfig, ...]) -> None:
    """Plans are deterministic and have no point twice."""
    first = sparse_plan(space, H200, options=OPTIONS)
    assert first == sparse_plan(space, H200, options=OPTIONS)
    keys = [(point.problem, point.config) for point in first.points]
    assert len(set(keys)) == len(keys) == len(space) * 18


@pytest.mark.parametrize("max_points", [0, 1, 100, 400])
def test_a_budget_in_points_treats_configurations_alike(space: tuple[CompiledConfig, ...], max_points: int) -> None:
    """A budget in points treats configurations alike."""
    plan = sparse_plan(space, H200, options=replace(OPTIONS, max_points=max_points, stage1_share=1.0))
    assert len(plan) == max_points
    assert plan.n_refused == len(space) * 18 - max_points
    counts = Counter(point.config for point in plan.points)
    sizes = [counts[entry.config] for entry in space]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("max_seconds", [0.0, 0.05, 0.2])
def test_a_budget_in_seconds_is_kept(space: tuple[CompiledConfig, ...], max_seconds: float) -> None:
    """A budget in seconds is kept."""
    plan = sparse_plan(space, H200, options=replace(OPTIONS, max_seconds=max_seconds, stage1_share=1.0))
    assert plan.predicted_seconds <= max_seconds
    assert plan.n_refused > 0
    assert (len(plan) > 50) == (max_seconds > 0)


def test_a_point_costs_its_rounds_and_overhead() -> None:
    """Short launches fill a batch and get every round, long ones the fewest."""
    cost = MeasurementCost(batch_us=40, max_total_us=2000, min_rounds=3, max_rounds=6, overhead_us=100)
    assert cost.seconds(5.0) == pytest.approx((6 * 40 + 100) * 1e-6)
    assert cost.seconds(100.0) == pytest.approx((6 * 100 + 100) * 1e-6)
    assert cost.seconds(500.0) == pytest.approx((4 * 500 + 100) * 1e-6)
    assert cost.seconds(1000.0) == pytest.approx((3 * 1000 + 100) * 1e-6)


def test_stage_two_measures_what_can_win(space: tuple[CompiledConfig, ...]) -> None:
    """Stage two measures what can win."""
    shapes = realistic_shapes(OPTIONS)
    predicted = np.random.default_rng(3).uniform(20, 60, (len(shapes), len(space)))
    plan = dense_plan(space, shapes, predicted, H200, options=OPTIONS)
    column = {entry.config: index for index, entry in enumerate(space)}
    chosen = np.zeros(predicted.shape, dtype=bool)
    for point in plan.points:
        chosen[shapes.index(point.problem.dims), column[point.config]] = True
    ratio = predicted / predicted.min(axis=1, keepdims=True)
    rank = predicted.argsort(axis=1).argsort(axis=1)
    wanted = (ratio <= OPTIONS.win_factor) | (rank < OPTIONS.min_candidates)
    legal = [[gemm_illegal_reason(GemmProblem(*shape), c.config, H200) is None for c in space] for shape in shapes]
    assert np.array_equal(chosen, wanted & np.array(legal))
    # Likeliest winners first: each shape's best comes before any second.
    assert {point.problem.dims for point in plan.points[: len(shapes)]} == set(shapes)


def test_stage_three_measures_the_finalists_of_other_shapes(space: tuple[CompiledConfig, ...]) -> None:
    """The best predicted legal configurations of each shape, and shapes that no other stage measures."""
    shapes = further_shapes(40, OPTIONS)
    assert set(shapes).isdisjoint(realistic_shapes(OPTIONS))
    assert len(set(shapes)) == 40
    predicted = np.random.default_rng(4).uniform(20, 60, (len(shapes), len(space)))
    plan = finalist_plan(space, shapes, predicted, H200, options=OPTIONS)
    column = {entry.config: index for index, entry in enumerate(space)}
    rank = predicted.argsort(axis=1).argsort(axis=1)
    ranks = [rank[shapes.index(point.problem.dims), column[point.config]] for point in plan.points]
    assert set(ranks) == set(range(OPTIONS.finalists))
    assert set(plan.strata()) == {FINALIST_STRATUM}


def test_stage_two_leaves_out_what_is_measured_or_out(space: tuple[CompiledConfig, ...]) -> None:
    """Stage two leaves out what is measured or out."""
    shapes = realistic_shapes(OPTIONS)
    first = sparse_plan(space, H200, options=OPTIONS)
    predicted = rough_matrix(space, shapes)
    predicted[:, 0], predicted[:, 1] = np.nan, np.inf
    second = dense_plan(space, shapes, predicted, H200, done=first.points, options=OPTIONS)
    done = {(point.problem, point.config) for point in first.points}
    planned = {(point.problem, point.config) for point in second.points}
    assert done.isdisjoint(planned)
    assert {space[0].config, space[1].config}.isdisjoint(config for _, config in planned)
    assert len(planned) > 100


def test_the_stages_share_the_budget(space: tuple[CompiledConfig, ...]) -> None:
    """The first two leave the third its share; what they do not use is the third's as well."""
    options = replace(OPTIONS, max_points=1000, stage1_share=0.6, stage3_share=0.1)
    shapes, other = realistic_shapes(options), further_shapes(60, options)
    first = sparse_plan(space, H200, options=options)
    second = dense_plan(space, shapes, np.ones((len(shapes), len(space))), H200, done=first.points, options=options)
    done = [*first.points, *second.points]
    third = finalist_plan(space, other, np.ones((len(other), len(space))), H200, done=done, options=options)
    assert (len(first), len(second), len(third)) == (600, 300, 100)
    cost = MeasurementCost()
    broke = dense_plan(space, shapes, np.ones((len(shapes), len(space))), H200, done_seconds=65.0, cost=cost)
    assert len(broke) == 0


def test_illegal_points_are_never_planned(space: tuple[CompiledConfig, ...]) -> None:
    """Illegal points are never planned."""
    a100 = find_arch("a100")
    fits = tuple(entry for entry in space if entry.smem_bytes <= a100.smem_per_cta_bytes)
    assert any(entry.config.load == "tma" for entry in fits)
    plan = sparse_plan(fits, a100, options=OPTIONS)
    assert plan.points
    assert all(gemm_illegal_reason(point.problem, point.config, a100) is None for point in plan.points)


def test_dtype_layout_and_own_shapes_are_used(space: tuple[CompiledConfig, ...]) -> None:
    """Dtype layout and own shapes are used."""
    plan = sparse_plan(space[:2], H200, dtype="float16", layout="kn", options=OPTIONS, shapes=[(5, 64, 64)])
    assert {(point.problem.dtype, point.problem.layout) for point in plan.points} == {("fp16", "kn")}
    assert [point.problem.dims for point in plan.points if point.stratum == LAYER_STRATUM] == [(5, 64, 64)] * 2


def test_predictions_must_fit(space: tuple[CompiledConfig, ...]) -> None:
    """Predictions must fit."""
    with pytest.raises(ProblemError, match=r"shape \(1, 39\)"):
        dense_plan(space, [(1, 2, 3)], np.ones((2, 3)), H200)


def test_nothing_to_plan_is_an_empty_plan() -> None:
    """Nothing to plan is an empty plan."""
    assert len(sparse_plan((), H200)) == 0
    assert len(dense_plan((), [(1, 2, 3)], np.ones((1, 0)), H200)) == 0


def test_no_point_outgrows_the_data(space: tuple[CompiledConfig, ...]) -> None:
    """A shape with a matrix that operands cannot be cut from is left out of every stage."""
    shapes = [(64, 4096, 4096), (64, 120_576, 29_184)]
    predicted = np.full((len(shapes), len(space)), 100.0)
    for plan in (dense_plan, finalist_plan):
        points = plan(space, shapes, predicted, H200, options=OPTIONS).points
        assert {point.problem.n for point in points} == {4096}
