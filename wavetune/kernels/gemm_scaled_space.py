"""The fp8 configurations that calibration considers.

An element is half as wide as bf16's, so a trip takes twice the k: 128 elements are the 128 bytes of one swizzled row of
shared memory. A sum that is promoted lives twice in registers. With 128 of each for a thread (128 x 256 for 8 warps,
128 x 128 for 4) 16 to 60 are spilled, in the loop three loads a trip and fifteen at a promotion (compiled for sm_90
with Triton 3.6, 2026-11), while wider instructions read less shared memory for a product. Larger tiles spill hundreds.
What a calibration on an H200 (2026-11, 151 configurations) never kept is no longer here.
"""

from __future__ import annotations

from wavetune.core.arch import ArchSpec
from wavetune.core.config import KernelConfig
from wavetune.core.dtype import find_dtype
from wavetune.core.problem import GemmProblem
from wavetune.kernels.gemm import illegal_reason
from wavetune.kernels.gemm_space import ConfigFamily

_ROOMY = 2**14

_FAMILIES = (
    # Decode: the weight streams through once; bytes in flight count.
    ConfigFamily("tile", ((16, 64, 128), (16, 128, 128)), (4,), (4, 6)),
    ConfigFamily("tile", ((16, 64, 256), (16, 128, 256)), (4,), (3, 4, 5)),
    ConfigFamily("tile", ((32, 64, 128), (32, 128, 128)), (4,), (4, 6)),
    ConfigFamily("tile", ((32, 64, 256), (32, 128, 256)), (4,), (3, 4)),
    ConfigFamily("split_k", ((16, 64, 128), (16, 128, 128)), (4,), (4,), split_k=(2, 3, 4, 6, 8)),
    ConfigFamily("split_k", ((16, 64, 128),), (4,), (6,), split_k=(2, 3, 8, 16)),
    ConfigFamily("split_k", ((16, 64, 256), (16, 128, 256)), (4,), (4,), split_k=(2, 4, 6, 8)),
    ConfigFamily("split_k", ((32, 64, 128), (32, 128, 128)), (4,), (4,), split_k=(3, 4, 6, 8)),
    ConfigFamily("split_k", ((64, 64, 128), (64, 128, 128)), (4,), (4,), split_k=(2, 3, 4, 6, 8)),
    # From a few dozen to a thousand rows.
    ConfigFamily("tile", ((64, 64, 128),), (4,), (3, 4, 6)),
    ConfigFamily("tile", ((64, 64, 256),), (4,), (3, 4)),
    ConfigFamily("tile", ((64, 128, 128),), (4,), (3, 4, 6), (1, 8)),
    ConfigFamily("tile", ((64, 128, 256),), (4,), (3,)),
    ConfigFamily("tile", ((128, 64, 128),), (4,), (3, 4), (1, 8)),
    ConfigFamily("tile", ((64, 256, 128),), (8,), (3, 4)),
    ConfigFamily("split_k", ((64, 128, 128),), (4,), (6,), split_k=(2, 3, 4)),
    ConfigFamily("split_k", ((64, 128, 256),), (4,), (3,), split_k=(2, 3, 4)),
    ConfigFamily("split_k", ((128, 128, 128),), (8,), (4,), split_k=(2, 3, 4, 6)),
    ConfigFamily("split_k", ((128, 128, 128),), (8,), (5,), split_k=(2, 3, 4, 5, 6)),
    ConfigFamily("split_k", ((128, 64, 128),), (4,), (4,), split_k=(2, 3)),
    # Prefill.
    ConfigFamily("tile", ((128, 128, 128),), (8,), (4, 5), (8, 16)),
    ConfigFamily("tile", ((128, 128, 256),), (8,), (3,), (8,)),
    ConfigFamily("persistent", ((128, 128, 128),), (8,), (4,), (8, 16)),
    ConfigFamily("persistent", ((128, 128, 128),), (8,), (5,), (4, 8, 16), epilogue_split=(2,)),
    ConfigFamily("persistent", ((64, 128, 128), (128, 64, 128)), (4,), (3, 4), (8,)),
    ConfigFamily("persistent", ((64, 256, 128),), (8,), (4,), (8,)),
    # Two CTAs on an SM: the one's promotion, or its last store, hides behind the other's products.
    ConfigFamily("tile", ((128, 128, 128),), (4,), (3,), (8, 16)),
    ConfigFamily("persistent", ((128, 128, 128),), (4,), (3,), (8, 16), epilogue_split=(2,)),
    ConfigFamily("split_k", ((128, 128, 128),), (4,), (3,), split_k=(2, 3, 4)),
    # The widest instruction.
    ConfigFamily("tile", ((128, 256, 128),), (8,), (3, 4), (4, 8, 16)),
    ConfigFamily("tile", ((128, 256, 128),), (8,), (4,), (8, 16), epilogue_split=(2,)),
    ConfigFamily("tile", ((256, 128, 128),), (8,), (4,), (4, 8)),
    ConfigFamily("persistent", ((128, 256, 128),), (8,), (3,), (4, 8, 16), epilogue_split=(1, 2)),
    ConfigFamily("persistent", ((128, 256, 128),), (8,), (4,), (4, 8, 16), epilogue_split=(2,)),
    ConfigFamily("persistent", ((256, 128, 128),), (8,), (3,), (4, 8), epilogue_split=(2,)),
    ConfigFamily("split_k", ((128, 256, 128),), (8,), (4,), split_k=(2, 3, 4, 6)),
    ConfigFamily("split_k", ((256, 128, 128),), (8,), (4,), split_k=(2, 3, 4)),
    # Widths that fill the waves where powers of two do not.
    ConfigFamily("tile", ((128, 160, 128), (128, 192, 128)), (8,), (4,), (4, 8, 16)),
    ConfigFamily("tile", ((128, 160, 128), (128, 192, 128)), (8,), (5,), (8, 16)),
    ConfigFamily("persistent", ((128, 160, 128), (128, 192, 128)), (8,), (3,), (8,)),
    ConfigFamily("persistent", ((128, 160, 128), (128, 192, 128)), (8,), (4,), (4, 8, 16)),
    ConfigFamily("split_k", ((128, 160, 128), (128, 192, 128)), (8,), (4,), split_k=(2, 3, 4, 6)),
    ConfigFamily("tile", ((64, 160, 128), (64, 192, 128)), (4,), (3, 4)),
    ConfigFamily("persistent", ((64, 160, 128), (64, 192, 128)), (4,), (3,)),
    ConfigFamily("split_k", ((64, 160, 128), (64, 192, 128)), (4,), (3,), split_k=(2, 3, 4)),
    ConfigFamily("tile", ((64, 80, 128), (64, 96, 128)), (4,), (4, 6)),
    ConfigFamily("tile", ((128, 80, 128), (128, 96, 128)), (4,), (3, 4)),
)

_SPECIALIZED_FAMILIES = (
    ConfigFamily("warp_specialized", ((128, 128, 128),), (8,), (5, 6), (4, 8, 16)),
    ConfigFamily("warp_specialized", ((64, 256, 128),), (8,), (4,), (8, 16)),
    ConfigFamily("warp_specialized", ((64, 128, 128), (128, 64, 128)), (8,), (6, 8)),
    ConfigFamily("warp_specialized", ((128, 160, 128),), (8,), (5,), (8, 16)),
    ConfigFamily("warp_specialized", ((128, 192, 128),), (8,), (4,), (8, 16)),
    ConfigFamily("warp_specialized", ((128, 80, 128), (128, 96, 128)), (8,), (7,)),
)
"""One warp loads, two warpgroups multiply; sums of 64 x 256 for a warpgroup fit only where they are not promoted."""

_UNPROMOTED_FAMILIES = (
    ConfigFamily("warp_specialized", ((128, 256, 128),), (8,), (3,), (4, 8, 16)),
    ConfigFamily("warp_specialized", ((128, 256, 128),), (8,), (4,), (4, 8, 16), epilogue_split=(2,)),
    ConfigFamily("warp_specialized", ((128, 320, 128),), (8,), (3,), (8, 16), epilogue_split=(2,)),
    ConfigFamily("tile", ((64, 256, 128),), (4,), (3, 4)),
    ConfigFamily("tile", ((128, 128, 128),), (4,), (4, 6), (8, 16)),
    ConfigFamily("tile", ((256, 128, 128),), (8,), (3, 4), (8, 16), epilogue_split=(1, 2)),
    ConfigFamily("persistent", ((64, 256, 128),), (4,), (3, 4)),
    ConfigFamily("persistent", ((128, 128, 128),), (4,), (4,), (8,)),
    ConfigFamily("persistent", ((256, 128, 128),), (8,), (3,), (4, 8, 16), epilogue_split=(1, 2)),
    ConfigFamily("persistent", ((256, 128, 128),), (8,), (4,), (4, 8), epilogue_split=(2,)),
    ConfigFamily("tile", ((128, 160, 128), (128, 192, 128)), (4,), (3,)),
    ConfigFamily("persistent", ((128, 160, 128), (128, 192, 128)), (4,), (3, 4)),
    ConfigFamily("tile", ((256, 160, 128), (256, 192, 128)), (8,), (3,)),
)
"""Tiles whose sums fit the registers only where they are not promoted."""

_POINTER_FAMILIES = (
    ConfigFamily("tile", ((16, 64, 128), (32, 64, 128)), (4,), (3, 4)),
    ConfigFamily("tile", ((64, 64, 128), (64, 128, 128)), (4,), (3,)),
    ConfigFamily("tile", ((128, 128, 128),), (8,), (3,)),
    ConfigFamily("split_k", ((16, 64, 128),), (4,), (4,), split_k=(4, 8)),
    ConfigFamily("split_k", ((64, 64, 128),), (4,), (3,), split_k=(2, 4)),
)


def scaled_space(arch: ArchSpec, dtype: str = "fp8") -> list[KernelConfig]:
    """Return the candidate configurations of a scaled dtype, without repeats, in a stable order; maybe none."""
    probe = GemmProblem(_ROOMY, _ROOMY, _ROOMY, dtype=dtype)
    families: tuple[ConfigFamily, ...] = (*_FAMILIES, *_SPECIALIZED_FAMILIES)
    if find_dtype(dtype).name == "fp8_fast":
        families = (*families, *_UNPROMOTED_FAMILIES)
    configs: dict[KernelConfig, None] = {}
    for family in families:
        for config in family.configs("tma" if arch.has_tma else "pointer"):
            configs[config if arch.has_tma else config.replace(epilogue_split=1)] = None
    for family in _POINTER_FAMILIES:
        configs.update(dict.fromkeys(family.configs("pointer")))
    return [config for config in configs if illegal_reason(probe, config, arch) is None]
