"""Choose for the two projections of one expert layer together.

They see the same histogram. They need not run the same configuration, but what the caller prepares by tile height (rows
padded for another kernel, a table of tiles) is prepared once if both have one height.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from wavetune.core.config import KernelConfig
from wavetune.core.grouped_problem import GroupedGemmProblem, check_group_sizes
from wavetune.errors import NoModelError, ProblemError, ProblemTypeError
from wavetune.runtime.choice import RankedConfig
from wavetune.runtime.grouped_choice import rank_grouped_gemm


@dataclass(frozen=True, slots=True)
class PairChoice:
    """Configurations for the up and the down projection of one expert layer.

    Parameters
    ----------
    up, down : KernelConfig
        What to launch.
    is_shared : bool
        Whether both have the same ``block_m``.
    latency_us : float
        Predicted for both, what is prepared by tile height included.
    """

    up: KernelConfig
    down: KernelConfig
    is_shared: bool
    latency_us: float


def choose_grouped_gemm_pair(
    group_sizes: Iterable[int],
    up: tuple[int, int],
    down: tuple[int, int],
    *,
    align_us: float = 0.0,
    up_layout: str = "gated",
    dtype: str = "bf16",
    arch: str | None = None,
    num_sms: int | None = None,
) -> PairChoice:
    """Choose for the up and the down projection of one expert layer together.

    Parameters
    ----------
    group_sizes : iterable of int
        Tokens of each expert.
    up, down : tuple of int
        ``(n, k)`` of an expert's up (gate and up) and down projection.
    align_us : float, default=0.0
        What the caller spends for each tile height that is used, microseconds: sorting and padding rows, a table of
        tiles. 0 if nothing is prepared by height, as with the kernels of this package. With infinity the height is
        shared, and the price left out of the sum.
    up_layout : {"gated", "nk"}, default="gated"
        Layout of the up projection.
    dtype, arch, num_sms
        As for `choose_grouped_gemm_config`.

    Returns
    -------
    PairChoice
        The least of both latencies and the preparation, once or twice.

    Raises
    ------
    ProblemTypeError, ProblemError, NoModelError, ArchError
        As `choose_grouped_gemm_config` does; also if ``align_us`` is negative.
    """
    if isinstance(align_us, bool) or not isinstance(align_us, int | float):
        raise ProblemTypeError(f"align_us must be a number, got {align_us!r}")
    if not align_us >= 0.0:
        raise ProblemError(f"align_us must not be negative, got {align_us!r}")
    sizes = check_group_sizes(group_sizes)
    best = []
    for name, weight, layout in (("up", up, up_layout), ("down", down, "nk")):
        if not isinstance(weight, tuple | list) or len(weight) != 2:
            raise ProblemTypeError(f"{name} must be (n, k) of an expert's weight, got {weight!r}")
        n, k = weight
        problem = GroupedGemmProblem(sizes, n, k, dtype, layout)
        by_height: dict[int, RankedConfig] = {}
        for ranked in rank_grouped_gemm(problem, arch=arch, num_sms=num_sms):
            by_height.setdefault(int(ranked.config["block_m"]), ranked)
        best.append(by_height)
    of_up, of_down = best
    must_share = math.isinf(align_us)
    price_us = 0.0 if must_share else align_us
    pairs = [
        (a.latency_us + b.latency_us + price_us * (1 if height == other else 2), height != other, height, other)
        for height, a in of_up.items()
        for other, b in of_down.items()
        if height == other or not must_share
    ]
    if not pairs:
        raise NoModelError(f"no tile height has a configuration for both projections, {up} and {down}")
    latency_us, is_separate, height, other = min(pairs)
    return PairChoice(of_up[height].config, of_down[other].config, not is_separate, latency_us)
