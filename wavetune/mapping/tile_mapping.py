"""The result of mapping a problem to a configuration."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TileMapping:
    """What one launch asks of the GPU.

    Parameters
    ----------
    grid_size : int
        Units of work that occupy an SM slot: output tiles times k splits. A persistent kernel
        maps its tiles, not its launched CTAs.
    loop_trips : int
        Trips of the main loop in each unit.
    tiles_m, tiles_n : int
        Output tiles along m and n.
    compulsory_bytes : int
        Every input read once and the output written once.
    reread_bytes : int
        Weight bytes that pass through the last-level cache again, see `wavetune.mapping.gemm`.
    workspace_bytes : int
        Partial sums written and read again by a split-k reduction.
    flops : int
        Multiply-adds counted as two.
    """

    grid_size: int
    loop_trips: int
    tiles_m: int
    tiles_n: int
    compulsory_bytes: int
    reread_bytes: int
    workspace_bytes: int
    flops: int
