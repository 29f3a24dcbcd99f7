"""Configurations in a few characters."""

from __future__ import annotations

from wavetune.core.shorthand import describe_config, name_sizes


def test_attention_has_a_shorthand() -> None:
    """Tile, warps, stages, order and masking; a limit of registers only where there is one; other fields by name."""
    config = {
        "block_m": 128, "block_n": 64, "order": "longest_first", "masking": "edges", "num_warps": 4, "num_stages": 3,
        "max_registers": 255,
    }  # fmt: skip
    assert describe_config(config) == "128x64 w4 s3 longest_first edges"
    assert describe_config({**config, "max_registers": 168}) == "128x64 w4 s3 longest_first edges r168"
    assert describe_config({"block_n": 64, "splits": 4, "num_warps": 4}) == "w4 block_n=64 splits=4"


def test_sizes_have_names() -> None:
    """In the order of the key."""
    assert name_sizes(("experts", "tokens"), (8, 512)) == "experts=8 tokens=512"
