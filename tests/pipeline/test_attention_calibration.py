"""Calibrating attention on a simulated GPU: what is stored, fitted, written, and chosen for lengths of any kind."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pytest
from simulated_attention import ARCH, SimulatedAttention

import wavetune
from wavetune.core.attention_problem import AttentionDecodeProblem, AttentionProblem
from wavetune.errors import NoModelError
from wavetune.mapping.attention import most_decode_trips
from wavetune.pipeline.family_calibration import FamilyCalibration, calibrate_family
from wavetune.pipeline.family_jobs import find_job
from wavetune.plan.attention_plan import attention_keys
from wavetune.runtime.attention_choice import choose_attention, is_legal, rank_attention
from wavetune.runtime.choice import Source
from wavetune.runtime.family_file import family_file_name, write_family
from wavetune.store.database import MeasurementStore

N_KEYS = 72
Calibrated = tuple[SimulatedAttention, FamilyCalibration, Path]


@pytest.fixture(scope="module", params=["attention", "attention_decode"])
def calibrated(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Calibrated:
    """Return one calibration of each family, and the folder with its model."""
    folder = tmp_path_factory.mktemp("models")
    runner = SimulatedAttention(request.param)
    job = find_job(
        request.param, ARCH, dtype="bf16", layout="d128", configs=runner.configs, n_problems=N_KEYS, n_survivors=12
    )
    with MeasurementStore(folder / "store.sqlite", runner.environment()) as store:
        result = calibrate_family(runner, job, store)
    path = folder / ARCH.name / family_file_name(request.param, "bf16", "d128")
    path.parent.mkdir()
    write_family(result.file, path)
    return runner, result, folder


@pytest.fixture
def models(calibrated: Calibrated, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let the runtime find the models."""
    monkeypatch.setenv("WAVETUNE_MODELS", str(calibrated[2]))
    wavetune.clear_caches()
    yield
    monkeypatch.undo()
    wavetune.clear_caches()


def test_every_configuration_is_measured_on_every_key(calibrated: Calibrated) -> None:
    """Each pair once, and only what is legal."""
    runner, result, _ = calibrated
    assert len(runner.measured) == len({(point.problem, point.config) for point in runner.measured})
    assert len({point.problem for point in runner.measured}) == N_KEYS
    assert len(result.table) == len(runner.measured)
    assert all(is_legal(point.problem, point.config) for point in runner.measured)
    assert result.file.kernel == runner.kernel
    assert len(result.file.exact) == N_KEYS


def test_choices_on_other_keys_are_good(calibrated: Calibrated, models: None) -> None:
    """On keys that were not measured, the choice is worth 0.97 of the best on average, and the best of three 0.99."""
    runner, _, _ = calibrated
    measured = {point.problem.dims for point in runner.measured}
    logs: list[float] = []
    of_three: list[float] = []
    for key in attention_keys(runner.kernel, 60, ARCH, skip=200, excluded=measured):
        truth = {
            config: runner.truth_us(key.problem, config) for config in runner.configs if is_legal(key.problem, config)
        }
        choice = choose_attention(key.problem, arch="h200")
        assert choice.source in (Source.NEAREST, Source.MODEL)
        best = min(truth.values())
        logs.append(math.log(best / truth[choice.config]))
        ranked = rank_attention(key.problem, arch="h200")[:3]
        of_three.append(math.log(best / min(truth[entry.config] for entry in ranked)))
    assert math.exp(sum(logs) / len(logs)) > 0.97
    assert math.exp(sum(of_three) / len(of_three)) > 0.99


def test_a_measured_key_is_looked_up_and_a_lookalike_is_not(calibrated: Calibrated, models: None) -> None:
    """Lengths that only share the key with what was measured are mapped as they are."""
    runner, _, _ = calibrated
    problem = next(
        point.problem
        for point in runner.measured
        if len(set(point.problem.kv_lengths)) > 2 and point.problem.dims[0] > 3
    )
    known = choose_attention(problem, arch="h200")
    assert known.source is Source.EXACT
    truth = {config: runner.truth_us(problem, config) for config in runner.configs if is_legal(problem, config)}
    assert truth[known.config] <= 1.05 * min(truth.values())
    lengths = tuple(reversed(problem.kv_lengths))
    if isinstance(problem, AttentionProblem):
        other = AttentionProblem(
            tuple(reversed(problem.q_lengths)), lengths, problem.heads, problem.kv_heads, is_causal=problem.is_causal
        )
    else:
        other = AttentionDecodeProblem(lengths, problem.heads, problem.kv_heads)
    assert other.dims == problem.dims
    assert choose_attention(other, arch="h200").source is not Source.EXACT


def test_only_legal_configurations_are_answered(calibrated: Calibrated, models: None) -> None:
    """A short cache has no trips for many splits."""
    if calibrated[0].kernel == "attention":
        pytest.skip("every prefill configuration is legal for its head dimension")
    problem = AttentionDecodeProblem((40,), 8, 8)
    choice = choose_attention(problem, arch="h200")
    assert int(choice.config["splits"]) <= most_decode_trips(problem, int(choice.config["block_n"]))


def test_a_missing_model_is_an_error_that_names_it(calibrated: Calibrated, models: None) -> None:
    """There is no model for another head dimension or element type."""
    kind = AttentionProblem if calibrated[0].kernel == "attention" else AttentionDecodeProblem
    for fields in ({"head_dim": 64, "dtype": "fp32"}, {"dtype": "fp32"}):
        with pytest.raises(NoModelError, match="no model of attention"):
            choose_attention(kind((128,), **fields), arch="h200")


def test_calibrating_again_measures_nothing(calibrated: Calibrated) -> None:
    """The store knows the keys."""
    runner, result, folder = calibrated
    again = SimulatedAttention(runner.kernel)
    job = find_job(
        runner.kernel, ARCH, dtype="bf16", layout="d128", configs=again.configs, n_problems=N_KEYS, n_survivors=12
    )
    with MeasurementStore(folder / "store.sqlite", again.environment()) as store:
        resumed = calibrate_family(again, job, store)
    assert again.measured == []
    assert resumed.file.forms == result.file.forms
