"""Calibrating grouped GEMM on a simulated GPU: what is planned, stored, fitted, written, and chosen for new groups."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from simulated_grouped import ARCH, SimulatedGrouped, simulated_us

import wavetune
from wavetune.core.config import GROUPED_GEMM, KernelConfig
from wavetune.core.grouped_problem import GroupedGemmProblem
from wavetune.core.routing import Routing, sample_groups
from wavetune.fit.family_model import fit_family
from wavetune.mapping.grouped_gemm import map_grouped_gemm
from wavetune.pipeline.family_calibration import FamilyCalibration, calibrate_family
from wavetune.pipeline.family_fit import keep_survivors
from wavetune.pipeline.family_jobs import grouped_job
from wavetune.plan.expert_layers import CALIBRATION_BLOCKS, HOLDOUT_BLOCKS, expert_layers
from wavetune.plan.grouped_plan import (
    FLAT_TILE,
    LIKELY_STRATUM,
    MAX_WASTE,
    SWEEP_STRATUM,
    GroupedPlanOptions,
    calibration_problems,
    could_win,
    holdout_problems,
    plan_grouped,
    rough_grouped_us,
)
from wavetune.runtime.choice import Source
from wavetune.runtime.family_file import family_file_name, read_family, write_family
from wavetune.runtime.grouped_choice import choose_grouped_gemm, rank_grouped_gemm
from wavetune.store.database import MeasurementStore

N_PROBLEMS = 240
OPTIONS = GroupedPlanOptions(n_problems=200, sweep_every=4)
Calibrated = tuple[SimulatedGrouped, FamilyCalibration, Path]


@pytest.fixture(scope="module")
def calibrated(tmp_path_factory: pytest.TempPathFactory) -> Calibrated:
    """Return a calibration and the folder with its model."""
    folder = tmp_path_factory.mktemp("models")
    runner = SimulatedGrouped()
    job = grouped_job([entry.config for entry in runner.compiled], ARCH, dtype="bf16", n_problems=N_PROBLEMS)
    with MeasurementStore(folder / "store.sqlite", runner.environment()) as store:
        result = calibrate_family(runner, job, store)
        again = SimulatedGrouped()
        resumed = calibrate_family(again, job, store)
    assert again.measured == []
    assert resumed.resumed == len(runner.measured)
    assert resumed.file.forms == result.file.forms
    path = folder / ARCH.name / family_file_name("grouped_gemm", "bf16", "nk")
    path.parent.mkdir()
    write_family(result.file, path)
    return runner, result, folder


@pytest.fixture
def models(calibrated: Calibrated, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let the runtime find the model."""
    monkeypatch.setenv("WAVETUNE_MODELS", str(calibrated[2]))
    monkeypatch.setenv("WAVETUNE_ARCH", ARCH.name)
    wavetune.clear_caches()
    yield
    monkeypatch.undo()
    wavetune.clear_caches()


def regret(problem: GroupedGemmProblem, config: KernelConfig) -> float:
    """Return how much longer a choice takes than the best one, without noise."""
    times = {entry.config: simulated_us(problem, entry.config) for entry in SimulatedGrouped().compiled}
    return times[config] / min(times.values()) - 1.0


@pytest.mark.usefixtures("models")
def test_choices_are_near_the_best_on_layers_that_were_not_measured() -> None:
    """Held-out weights, tokens and skews: mean regret below 2 %, and half that of any fixed configuration."""
    problems = holdout_problems(60)
    chosen = [regret(problem, choose_grouped_gemm(problem).config) for problem in problems]
    top3 = [min(regret(problem, entry.config) for entry in rank_grouped_gemm(problem)[:3]) for problem in problems]
    fixed = min(
        np.mean([regret(problem, entry.config) for problem in problems]) for entry in SimulatedGrouped().compiled
    )
    assert np.mean(chosen) < 0.02
    assert np.mean(top3) < 0.005
    assert np.mean(chosen) < fixed / 2


@pytest.mark.usefixtures("models")
def test_drawn_histograms_are_chosen_for_as_they_are() -> None:
    """Routings as a router gives them, not the stand-ins of their keys."""
    routings = (Routing("zipf", 0.9), Routing("dirichlet", 0.5))
    regrets = [
        regret(problem, choose_grouped_gemm(problem).config)
        for tokens in (64, 700, 5000)
        for seed, routing in enumerate(routings)
        for problem in [GroupedGemmProblem(sample_groups(routing, 128, tokens, seed), 1536, 2048)]
    ]
    assert np.mean(regrets) < 0.03


@pytest.mark.usefixtures("models")
def test_swept_keys_are_exact(calibrated: Calibrated) -> None:
    """The file holds the best reading of every problem that was swept with the whole space."""
    runner, result, _ = calibrated
    swept = {point.problem for point in runner.measured if point.stratum == SWEEP_STRATUM}
    assert set(result.file.exact) == {problem.dims for problem in swept}
    for problem in list(swept)[:5]:
        assert choose_grouped_gemm(problem).source is Source.EXACT


def test_the_model_says_how_good_it_is(calibrated: Calibrated) -> None:
    """Held-out efficiency, environment, range and a default are in the file, and it reads back."""
    _, result, folder = calibrated
    file = read_family(folder / ARCH.name / family_file_name("grouped_gemm", "bf16", "nk"))
    assert file.accuracy["held_out"]["efficiency"]["geomean"] > 0.97
    assert file.fit_range["experts"][1] == 256
    assert file.provenance["environment"]["gpu_name"] == "simulated"
    assert file.forms == result.file.forms
    assert len(result.table) == len(calibrated[0].measured)
    assert set(result.seconds) == {"prepare", "measuring", "fit"}
    assert "pointer" in {form.config["load"] for form in file.forms}


def test_survivors_cover_what_wins(calibrated: Calibrated) -> None:
    """Three forms are enough to be near the best everywhere; the default is always kept."""
    runner, result, _ = calibrated
    job = grouped_job([entry.config for entry in runner.compiled], ARCH, dtype="bf16", n_survivors=5)
    fit = fit_family(result.table, job.shape, ARCH)
    few = keep_survivors(fit, result.table, job, ARCH)
    assert 5 <= len(few.configs) <= 6
    assert few.configs[few.default] == fit.configs[fit.default]
    assert len(result.fitted.fit.configs) <= len(fit.configs)


def test_plans_sweep_some_problems_and_spare_the_rest() -> None:
    """Nothing twice; a sweep holds every configuration, the others what could win and so one of the best."""
    compiled = SimulatedGrouped().compiled
    plan = plan_grouped(compiled, ARCH, options=OPTIONS)
    assert len({(point.problem, point.config) for point in plan.points}) == len(plan.points)
    by_problem: dict[GroupedGemmProblem, set[KernelConfig]] = {}
    strata: dict[GroupedGemmProblem, set[str]] = {}
    for point in plan.points:
        by_problem.setdefault(point.problem, set()).add(point.config)
        strata.setdefault(point.problem, set()).add(point.stratum)
    assert {tuple(kinds) for kinds in strata.values()} == {(SWEEP_STRATUM,), (LIKELY_STRATUM,)}
    for problem, configs in by_problem.items():
        assert min(regret(problem, config) for config in configs) < 0.02
        if strata[problem] == {SWEEP_STRATUM}:
            assert len(configs) == len(compiled)
    n_likely = sum(point.stratum == LIKELY_STRATUM for point in plan.points)
    assert n_likely < 0.9 * len(compiled) * sum(kinds == {LIKELY_STRATUM} for kinds in strata.values())


def test_what_could_win_follows_its_rules() -> None:
    """No tile wastes three times the rows of the thriftiest, none is flat where experts are busy."""
    compiled = SimulatedGrouped().compiled
    for problem in calibration_problems(40):
        rows = {entry.config: map_grouped_gemm(problem, entry.config, ARCH).padded_rows for entry in compiled}
        kept = {entry.config for entry in could_win(problem, compiled, ARCH)}
        assert kept
        for config in kept:
            assert rows[config] <= MAX_WASTE * min(rows.values())
            assert int(config["block_m"]) >= FLAT_TILE or rows[config] <= 32 * int(config["block_m"]) * problem.active


@pytest.mark.parametrize("seconds", [0.5, 2.0])
def test_a_plan_keeps_its_budget(seconds: float) -> None:
    """Whole problems only, in the same order, and not beyond the seconds; the user's problems come first."""
    compiled = SimulatedGrouped().compiled
    own = GroupedGemmProblem((7, 0, 90, 1), 640, 1024)
    plan = plan_grouped(compiled, ARCH, options=replace(OPTIONS, max_seconds=seconds), problems=[own])
    assert plan.predicted_seconds <= seconds
    assert plan.n_refused > 0
    assert plan.points[0].problem == own.canonical()
    full = plan_grouped(compiled, ARCH, options=OPTIONS, problems=[own])
    assert full.points[: len(plan.points)] == plan.points


def test_problems_cover_what_servers_run() -> None:
    """From one token to 16384, few to many experts, balanced to skewed; held-out ones share no weight with them."""
    for problems, blocks in ((calibration_problems(200), CALIBRATION_BLOCKS), (holdout_problems(64), HOLDOUT_BLOCKS)):
        assert len(set(problems)) == len(problems) >= 64
        assert all(problem == problem.canonical() and not problem.is_empty for problem in problems)
        layers = expert_layers(blocks)
        assert {(p.experts, p.n, p.k) for p in problems} == {(layer.experts, layer.n, layer.k) for layer in layers}
        tokens = [problem.tokens for problem in problems]
        assert min(tokens) <= 8
        assert max(tokens) >= 65536
        skews = [problem.largest * problem.experts / problem.tokens for problem in problems if problem.tokens > 4096]
        assert min(skews) < 1.5
        assert max(skews) > 8
    shared = {(p.experts, p.n, p.k) for p in calibration_problems(200)}
    assert not shared & {(p.experts, p.n, p.k) for p in holdout_problems(64)}


def test_longer_lists_extend_shorter_ones() -> None:
    """Every prefix is a plan of its own."""
    assert calibration_problems(60)[:20] == calibration_problems(20)


def test_rough_latencies_are_positive_and_grow_with_the_work() -> None:
    """A guess for budgets: more tokens never take less."""
    entry = SimulatedGrouped().compiled[0]
    before = 0.0
    for tokens in (1, 16, 256, 4096):
        us = rough_grouped_us(GroupedGemmProblem((tokens,) * 8, 1536, 2048), entry, ARCH)
        assert before <= us < math.inf
        before = us


def test_rows_are_read_back_and_impossible_ones_refused(calibrated: Calibrated, tmp_path: Path) -> None:
    """Evidence files hold the keys; a row that is faster than the matrix unit is no measurement."""
    from wavetune.errors import MeasurementError
    from wavetune.store.csv_io import read_measurements, write_measurements

    runner, _, folder = calibrated
    with MeasurementStore(folder / "store.sqlite", runner.environment()) as store:
        table = store.to_table(GROUPED_GEMM, dtype="bf16", layout="nk", exhaustive_strata=(SWEEP_STRATUM,))
    sweep = table.select(table.exhaustive)
    write_measurements(tmp_path / "sweep.csv.gz", sweep)
    again = read_measurements(tmp_path / "sweep.csv.gz", GROUPED_GEMM, "bf16", ARCH, exhaustive=True).table
    assert len(again) == len(sweep)
    assert set(map(tuple, again.dims.tolist())) == set(map(tuple, sweep.dims.tolist()))
    largest = int(np.argmax(sweep.dims[:, 1] * sweep.dims[:, 4]))
    latency = sweep.latency_us.copy()
    latency[largest] = 5.0
    write_measurements(tmp_path / "wrong.csv", replace(sweep, latency_us=latency))
    with pytest.raises(MeasurementError):
        read_measurements(tmp_path / "wrong.csv", GROUPED_GEMM, "bf16", ARCH, exhaustive=True)
