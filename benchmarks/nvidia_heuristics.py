"""What NVIDIA's analytical library would choose, mapped to the nearest configuration that was measured.

``nvidia-matmul-heuristics`` is proprietary: an optional extra (``pip install 'wavetune[nvmmh]'``), never part of this
project. Its Triton target names tiles, warps, stages, a split of k and a swizzle, and does not know the list that was
measured. So each answer is mapped to the configuration at the smallest distance: octaves of each field, weighted as
below. What it loses that way is not its fault; the table says "nearest configuration" for that reason.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from wavetune.core.config import KernelConfig

WEIGHTS = {
    "block_m": 1.0,
    "block_n": 1.0,
    "block_k": 0.5,
    "split_k": 1.0,
    "num_warps": 0.25,
    "num_stages": 0.25,
    "group_m": 0.05,
}
"""How much an octave of a field counts. Tiles and splits decide the grid, the rest tunes it."""

PLAIN_LOAD, PERSISTENT = 0.1, 0.02
"""The library does not say how operands are loaded: of equally near configurations TMA is taken, and a plain grid."""

PRECISION = "TST"
"""bf16 in, fp32 accumulate, bf16 out."""


@dataclass(frozen=True)
class Suggestions:
    """What the library answered for some problems.

    Parameters
    ----------
    ranked : list of list of int
        For each problem, indices of the nearest configurations, in the library's order, without repeats.
    query_us : float
        Median time of a query for one problem, microseconds.
    """

    ranked: list[list[int]]
    query_us: float


def suggest(
    problems: Sequence[tuple[int, int, int]], configs: Sequence[KernelConfig], count: int
) -> Suggestions | None:
    """Ask for so many kernels for each problem on an H200; None if the library is not installed."""
    try:
        import nvMatmulHeuristics
    except ImportError:
        return None
    names = vars(nvMatmulHeuristics)
    library = names["NvMatmulHeuristicsInterfaceEx"](
        backend=names["NvMatmulHeuristicsTarget"].TRITON,
        flags=names["NvMatmulHeuristicsFlags"].PERF_MODEL_BASED_AUTO_TUNING,
        load_discovery_implicitly=True,
        gpu=names["NvMatmulHeuristicsNvidiaGpu"].H200_SXM,
    )
    layout = names["NvMatmulHeuristicsMatmulLayout"].TN_ROW_MAJOR
    columns = np.array([[math.log2(int(config[name])) for name in WEIGHTS] for config in configs])
    extra = np.array(
        [PLAIN_LOAD * (c["load"] == "pointer") + PERSISTENT * (c["schedule"] == "persistent") for c in configs]
    )
    ranked, seconds = [], []
    for m, n, k in problems:
        start = time.perf_counter()
        problem = library.makeNvMatmulHeuristicsProblem(m, n, k, layout, batch_size=1)
        answers = library.get(problem, count, precision=PRECISION)
        seconds.append(time.perf_counter() - start)
        nearest = [_nearest(answer["kernel"], columns, extra) for answer in answers]
        ranked.append(list(dict.fromkeys(nearest)))
    return Suggestions(ranked, float(np.median(seconds)) * 1e6)


def _nearest(kernel: Any, columns: np.ndarray, extra: np.ndarray) -> int:
    fields = {
        "block_m": kernel.cta_tile_m,
        "block_n": kernel.cta_tile_n,
        "block_k": kernel.cta_tile_k,
        "split_k": kernel.split_k,
        "num_warps": (kernel.cta_tile_m // kernel.warp_tile_m) * (kernel.cta_tile_n // kernel.warp_tile_n),
        "num_stages": kernel.stages,
        # Our reading of the swizzle; the library's documents do not say.
        "group_m": kernel.swizzle_factor,
    }
    wanted = np.array([math.log2(max(int(fields[name]), 1)) for name in WEIGHTS])
    distance = np.abs(columns - wanted) @ np.array(list(WEIGHTS.values())) + extra
    return int(np.argmin(distance))
