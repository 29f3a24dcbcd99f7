"""Which configurations survive: the few that ever win."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from wavetune.core.arch import ArchSpec
from wavetune.core.problem import MAX_DIMENSION, GemmProblem
from wavetune.mapping.legality import gemm_illegal_reason
from wavetune.store.record import CompiledConfig
from wavetune.store.table import FloatArray, IntArray

CONTENDER_RATIO = 1.3
"""A configuration whose form is slower than the best form by more than this is no contender on that problem.
Forms alone are right within 10 % on near-best configurations (H200, 2026-11)."""

N_FALLBACKS = 4
"""Configurations that load without TMA and survive beside the others, for operands that are not aligned."""

SIZE_STEP = 64
"""Realistic n and k are multiples of 64: head sizes, tile sizes and tensor-parallel splits of public models."""


def broad_sample(ranges: Sequence[tuple[int, int]], n_problems: int, random_state: int) -> IntArray:
    """Draw realistic GEMM problems, log-uniform over the measured range.

    Half of the m are powers of two (as serving engines pad batches), n and k are multiples of `SIZE_STEP`.

    Returns
    -------
    ndarray of shape (n_problems, 3)
        Deterministic for a given ``random_state``.
    """
    rng = np.random.default_rng(random_state)
    columns = []
    for axis, (low, high) in enumerate(ranges):
        exponent = rng.uniform(np.log2(low), np.log2(high), n_problems)
        if axis == 0:
            padded = rng.random(n_problems) < 0.5
            size = np.exp2(np.where(padded, np.round(exponent), exponent))
        else:
            size = np.round(np.exp2(exponent) / SIZE_STEP) * SIZE_STEP
        columns.append(np.clip(size, low, high).astype(np.int64))
    return np.stack(columns, axis=1)


def greedy_cover(
    latency_us: FloatArray, weight: FloatArray, n_configs: int, first: Sequence[int] = (), min_gain: float = 1e-6
) -> list[int]:
    """Choose configurations that together are near the best on every problem.

    Adds, one by one, the configuration that lowers the weighted mean of ``log(best chosen / best)`` most.

    Parameters
    ----------
    latency_us : ndarray of shape (n_problems, n_candidates)
        Measured or predicted; NaN or inf where unknown.
    weight : ndarray of shape (n_problems,)
        Weight of each problem.
    n_configs : int
        Most configurations to choose.
    first : sequence of int, optional
        Configurations that are in from the start.
    min_gain : float, default=1e-6
        Stop when the next one would lower the mean by less than this.

    Returns
    -------
    list of int
        Columns in the order they were added; stops early when nothing is left to gain.
    """
    with np.errstate(invalid="ignore"):
        regret = np.log(latency_us / np.nanmin(np.where(np.isfinite(latency_us), latency_us, np.nan), axis=1)[:, None])
    worst = 3.0
    regret = np.where(np.isfinite(regret), np.minimum(regret, worst), worst)
    chosen = list(first)
    current = regret[:, chosen].min(axis=1) if chosen else np.full(len(regret), worst)
    while len(chosen) < min(n_configs, regret.shape[1]):
        gain = weight @ np.maximum(current[:, None] - regret, 0.0)
        best = int(np.argmax(gain))
        if gain[best] <= min_gain * weight.sum():
            break
        chosen.append(best)
        current = np.minimum(current, regret[:, best])
    return chosen


def cover_unaligned(configs: Sequence[CompiledConfig], arch: ArchSpec, latency_us: FloatArray) -> list[int]:
    """Choose at most `N_FALLBACKS` configurations for operands that most cannot load, where there are any.

    Parameters
    ----------
    configs : sequence of CompiledConfig
        Columns of ``latency_us``.
    arch : ArchSpec
        The GPU.
    latency_us : ndarray of shape (n_problems, n_configs)
        Predicted, microseconds.

    Returns
    -------
    list of int
        Columns; empty where all configurations take any operands, or none does.
    """
    unaligned = GemmProblem(1, 1, MAX_DIMENSION, alignment=1)
    legal = [i for i, entry in enumerate(configs) if gemm_illegal_reason(unaligned, entry.config, arch) is None]
    if len(legal) in (0, len(configs)):
        return []
    cover = greedy_cover(latency_us[:, legal], np.ones(len(latency_us)), N_FALLBACKS)
    return [legal[column] for column in cover]
