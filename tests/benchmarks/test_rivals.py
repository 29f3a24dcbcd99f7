"""Rivals recover the truth that their own form can express, so that the comparison with them is fair."""

from __future__ import annotations

import numpy as np
import pytest
from made_up_report import held_out_sweep, table_of
from rivals import MAX_ACCUMULATORS, FourTermForm, PaperScheme, RooflineAndWaves
from synthetic_gpu import SyntheticGpu

from wavetune.core.arch import find_arch
from wavetune.core.config import GEMM
from wavetune.core.dtype import find_dtype
from wavetune.errors import MeasurementError
from wavetune.fit.points import GemmGeometry
from wavetune.report.baselines import BoostedLatency, best_fixed_latency, boosted_choice_latency
from wavetune.store.record import CompiledConfig
from wavetune.store.table import FloatArray, IntArray, MeasurementTable, sort_configs

H200 = find_arch("h200")
TILES = ((64, 64), (128, 64), (128, 128))


def plain_configs(stages: tuple[int, ...] = (3, 4)) -> tuple[CompiledConfig, ...]:
    """Return tiles that differ in macro fields, each with some micro fields."""
    return sort_configs(
        CompiledConfig(
            GEMM.config({"block_m": m, "block_n": n, "block_k": 64, "group_m": 8, "num_warps": 4, "num_stages": stage}),
            100,
            0,
            60_000,
        )
        for m, n in TILES
        for stage in stages
    )


def grid_of_problems(seed: int, count: int) -> IntArray:
    """Return random problems of whole tiles, from one wave to a few."""
    rng = np.random.default_rng(seed)
    m, n, k = (rng.integers(1, top, count) * 128 for top in (17, 17, 40))
    return np.unique(np.stack([m, n, k], axis=1), axis=0)


def measure(problems: IntArray, configs: tuple[CompiledConfig, ...], latency: FloatArray) -> MeasurementTable:
    """Return an exhaustive table of latencies, shape (n_problems, n_configs)."""
    n_configs = len(configs)
    return MeasurementTable(
        GEMM, "bf16", "nk", configs, np.repeat(problems, n_configs, axis=0),
        np.tile(np.arange(n_configs), len(problems)), latency.reshape(-1), np.ones(latency.size, dtype=np.bool_),
    )  # fmt: skip


def wave_truth(problems: IntArray, configs: tuple[CompiledConfig, ...]) -> FloatArray:
    """Return latencies that are bilinear for each macro-configuration and wave count; stages matter by the trips."""
    points = GemmGeometry(configs, H200, find_dtype("bf16")).grid(problems)
    area = points.block_m * points.block_n / 4096.0
    waves = -(-points.grid_size // H200.num_sms)
    latency = 5.0 + 1.5 * waves + points.loop_trips * (0.02 + 0.06 * area**0.8 * waves + 1e-4 * points.grid_size)
    deep = np.where(points.loop_trips > 16, 0.95, 1.05)
    return np.where(points.num_stages == 4, latency * deep, latency).reshape(len(problems), len(configs))


def test_the_paper_scheme_recovers_a_bilinear_gpu() -> None:
    """Where latency is bilinear in every bucket, unseen problems get the best tile, and the best stages by trips."""
    configs = plain_configs()
    training, unseen = grid_of_problems(1, 500), grid_of_problems(2, 120)
    scheme = PaperScheme().fit(measure(training, configs, wave_truth(training, configs)), H200)
    truth = wave_truth(unseen, configs)
    chosen = truth[np.arange(len(unseen)), scheme.choose(unseen)]
    efficiency = truth.min(axis=1) / chosen
    assert np.median(efficiency) == 1.0
    assert np.exp(np.mean(np.log(efficiency))) > 0.98


def test_the_paper_scheme_takes_micro_fields_at_the_nearest_anchor() -> None:
    """Long loops get the deeper pipeline, short ones the other."""
    configs = plain_configs()
    training = grid_of_problems(1, 500)
    scheme = PaperScheme().fit(measure(training, configs, wave_truth(training, configs)), H200)
    stages = {k: int(configs[scheme.choose(np.array([[512, 512, k]]))[0]].config["num_stages"]) for k in (256, 4096)}
    assert stages == {256: 3, 4096: 4}


def test_the_four_term_form_recovers_its_own_truth() -> None:
    """Where the time of a trip is of four terms, the best configuration is found on every unseen problem."""
    configs = plain_configs((3,))
    rng = np.random.default_rng(5)
    coefficients = rng.uniform((0.1, 0.02, 1e-4, 0.01), (0.3, 0.2, 1e-3, 0.05), (len(configs), 4))

    def truth(problems: IntArray) -> FloatArray:
        points = GemmGeometry(configs, H200, find_dtype("bf16")).grid(problems)
        g = points.grid_size.astype(float)
        terms = np.stack([np.ones_like(g), np.ceil(g / H200.num_sms), g, np.log(g + 1)], axis=1)
        each = np.tile(coefficients, (len(problems), 1))
        return ((terms * each).sum(axis=1) * points.loop_trips).reshape(len(problems), len(configs))

    training, unseen = grid_of_problems(1, 200), grid_of_problems(2, 60)
    form = FourTermForm().fit(measure(training, configs, truth(training)), H200)
    assert np.array_equal(form.choose(unseen), truth(unseen).argmin(axis=1))


@pytest.mark.parametrize(
    ("dims", "block_m"), [((1, 4096, 4096), 16), ((16, 14336, 4096), 16), ((8192, 8192, 8192), 128)]
)
def test_the_roofline_knows_small_from_large(dims: tuple[int, int, int], block_m: int) -> None:
    """Without a measurement, decode gets thin tiles and prefill gets wide ones; accumulators always fit."""
    sweep = held_out_sweep()
    ranking = RooflineAndWaves().fit(sweep, H200)
    config = sweep.configs[ranking.choose(np.array([dims]))[0]].config
    assert config["block_m"] >= block_m if block_m > 16 else config["block_m"] == 16
    assert int(config["block_m"]) * int(config["block_n"]) <= MAX_ACCUMULATORS * 32 * int(config["num_warps"])


def test_boosting_is_one_method() -> None:
    """The estimator and the function that the demonstration uses choose alike, and better than one configuration."""
    training, judged = held_out_sweep(seed=1), held_out_sweep(seed=1, n_shapes=10)
    problems, latency = judged.latency_matrix()
    chosen = latency[np.arange(len(problems)), BoostedLatency(0).fit(training).choose(problems)]
    assert np.array_equal(chosen, boosted_choice_latency(training, judged, 0))
    assert np.log(chosen).mean() < np.log(best_fixed_latency(training, judged)).mean()


def test_the_best_fixed_configuration_must_be_measured_everywhere() -> None:
    """Of sweeps with holes in every configuration, none is called the best on average."""
    sweep = held_out_sweep()
    holes = sweep.config_index != np.arange(len(sweep)) // len(sweep.configs) % len(sweep.configs)
    with pytest.raises(MeasurementError, match="default"):
        best_fixed_latency(sweep.select(holes), sweep)


def test_rivals_answer_with_configurations_of_the_table() -> None:
    """Every rival answers every problem of a full sweep with an index into the table's configurations."""
    gpu = SyntheticGpu()
    dims, columns = gpu.anchors()
    training = table_of(dims, columns, gpu.latency_us(dims, columns), exhaustive=False)
    problems = held_out_sweep().problems()[0]
    for rival in (PaperScheme(), FourTermForm(), RooflineAndWaves()):
        choice = rival.fit(training, H200).choose(problems)
        assert choice.shape == (len(problems),)
        assert choice.min() >= 0
        assert choice.max() < len(training.configs)
