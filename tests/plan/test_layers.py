"""Layers of public models."""

from __future__ import annotations

import numpy as np
import pytest

from wavetune.plan.holdout import HOLDOUT_TOKENS, fold_of, holdout_layers, holdout_shapes
from wavetune.plan.layers import TOKENS, plan_layers, spread_shapes


@pytest.mark.parametrize(
    ("n", "k", "used_by"),
    [
        (6144, 4096, "meta-llama/Meta-Llama-3-8B qkv tp1"),
        (28672, 4096, "meta-llama/Meta-Llama-3-8B up tp1"),
        (8192, 3584, "meta-llama/Meta-Llama-3-70B down tp8"),
        (1280, 8192, "meta-llama/Meta-Llama-3-70B qkv tp8"),
        (5120, 8192, "Qwen/Qwen3-32B o tp1"),
        (5120, 2048, "Qwen/Qwen3-30B-A3B qkv tp1"),
        (7168, 16384, "deepseek-ai/DeepSeek-V3 o tp1"),
    ],
)
def test_known_layers_are_there(n: int, k: int, used_by: str) -> None:
    """Known layers are there."""
    (layer,) = [layer for layer in plan_layers() if (layer.n, layer.k) == (n, k)]
    assert used_by in layer.used_by


def test_layers_are_distinct_sorted_and_aligned_for_tma() -> None:
    """Layers are distinct sorted and aligned for TMA."""
    layers = plan_layers()
    assert len({(layer.n, layer.k) for layer in layers}) == len(layers) > 100
    assert [layer.n * layer.k for layer in layers] == sorted(layer.n * layer.k for layer in layers)
    assert all(layer.n % 8 == 0 and layer.k % 8 == 0 for layer in layers + holdout_layers())


def test_more_shapes_extend_fewer() -> None:
    """More shapes extend fewer."""
    layers = plan_layers()
    many = spread_shapes(300, layers)
    assert len(set(many)) == 300
    assert spread_shapes(40, layers) == many[:40]


def test_all_pairs_can_be_had_but_no_more() -> None:
    """All pairs can be had but no more."""
    layers = plan_layers()[:3]
    shapes = spread_shapes(10_000, layers, (1, 16, 333))
    assert len(set(shapes)) == len(shapes) == 9


@pytest.mark.parametrize("n_shapes", [24, 400])
def test_shapes_spread_from_decode_to_prefill_and_over_weights(n_shapes: int) -> None:
    """Shapes spread from decode to prefill and over weights."""
    shapes = np.array(spread_shapes(n_shapes, plan_layers()))
    for low, high in ((1, 32), (33, 256), (257, 1024), (1025, 8192)):
        assert np.mean((shapes[:, 0] >= low) & (shapes[:, 0] <= high)) > 0.12
    weights = np.sort([layer.n * layer.k for layer in plan_layers()])
    share = np.histogram(shapes[:, 1] * shapes[:, 2], bins=np.quantile(weights, [0, 0.25, 0.5, 0.75, 1]))[0] / n_shapes
    assert share.min() > 0.15
    assert any(m % 8 for m in TOKENS)


def test_held_out_shapes_share_no_layer_with_the_plan() -> None:
    """Held out shapes share no layer with the plan."""
    planned = {(layer.n, layer.k) for layer in plan_layers()}
    shapes = holdout_shapes(150)
    assert len(set(shapes)) == 150
    assert planned.isdisjoint((n, k) for _, n, k in shapes)
    assert {m for m, _, _ in shapes} == set(HOLDOUT_TOKENS)
    assert holdout_shapes(100) == shapes[:100]


def test_a_workloads_layers_are_taken_out_of_the_holdout() -> None:
    """A workload's layers are taken out of the holdout."""
    _, n, k = holdout_shapes(1)[0]
    assert (n, k) not in {(n, k) for _, n, k in holdout_shapes(150, planned=[(n, k)])}


@pytest.mark.parametrize("n_folds", [2, 5])
def test_folds_never_split_a_layer(n_folds: int) -> None:
    """Folds never split a layer."""
    dims = np.array(spread_shapes(400, plan_layers()))
    folds = fold_of(dims, n_folds)
    of_layer: dict[tuple[int, int], set[int]] = {}
    for (_, n, k), fold in zip(dims.tolist(), folds.tolist(), strict=True):
        of_layer.setdefault((n, k), set()).add(fold)
    assert all(len(found) == 1 for found in of_layer.values())
    sizes = np.bincount([next(iter(found)) for found in of_layer.values()], minlength=n_folds)
    assert len(sizes) == n_folds
    assert np.ptp(sizes) <= 1


def test_a_fold_depends_on_the_seed_and_not_on_the_order_of_rows() -> None:
    """A fold depends on the seed and not on the order of rows."""
    dims = np.array(spread_shapes(200, plan_layers()))
    assert np.array_equal(fold_of(dims[::-1], 5)[::-1], fold_of(dims, 5))
    assert not np.array_equal(fold_of(dims, 5, seed=1), fold_of(dims, 5, seed=2))
