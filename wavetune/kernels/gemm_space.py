"""The GEMM configurations that calibration considers, by architecture.

Tiles, warps and stages come from a look at cold-cache timings on an H200 (2026-10, Triton 3.6) and from what the
tile needs: a decode tile has 16 rows and lives from bytes in flight, a prefill tile fills the matrix unit.
Whatever cannot run on the architecture (shared memory, TMA) is dropped by the kernel's own legality rules.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product

from wavetune.core.arch import ArchSpec
from wavetune.core.config import GEMM, KernelConfig
from wavetune.core.dtype import find_dtype
from wavetune.core.problem import GemmProblem
from wavetune.kernels.gemm import illegal_reason

_ROOMY = 2**14
_UNLIMITED = 2**31


@dataclass(frozen=True)
class ConfigFamily:
    """A product of field values around some tiles.

    Parameters
    ----------
    schedule : str
        ``tile``, ``persistent``, ``split_k`` or ``warp_specialized``.
    tiles : tuple of (int, int, int)
        ``(block_m, block_n, block_k)``.
    num_warps, num_stages, group_m, split_k, epilogue_split : tuple of int
        Values of the other fields.
    """

    schedule: str
    tiles: tuple[tuple[int, int, int], ...]
    num_warps: tuple[int, ...]
    num_stages: tuple[int, ...]
    group_m: tuple[int, ...] = (8,)
    split_k: tuple[int, ...] = (1,)
    epilogue_split: tuple[int, ...] = field(default=(1,))

    def configs(self, load: str) -> Iterator[KernelConfig]:
        """Yield every member with the given way of loading."""
        fields = (self.tiles, self.split_k, self.group_m, self.num_warps, self.num_stages, self.epilogue_split)
        for (block_m, block_n, block_k), split_k, group_m, num_warps, num_stages, epilogue_split in product(*fields):
            yield GEMM.config(
                {
                    "block_m": block_m, "block_n": block_n, "block_k": block_k, "split_k": split_k,
                    "schedule": self.schedule, "group_m": group_m, "num_warps": num_warps,
                    "num_stages": num_stages, "load": load, "epilogue_split": epilogue_split,
                }
            )  # fmt: skip


_TMA_FAMILIES = (
    # Decode: the weight streams through once; narrow tiles give every SM bytes to fetch.
    ConfigFamily("tile", ((16, 64, 128), (16, 128, 128)), (4,), (3, 4, 5, 6)),
    ConfigFamily("tile", ((16, 64, 256),), (4,), (3, 4, 5)),
    ConfigFamily("tile", ((16, 128, 64), (16, 64, 64)), (4,), (3, 4, 6, 8)),
    ConfigFamily("tile", ((32, 64, 128), (32, 128, 64)), (4,), (3, 4, 6)),
    ConfigFamily("tile", ((32, 128, 128), (32, 64, 256)), (4,), (3, 4)),
    ConfigFamily("split_k", ((16, 64, 128), (16, 128, 128)), (4,), (4, 6), split_k=(2, 3, 4, 6, 8, 12, 16)),
    ConfigFamily("split_k", ((16, 64, 256),), (4,), (3, 5), split_k=(2, 4, 6, 8)),
    ConfigFamily("split_k", ((32, 64, 128), (32, 128, 128)), (4,), (4,), split_k=(2, 3, 4, 6, 8, 16)),
    ConfigFamily("split_k", ((64, 64, 128), (64, 128, 64), (64, 128, 128)), (4,), (4,), split_k=(2, 3, 4, 6, 8)),
    # From a few dozen to a thousand rows.
    ConfigFamily("tile", ((64, 64, 64), (64, 64, 128)), (4,), (3, 4, 6), (8,)),
    ConfigFamily("tile", ((64, 128, 64), (64, 128, 128)), (4,), (3, 4, 6), (1, 8)),
    ConfigFamily("tile", ((64, 256, 64),), (4, 8), (3, 4), (1, 8)),
    ConfigFamily("tile", ((128, 64, 64), (128, 64, 128)), (4,), (3, 4, 6), (1, 8)),
    ConfigFamily("split_k", ((128, 128, 64),), (4, 8), (4,), split_k=(2, 3, 4, 6)),
    ConfigFamily("split_k", ((128, 64, 128), (128, 256, 64)), (8,), (3,), split_k=(2, 3, 4)),
    ConfigFamily("tile", ((128, 128, 64),), (4,), (3, 4, 5, 6), (1, 4, 8, 16)),
    ConfigFamily("tile", ((128, 128, 64),), (8,), (3, 4), (4, 8)),
    ConfigFamily("tile", ((128, 128, 128),), (8,), (3,), (4, 8)),
    ConfigFamily("tile", ((128, 256, 64), (256, 128, 64)), (8,), (3, 4), (4, 8, 16), epilogue_split=(1, 2)),
    # Prefill: the next tile's loads overlap the epilogue.
    ConfigFamily("persistent", ((128, 256, 64),), (8,), (3,), (2, 4, 8, 16, 32), epilogue_split=(1, 2)),
    ConfigFamily("persistent", ((256, 128, 64),), (8,), (3,), (2, 4, 8, 16), epilogue_split=(1, 2)),
    ConfigFamily("persistent", ((128, 256, 64), (256, 128, 64)), (8,), (4,), (2, 4, 8, 16), epilogue_split=(2,)),
    ConfigFamily("persistent", ((128, 128, 64),), (4, 8), (3, 4, 5), (4, 8, 16), epilogue_split=(1, 2)),
    ConfigFamily("persistent", ((128, 128, 128),), (8,), (3,), (8,), epilogue_split=(1, 2)),
    # Widths that fill the waves where powers of two do not.
    ConfigFamily("persistent", ((128, 192, 64), (128, 160, 64)), (4, 8), (3, 4), (8, 16)),
    ConfigFamily("tile", ((128, 192, 64), (128, 160, 64)), (4, 8), (3, 4), (8,)),
    ConfigFamily("tile", ((256, 160, 64), (256, 192, 64)), (8,), (3, 4), (8,)),
    ConfigFamily("tile", ((64, 192, 64), (64, 160, 64)), (4,), (4, 5), (8,)),
    ConfigFamily("tile", ((64, 192, 128), (64, 160, 128)), (4,), (3,), (8,)),
    ConfigFamily("tile", ((128, 160, 128),), (4, 8), (3,), (8,)),
    ConfigFamily("tile", ((64, 80, 128), (64, 96, 128)), (4,), (3, 4, 5), (8,)),
    ConfigFamily("tile", ((128, 80, 64), (128, 96, 64)), (4,), (4, 6), (8,)),
    ConfigFamily("tile", ((128, 80, 128), (128, 96, 128)), (4,), (3,), (8,)),
    ConfigFamily("split_k", ((64, 160, 64), (64, 192, 64)), (4,), (4,), split_k=(2, 3, 4)),
    ConfigFamily("split_k", ((128, 160, 64), (128, 192, 64)), (4,), (4,), split_k=(2, 3, 4)),
    ConfigFamily("persistent", ((64, 128, 64), (64, 128, 128)), (4,), (3, 4), (8,), epilogue_split=(1, 2)),
    ConfigFamily("persistent", ((64, 256, 64),), (4,), (3, 4), (8,), epilogue_split=(1, 2)),
    # One warp loads, two warpgroups multiply: as many stages as fit, since no second CTA would.
    ConfigFamily("warp_specialized", ((128, 256, 64),), (8,), (4,), (4, 8, 16), epilogue_split=(2,)),
    ConfigFamily("warp_specialized", ((128, 320, 64),), (8,), (3,), (8, 16), epilogue_split=(2,)),
    ConfigFamily("warp_specialized", ((128, 128, 64),), (8,), (6,), (8, 16)),
    ConfigFamily("warp_specialized", ((64, 256, 64),), (8,), (4,)),
    ConfigFamily("warp_specialized", ((64, 128, 64), (128, 64, 64)), (8,), (8,)),
    ConfigFamily("warp_specialized", ((128, 160, 64),), (8,), (5,), (8, 16)),
    ConfigFamily("warp_specialized", ((128, 192, 64),), (8,), (4,), (8, 16)),
    ConfigFamily("warp_specialized", ((128, 80, 64), (128, 96, 64)), (8,), (7,)),
)

_POINTER_FAMILIES = (
    ConfigFamily("tile", ((16, 64, 128), (16, 128, 64), (32, 64, 128)), (4,), (3, 4)),
    ConfigFamily("tile", ((64, 64, 64), (64, 128, 64), (128, 64, 64)), (4,), (3, 4)),
    ConfigFamily("tile", ((128, 128, 32),), (4, 8), (3,)),
    ConfigFamily("tile", ((128, 128, 64), (128, 256, 64)), (8,), (3,)),
    ConfigFamily("split_k", ((16, 64, 128),), (4,), (4,), split_k=(4, 8)),
    ConfigFamily("split_k", ((64, 64, 64),), (4,), (4,), split_k=(2, 4)),
)


def gemm_space(arch: ArchSpec, dtype: str = "bf16") -> list[KernelConfig]:
    """Return the candidate configurations of an architecture, without repeats, in a stable order.

    With TMA, pointer configurations remain as the fallback for unaligned operands; without it, every family
    loads by pointers.
    """
    probe = GemmProblem(_ROOMY, _ROOMY, _ROOMY, dtype=dtype)
    configs: dict[KernelConfig, None] = {}
    for family in _TMA_FAMILIES:
        for config in family.configs("tma" if arch.has_tma else "pointer"):
            configs[config if arch.has_tma else config.replace(epilogue_split=1)] = None
    for family in _POINTER_FAMILIES:
        configs.update(dict.fromkeys(family.configs("pointer")))
    return [config for config in configs if illegal_reason(probe, config, arch) is None]


_FALLBACK_BANDS = (
    (16, (16, 64, 128), 4, 4),
    (32, (32, 64, 128), 4, 3),
    (64, (64, 64, 64), 4, 4),
    (256, (64, 128, 64), 4, 3),
    (_UNLIMITED, (128, 128, 64), 8, 3),
)
"""``(largest m, (block_m, block_n, block_k), num_warps, num_stages)``. The tile grows with the rows that there are;
warps and stages are those of the pointer families above. Not tuned for any GPU."""

_SMALL_FALLBACKS = (((64, 64, 64), 4, 2), ((64, 64, 32), 4, 2), ((16, 16, 16), 4, 1))
"""``(tile, num_warps, num_stages)`` for GPUs with little shared memory, largest tile first."""

_BAND_FOR_ALL = 64
"""Rows whose tile serves every m where one must."""


def fallback_configs(problem: GemmProblem, arch: ArchSpec, *, one_for_all_m: bool = False) -> Iterator[KernelConfig]:
    """Yield legal configurations for a problem that no model covers, preferred ones first.

    Pointer loads and no split of k: legal for every alignment and size, deterministic, and a handful of kernels for
    all sizes together.

    Parameters
    ----------
    problem : GemmProblem
        What to compute.
    arch : ArchSpec
        The GPU.
    one_for_all_m : bool, default=False
        Whether m may not decide, so that a row's result does not depend on it.
    """
    m, scale_block = _BAND_FOR_ALL if one_for_all_m else problem.m, find_dtype(problem.dtype).scale_block
    candidates = [band[1:] for band in _FALLBACK_BANDS if m <= band[0]][:1]
    for (block_m, block_n, block_k), num_warps, num_stages in (*candidates, *_SMALL_FALLBACKS):
        config = GEMM.config(
            {
                "block_m": block_m, "block_n": block_n, "block_k": scale_block or block_k, "group_m": 8,
                "num_warps": num_warps, "num_stages": num_stages,
            }
        )  # fmt: skip
        if illegal_reason(problem, config, arch) is None:
            yield config


def fallback_rows(m_range: tuple[int, int]) -> list[int]:
    """Return one m of a range, ends included, for every configuration that `fallback_configs` prefers there."""
    low, high = m_range
    return [low, *(band[0] + 1 for band in _FALLBACK_BANDS if low <= band[0] < high)]
