"""Calibrating a kernel with its own mapping recovers a known truth, resumes, and answers as it was fitted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from synthetic_kernel import ARCH, NOISE, SyntheticKernel, norm_gemm, random_keys, row_sum

from wavetune.errors import FitError, MappingError, StoreError
from wavetune.measure.runner import Runner
from wavetune.pipeline.family_calibration import FamilyCalibration, calibrate_family
from wavetune.pipeline.user_kernel import STRATUM_SWEEP, KernelJob
from wavetune.plan.kernel_points import POINTS_PER_CONFIG, keys_in_ranges, spread
from wavetune.runtime.choice import Source
from wavetune.runtime.family_chooser import RANGE_OCTAVES, FamilyChooser
from wavetune.runtime.family_file import decode_family, encode_family
from wavetune.store.database import MeasurementStore
from wavetune.waves.geometry import wave_geometry

ROW_RANGES = ((64, 65536), (256, 32768))
GEMM_RANGES = ((1, 8192), (256, 8192), (256, 8192))
KERNELS: dict[str, tuple[Callable[..., SyntheticKernel], tuple[tuple[int, int], ...]]] = {
    "row sum": (row_sum, ROW_RANGES),
    "norm gemm": (norm_gemm, GEMM_RANGES),
}


def calibrate(
    kernel: SyntheticKernel, folder: Path, ranges: tuple[tuple[int, int], ...], **options: object
) -> FamilyCalibration:
    """Calibrate into a store in a folder."""
    with MeasurementStore(folder / "kernel.sqlite", kernel.environment()) as store:
        return calibrate_family(kernel, kernel.job(ranges), store, **options)  # type: ignore[arg-type]


def chooser_of(result: FamilyCalibration, kernel: SyntheticKernel, **options: object) -> FamilyChooser:
    """Return the runtime of the encoded file."""
    return FamilyChooser(decode_family(encode_family(result.file), "kernel.json"), kernel.shape, **options)  # type: ignore[arg-type]


@pytest.fixture(scope="module", params=list(KERNELS))
def calibrated(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[SyntheticKernel, FamilyCalibration, tuple[tuple[int, int], ...]]:
    """Return one calibration of each kernel; tests only read it."""
    make, ranges = KERNELS[request.param]
    kernel = make()
    return kernel, calibrate(kernel, tmp_path_factory.mktemp("kernel"), ranges), ranges


Calibrated = tuple[SyntheticKernel, FamilyCalibration, tuple[tuple[int, int], ...]]


def test_the_truth_is_recovered(calibrated: Calibrated) -> None:
    """On keys that were never measured, predictions are within twice the noise of the truth for every configuration."""
    kernel, result, ranges = calibrated
    assert isinstance(kernel, Runner)
    assert len(result.file.forms) == len(kernel.compiled)
    chooser = chooser_of(result, kernel)
    error = [
        abs(np.log(entry.latency_us / kernel.truth_us(dims, entry.config)))
        for dims in random_keys(ranges, 200)
        for entry in chooser.rank(dims)
    ]
    assert np.median(error) < NOISE
    assert np.percentile(error, 95) < 4 * NOISE


def test_choices_are_near_best(calibrated: Calibrated) -> None:
    """The chosen configuration is worth 0.99 of the truly best one, 0.95 at worst, and no single one comes near."""
    kernel, result, ranges = calibrated
    chooser = chooser_of(result, kernel, use_exact=False)
    keys = random_keys(ranges, 300, seed=6)
    truth = np.array([[kernel.truth_us(dims, entry.config) for entry in kernel.compiled] for dims in keys])
    position = {entry.config: index for index, entry in enumerate(kernel.compiled)}
    chosen = []
    for row, dims in zip(truth, keys, strict=True):
        choice = chooser.choose(dims)
        assert choice is not None
        chosen.append(row.min() / row[position[choice.config]])
    assert np.exp(np.log(chosen).mean()) > 0.99
    assert min(chosen) > 0.95
    assert np.exp(np.log(truth.min(axis=1, keepdims=True) / truth).mean(axis=0)).max() < 0.97


def test_the_file_says_how_good_it_is(calibrated: Calibrated) -> None:
    """Its error is that of the noise, its held-out efficiency that of choices on keys it had not seen."""
    _, result, _ = calibrated
    assert result.file.accuracy["relative_error"] < 2 * NOISE
    held_out = result.fitted.held_out
    assert held_out is not None
    assert len(held_out.results) == 12
    assert 0.97 < held_out.efficiency.min <= held_out.efficiency.geomean <= 1.0
    assert result.file.accuracy["held_out"]["efficiency"]["geomean"] == pytest.approx(
        held_out.efficiency.geomean, abs=1e-5
    )
    assert result.file.provenance["rows"] == len(result.table)


def test_measured_keys_are_exact(calibrated: Calibrated) -> None:
    """Swept keys are looked up with their measured best; elsewhere the source says how far the key is."""
    kernel, result, ranges = calibrated
    chooser = chooser_of(result, kernel)
    assert len(result.file.exact) == 12
    for dims, (index, latency_us) in result.file.exact.items():
        choice = chooser.choose(dims)
        assert choice is not None
        assert (choice.source, choice.config) == (Source.EXACT, result.file.forms[index].config)
        assert latency_us == pytest.approx(kernel.truth_us(dims, choice.config), rel=5 * NOISE)
    inside = tuple(high - 1 for _, high in ranges)
    beyond = tuple(int(high * 2**RANGE_OCTAVES) + 1 for _, high in ranges)
    sources = [chooser.choose(dims) for dims in (inside, beyond)]
    assert [choice.source for choice in sources if choice is not None] == [Source.NEAREST, Source.MODEL]


def test_fewer_sms_scale_the_waves(calibrated: Calibrated) -> None:
    """On half of the GPU nothing is exact, and everything takes longer."""
    kernel, result, ranges = calibrated
    half = chooser_of(result, kernel, num_sms=66)
    whole = chooser_of(result, kernel)
    dims = next(iter(result.file.exact))
    choice = half.choose(dims)
    assert choice is not None
    assert choice.source is Source.MODEL
    busy = tuple(high for _, high in ranges)
    assert half.rank(busy)[0].latency_us > 1.05 * whole.rank(busy)[0].latency_us


def test_points_are_wave_structured(calibrated: Calibrated) -> None:
    """Each configuration is measured at nearly empty and nearly full waves, with short and with long loops."""
    kernel, _, ranges = calibrated
    pool = keys_in_ranges(ranges)

    def fill(grid_size: int, ctas_per_sm: int) -> float:
        waves = wave_geometry(grid_size, ctas_per_sm, 132)
        return grid_size / (waves.waves * waves.width)

    for entry in kernel.compiled:
        resident = kernel.forms[entry.config].ctas_per_sm
        shapes = [kernel.shape(p.problem.dims, p.config) for p in kernel.measured if p.config == entry.config]
        possible = [kernel.shape(dims, entry.config) for dims in pool]
        assert POINTS_PER_CONFIG * 0.5 < len(shapes) <= POINTS_PER_CONFIG + 12
        fills = [fill(shape.grid_size, resident) for shape in shapes]
        assert min(fills) < 0.2
        assert max(fills) > 0.85 * max(fill(shape.grid_size, resident) for shape in possible)
        trips = [shape.loop_trips for shape in shapes]
        assert min(trips) <= 2 * min(shape.loop_trips for shape in possible)
        assert max(trips) >= max(shape.loop_trips for shape in possible) / 2


def test_a_calibration_goes_on_where_it_was_stopped(tmp_path: Path) -> None:
    """What the store holds is not measured again, and the model is the same as without a stop."""
    stopped = row_sum()
    with MeasurementStore(tmp_path / "kernel.sqlite", stopped.environment()) as store:
        prepared = stopped.prepare([entry.config for entry in stopped.compiled])
        store.record_compiled(prepared.compiled)
        points = stopped.job(ROW_RANGES).plan(prepared.compiled, ARCH).points
        store.record(stopped.measure(points[:100]))
    resumed = row_sum()
    resumed._rng = stopped._rng
    result = calibrate(resumed, tmp_path, ROW_RANGES)
    assert result.resumed == 100
    assert len(resumed.measured) == len(points) - 100
    (tmp_path / "whole").mkdir()
    whole = calibrate(row_sum(), tmp_path / "whole", ROW_RANGES)
    assert encode_family(whole.file) == encode_family(result.file)


def test_a_budget_ends_measuring(tmp_path: Path) -> None:
    """Nothing is begun after the budget; what was measured by then is fitted, every configuration alike."""
    kernel = row_sum()
    result = calibrate(kernel, tmp_path, ROW_RANGES, budget_s=1e-9)
    assert KernelJob.slice_points <= len(kernel.measured) == len(result.table) < KernelJob.slice_points + 9
    left_out = kernel.job(ROW_RANGES).plan(kernel.compiled, ARCH).points[len(kernel.measured) :]
    assert kernel.measured[-1].problem not in {point.problem for point in left_out}
    assert result.skipped > 0
    assert len(result.file.forms) == len(kernel.compiled)


def test_configurations_that_fail_are_left_out(tmp_path: Path) -> None:
    """A refused configuration is a failure with its reason; all of them are an error."""
    refused = row_sum().compiled[3].config
    kernel = row_sum(refuse=frozenset({refused}))
    result = calibrate(kernel, tmp_path, ROW_RANGES)
    assert refused not in {form.config for form in result.file.forms}
    assert [failure.detail for failure in result.failures] == ["too much shared memory"]
    nothing = row_sum(refuse=frozenset(entry.config for entry in kernel.compiled))
    (tmp_path / "none").mkdir()
    with pytest.raises(FitError, match="shared memory"):
        calibrate(nothing, tmp_path / "none", ROW_RANGES)


def test_the_owner_s_keys_are_swept(tmp_path: Path) -> None:
    """Given keys are measured with every configuration, before anything else."""
    kernel = row_sum()
    sweep = [(100, 1000), (3000, 300)]
    with MeasurementStore(tmp_path / "kernel.sqlite", kernel.environment()) as store:
        result = calibrate_family(kernel, kernel.job(ROW_RANGES, sweep=sweep), store)
    assert set(result.file.exact) == set(sweep)
    first = kernel.measured[: 2 * len(kernel.compiled)]
    assert {point.problem.dims for point in first} == set(sweep)
    assert all(point.stratum == STRATUM_SWEEP for point in first)


def test_bad_keys_and_stores_are_errors(tmp_path: Path) -> None:
    """Empty launches only, a mapping that fails, a store of another machine."""
    kernel = row_sum()
    with MeasurementStore(tmp_path / "kernel.sqlite", kernel.environment()) as store:
        with pytest.raises(FitError, match="grid_size is 0"):
            calibrate_family(kernel, kernel.job(ROW_RANGES, pool=[(0, 5)]), store)
        broken = replace(kernel.mapping, loop_trips=lambda key, config: key["N"] / config["BLOCK"])
        other = SyntheticKernel(broken, kernel.compiled, kernel.coefficients)
        with pytest.raises(MappingError, match="loop_trips of kernel row-sum"):
            calibrate_family(other, other.job(ROW_RANGES), store)
    with pytest.raises(StoreError, match="gpu_name"):
        MeasurementStore(tmp_path / "kernel.sqlite", {"gpu_name": "another", "triton": "3.6.0"})


def test_keys_from_ranges_cover_them() -> None:
    """Both ends, round and ragged sizes, never outside, the same every time."""
    keys = keys_in_ranges(GEMM_RANGES)
    assert keys == keys_in_ranges(GEMM_RANGES)
    assert 1000 < len(set(keys)) == len(keys) <= 2048
    for axis, (low, high) in enumerate(GEMM_RANGES):
        sizes = {key[axis] for key in keys}
        assert min(sizes) == low
        assert max(sizes) == high
        assert any(size & (size - 1) for size in sizes)
    assert keys_in_ranges([(7, 7)]) == [(7,)]


def test_spread_points_are_the_most_different() -> None:
    """Equal launches are chosen once, empty ones never, and two of many clusters one each."""
    kernel = row_sum()
    config = kernel.compiled[0].config
    shapes = [kernel.shape(dims, config) for dims in ((0, 8), (64, 256), (64, 256), (65536, 32768), (65537, 32768))]
    chosen = spread(shapes, 132, 5)
    assert chosen[0] in (3, 4)
    assert 0 not in chosen
    assert len({1, 2} & set(chosen)) == 1
    assert {index // 3 for index in chosen[:2]} == {0, 1}
    assert spread(shapes[:1], 132, 5) == []
    assert ARCH.num_sms == 132
