"""NVFP4 scales: blocks of 16 elements to CTAs and bytes; a one-dimensional grid without a loop over anything."""

from __future__ import annotations

from wavetune.core.config import NVFP4_SCALES
from wavetune.mapping.kernel_mapping import KernelMapping

BLOCK_ELEMENTS = 16
"""Elements that share a scale in NVFP4."""

NVFP4_MAPPING = KernelMapping(
    NVFP4_SCALES.name,
    NVFP4_SCALES.dims,
    grid_size=lambda key, config: -(-key["blocks"] // config["blocks_per_cta"]),
    loop_trips=lambda key, config: 1,
    # 16-bit elements are read, and fp32 amaxes written.
    bytes_moved=lambda key, config: key["blocks"] * (2 * BLOCK_ELEMENTS + 4),
)
