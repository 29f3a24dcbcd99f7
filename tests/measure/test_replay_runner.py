"""Replaying a recording."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from wavetune.core.arch import find_arch
from wavetune.core.config import GEMM
from wavetune.core.problem import GemmProblem
from wavetune.measure.replay_runner import STRATUM_EXHAUSTIVE, STRATUM_POINTS, ReplayRunner
from wavetune.measure.runner import Point, Runner
from wavetune.store.record import CompiledConfig, Status
from wavetune.store.table import MeasurementTable

H200 = find_arch("h200")
FIELDS = {"block_n": 64, "block_k": 64, "group_m": 8, "num_warps": 4, "num_stages": 3}
SMALL = CompiledConfig(GEMM.config({**FIELDS, "block_m": 64}), 69, 0, 49152)
LARGE = CompiledConfig(GEMM.config({**FIELDS, "block_m": 128}), 114, 0, 98304)


@pytest.fixture
def table() -> MeasurementTable:
    """Record two problems, one point of them twice."""
    return MeasurementTable(
        spec=GEMM, dtype="bf16", layout="nk", configs=(SMALL, LARGE),
        dims=np.array([[256, 64, 64], [16, 64, 64], [256, 64, 64], [256, 64, 64]]),
        config_index=np.array([0, 1, 0, 1]), latency_us=np.array([10.0, 20.0, 12.0, 30.0]),
        exhaustive=np.array([False, True, True, False]),
    )  # fmt: skip


def test_a_replay_runner_is_a_runner(table: MeasurementTable) -> None:
    """A replay runner is a runner."""
    assert isinstance(ReplayRunner(table, H200), Runner)


def test_recorded_points_are_answered_in_order_with_their_median(table: MeasurementTable) -> None:
    """Recorded points are answered in order with their median."""
    runner = ReplayRunner(table, H200)
    points = runner.recorded_points()
    assert [(point.problem.dims, point.config) for point in points] == [
        ((256, 64, 64), SMALL.config), ((16, 64, 64), LARGE.config), ((256, 64, 64), LARGE.config),
    ]  # fmt: skip
    assert [point.stratum for point in points] == [STRATUM_POINTS, STRATUM_EXHAUSTIVE, STRATUM_POINTS]
    answers = list(runner.measure(points))
    assert [(answer.problem, answer.config, answer.stratum) for answer in answers] == [
        (point.problem, point.config, point.stratum) for point in points
    ]
    assert [answer.latency_us for answer in answers] == [11.0, 20.0, 30.0]
    assert {answer.status for answer in answers} == {Status.OK}


@pytest.mark.parametrize(("exhaustive", "sizes"), [(True, [16, 256]), (False, [256, 256]), (None, [256, 16, 256])])
def test_recorded_points_can_be_filtered(table: MeasurementTable, exhaustive: bool | None, sizes: list[int]) -> None:
    """Recorded points can be filtered."""
    points = ReplayRunner(table, H200).recorded_points(exhaustive)
    assert [point.problem.dims[0] for point in points] == sizes


@pytest.mark.parametrize(
    ("problem", "config"),
    [
        (GemmProblem(16, 64, 64), SMALL.config),
        (GemmProblem(17, 64, 64), LARGE.config),
        (GemmProblem(256, 64, 64), SMALL.config.replace(num_warps=8)),
        (GemmProblem(256, 64, 64, dtype="fp16"), SMALL.config),
        (GemmProblem(256, 64, 64, layout="kn"), SMALL.config),
        (GemmProblem(256, 64, 64, alignment=2), SMALL.config),
    ],
    ids=["hole", "problem", "config", "dtype", "layout", "alignment"],
)
def test_what_was_not_recorded_says_so(table: MeasurementTable, problem: GemmProblem, config: object) -> None:
    """What was not recorded says so."""
    point = Point(problem, config, "layer")
    (answer,) = ReplayRunner(table, H200).measure([point])
    assert (answer.status, answer.latency_us, answer.stratum) == (Status.NOT_RECORDED, None, "layer")
    assert "record" in answer.detail


def test_each_configuration_is_either_compiled_or_failed(table: MeasurementTable) -> None:
    """Each configuration is either compiled or failed."""
    unknown = SMALL.config.replace(num_stages=5)
    seen: list[tuple[int, int]] = []
    prepared = ReplayRunner(table, H200).prepare(
        [LARGE.config, unknown, SMALL.config], lambda done, total: seen.append((done, total))
    )
    assert prepared.compiled == (LARGE, SMALL)
    assert [(entry.config, entry.status) for entry in prepared.failures] == [(unknown, Status.NOT_RECORDED)]
    assert seen == [(1, 3), (2, 3), (3, 3)]


def test_progress_counts_the_points(table: MeasurementTable) -> None:
    """Progress counts the points."""
    runner = ReplayRunner(table, H200)
    seen: list[tuple[int, int]] = []
    answers = runner.measure(runner.recorded_points(), lambda done, total: seen.append((done, total)))
    next(answers)
    assert seen == []
    list(answers)
    assert seen == [(1, 3), (2, 3), (3, 3)]


@pytest.mark.parametrize("column", ["latency_us", "dims", "config_index", "exhaustive", "configs", "dtype", "layout"])
def test_the_fingerprint_is_that_of_the_recording(table: MeasurementTable, column: str) -> None:
    """The fingerprint is that of the recording."""
    before = getattr(table, column)
    changed = {"configs": (SMALL, replace(LARGE, num_spills=3)), "dtype": "fp16", "layout": "kn"}.get(column)
    if changed is None:
        changed = np.concatenate([before[:1], before[:-1]]) if column != "dims" else before + 1
    environment = ReplayRunner(table, H200, {"driver": "580"}).environment()
    assert environment == ReplayRunner(replace(table), H200, {"driver": "580"}).environment()
    assert environment["driver"] == "580"
    assert environment != ReplayRunner(replace(table, **{column: changed}), H200, {"driver": "580"}).environment()
