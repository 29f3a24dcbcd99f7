"""Numerics classes: one order of summing for every m of a layer, and as fast as that allows."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from pathlib import Path

import pytest
from hand_made import FAST, PLAIN, gemm_config, make_model

import wavetune
from wavetune.core import config as config_module
from wavetune.core.arch import ARCHS, find_arch
from wavetune.core.config import GEMM, KernelConfig
from wavetune.core.problem import GemmProblem
from wavetune.mapping.legality import gemm_illegal_reason
from wavetune.mapping.numerics import computes_transpose, is_deterministic, reduction_order
from wavetune.runtime.chooser import GemmChooser
from wavetune.runtime.codec import read_model, write_model
from wavetune.runtime.model_file import Cell, ExactEntry, LaunchForm
from wavetune.runtime.numerics import MAX_LAYERS, ROWS

H200, A100, L40S, B200 = (find_arch(name) for name in ("h200", "a100", "l40s", "b200"))
SLOW = tuple(3.0 * coefficient for coefficient in PLAIN)
LAYERS = [(4096, 4096), (6144, 4096), (57344, 8192), (4096, 14336), (512, 1024), (128256, 4096), (4097, 4099)]
TOKENS = [1, 2, 7, 16, 17, 63, 64, 100, 256, 300, 1024, 4095, 8192, 40_000, 200_000]


def order_of(config: KernelConfig) -> object:
    """Return the order of summing on an H200, which must be one."""
    order = reduction_order(config, H200)
    assert order is not None
    return order


@pytest.mark.parametrize("alignment", [0, 16, 2])
@pytest.mark.parametrize("num_sms", [None, 66])
@pytest.mark.parametrize(("n", "k"), LAYERS)
def test_a_layer_sums_in_one_order_whatever_m(n: int, k: int, num_sms: int | None, alignment: int) -> None:
    """From one token to beyond the measured range, in and out of the tables, split_k is 1 and the order is the same."""
    options = {"arch": "h200", "alignment": alignment, "num_sms": num_sms, "numerics": "batch_invariant"}
    answers = {m: wavetune.choose_config(m, n, k, **options) for m in TOKENS}
    for on_miss in ("model", "default"):
        answers |= {-m: wavetune.choose_config(m, n, k, on_miss=on_miss, **options) for m in TOKENS}
    assert len({order_of(config) for config in answers.values()}) == 1
    assert all(config["split_k"] == 1 for config in answers.values())
    for m in TOKENS:
        problem = GemmProblem(m, n, k, alignment=alignment)
        assert gemm_illegal_reason(problem, answers[m], H200) is None
        ranked = [
            entry.config
            for entry in wavetune.rank_configs(problem, arch="h200", num_sms=num_sms, numerics="batch_invariant")
        ]
        assert answers[m] in ranked
        assert {order_of(config) for config in ranked} == {order_of(answers[m])}


def test_m_still_decides_within_the_class() -> None:
    """Invariance is not one configuration for all m: the best of the order is taken for each."""
    configs = {wavetune.choose_config(m, 28672, 4096, arch="h200", numerics="batch_invariant") for m in TOKENS}
    assert len(configs) > 1


@pytest.mark.parametrize("aligned", [True, False])
@pytest.mark.parametrize(("n", "k"), LAYERS[:6])
def test_the_order_is_the_one_that_loses_least(shipped_path: Path, n: int, k: int, aligned: bool) -> None:
    """Of all orders, the chosen one has the smallest total of the logarithm of predicted latency over the rows."""
    model = read_model(shipped_path)
    chooser = GemmChooser(model, H200)
    alignment = 16 if aligned else 2
    totals: dict[object, float] = {}
    for m in ROWS:
        problem = GemmProblem(m, n, k, alignment=alignment)
        best: dict[object, float] = {}
        for entry in chooser.rank(problem):
            order = reduction_order(entry.config, H200)
            if order is not None:
                best.setdefault(order, math.log(entry.latency_us))
        for order, latency in best.items():
            totals[order] = totals.get(order, 0.0) + latency
    invariant = GemmChooser(model, H200, numerics="batch_invariant")
    for m in ROWS:
        problem = GemmProblem(m, n, k, alignment=alignment)
        config = invariant.choose(problem)
        assert order_of(config) == min(totals, key=totals.__getitem__)
        fastest = next(e for e in chooser.rank(problem) if reduction_order(e.config, H200) == order_of(config))
        if problem.dims not in model.exact:
            assert config == fastest.config


def test_exact_entries_of_another_order_do_not_answer() -> None:
    """What was measured best without the restriction answers only if it sums in the layer's order."""
    split, other, same = (
        gemm_config(16, 64, split_k=4, load="tma"), gemm_config(128, 256, load="tma"),
        gemm_config(64, 128, load="tma"),
    )  # fmt: skip
    same_kind = gemm_config(128, 128, load="tma")
    forms = tuple(LaunchForm(c, 1, 100, 90000, f) for c, f in ((split, PLAIN), (other, SLOW), (same, FAST)))
    for known, is_exact in ((split, False), (other, False), (same_kind, True)):
        model = make_model(
            forms=(*forms, LaunchForm(same_kind, 1, 100, 90000, None)), default_index=0, micro=(), cells={},
            exact={(512, 4096, 4096): ExactEntry([split, other, same, same_kind].index(known), 9.0)},
        )  # fmt: skip
        chooser = GemmChooser(model, H200, numerics="batch_invariant")
        choice = chooser.explain(GemmProblem(512, 4096, 4096))
        assert (choice.source == "exact") == is_exact
        assert choice.config == (same_kind if is_exact else same)
        assert GemmChooser(model, H200).explain(GemmProblem(512, 4096, 4096)).config == known
        assert chooser.default_for(GemmProblem(512, 4096, 4096)) == same


def test_equal_orders_are_decided_by_the_file() -> None:
    """With nothing between two orders, the first in the file is taken, every time."""
    wide, narrow = gemm_config(128, 256, load="tma"), gemm_config(128, 128, load="tma")
    free = (5.0, *(0.0,) * 9)
    for first, second in ((wide, narrow), (narrow, wide)):
        forms = (LaunchForm(first, 1, 100, 90000, free), LaunchForm(second, 1, 100, 90000, free))
        model = make_model(forms=forms, default_index=1, micro=(), cells={}, exact={})
        for _ in range(3):
            assert GemmChooser(model, H200, numerics="batch_invariant").choose(GemmProblem(64, 4096, 4096)) == first


def test_a_cell_may_not_bring_another_order_in() -> None:
    """Candidates of a cell that sum differently do not answer, and corrections decide within the order."""
    a, b, other = gemm_config(64, 128, load="tma"), gemm_config(128, 128, load="tma"), gemm_config(128, 64, load="tma")
    forms = tuple(LaunchForm(c, 1, 100, 90000, f) for c, f in ((a, FAST), (b, FAST), (other, SLOW)))
    for correction, expected in (((0, 2000, -5000), a), ((2000, 0, -5000), b)):
        cells = {(9, 12, 12): Cell((2,), correction)}
        model = make_model(forms=forms, default_index=2, micro=(), cells=cells, exact={})
        choice = GemmChooser(model, H200, numerics="batch_invariant").explain(GemmProblem(500, 4000, 4096))
        assert (choice.source, choice.config) == ("nearest", expected)
        assert GemmChooser(model, H200).choose(GemmProblem(500, 4000, 4096)) == other


def test_only_splitting_kernels_leave_the_class_empty(tmp_path: Path) -> None:
    """A model without a single configuration that keeps the order has no answer, and says so."""
    forms = (LaunchForm(gemm_config(16, 64, split_k=4), 6, 40, 30000, PLAIN),)
    path = tmp_path / "nvidia-h200" / "gemm-bf16.json"
    write_model(make_model(forms=forms, default_index=0, micro=(), cells={}, exact={}), path)
    wavetune.configure(models=tmp_path)
    assert wavetune.choose_config(8, 4096, 4096, arch="h200") == forms[0].config
    with pytest.raises(wavetune.WavetuneError, match="no configuration is legal"):
        wavetune.choose_config(8, 4096, 4096, arch="h200", numerics="batch_invariant")


def test_layers_that_are_remembered_are_bounded(shipped_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ever new layers do not make the filter grow, and forgotten ones are decided the same again."""
    monkeypatch.setattr("wavetune.runtime.numerics.MAX_LAYERS", 3)
    assert MAX_LAYERS > 3
    chooser = GemmChooser(read_model(shipped_path), H200, numerics="batch_invariant")
    first = [chooser.choose(GemmProblem(64, 64 * n, 4096)) for n in range(1, 12)]
    assert [chooser.choose(GemmProblem(64, 64 * n, 4096)) for n in range(1, 12)] == first
    assert chooser._filter is not None
    assert len(chooser._filter._layers) <= 3


def test_deterministic_excludes_what_a_family_marks_as_atomic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """None of the shipped kernels adds by atomics; a family that says that one does is believed."""
    for m in (1, 64, 4096):
        for dims in ((m, 4096, 4096), (m, 100_000, 96)):
            assert wavetune.choose_config(*dims, arch="h200", numerics="deterministic") == wavetune.choose_config(
                *dims, arch="h200"
            )
    atomic = replace(GEMM, atomics={"schedule": ("split_k",)})
    splitting, plain = gemm_config(16, 64, split_k=4), gemm_config(64, 64)
    assert is_deterministic(splitting, GEMM)
    assert not is_deterministic(splitting, atomic)
    assert is_deterministic(plain, atomic)
    monkeypatch.setattr(config_module, "KERNEL_SPECS", {"gemm": atomic})
    forms = (LaunchForm(splitting, 6, 40, 30000, (0.01,) * 10), LaunchForm(plain, 3, 80, 50000, PLAIN))
    path = tmp_path / "nvidia-h200" / "gemm-bf16.json"
    write_model(make_model(forms=forms, default_index=0, micro=(), cells={}, exact={}), path)
    wavetune.configure(models=tmp_path)
    for dims in ((8, 4096, 4096), (4096, 512, 8192)):
        assert wavetune.choose_config(*dims, arch="h200") == splitting
        for numerics in ("deterministic", "batch_invariant"):
            assert wavetune.choose_config(*dims, arch="h200", numerics=numerics) == plain
            assert wavetune.choose_config(*dims, arch="h200", numerics=numerics, on_miss="default") == plain


def micro_variants(config: KernelConfig) -> list[KernelConfig]:
    """Return configurations that differ in what does not change a sum."""
    return [
        config.replace(group_m=1), config.replace(num_stages=5), config.replace(schedule="persistent"),
        config.replace(load="tma"), config.replace(epilogue_split=2), config.replace(block_m=128),
    ]  # fmt: skip


def test_what_does_not_change_a_sum() -> None:
    """Rows of a tile, stages, loads, the order of tiles, persistence and the epilogue leave the order alone."""
    config = gemm_config(64, 128)
    for variant in micro_variants(config):
        assert reduction_order(variant, H200) == reduction_order(config, H200)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (gemm_config(64, 128), gemm_config(64, 64)),
        (gemm_config(64, 128), gemm_config(64, 128).replace(block_k=32)),
        (gemm_config(16, 64), gemm_config(64, 64)),
        (gemm_config(16, 64), gemm_config(32, 64)),
        (gemm_config(16, 32), gemm_config(16, 64)),
        (gemm_config(64, 128), gemm_config(64, 160)),
        (gemm_config(64, 192), gemm_config(64, 160)),
        (gemm_config(64, 256), gemm_config(64, 256).replace(num_warps=8)),
    ],
)
def test_what_changes_the_instruction_changes_the_order(first: KernelConfig, second: KernelConfig) -> None:
    """Width of the instruction, block_k and the transposed kernels of narrow tiles are orders of their own."""
    assert reduction_order(first, H200) != reduction_order(second, H200)
    assert reduction_order(gemm_config(16, 64, split_k=4), H200) is None


def test_warps_that_find_rows_do_not_share_columns() -> None:
    """Eight warps on 128 rows use the instruction of four; on 64 rows they halve it."""
    tall = gemm_config(128, 256)
    assert reduction_order(tall, H200) == reduction_order(tall.replace(num_warps=8), H200)
    shared = gemm_config(64, 256).replace(num_warps=8)
    assert reduction_order(shared, H200) == reduction_order(gemm_config(64, 128), H200)


def test_before_warpgroups_one_instruction_serves_every_tile() -> None:
    """On compute capability 8 the instruction is the same everywhere; where the rule is unknown, the tile counts."""
    rng = random.Random(5)
    configs = [gemm_config(rng.choice((16, 64, 128)), rng.choice((64, 128, 256))) for _ in range(20)]
    for arch in (A100, L40S):
        assert len({reduction_order(config, arch) for config in configs}) == 1
    for arch in (B200, ARCHS["amd-mi300x"]):
        assert len({reduction_order(config, arch) for config in configs}) == len(set(configs))


def test_transposed_kernels_are_those_of_narrow_tiles_with_tma() -> None:
    """The fact that the kernels use: fewer rows than a warpgroup, at least as many columns, and the hardware for it."""
    assert computes_transpose(gemm_config(16, 64), H200)
    assert computes_transpose(gemm_config(32, 256), H200)
    assert not computes_transpose(gemm_config(64, 64), H200)
    assert not computes_transpose(gemm_config(16, 32), H200)
    assert not computes_transpose(gemm_config(16, 64), A100)


def test_the_kernels_swap_where_the_mapping_says_so() -> None:
    """The constant that kernels are compiled with is the fact that the numerics class is decided by."""
    pytest.importorskip("triton")
    from wavetune.kernels.gemm import gemm_variants

    for arch in (H200, A100):
        for config in (
            gemm_config(16, 64),
            gemm_config(16, 32),
            gemm_config(32, 128),
            gemm_config(64, 64),
            gemm_config(16, 64, split_k=2),
        ):
            variant = gemm_variants(config, arch, "bf16", "nk", 8, False, "none")[0]
            assert variant.constants["SWAP"] == computes_transpose(config, arch)
