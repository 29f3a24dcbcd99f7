"""The terms of the latency model, in one place for the fit (arrays) and the runtime (floats).

With W waves, D the depth (CTAs of the busiest SM), G the grid, L the loop trips and S the number of SMs:

    latency_us =  launch + (wave + wave_trip L) W + depth_trip L D + (work + work_trip L) G / S
                + compulsory C + reread R + workspace P + sustained F

W and D are constant inside a wave, so within one wave regime this is the bilinear form of the WaveTune paper,
``alpha G L + beta G + gamma L + delta``, whose coefficients are linear in the wave counts instead of free for
each count. W counts passes of whole waves (latency-bound work), D counts the CTAs an SM runs one after another
(throughput-bound work); an SM with two resident CTAs is between the two. C, R and P are megabytes moved through
DRAM; F is the work beyond `SUSTAINED_ONSET_US` at the peak rate, where the power limit lowers the clock.
Every coefficient is non-negative, so latency is positive and never falls when work is added. Terms in L alone
and in D alone were tried and bought nothing (ARCHITECTURE.md, decision 3).
"""

from __future__ import annotations

from typing import Any

from wavetune.core.arch import ArchSpec

TERMS = (
    "launch",
    "wave",
    "wave_trip",
    "depth_trip",
    "work",
    "work_trip",
    "compulsory",
    "reread",
    "workspace",
    "sustained",
)
"""Coefficient names in table order."""

TERM_UNITS = {
    "launch": "us",
    "wave": "us/wave",
    "wave_trip": "us/(wave trip)",
    "depth_trip": "us/(CTA trip)",
    "work": "us SM/CTA",
    "work_trip": "us SM/(CTA trip)",
    "compulsory": "us/MB",
    "reread": "us/MB",
    "workspace": "us/MB",
    "sustained": "us/GFLOP",
}
"""Unit of each coefficient; 1 MB is 1e6 bytes."""

SUSTAINED_ONSET_US = 100.0
"""Launches longer than this at the peak rate run at a lower clock: on an H200 (2026-11, 330 GEMM configurations,
164 shapes) 100 us fits recorded sweeps better than 50 or 200 us."""

BYTES_PER_MB = 1e6
FLOPS_PER_GFLOP = 1e9


def sustained_onset_gflop(arch: ArchSpec) -> float:
    """Return the work, in GFLOP, that the GPU's peak bf16 rate does in `SUSTAINED_ONSET_US`."""
    return arch.bf16_tflops * SUSTAINED_ONSET_US / 1e3


def latency_terms(
    *,
    grid_size: Any,
    loop_trips: Any,
    waves: Any,
    depth: Any,
    num_sms: Any,
    compulsory_mb: Any,
    reread_mb: Any,
    workspace_mb: Any,
    sustained_gflop: Any,
) -> tuple[Any, ...]:
    """Return the value of each term of `TERMS`.

    Works on floats and on float arrays of one shape. ``sustained_gflop`` is the work beyond
    `sustained_onset_gflop`, not the whole.
    """
    work = grid_size / num_sms
    return (
        1.0 + 0.0 * work,
        waves,
        waves * loop_trips,
        depth * loop_trips,
        work,
        work * loop_trips,
        compulsory_mb,
        reread_mb,
        workspace_mb,
        sustained_gflop,
    )
