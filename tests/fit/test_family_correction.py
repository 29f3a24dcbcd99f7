"""The correction of a family's forms: recovers what forms miss, is what the file says, and is bounded."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache

import numpy as np
import pytest
from sklearn.ensemble import HistGradientBoostingRegressor

from wavetune.core.arch import find_arch
from wavetune.core.config import KernelConfig, KernelSpec
from wavetune.errors import ModelFileError
from wavetune.fit.family_correction import MIN_KEYS, correct_family, correction_features, trees_of_boosting
from wavetune.fit.family_model import FamilyFit, fit_family, predict_family, predict_forms
from wavetune.mapping.kernel_mapping import LaunchShape
from wavetune.runtime.boosted_trees import MAX_LEAVES, BoostedTrees, Node
from wavetune.runtime.family_chooser import FamilyChooser
from wavetune.runtime.family_correction import (
    LAUNCH_FEATURES,
    MAX_LOG_FACTOR,
    N_CONTENDERS,
    CorrectionTrees,
    FamilyCorrection,
    feature_names,
    form_features,
    launch_features,
)
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


def efficiency(fit: FamilyFit, table: MeasurementTable, *, corrected: bool) -> float:
    """Return best over chosen latency, on average."""
    keys, measured = table.latency_matrix()
    predict = predict_family if corrected else predict_forms
    chosen = predict(fit, [tuple(row) for row in keys.tolist()], shape, H200).argmin(axis=1)
    return float(np.mean(measured.min(axis=1) / measured[np.arange(len(keys)), chosen]))


@lru_cache
def fitted(n_keys: int = 150, bend: float = 0.15) -> FamilyFit:
    """Return forms and a correction."""
    table = make_table(n_keys, bend)
    return correct_family(fit_family(table, shape, H200), table, shape, H200)


def test_a_smooth_factor_is_recovered_on_other_keys() -> None:
    """On keys that were not measured the error of bent forms falls by 60 %, and choices become better."""
    fit, other = fitted(), make_table(60, 0.15, seed=1)
    bare, corrected = (errors(fit, other, corrected=flag) for flag in (False, True))
    assert np.mean(corrected) < 0.4 * np.mean(bare)
    before, after = (efficiency(fit, other, corrected=flag) for flag in (False, True))
    assert after > before
    assert after > 0.995


def test_forms_that_are_right_are_left_alone() -> None:
    """Without a bend the factor is 1 within a percent."""
    table = make_table(60, 0.0, seed=1)
    assert np.max(errors(fitted(bend=0.0), table, corrected=True)) < 0.01


def trees(
    *nodes: Node, configs: tuple[KernelConfig, ...] = tuple(entry.config for entry in CONFIGS)
) -> CorrectionTrees:
    """Return a correction of the made-up kernel."""
    features = feature_names(configs[0], SPEC.dims)
    return CorrectionTrees(FamilyCorrection(features, nodes), configs, [RESIDENT] * len(configs))


def factor(correction: CorrectionTrees, place: int, dims: tuple[int, ...], launch: LaunchShape) -> float:
    """Return the logarithm of what one form is multiplied by."""
    return math.log(correction.correct([1.0], [place], dims, [launch], 132)[0])


def test_a_factor_is_the_sum_of_leaves_and_stays_within_two() -> None:
    """Trees ask about configuration, sizes and launch; at a threshold the low branch is taken."""
    names = feature_names(CONFIGS[0].config, SPEC.dims)
    block, m, depth = (names.index(name) for name in ("config.BLOCK", "size.M", "depth"))
    grown = trees((block, 64.0, 0.1, (m, 100.0, 0.2, 0.3)), (depth, 1.0, -0.05, (block, 32.0, 0.4, 0.5)), 0.01)
    few, many = LaunchShape(132, 3, 396, 0), LaunchShape(133, 3, 399, 0)
    assert factor(grown, 0, (100, 9), few) == pytest.approx(0.1 - 0.05 + 0.01)
    assert factor(grown, 1, (100, 9), many) == pytest.approx(0.1 + 0.5 + 0.01)
    assert factor(grown, 2, (100, 9), few) == pytest.approx(0.2 - 0.05 + 0.01)
    assert factor(grown, 2, (101, 9), few) == pytest.approx(0.3 - 0.05 + 0.01)
    wild = [factor(trees(leaf), 1, (1, 1), few) for leaf in (9.0, -9.0)]
    assert wild == pytest.approx([MAX_LOG_FACTOR, -MAX_LOG_FACTOR])


def test_only_contenders_are_corrected() -> None:
    """The fastest as they are; whoever is behind stays behind, and nothing to launch takes no time."""
    configs = tuple(KernelConfig(BLOCK=16 * i, num_warps=4, num_stages=2) for i in range(1, N_CONTENDERS + 3))
    launch, n = LaunchShape(500, 3, 1500, 0), len(configs)
    forms = [100.0 - index for index in range(n)]
    corrected = trees(0.5, configs=configs).correct(forms, range(n), (8, 8), [launch] * n, 132)
    assert corrected[2:] == pytest.approx([us * math.exp(0.5) for us in forms[2:]])
    assert corrected[:2] == [max(corrected)] * 2
    assert trees(0.5).correct([0.0] * 3, range(3), (0, 8), [LaunchShape(0, 0, 0, 0)] * 3, 132) == [0.0] * 3


def test_launches_are_described_by_what_decides() -> None:
    """Depth and waves, how full they are, and how unlike the CTAs are."""
    values = dict(zip(LAUNCH_FEATURES, launch_features(LaunchShape(300, 10, 1500, 77), 2, 132), strict=True))
    assert (values["depth"], values["waves"]) == (3.0, 2.0)
    assert values["depth_fill"] == pytest.approx(300 / 396)
    assert values["wave_fill"] == pytest.approx(300 / 528)
    assert values["mean_trips"] == pytest.approx(0.5)
    assert values["longest_share"] == pytest.approx(10 * 132 / 1500)


def test_words_are_numbers_whatever_else_there_is() -> None:
    """Equal words are equal features in any model, other words are others."""
    one, other = (form_features(KernelConfig(BLOCK=64, order=word)) for word in ("in_order", "longest_first"))
    assert one[0] == other[0] == 64.0
    assert one[1] != other[1]
    assert one == form_features(KernelConfig(BLOCK=64, order="in_order"))


def test_trees_are_those_of_the_regressor() -> None:
    """What is read out of the boosting predicts what it does."""
    table, fit = make_table(150, 0.15), fitted()
    x = correction_features(fit, [tuple(row) for row in table.problems()[0].tolist()], shape, H200)
    x = x.reshape(-1, x.shape[-1])
    boosting = HistGradientBoostingRegressor(max_iter=20, random_state=0).fit(x, np.sin(x[:, 0] / 20) * np.log(x[:, 4]))

    def follow(node: Node, row: list[float]) -> float:
        while isinstance(node, tuple):
            node = node[2] if row[node[0]] <= node[1] else node[3]
        return node

    nodes = trees_of_boosting(boosting)
    walked = [sum(follow(tree, row) for tree in nodes) for row in x[:200].tolist()]
    assert walked == pytest.approx(boosting.predict(x[:200]), abs=2e-4)
    quick = BoostedTrees(nodes)
    for split in (0, 3, len(x[0])):
        ours = [quick.total(quick.mask(row[:split]) & quick.mask(row[split:], split)) for row in x[:200].tolist()]
        assert ours == pytest.approx(walked, abs=1e-12)


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


def chain(leaves: int) -> Node:
    """Return a tree that is one long branch."""
    return (0, float(leaves), 0.1, chain(leaves - 1)) if leaves > 1 else 0.1


def full(depth: int) -> Node:
    """Return a tree with two branches everywhere."""
    return (0, float(depth), full(depth - 1), full(depth - 1)) if depth else 0.1


@pytest.mark.parametrize(
    ("tree", "field"),
    [
        ("word", "correction_trees"),
        (True, "correction_trees"),
        ([0, 1.0, 0.1], "correction_trees"),
        ([99, 1.0, 0.1, 0.2], "correction_trees"),
        ([-1, 1.0, 0.1, 0.2], "correction_trees"),
        ([0, "x", 0.1, 0.2], "correction_trees"),
        ([0, 1.0, [0, 1.0, None, 0.1], 0.2], "correction_trees"),
        (chain(MAX_LEAVES + 1), "correction_trees"),
        (full(7), "correction_trees"),
    ],
)
def test_impossible_trees_are_refused(tree: object, field: str) -> None:
    """The error names the field."""
    model = make_model(fitted())
    assert model.correction is not None
    data = encode_family(replace(model, correction=FamilyCorrection(model.correction.features, (tree,))))
    with pytest.raises(ModelFileError, match=field):
        decode_family(data, "made-up.json")


def test_features_that_are_not_known_are_refused() -> None:
    """Trees of another version would ask about something else."""
    data = encode_family(replace(make_model(fitted()), correction=FamilyCorrection(("size.M",), (0.1,))))
    with pytest.raises(ModelFileError, match="correction_features"):
        decode_family(data, "made-up.json")
