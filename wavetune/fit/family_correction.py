"""Learn the factor that the forms of a kernel miss, from their residuals on measured keys.

Gradient boosting over all configurations together, see `wavetune.runtime.family_correction`: what one configuration
misses, its neighbours miss as well, and a few hundred keys alone would not tell. Rows weigh by how near the best of
their key they are, squared: only near-best predictions decide.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from sklearn.ensemble import HistGradientBoostingRegressor

from wavetune.core.arch import ArchSpec
from wavetune.fit.family_model import FamilyFit, predict_forms
from wavetune.fit.threads import on_one_thread
from wavetune.runtime.boosted_trees import Node
from wavetune.runtime.family_chooser import Shaper
from wavetune.runtime.family_correction import (
    MAX_LOG_FACTOR,
    FamilyCorrection,
    feature_names,
    form_features,
    launch_features,
)
from wavetune.store.table import FloatArray, MeasurementTable

N_TREES = 30
"""Trees; an answer evaluates each for every contender. Few large ones: of 900 decode steps, held out in five parts, the
mean regret is 1.36 +- 0.08 % with 30 trees of 63 leaves, 1.51 with 60 of 31, which fill a file of the same size and
take twice as long, and 1.24 with 60 of 63; grouped GEMM and prefill differ by chance (H200, 2026-11). All features are
offered to every split: with a random half, the mean regret of decode was between 1.4 and 1.85 % by the seed alone."""

LEARNING_RATE = 0.3

MAX_LEAVES = 63

MIN_LEAF_ROWS = 30

MIN_KEYS = 24
"""Fewest measured keys from which anything is learned."""

DECIMALS = 5
"""Of a leaf: what is left out adds up to less than 0.1 %."""


@on_one_thread
def correct_family(fit: FamilyFit, table: MeasurementTable, shape: Shaper, arch: ArchSpec) -> FamilyFit:
    """Return a fit with the correction that its residuals on ``table`` ask for; without one if there are few keys.

    Parameters
    ----------
    fit : FamilyFit
        Forms; a correction that it has is replaced.
    table : MeasurementTable
        Rows to learn from; those of configurations without a form count only as the best of their key.
    shape : callable
        The kernel's mapping.
    arch : ArchSpec
        GPU that was measured.
    """
    keys, measured = table.latency_matrix()
    if len(keys) < MIN_KEYS:
        return replace(fit, correction=None)
    column = {entry.config: index for index, entry in enumerate(table.configs)}
    latency = measured[:, [column[entry.config] for entry in fit.configs]]
    dims = [tuple(row) for row in keys.tolist()]
    forms = predict_forms(fit, dims, shape, arch)
    is_known = ~np.isnan(latency) & (forms > 0.0)
    residual = np.clip(np.log(latency[is_known] / forms[is_known]), -MAX_LOG_FACTOR, MAX_LOG_FACTOR)
    weight = np.square((np.nanmin(measured, axis=1, keepdims=True) / latency)[is_known])
    x = correction_features(fit, dims, shape, arch)[is_known]
    boosting = HistGradientBoostingRegressor(
        max_iter=N_TREES, learning_rate=LEARNING_RATE, max_leaf_nodes=MAX_LEAVES, min_samples_leaf=MIN_LEAF_ROWS,
        early_stopping=False, random_state=0,
    )  # fmt: skip
    boosting.fit(x, residual, sample_weight=weight)
    features = feature_names(fit.configs[0].config, table.spec.dims)
    return replace(fit, correction=FamilyCorrection(features, trees_of_boosting(boosting)))


def correction_features(
    fit: FamilyFit, dims: Sequence[tuple[int, ...]], shape: Shaper, arch: ArchSpec
) -> FloatArray:  # fmt: skip
    """Return what trees ask about, shape (n_keys, n_fitted, n_features); NaN for an empty launch."""
    n_launch = len(launch_features(shape(dims[0], fit.configs[0].config), 1, 1)) if dims else 0
    fixed = [form_features(entry.config) for entry in fit.configs]
    rows = []
    for sizes in dims:
        for config, values, resident in zip(fit.configs, fixed, fit.ctas_per_sm.tolist(), strict=True):
            launch = shape(sizes, config.config)
            counts = launch_features(launch, resident, arch.num_sms) if launch.grid_size else (np.nan,) * n_launch
            rows.append((*values, *sizes, *counts))
    return np.array(rows).reshape(len(dims), len(fixed), -1)


def trees_of_boosting(boosting: HistGradientBoostingRegressor) -> tuple[Node, ...]:
    """Return the trees of a fitted regressor; the constant that it begins with is a tree of one leaf."""
    # scikit-learn shows what its trees predict, but not the trees; a test compares these with what it predicts.
    trees = [_tree(predictor[0].nodes, 0) for predictor in boosting._predictors]
    return (round(float(boosting._baseline_prediction.item()), DECIMALS), *trees)


def _tree(nodes: Any, place: int) -> Node:
    node = nodes[place]
    if node["is_leaf"]:
        return round(float(node["value"]), DECIMALS)
    low, high = (_tree(nodes, int(node[side])) for side in ("left", "right"))
    return int(node["feature_idx"]), float(node["num_threshold"]), low, high
