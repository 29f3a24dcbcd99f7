"""Measurement files of a GPU whose latencies follow a formula."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from pathlib import Path

CONFIGS = [(16, 64, 128), (32, 64, 128), (64, 64, 64), (64, 128, 64), (128, 128, 64), (128, 64, 64)]
LAYERS = [
    (2048, 1024), (4096, 4096), (6144, 4096), (1024, 2048), (8192, 2048), (4096, 8192), (3072, 3072), (5120, 1536),
]  # fmt: skip
HEADER = [
    "m", "n", "k", "block_m", "block_n", "block_k", "group_m", "num_warps", "num_stages", "num_regs", "num_spills",
    "smem_bytes", "latency_us",
]  # fmt: skip


def latency_us(m: int, n: int, k: int, blocks: tuple[int, int, int]) -> float:
    """Return the latency of the made-up GPU: a launch, the trips of the busiest SM, and the bytes."""
    block_m, block_n, block_k = blocks
    depth = -(-(-(-m // block_m) * -(-n // block_n)) // 132)
    trip_us = 0.08 + block_m * block_n * block_k * 2 / 5e6
    return round(4 + depth * -(-k // block_k) * trip_us + (m * k + n * k + m * n) * 2 / 3.5e6, 3)


def write_rows(path: Path, shapes: Iterable[tuple[int, int, int]], every: int = 1) -> Path:
    """Write a measurement file: each shape with each configuration, or every so many-th pair."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(HEADER)
        pairs = [(shape, blocks) for shape in shapes for blocks in CONFIGS]
        for shape, blocks in pairs[::every]:
            smem = (blocks[0] + blocks[1]) * blocks[2] * 6
            writer.writerow([*shape, *blocks, 8, 4, 3, 96, 0, smem, latency_us(*shape, blocks)])
    return path
