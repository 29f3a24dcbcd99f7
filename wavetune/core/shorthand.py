"""Configurations, sizes and times in a few characters: the one spelling of tables, reports and messages."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

_MARKS = {
    "num_warps": "w", "num_stages": "s", "group_m": "g", "epilogue_split": "e", "split_k": "split",
    "max_registers": "r",
}  # fmt: skip
_PLAIN: Mapping[str, int | str] = {
    "split_k": 1, "epilogue_split": 1, "schedule": "tile", "load": "pointer", "max_registers": 255,
}  # fmt: skip
"""What a kernel has where nothing is asked of it. 255 registers are all that a thread can have: no limit."""

_ORDER = (
    "num_warps", "num_stages", "group_m", "split_k", "schedule", "load", "epilogue_split", "order", "masking",
    "max_registers",
)  # fmt: skip
_TILES = (("block_m", "block_n", "block_k"), ("block_m", "block_n"))
"""Block sizes that are written as a tile; others by their names."""


def describe_config(config: Mapping[str, int | str]) -> str:
    """Describe a configuration in the shorthand of tables: tile, then what differs from the plainest kernel.

    ``128x256x64 w8 s3 g8 persistent tma e2`` is block sizes, warps, stages, group_m, schedule, load and
    epilogue_split; a split of k is ``split4``. Attention has ``128x64 w4 s3 longest_first edges``: its tile, order of
    CTAs, masking, and a limit of registers such as ``r168``. What has no shorthand is written ``name=value``.
    """
    rest = dict(config)
    words = []
    tile = next((names for names in _TILES if all(name in rest for name in names)), ())
    if tile:
        words.append("x".join(str(rest.pop(name)) for name in tile))
    # split_k above 1 says the schedule already.
    if rest.get("split_k", 1) != 1:
        rest.pop("schedule", None)
    for name in _ORDER:
        if name in rest:
            value = rest.pop(name)
            if _PLAIN.get(name) != value:
                words.append(f"{_MARKS.get(name, '')}{value}")
    return " ".join([*words, *(f"{name}={value}" for name, value in rest.items())])


def spell_config(config: Mapping[str, int | str]) -> str:
    """Write a configuration out, ``name=value`` separated by blanks."""
    return " ".join(f"{name}={value}" for name, value in config.items())


def name_sizes(names: Sequence[str], sizes: Sequence[int]) -> str:
    """Write problem sizes with their names, ``experts=8 tokens=512``."""
    return " ".join(f"{name}={size}" for name, size in zip(names, sizes, strict=True))


def format_sizes(sizes: Sequence[int]) -> str:
    """Write problem sizes as ``m x n x k``."""
    return " x ".join(map(str, sizes))


def format_us(latency_us: float) -> str:
    """Write a latency with three to four significant digits."""
    if math.isnan(latency_us):
        return "?"
    return f"{latency_us:.2f}" if latency_us < 100 else f"{latency_us:,.1f}"
