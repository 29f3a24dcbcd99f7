"""Shapes that the plan never measures: what a model is judged on."""

from __future__ import annotations

import hashlib
from collections.abc import Collection

import numpy as np
import numpy.typing as npt

from wavetune.plan.layers import LinearLayer, TransformerBlock, distinct_layers, plan_layers, spread_shapes

HOLDOUT_BLOCKS = (
    TransformerBlock("01-ai/Yi-34B", 7168, 20480, 56, 8, 128, (1, 2, 4)),
    TransformerBlock("tiiuae/falcon-40b", 8192, 32768, 128, 8, 64, (1, 4), is_gated=False),
    TransformerBlock("bigcode/starcoder2-15b", 6144, 24576, 48, 4, 128, (1, 2), is_gated=False),
    TransformerBlock("CohereForAI/c4ai-command-r-v01", 8192, 22528, 64, 64, 128, (1, 4)),
    TransformerBlock("ibm-granite/granite-3.1-8b-base", 4096, 12800, 32, 8, 128, (1, 2)),
    TransformerBlock("THUDM/glm-4-9b", 4096, 13696, 32, 2, 128, (1, 2)),
    TransformerBlock("internlm/internlm2_5-20b", 6144, 16384, 48, 8, 128, (1, 2)),
    TransformerBlock("HuggingFaceTB/SmolLM2-1.7B", 2048, 8192, 32, 32, 64, (1,)),
    TransformerBlock("Qwen/Qwen2.5-3B", 2048, 11008, 16, 2, 128, (1,)),
    TransformerBlock("TinyLlama/TinyLlama_v1.1", 2048, 5632, 32, 4, 64, (1,)),
)
"""Models that are not in `wavetune.plan.layers.BLOCKS`; numbers from their published ``config.json``."""

HOLDOUT_TOKENS = (
    1, 2, 3, 6, 11, 16, 27, 32, 41, 64, 83, 100, 128, 149, 224, 256, 300, 419, 512, 700, 1000, 1024, 1500, 2048,
    2999, 4096, 6000, 8192,
)  # fmt: skip
"""Decode to prefill, about half of them ragged."""


def holdout_layers(planned: Collection[tuple[int, int]] = ()) -> tuple[LinearLayer, ...]:
    """Return layers whose (n, k) is neither in the default plan nor in ``planned`` (a workload's)."""
    known = {(layer.n, layer.k) for layer in plan_layers()} | set(planned)
    layers = distinct_layers(layer for block in HOLDOUT_BLOCKS for layer in block.layers())
    return tuple(layer for layer in layers if (layer.n, layer.k) not in known)


def holdout_shapes(n_shapes: int = 128, planned: Collection[tuple[int, int]] = ()) -> list[tuple[int, int, int]]:
    """Return distinct ``(m, n, k)`` from `holdout_layers`, always the same; more shapes extend fewer."""
    return spread_shapes(n_shapes, holdout_layers(planned), HOLDOUT_TOKENS)


def fold_of(dims: npt.NDArray[np.int64], n_folds: int, seed: int = 0) -> npt.NDArray[np.int64]:
    """Assign problems to cross-validation folds by weight matrix, so that no (n, k) is in two folds.

    Parameters
    ----------
    dims : ndarray of shape (n_problems, n_dims)
        Sizes; all but the first column make the group.
    n_folds : int
        At least 2.
    seed : int, default=0
        Another seed, another partition.

    Returns
    -------
    ndarray of shape (n_problems,)
        In ``[0, n_folds)``. Folds hold equally many groups, to within one.
    """
    groups, inverse = np.unique(dims[:, 1:], axis=0, return_inverse=True)
    keys = [hashlib.sha256(f"{seed}:{group}".encode()).digest() for group in groups.tolist()]
    rank = np.empty(len(groups), dtype=np.int64)
    rank[sorted(range(len(groups)), key=keys.__getitem__)] = np.arange(len(groups))
    folds: npt.NDArray[np.int64] = (rank % n_folds)[inverse.reshape(-1)]
    return folds
