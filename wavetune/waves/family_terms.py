"""The terms of the latency model for any kernel that a `wavetune.mapping.kernel_mapping.KernelMapping` describes.

With W waves, D the depth (CTAs of the busiest SM), G the grid, L the loop trips of a CTA, T the trips of all CTAs
together, S the number of SMs and B the megabytes that must move through DRAM:

    latency_us =  launch + (wave + wave_trip L) W + depth_trip L D + (work G + work_trip T) / S + bytes B

These are the terms of `wavetune.waves.terms` without those that only a GEMM has. Every coefficient is non-negative.
"""

from __future__ import annotations

from typing import Any

FAMILY_TERMS = ("launch", "wave", "wave_trip", "depth_trip", "work", "work_trip", "bytes")
"""Coefficient names in table order."""

FAMILY_TERM_UNITS = {
    "launch": "us",
    "wave": "us/wave",
    "wave_trip": "us/(wave trip)",
    "depth_trip": "us/(CTA trip)",
    "work": "us SM/CTA",
    "work_trip": "us SM/(CTA trip)",
    "bytes": "us/MB",
}
"""Unit of each coefficient; 1 MB is 1e6 bytes."""


def family_terms(
    *, grid_size: Any, loop_trips: Any, total_trips: Any, waves: Any, depth: Any, num_sms: Any, moved_mb: Any
) -> tuple[Any, ...]:
    """Return the value of each term of `FAMILY_TERMS`; works on floats and on float arrays of one shape."""
    work = grid_size / num_sms
    return (1.0 + 0.0 * work, waves, waves * loop_trips, depth * loop_trips, work, total_trips / num_sms, moved_mb)
