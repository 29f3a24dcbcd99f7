"""The correction of a family's forms: recovers a smooth factor, is what the file says, and leaves far keys alone."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from wavetune.core.arch import find_arch
from wavetune.core.config import KernelConfig, KernelSpec
from wavetune.errors import ModelFileError
from wavetune.fit.family_correction import MIN_KEYS, correct_family, spread_centres
from wavetune.fit.family_model import FamilyFit, fit_family, judge_family, predict_family, predict_forms
from wavetune.mapping.kernel_mapping import LaunchShape
from wavetune.runtime.family_chooser import FamilyChooser
from wavetune.runtime.family_correction import MAX_LOG_FACTOR, CorrectionCells, FamilyCorrection, cell_of
from wavetune.runtime.family_file import FamilyFile, FamilyForm, decode_family, encode_family
from wavetune.store.record import CompiledConfig
from wavetune.store.table import MeasurementTable

H200 = find_arch("h200")
CONFIGS = tuple(CompiledConfig(KernelConfig(BLOCK=b, num_warps=4, num_stages=2), 32, 0, 0) for b in (32, 64, 128))
RESIDENT = 16  # four warps of 32 registers
SPEC = KernelSpec("made-up", ("M", "N"), ("BLOCK",), ("num_warps", "num_stages"))


def shape(dims: tuple[int, ...], config: KernelConfig) -> LaunchShape:
    """Map a launch: blocks of rows, trips of 64 columns."""
    m, n = dims
    grid, trips = -(-m // int(config["BLOCK"])), -(-n // 64)
    return LaunchShape(grid, trips, grid * trips, 2 * m * n)


def true_us(dims: tuple[int, ...], config: KernelConfig, bend: float) -> float:
    """Return a latency whose factor over a form bends smoothly with the sizes, differently for each configuration."""
    launch = shape(dims, config)
    block = int(config["BLOCK"])
    work = block * 1e-4 * launch.total_trips / 132 + 0.2 * launch.moved_bytes / 1e6
    form = 3.0 + 0.5 * -(-launch.grid_size // (RESIDENT * 132)) + work
    return form * math.exp(bend * math.sin(0.5 * math.log2(dims[0]) + block / 32) * math.cos(0.3 * math.log2(dims[1])))


def make_table(n_keys: int, bend: float, seed: int = 0) -> MeasurementTable:
    """Return every configuration on log-uniform keys, without noise."""
    rng = np.random.default_rng(seed)
    keys = np.unique(np.rint(np.exp2(rng.uniform((6, 6), (14, 13), (n_keys, 2)))).astype(np.int64), axis=0)
    dims = np.repeat(keys, len(CONFIGS), axis=0)
    index = np.tile(np.arange(len(CONFIGS)), len(keys))
    latency = [true_us(tuple(row), CONFIGS[i].config, bend) for row, i in zip(dims.tolist(), index, strict=True)]
    return MeasurementTable(
        SPEC, "fp16", "", CONFIGS, dims, index, np.array(latency), np.ones(len(dims), dtype=np.bool_)
    )  # fmt: skip


def errors(fit: FamilyFit, table: MeasurementTable, *, corrected: bool) -> np.ndarray:
    """Return the relative errors of predictions."""
    keys, measured = table.latency_matrix()
    predict = predict_family if corrected else predict_forms
    return np.abs(predict(fit, [tuple(row) for row in keys.tolist()], shape, H200) / measured - 1.0)


def fitted(n_keys: int = 150, bend: float = 0.15) -> FamilyFit:
    """Return forms and a correction."""
    table = make_table(n_keys, bend)
    return correct_family(fit_family(table, shape, H200), table, shape, H200)


def test_a_smooth_factor_is_recovered_on_other_keys() -> None:
    """On keys that were not measured the error of bent forms falls to a third, and choices become better."""
    fit, other = fitted(), make_table(60, 0.15, seed=1)
    bare, corrected = (errors(fit, other, corrected=flag) for flag in (False, True))
    assert np.mean(corrected) < np.mean(bare) / 3
    table = make_table(150, 0.15)
    before, after = (judge_family(table, table, shape, H200, refine) for refine in (None, correct_family))
    assert before is not None
    assert after is not None
    assert after.efficiency > before.efficiency
    assert after.efficiency > 0.995


def test_forms_that_are_right_are_left_alone() -> None:
    """Without a bend the factor is 1 within a percent."""
    fit = fitted(bend=0.0)
    assert fit.correction is not None
    cells = CorrectionCells(fit.correction)
    for dims in ((100, 100), (5000, 700), (64, 8192)):
        assert cells.factors(dims) == pytest.approx((1.0, 1.0, 1.0), abs=0.01)


def test_far_keys_keep_their_forms() -> None:
    """The factor fades to 1 away from all centres, and stays within 2 anywhere."""
    fit = fitted()
    assert fit.correction is not None
    cells = CorrectionCells(fit.correction)
    assert cells.factors((2**30, 2**30)) == pytest.approx((1.0, 1.0, 1.0), abs=1e-6)
    wild = CorrectionCells(FamilyCorrection(0.1, ((64, 64),), ((10**6,), (-(10**6),), (0,))))
    limit = math.exp(MAX_LOG_FACTOR)
    assert wild.factors((64, 64)) == pytest.approx((limit, 1 / limit, 1.0))


def test_few_keys_teach_nothing() -> None:
    """A correction of a handful of keys would be noise."""
    table = make_table(MIN_KEYS - 1, 0.15)
    assert correct_family(fit_family(table, shape, H200), table, shape, H200).correction is None


def test_configurations_need_not_be_measured_everywhere() -> None:
    """Rows that are missing are neither guessed nor in the way of others."""
    table = make_table(150, 0.15)
    holes = table.select((table.config_index != 1) | (np.arange(len(table)) % 2 == 0))
    fit = correct_family(fit_family(holes, shape, H200), holes, shape, H200)
    assert np.mean(errors(fit, make_table(60, 0.15, seed=1), corrected=True)) < 0.05


def make_model(fit: FamilyFit) -> FamilyFile:
    """Return the file of a fit."""
    forms = tuple(
        FamilyForm(entry.config, int(resident), 32, 0, tuple(row))
        for entry, resident, row in zip(fit.configs, fit.ctas_per_sm, fit.coefficients.tolist(), strict=True)
    )
    return FamilyFile(
        "made-up", "fp16", "", SPEC.dims, H200.name, 132, "sha256:0", forms, 0, {}, {"M": (1, 2**20), "N": (1, 2**20)},
        correction=fit.correction,
    )  # fmt: skip


def test_the_runtime_predicts_what_the_fit_does() -> None:
    """Through the file and back, every latency of the ranking is the fit's prediction, also if forms are left out."""
    fit = fitted()
    model = decode_family(encode_family(make_model(fit)), "made-up.json")
    assert model.correction == fit.correction
    for dims in ((100, 333), (9000, 4096), (3, 3)):
        expected = dict(zip([c.config for c in fit.configs], predict_family(fit, [dims], shape, H200)[0], strict=True))
        for usable in (None, {CONFIGS[2].config, CONFIGS[0].config}):
            for ranked in FamilyChooser(model, shape, usable=usable).rank(dims):
                assert ranked.latency_us == pytest.approx(expected[ranked.config], rel=1e-9)


@pytest.mark.parametrize(
    ("correction", "field"),
    [
        (FamilyCorrection(0.1, (), ((), (), ())), "correction_centres"),
        (FamilyCorrection(0.1, ((1,),), ((1,), (1,), (1,))), "correction_centres"),
        (FamilyCorrection(0.1, ((1, 2),), ((1,), (1,))), "correction_weights"),
        (FamilyCorrection(0.1, ((1, 2),), ((1,), (1, 2), (1,))), "correction_weights"),
        (FamilyCorrection(-0.1, ((1, 2),), ((1,), (1,), (1,))), "correction_gamma"),
        (FamilyCorrection(0.1, ((-1, 2),), ((1,), (1,), (1,))), r"correction_centres\[0\]\[0\]"),
    ],
)
def test_impossible_corrections_are_refused(correction: FamilyCorrection, field: str) -> None:
    """The error names the field."""
    data = encode_family(replace(make_model(fitted()), correction=correction))
    with pytest.raises(ModelFileError, match=field):
        decode_family(data, "made-up.json")


def test_centres_are_spread() -> None:
    """Every prefix covers the range; equal rows count once."""
    cells = np.array([[0.0], [0.1], [10.0], [5.0], [0.0]])
    assert spread_centres(cells, 3) == [0, 2, 3]
    assert spread_centres(cells, 9) == [0, 2, 3, 1]


def test_cells_are_quarter_octaves() -> None:
    """Sizes of 0 have a cell, powers of two lie four apart."""
    assert cell_of((0, 1, 3, 7)) == (0, 4, 8, 12)
    assert cell_of((1000,)) == cell_of((1020,)) != cell_of((1300,))
