"""From measurements of a family to its model: what is held out, what survives, when the correction is dropped."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from simulated_attention import ARCH, SimulatedAttention
from simulated_grouped import SimulatedGrouped

import wavetune.pipeline.family_fit as family_fit
from wavetune.core.config import KernelConfig
from wavetune.fit.family_correction import correct_family
from wavetune.fit.family_model import fit_family, predict_family
from wavetune.mapping.attention import IN_ORDER, LONGEST_FIRST, scheduled_trips
from wavetune.mapping.kernel_mapping import LaunchShape
from wavetune.pipeline.family_calibration import calibrate_family
from wavetune.pipeline.family_job import FamilyJob
from wavetune.pipeline.family_jobs import find_job
from wavetune.runtime.family_correction import FamilyCorrection, feature_names
from wavetune.store.database import MeasurementStore
from wavetune.store.record import CompiledConfig
from wavetune.store.table import MeasurementTable
from wavetune.tables.too_fast import TOO_FAST, find_too_fast_of_family

Measured = tuple[FamilyJob, MeasurementTable]


def measured(
    kernel: str, layout: str, runner: object, configs: list[KernelConfig], folder: Path, n_problems: int = 90
) -> Measured:  # fmt: skip
    """Return a job and its rows."""
    job = find_job(kernel, ARCH, dtype="bf16", layout=layout, configs=configs, n_problems=n_problems)
    with MeasurementStore(folder / f"{kernel}.sqlite", runner.environment()) as store:
        return job, calibrate_family(runner, job, store, holdout=False).table


@pytest.fixture(scope="module")
def grouped(tmp_path_factory: pytest.TempPathFactory) -> Measured:
    """Return rows of grouped GEMM: sweeps, and what was likely."""
    runner = SimulatedGrouped()
    configs = [entry.config for entry in runner.compiled]
    return measured("grouped_gemm", "nk", runner, configs, tmp_path_factory.mktemp("grouped"))


@pytest.fixture(scope="module")
def decode(tmp_path_factory: pytest.TempPathFactory) -> Measured:
    """Return rows of decode steps, one in five of which has all configurations."""
    runner = SimulatedAttention("attention_decode")
    return measured("attention_decode", "d128", runner, runner.configs, tmp_path_factory.mktemp("decode"), 300)


def test_a_judged_layer_was_not_fitted(grouped: Measured, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a held-out key nor another of its layer is among the rows of the fit; each swept key is judged once."""
    job, table = grouped
    seen: list[set[tuple[int, ...]]] = []
    judged: list[tuple[int, ...]] = []

    def layers(rows: MeasurementTable) -> set[tuple[int, ...]]:
        axes = [job.dims.index(name) for name in ("experts", "n", "k")]
        return set(map(tuple, rows.dims[:, axes].tolist()))

    def watched_fit(rows, shape, arch):
        seen.append(layers(rows))
        return fit_family(rows, shape, arch)

    judge = family_fit.judge_shapes

    def watched_judge(model, rows, chooser_of):
        assert not layers(rows) & seen[-1]
        assert rows.exhaustive.all()
        if model.correction is None:
            judged.extend(map(tuple, rows.problems()[0].tolist()))
        return judge(model, rows, chooser_of)

    monkeypatch.setattr(family_fit, "fit_family", watched_fit)
    monkeypatch.setattr(family_fit, "judge_shapes", watched_judge)
    reports = family_fit.hold_out(table, job, ARCH)
    assert set(reports) == {False, True}
    swept = set(map(tuple, table.dims[table.exhaustive].tolist()))
    assert len(judged) == len(set(judged)) == len(swept)
    assert len(seen) == family_fit.N_FOLDS


def test_a_correction_that_hurts_is_dropped(grouped: Measured, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that spoils the ranking leaves, and the accuracy told is that without it; the real one stays."""
    job, table = grouped
    fitted = family_fit.fit_family_file(table, job, ARCH)
    assert fitted.file.correction is not None

    def spoil(fit, rows, shape, arch):
        rng = np.random.default_rng(0)
        features = feature_names(fit.configs[0].config, rows.spec.dims)
        place = features.index("config.block_n")
        wild = [(place, edge, *rng.uniform(-0.7, 0.7, 2).tolist()) for edge in (16.0, 32.0, 64.0, 96.0, 128.0, 192.0)]
        return replace(fit, correction=FamilyCorrection(features, tuple(wild)))

    monkeypatch.setattr(family_fit, "correct_family", spoil)
    dropped = family_fit.fit_family_file(table, job, ARCH)
    assert dropped.file.correction is None
    plain = family_fit.hold_out(table, job, ARCH)[False]
    assert dropped.file.accuracy["held_out"]["efficiency"]["geomean"] == round(plain.efficiency.geomean, 5)
    unjudged = family_fit.fit_family_file(table, job, ARCH, holdout=False)
    assert unjudged.file.correction is not None
    assert unjudged.file.accuracy["held_out"] is None


def test_rows_in_any_order_give_the_same_model(grouped: Measured) -> None:
    """What a store gives back and what evidence files hold are ordered differently; the fit orders them itself."""
    job, table = grouped
    halves = np.argsort(table.exhaustive, kind="stable")
    ours, theirs = (
        family_fit.fit_family_file(rows, job, ARCH, holdout=False).file for rows in (table, table.select(halves))
    )
    assert (ours.forms, ours.exact, ours.correction) == (theirs.forms, theirs.exact, theirs.correction)


def test_what_runs_everywhere_survives(grouped: Measured, decode: Measured) -> None:
    """Loads through pointers for unaligned operands, an unsplit decode step for a cache of one tile."""
    job, table = grouped
    few = family_fit.keep_survivors(fit_family(table, job.shape, ARCH), table, replace(job, n_survivors=3), ARCH)
    assert sum(entry.config["load"] == "pointer" for entry in few.configs) >= 2
    assert len(few.configs) <= 4
    job, table = decode
    fit = fit_family(table, job.shape, ARCH)
    few = family_fit.keep_survivors(fit, table, replace(job, n_survivors=4), ARCH)
    assert any(entry.config["splits"] == 1 for entry in few.configs)
    assert few.configs[few.default] == fit.configs[fit.default]


@pytest.mark.parametrize(("order", "error"), [(IN_ORDER, 0.002), (LONGEST_FIRST, 0.002)])
def test_forms_hold_both_laws_of_list_scheduling(order: str, error: float) -> None:
    """CTAs of different lengths, in order and longest first: what scheduling comes to is a sum of the terms."""
    rng = np.random.default_rng(3)
    launches = {}
    for index in range(160):
        grid, longest = (int(2 ** rng.uniform(low, high)) for low, high in ((2, 13), (1, 9)))
        total = int(rng.uniform(0.3, 1.0) * grid * longest) + 1
        launches[index + 1,] = LaunchShape(grid, max(longest, -(-total // grid)), total, int(1e6 * rng.uniform(0, 90)))
    config = KernelConfig(BLOCK=64, num_warps=4, num_stages=2)
    latency = {
        key: 4.0 + 0.3 * scheduled_trips(launch, order, ARCH.num_sms) + 0.25 * launch.moved_bytes / 1e6
        for key, launch in launches.items()
    }
    keys = list(launches)
    job = find_job("attention", ARCH, dtype="bf16", layout="d128")
    table = MeasurementTable(
        replace(job.spec, dims=("index",)), "bf16", "d128", (CompiledConfig(config, 255, 0, 150_000),),
        np.array(keys[:120]), np.zeros(120, dtype=np.int64), np.array([latency[key] for key in keys[:120]]),
        np.ones(120, dtype=np.bool_),
    )  # fmt: skip

    def shape(dims: tuple[int, ...], config: KernelConfig) -> LaunchShape:
        return launches[dims]

    fit = fit_family(table, shape, ARCH)
    predicted = predict_family(fit, keys[120:], shape, ARCH)[:, 0]
    assert np.max(np.abs(predicted / [latency[key] for key in keys[120:]] - 1.0)) < error
    assert correct_family(fit, table, shape, ARCH).correction is not None


def spoiled(table: MeasurementTable, factor: float) -> tuple[MeasurementTable, int]:
    """Return rows of which the slowest of a key is ``factor`` times its best, and its place.

    The key is the one that asks most of the choice.
    """
    keys, latency = table.select(table.exhaustive).latency_matrix()
    key = keys[np.argmax(np.nanmax(latency, axis=1) / np.nanmin(latency, axis=1))]
    of_key = np.flatnonzero(table.exhaustive & (table.dims == key).all(axis=1))
    row = int(of_key[np.argmax(table.latency_us[of_key])])
    latency_us = table.latency_us.copy()
    latency_us[row] = round(factor * latency_us[of_key].min(), 4)
    return replace(table, latency_us=latency_us), row


@pytest.mark.parametrize("kernel", ["grouped", "decode"])
def test_a_reading_too_fast_to_be_true_is_no_exact_answer(kernel: str, request: pytest.FixtureRequest) -> None:
    """It is named by its own form's prediction, and its key answered with what is truly fast, as without the row."""
    job, table = request.getfixturevalue(kernel)
    true = family_fit.fit_family_file(table, job, ARCH, holdout=False)
    assert true.too_fast == ()
    assert find_too_fast_of_family(true.fit, spoiled(table, 1.1)[0], job.shape, ARCH) == ()
    bad, row = spoiled(table, 0.9)
    fitted = family_fit.fit_family_file(bad, job, ARCH, holdout=False)
    (found,) = fitted.too_fast
    assert (found.dims, found.config) == (tuple(bad.dims[row]), bad.configs[bad.config_index[row]].config)
    assert found.latency_us == bad.latency_us[row] == fitted.table.latency_us[found.row]
    # The reading pulls its own form towards itself.
    assert TOO_FAST < found.factor < 1.1 * table.latency_us[row] / bad.latency_us[row]
    place, latency_us = fitted.file.exact[found.dims]
    assert fitted.file.forms[place].config != found.config
    assert latency_us > found.latency_us
    assert set(fitted.file.exact) == set(true.file.exact)
    assert fitted.file.fit_range == true.file.fit_range


def test_what_a_kernel_does_on_a_whole_key_is_believed(grouped: Measured) -> None:
    """Where all configurations are faster than their forms, those are wrong."""
    job, table = grouped
    fit = fit_family(table, job.shape, ARCH)
    rows = (table.dims == table.dims[np.flatnonzero(table.exhaustive)[0]]).all(axis=1)
    faster = replace(table, latency_us=np.where(rows, 0.4, 1.0) * table.latency_us)
    assert find_too_fast_of_family(fit, faster, job.shape, ARCH) == ()


def test_forms_that_fit_badly_accuse_nobody(grouped: Measured) -> None:
    """A kernel whose readings are anywhere within a factor of two of any form has no readings too fast to be true."""
    job, table = grouped
    wild = np.exp(np.random.default_rng(0).normal(0.0, 0.35, len(table)))
    scattered = replace(table, latency_us=table.latency_us * wild)
    fit = fit_family(scattered, job.shape, ARCH)
    assert find_too_fast_of_family(fit, scattered, job.shape, ARCH) == ()
    assert (
        len(find_too_fast_of_family(fit_family(table, job.shape, ARCH), spoiled(table, 0.9)[0], job.shape, ARCH)) == 1
    )


def test_nothing_is_found_without_sweeps(grouped: Measured) -> None:
    """Rows of a few configurations say nothing of each other."""
    job, table = grouped
    fit = fit_family(table, job.shape, ARCH)
    assert find_too_fast_of_family(fit, spoiled(table, 0.5)[0].mark_exhaustive(False), job.shape, ARCH) == ()
