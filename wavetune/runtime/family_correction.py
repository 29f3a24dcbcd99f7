"""What the forms of a kernel miss: a factor on each, from boosted regression trees. Standard library only.

A form is a sum of terms, so it is off by some percent where a launch goes over from being bound by latency to being
bound by memory, or where the SMs are unevenly loaded. What decides there is the launch, not the size of the problem:
how many CTAs the busiest SM has, how full the last wave is, how long a CTA runs. The factor of a form is

    exp(sum of the leaves that trees lead to),    within exp(+-MAX_LOG_FACTOR)

and a tree asks about one of three kinds of features: fields of the configuration, sizes of the key, and
`LAUNCH_FEATURES`. The same trees serve all forms, so that what was learned of one configuration holds for those like
it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from zlib import crc32

from wavetune.core.config import KernelConfig
from wavetune.mapping.kernel_mapping import LaunchShape
from wavetune.runtime.boosted_trees import BoostedTrees, Node

LAUNCH_FEATURES = (
    "ctas_per_sm", "grid_size", "loop_trips", "total_trips", "moved_bytes", "depth", "waves", "depth_fill", "wave_fill",
    "mean_trips", "longest_share",
)  # fmt: skip
"""Resident CTAs of an SM; the counts of a launch; CTAs of the busiest SM and waves, and how full they are; trips of the
mean CTA over those of the longest one; those of the longest one over an SM's share of all."""

MAX_LOG_FACTOR = 0.7
"""A factor stays within 2 either way: beyond it, it would be repairing a broken form."""

N_CONTENDERS = 16
"""Forms that are corrected for an answer, the fastest as they are: trees take about 5 us a form, and those behind
seldom win. With 8, 16, 24 and all of 48, the mean regret of 900 held-out decode steps was 1.52, 1.35, 1.26 and 1.25 %;
for grouped GEMM and prefill it was the same within 0.1 % (H200, 2026-11)."""


@dataclass(frozen=True, slots=True)
class FamilyCorrection:
    """Trees of one model.

    Parameters
    ----------
    features : tuple of str
        What the features of `trees` are, see `feature_names`.
    trees : tuple of Node
        Each adds the logarithm of a factor.
    """

    features: tuple[str, ...]
    trees: tuple[Node, ...]


def feature_names(config: KernelConfig, dims: Sequence[str]) -> tuple[str, ...]:
    """Return the names of what `form_features`, the sizes of a key and `launch_features` give, one behind another."""
    return (*(f"config.{name}" for name in config), *(f"size.{name}" for name in dims), *LAUNCH_FEATURES)


def form_features(config: KernelConfig) -> tuple[float, ...]:
    """Return the fields of a configuration as numbers: a word by its checksum, which no other configuration changes."""
    return tuple(
        float(value) if isinstance(value, int | float) else float(crc32(str(value).encode()))
        for value in config.values()
    )  # fmt: skip


def launch_features(shape: LaunchShape, ctas_per_sm: int, num_sms: int) -> tuple[float, ...]:
    """Return `LAUNCH_FEATURES` of a launch that is not empty."""
    grid, longest, total = shape.grid_size, shape.loop_trips, shape.total_trips
    width = ctas_per_sm * num_sms
    depth, waves = -(-grid // num_sms), -(-grid // width)
    return (
        float(ctas_per_sm), float(grid), float(longest), float(total), float(shape.moved_bytes), float(depth),
        float(waves), grid / (num_sms * depth), grid / (width * waves), total / max(grid * longest, 1),
        longest * num_sms / max(total, 1),
    )  # fmt: skip


class CorrectionTrees:
    """Log factors of the forms of a model.

    Parameters
    ----------
    correction : FamilyCorrection
        Of a checked model.
    configs : sequence of KernelConfig
        Of all its forms.
    ctas_per_sm : sequence of int
        Their residency.
    """

    def __init__(
        self, correction: FamilyCorrection, configs: Sequence[KernelConfig], ctas_per_sm: Sequence[int]
    ) -> None:
        self._trees = BoostedTrees(correction.trees)
        # What the fields of a configuration rule out is settled once a form, what sizes rule out once a key.
        self._of_form = [self._trees.mask(form_features(config)) for config in configs]
        self._first_size = len(configs[0])
        self._resident = ctas_per_sm

    def correct(
        self, latencies: Sequence[float], places: Sequence[int], dims: Sequence[int], shapes: Sequence[LaunchShape],
        num_sms: int,
    ) -> list[float]:  # fmt: skip
        """Correct the `N_CONTENDERS` fastest of some forms; the others come behind them.

        Parameters
        ----------
        latencies : sequence of float
            What the forms predict, microseconds; a zero, for nothing to launch, stays.
        places : sequence of int
            The forms' places in the model.
        dims : sequence of int
            The key.
        shapes : sequence of LaunchShape
            The forms' launches.
        num_sms : int
            SMs that launches may use.

        Returns
        -------
        list of float
            None of the others is faster than a contender.
        """
        order = sorted(range(len(latencies)), key=latencies.__getitem__)
        corrected, slowest = list(latencies), 0.0
        of_sizes = self._trees.mask(dims, self._first_size)
        first_count = self._first_size + len(dims)
        of_launch: dict[tuple[int, int], int] = {}
        for index in order[:N_CONTENDERS]:
            shape = shapes[index]
            if shape.grid_size:
                place = places[index]
                # Forms of one tile have one launch, as a rule the same object.
                launch = id(shape), self._resident[place]
                if launch not in of_launch:
                    of_launch[launch] = self._trees.mask(launch_features(shape, launch[1], num_sms), first_count)
                left = self._of_form[place] & of_sizes & of_launch[launch]
                total = min(max(self._trees.total(left), -MAX_LOG_FACTOR), MAX_LOG_FACTOR)
                corrected[index] *= math.exp(total)
                slowest = max(slowest, corrected[index])
        for index in order[N_CONTENDERS:]:
            corrected[index] = max(corrected[index], slowest)
        return corrected
