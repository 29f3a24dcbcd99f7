"""Where to measure a kernel that brings its own mapping: keys that differ in what the latency model sees.

Nothing is known about how sizes become grids, so keys are not made from wanted grids, as for GEMM, but chosen from a
pool: the owner's keys, or many from the ranges of their sizes.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from wavetune.core.arch import ArchSpec
from wavetune.mapping.kernel_mapping import LaunchShape
from wavetune.runtime.family_chooser import Shaper
from wavetune.store.record import CompiledConfig
from wavetune.store.table import FloatArray
from wavetune.waves.occupancy import ctas_per_sm
from wavetune.waves.terms import BYTES_PER_MB

POINTS_PER_CONFIG = 32
"""Points of each configuration: several for each of the nine coefficients of a form."""

SWEEP_KEYS = 12
"""Keys on which every configuration is measured, where the owner names none: they judge choices, and are looked up."""

POOL_SIZE = 2048
"""Most keys that are made from ranges."""

RAGGED_SHARE = 0.3
"""Share of a pool whose sizes are moved off round numbers, by up to a tenth."""

# What the features of `spread` are scaled by: a full tail of a wave counts like two octaves of waves or trips.
_FILL, _BYTES = 2.0, 0.5

Dims = tuple[int, ...]


def keys_in_ranges(ranges: Sequence[tuple[int, int]], seed: int = 0) -> list[Dims]:
    """Make keys from the smallest and largest value of each size.

    Parameters
    ----------
    ranges : sequence of (int, int)
        At least 1, in the order of a key's sizes.
    seed : int
        Equal seeds give equal keys.

    Returns
    -------
    list of tuple of int
        At most `POOL_SIZE`, distinct: powers of two and their halves, the ends, some ragged.
    """
    rng = np.random.default_rng(seed)
    axes = [_round_sizes(low, high) for low, high in ranges]
    total = int(np.prod([len(axis) for axis in axes]))
    if total <= POOL_SIZE:
        keys = [tuple(key) for key in itertools.product(*axes)]
    else:
        keys = [tuple(int(rng.choice(axis)) for axis in axes) for _ in range(POOL_SIZE)]
    moved = []
    for key in keys:
        if rng.random() < RAGGED_SHARE:
            factor = 1.0 + 0.1 * rng.random(len(key))
            key = tuple(min(int(size * f), high) for size, f, (_, high) in zip(key, factor, ranges, strict=True))
        moved.append(key)
    return list(dict.fromkeys(moved))


def spread(shapes: Sequence[LaunchShape], width: int, n_points: int) -> list[int]:
    """Choose launches that are as different as possible in waves, tail, trips and bytes.

    Parameters
    ----------
    shapes : sequence of LaunchShape
        To choose from; empty ones are never chosen.
    width : int
        CTAs that are resident at once.
    n_points : int
        Most launches to choose.

    Returns
    -------
    list of int
        Positions, the most work first, then always the one farthest from those before: every prefix is spread.
    """
    places = [index for index, shape in enumerate(shapes) if shape.grid_size > 0]
    if not places:
        return []
    features = _features([shapes[index] for index in places], width)
    chosen = [int(np.argmax([shapes[index].total_trips for index in places]))]
    distance = np.full(len(places), np.inf)
    while len(chosen) < min(n_points, len(places)):
        distance = np.minimum(distance, np.square(features - features[chosen[-1]]).sum(axis=1))
        farthest = int(np.argmax(distance))
        if distance[farthest] == 0.0:
            break
        chosen.append(farthest)
    return [places[index] for index in chosen]


def plan_points(
    compiled: Sequence[CompiledConfig], pool: Sequence[Dims], shape: Shaper, arch: ArchSpec, n_points: int
) -> list[tuple[Dims, CompiledConfig]]:
    """Choose each configuration's points from a pool of keys.

    Returns
    -------
    list of (dims, configuration)
        Configurations take turns, so every prefix of the plan serves all of them.
    """
    queues = []
    for entry in compiled:
        resident = ctas_per_sm(
            arch, num_warps=int(entry.config["num_warps"]), num_regs=entry.num_regs, smem_bytes=entry.smem_bytes
        )
        shapes = [shape(dims, entry.config) for dims in pool]
        queues.append([(pool[index], entry) for index in spread(shapes, resident * arch.num_sms, n_points)])
    turns = itertools.zip_longest(*queues)
    return [point for turn in turns for point in turn if point is not None]


def sweep_keys(pool: Sequence[Dims], config: CompiledConfig, shape: Shaper, arch: ArchSpec, n_keys: int) -> list[Dims]:
    """Choose keys that differ for the default configuration, to be measured with every configuration."""
    shapes = [shape(dims, config.config) for dims in pool]
    return [pool[index] for index in spread(shapes, arch.num_sms, n_keys)]


def _round_sizes(low: int, high: int) -> list[int]:
    powers = [2**exponent for exponent in range(high.bit_length() + 1)]
    sizes = {low, high, *powers, *(3 * power // 2 for power in powers)}
    return sorted(size for size in sizes if low <= size <= high)


def _features(shapes: Sequence[LaunchShape], width: int) -> FloatArray:
    grid = np.array([shape.grid_size for shape in shapes], dtype=np.float64)
    trips = np.array([max(shape.loop_trips, 1) for shape in shapes], dtype=np.float64)
    moved_mb = np.array([shape.moved_bytes for shape in shapes], dtype=np.float64) / BYTES_PER_MB
    waves = np.ceil(grid / width)
    features: FloatArray = np.stack(
        [np.log2(waves), _FILL * grid / (waves * width), np.log2(trips), _BYTES * np.log2(1.0 + moved_mb)], axis=1
    )
    return features
