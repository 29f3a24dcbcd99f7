"""A space of configurations as compiled for an H200."""

from __future__ import annotations

from itertools import product

import pytest

from wavetune.core.config import GEMM
from wavetune.store.record import CompiledConfig


def compiled(block_m: int, block_n: int, block_k: int, num_stages: int = 3, **fields: int | str) -> CompiledConfig:
    """Guess registers and shared memory as the compiler would need them."""
    num_warps = 8 if block_m * block_n > 8192 else 4
    config = GEMM.config(
        {"block_m": block_m, "block_n": block_n, "block_k": block_k, "group_m": 8, "num_warps": num_warps,
         "num_stages": num_stages, **fields}
    )  # fmt: skip
    num_regs = min(255, 40 + block_m * block_n // (num_warps * 32))
    return CompiledConfig(config, num_regs, 0, (block_m + block_n) * block_k * 2 * num_stages)


@pytest.fixture(scope="session")
def space() -> tuple[CompiledConfig, ...]:
    """Tile, persistent and split-k configurations."""
    tiles = list(product((16, 32, 64, 128), (32, 64, 128, 256), (32, 64)))
    return (
        *(compiled(*tile) for tile in tiles),
        *(compiled(*tile, schedule="persistent", load="tma") for tile in tiles[-4:]),
        *(compiled(16, 64, 128, schedule="split_k", split_k=split_k) for split_k in (2, 3, 6)),
    )
