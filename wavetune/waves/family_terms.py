"""The terms of the latency model for any kernel that a `wavetune.mapping.kernel_mapping.KernelMapping` describes.

With W waves, D the depth (CTAs of the busiest SM), G the grid, L the loop trips of the longest CTA, T the trips of all
CTAs together, m = T / G those of the mean one, S the number of SMs and B the megabytes that must move through DRAM:

    latency_us =  launch + (wave + wave_trip m) W + depth_trip m D + (work G + work_trip T) / S
                + longest L + makespan max(L, T / S) + bytes B
                + (wave_longest W + depth_longest D) L + sum over r of crowd_r C_r m

These are the terms of `wavetune.waves.terms` without those that only a GEMM has, and two for CTAs of different length.
List scheduling comes to ``max(L, T / S)`` trips if the longest CTAs begin first, and to ``T / S + L / 2`` in any order
that has nothing to do with length; a sum of both terms and `work_trip` is either. C_r counts, wave by wave, the CTAs
beyond the first r on the busiest SM, for r of `CROWDS`: a lone CTA waits for memory, a few hide each other's waiting,
more share the bandwidth; a trip takes the larger of two times, and a sum of these terms has such bends. Every
coefficient is non-negative, so that more work never takes less.
"""

from __future__ import annotations

from typing import Any

CROWDS = (1, 2, 3)
"""CTAs of an SM beyond which another one may slow the others: decode steps on an H200 bend at 1 to 4 (2026-11)."""

FAMILY_TERMS = (
    "launch", "wave", "wave_trip", "depth_trip", "work", "work_trip", "longest", "makespan", "bytes", "wave_longest",
    "depth_longest", "crowd_1", "crowd_2", "crowd_3",
)  # fmt: skip
"""Coefficient names in table order. With those beyond the first `N_BASIC_TERMS`, the mean regret of held-out decode
steps fell from 2.1 % to 1.5 % (H200, 64 steps, corrected forms, 2026-11)."""

N_BASIC_TERMS = 9
"""Terms that few measurements can tell apart."""

FAMILY_TERM_UNITS = {
    "launch": "us",
    "wave": "us/wave",
    "wave_trip": "us/(wave trip)",
    "depth_trip": "us/(CTA trip)",
    "work": "us SM/CTA",
    "work_trip": "us SM/(CTA trip)",
    "longest": "us/trip",
    "makespan": "us/trip",
    "bytes": "us/MB",
    "wave_longest": "us/(wave trip)",
    "depth_longest": "us/(CTA trip)",
    "crowd_1": "us/(CTA trip)",
    "crowd_2": "us/(CTA trip)",
    "crowd_3": "us/(CTA trip)",
}
"""Unit of each coefficient; 1 MB is 1e6 bytes."""


def family_terms(
    *, grid_size: Any, loop_trips: Any, total_trips: Any, waves: Any, depth: Any, ctas_per_sm: Any, num_sms: Any,
    moved_mb: Any,
) -> tuple[Any, ...]:  # fmt: skip
    """Return the value of each term of `FAMILY_TERMS`; works on floats and on float arrays of one shape."""
    # An empty grid has no mean, and no trips.
    work, share, mean = grid_size / num_sms, total_trips / num_sms, total_trips / (grid_size + (grid_size == 0))
    # The larger one without a branch or a function of floats alone.
    makespan = 0.5 * (loop_trips + share + abs(loop_trips - share))
    full, rest = depth // ctas_per_sm, depth % ctas_per_sm
    crowds = (full * _beyond(ctas_per_sm, count) + _beyond(rest, count) for count in CROWDS)
    return (
        1.0 + 0.0 * work, waves, waves * mean, depth * mean, work, share, loop_trips, makespan, moved_mb,
        waves * loop_trips, depth * loop_trips, *(crowd * mean for crowd in crowds),
    )  # fmt: skip


def _beyond(value: Any, start: int) -> Any:
    """Return how far a value is beyond a start, at least 0."""
    return 0.5 * (value - start + abs(value - start))
