"""The terms of the latency model for any kernel that a `wavetune.mapping.kernel_mapping.KernelMapping` describes.

With W waves, D the depth (CTAs of the busiest SM), G the grid, L the loop trips of the longest CTA, T the trips of all
CTAs together, m = T / G those of the mean one, S the number of SMs and B the megabytes that must move through DRAM:

    latency_us =  launch + (wave + wave_trip m) W + depth_trip m D + (work G + work_trip T) / S
                + longest L + makespan max(L, T / S) + bytes B

These are the terms of `wavetune.waves.terms` without those that only a GEMM has, and two for CTAs of different length.
List scheduling comes to ``max(L, T / S)`` trips if the longest CTAs begin first, and to ``T / S + L / 2`` in any order
that has nothing to do with length; a sum of both terms and `work_trip` is either. Every coefficient is non-negative, so
that more work never takes less.
"""

from __future__ import annotations

from typing import Any

FAMILY_TERMS = ("launch", "wave", "wave_trip", "depth_trip", "work", "work_trip", "longest", "makespan", "bytes")
"""Coefficient names in table order."""

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
}
"""Unit of each coefficient; 1 MB is 1e6 bytes."""


def family_terms(
    *, grid_size: Any, loop_trips: Any, total_trips: Any, waves: Any, depth: Any, num_sms: Any, moved_mb: Any
) -> tuple[Any, ...]:
    """Return the value of each term of `FAMILY_TERMS`; works on floats and on float arrays of one shape."""
    # An empty grid has no mean, and no trips.
    work, share, mean = grid_size / num_sms, total_trips / num_sms, total_trips / (grid_size + (grid_size == 0))
    # The larger one without a branch or a function of floats alone.
    makespan = 0.5 * (loop_trips + share + abs(loop_trips - share))
    return (1.0 + 0.0 * work, waves, waves * mean, depth * mean, work, share, loop_trips, makespan, moved_mb)
