"""The grouped GEMM configurations that calibration considers, by architecture.

Tiles follow from the tokens that an expert gets. With a handful, the weight streams through 16-row tiles and bytes in
flight count; from a hundred on, the matrix unit decides. Between them lies most of a mixture of experts, and the height
of the tile trades padding against reuse.

fp8 has tiles of the same bytes: twice the k. A sum that is promoted lives twice in registers, see
`wavetune.kernels.gemm_scaled_space`, so its tiles have at most 64 elements for each thread. They were not timed yet.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from wavetune.core.arch import ArchSpec
from wavetune.core.config import GROUPED_GEMM, KernelConfig
from wavetune.core.dtype import find_dtype
from wavetune.core.grouped_problem import GroupedGemmProblem
from wavetune.kernels.grouped_gemm_dispatch import illegal_reason


@dataclass(frozen=True)
class GroupedConfigs:
    """A product of field values around some tiles.

    Parameters
    ----------
    schedule : str
        ``tile`` or ``persistent``.
    tiles : tuple of (int, int, int)
        ``(block_m, block_n, block_k)``.
    num_warps, num_stages, group_m : tuple of int
        Values of the other fields.
    """

    schedule: str
    tiles: tuple[tuple[int, int, int], ...]
    num_warps: tuple[int, ...]
    num_stages: tuple[int, ...]
    group_m: tuple[int, ...] = (8,)

    def configs(self, load: str) -> Iterator[KernelConfig]:
        """Yield every member with the given way of loading."""
        fields = (self.tiles, self.group_m, self.num_warps, self.num_stages)
        for (block_m, block_n, block_k), group_m, num_warps, num_stages in product(*fields):
            yield GROUPED_GEMM.config(
                {
                    "block_m": block_m, "block_n": block_n, "block_k": block_k, "schedule": self.schedule,
                    "group_m": group_m, "num_warps": num_warps, "num_stages": num_stages, "load": load,
                }
            )  # fmt: skip


_TMA = (
    # A few tokens an expert: the weights stream through once.
    GroupedConfigs("tile", ((16, 64, 128), (16, 128, 128)), (4,), (3, 4, 5, 6)),
    GroupedConfigs("tile", ((16, 32, 128), (16, 32, 256)), (4,), (4, 6)),
    GroupedConfigs("tile", ((16, 64, 256), (16, 128, 64)), (4,), (3, 4, 5, 6)),
    GroupedConfigs("persistent", ((16, 64, 128), (16, 128, 128), (16, 64, 256)), (4,), (3, 4, 5)),
    GroupedConfigs("tile", ((32, 64, 128), (32, 128, 128), (32, 128, 64), (32, 256, 64)), (4,), (3, 4, 6)),
    GroupedConfigs("persistent", ((32, 64, 128), (32, 128, 128)), (4,), (3, 4)),
    # Dozens: padding against reuse.
    GroupedConfigs("tile", ((64, 64, 64), (64, 64, 128)), (4,), (3, 4)),
    GroupedConfigs("tile", ((64, 128, 64), (64, 128, 128)), (4,), (3, 4, 5), (1, 8)),
    GroupedConfigs("tile", ((64, 256, 64),), (4, 8), (3, 4), (1, 8)),
    GroupedConfigs("persistent", ((64, 128, 64), (64, 128, 128), (64, 256, 64)), (4,), (3, 4)),
    # Hundreds and more.
    GroupedConfigs("tile", ((128, 64, 64), (128, 64, 128)), (4,), (3, 4)),
    GroupedConfigs("tile", ((128, 128, 64),), (4, 8), (3, 4, 5), (4, 8)),
    GroupedConfigs("tile", ((128, 128, 128),), (8,), (3,), (8,)),
    GroupedConfigs("tile", ((128, 256, 64), (256, 128, 64)), (8,), (3, 4), (4, 8)),
    GroupedConfigs("persistent", ((128, 128, 64),), (4, 8), (3, 4), (4, 8)),
    GroupedConfigs("persistent", ((128, 256, 64), (256, 128, 64)), (8,), (3, 4), (4, 8)),
)

_POINTER = (
    GroupedConfigs("tile", ((16, 64, 128), (32, 64, 128)), (4,), (3, 4)),
    GroupedConfigs("tile", ((64, 64, 64), (64, 128, 64)), (4,), (3,)),
    GroupedConfigs("tile", ((128, 128, 32),), (4,), (3,)),
    GroupedConfigs("tile", ((128, 128, 64),), (8,), (3,)),
)

_SCALED_TMA = (
    # A few tokens an expert.
    GroupedConfigs("tile", ((16, 64, 128), (16, 128, 128)), (4,), (4, 6, 8)),
    GroupedConfigs("tile", ((16, 64, 256), (16, 128, 256)), (4,), (3, 4, 5)),
    GroupedConfigs("tile", ((16, 256, 128),), (4,), (3, 4, 5)),
    GroupedConfigs("persistent", ((16, 64, 128), (16, 128, 128), (16, 64, 256)), (4,), (4, 6)),
    GroupedConfigs("persistent", ((16, 128, 256), (16, 256, 128)), (4,), (3, 4)),
    GroupedConfigs("tile", ((32, 64, 128), (32, 128, 128)), (4,), (4, 6)),
    GroupedConfigs("tile", ((32, 64, 256), (32, 128, 256), (32, 256, 128)), (4,), (3, 4)),
    GroupedConfigs("persistent", ((32, 64, 128), (32, 128, 128)), (4,), (4, 6)),
    # Dozens.
    GroupedConfigs("tile", ((64, 64, 128),), (4,), (3, 4, 6)),
    GroupedConfigs("tile", ((64, 64, 256),), (4,), (3, 4)),
    GroupedConfigs("tile", ((64, 128, 128),), (4,), (3, 4, 6), (1, 8)),
    GroupedConfigs("tile", ((64, 128, 256),), (4,), (3,), (1, 8)),
    GroupedConfigs("tile", ((64, 256, 128),), (8,), (3, 4), (1, 8)),
    GroupedConfigs("persistent", ((64, 128, 128), (64, 64, 256)), (4,), (3, 4)),
    GroupedConfigs("persistent", ((64, 256, 128),), (8,), (3, 4)),
    # Hundreds and more.
    GroupedConfigs("tile", ((128, 64, 128), (128, 64, 256)), (4,), (3, 4)),
    GroupedConfigs("tile", ((128, 128, 128),), (8,), (3, 4, 5), (4, 8)),
    GroupedConfigs("tile", ((128, 128, 256),), (8,), (3,), (4, 8)),
    GroupedConfigs("persistent", ((128, 64, 128),), (4,), (3, 4)),
    GroupedConfigs("persistent", ((128, 128, 128),), (8,), (3, 4, 5), (4, 8)),
    GroupedConfigs("persistent", ((128, 128, 256),), (8,), (3,), (4, 8)),
)

_UNPROMOTED_TMA = (
    GroupedConfigs("tile", ((64, 256, 128),), (4,), (3, 4), (1, 8)),
    GroupedConfigs("tile", ((128, 128, 128),), (4,), (3, 4), (4, 8)),
    GroupedConfigs("tile", ((128, 256, 128), (256, 128, 128)), (8,), (3, 4), (4, 8)),
    GroupedConfigs("persistent", ((64, 256, 128), (128, 128, 128)), (4,), (3, 4)),
    GroupedConfigs("persistent", ((128, 256, 128), (256, 128, 128)), (8,), (3, 4), (4, 8)),
)
"""Larger tiles, for sums that are not promoted."""

_SCALED_POINTER = (
    GroupedConfigs("tile", ((16, 64, 128), (32, 64, 128)), (4,), (3, 4)),
    GroupedConfigs("tile", ((64, 64, 128), (64, 128, 128)), (4,), (3,)),
    GroupedConfigs("tile", ((128, 128, 128),), (8,), (3,)),
)


def grouped_space(arch: ArchSpec, dtype: str = "bf16", layout: str = "nk") -> list[KernelConfig]:
    """Return the candidate configurations of an architecture, without repeats, in a stable order.

    With TMA, pointer configurations remain as the fallback for unaligned operands; without it, all load by pointers.
    There is none where the matrix unit does not take the dtype.
    """
    families: tuple[GroupedConfigs, ...] = _TMA
    pointer_families: tuple[GroupedConfigs, ...] = _POINTER
    if find_dtype(dtype).is_scaled:
        families, pointer_families = _SCALED_TMA, _SCALED_POINTER
        if find_dtype(dtype).name == "fp8_fast":
            families = (*families, *_UNPROMOTED_TMA)
    probe = GroupedGemmProblem((2**14,) * 8, 2**14, 2**14, dtype=dtype, layout=layout)
    configs: dict[KernelConfig, None] = {}
    for family in families:
        configs.update(dict.fromkeys(family.configs("tma" if arch.has_tma else "pointer")))
    for family in pointer_families:
        configs.update(dict.fromkeys(family.configs("pointer")))
    return [config for config in configs if illegal_reason(probe, config, arch) is None]


_FALLBACKS = (
    (16, (16, 64, 128), 4, 3),
    (32, (32, 64, 128), 4, 3),
    (128, (64, 128, 64), 4, 3),
    (2**31, (128, 128, 64), 8, 3),
    # For GPUs with little shared memory.
    (2**31, (64, 64, 32), 4, 2),
    (2**31, (16, 32, 16), 4, 1),
)
"""``(most tokens of an active expert, tile, num_warps, num_stages)``. Not tuned for any GPU."""


def grouped_fallback_configs(problem: GroupedGemmProblem, arch: ArchSpec) -> Iterator[KernelConfig]:
    """Yield legal configurations for a problem that no model covers, preferred ones first; all load by pointers."""
    mean = problem.tokens / max(problem.active, 1)
    # As many bytes a row as of bf16.
    longer = 2 if find_dtype(problem.dtype).is_scaled else 1
    for most, (block_m, block_n, block_k), num_warps, num_stages in _FALLBACKS:
        if mean > most:
            continue
        config = GROUPED_GEMM.config(
            {
                "block_m": block_m, "block_n": block_n, "block_k": longer * block_k, "schedule": "tile", "group_m": 8,
                "num_warps": num_warps, "num_stages": num_stages, "load": "pointer",
            }
        )  # fmt: skip
        if illegal_reason(problem, config, arch) is None:
            yield config
