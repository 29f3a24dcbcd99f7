"""The fp8 kernels of the grouped GEMM family on the host: legality, and the launch of one problem."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

from triton.tools.tensor_descriptor import TensorDescriptor

from wavetune.core.arch import ArchSpec
from wavetune.core.config import KernelConfig
from wavetune.core.dtype import find_dtype
from wavetune.core.grouped_problem import GroupedGemmProblem
from wavetune.core.problem import GemmProblem
from wavetune.kernels import grouped_gemm_scaled_device
from wavetune.kernels.call import KernelCall, KernelVariant
from wavetune.kernels.gemm_descriptors import MAX_TMA_BOX, matrix_descriptor
from wavetune.kernels.gemm_scaled import PROMOTED_ELEMENTS, scaled_illegal_reason
from wavetune.kernels.grouped_gemm import (
    grid_size,
    grouped_illegal_reason,
    room_for,
    row_units,
    tile_width,
)
from wavetune.kernels.grouped_gemm_operands import GroupedGemmOperands
from wavetune.kernels.grouped_gemm_scales import grouped_scale_strides
from wavetune.mapping.gemm import ceil_div
from wavetune.mapping.numerics import WARPGROUP_ROWS


def scaled_grouped_illegal_reason(problem: GroupedGemmProblem, config: KernelConfig, arch: ArchSpec) -> str | None:
    """Say why a configuration cannot run an fp8 problem, or None if it can."""
    if find_dtype(problem.dtype).scale_block:
        return f"the grouped kernels take scales of tokens and of experts or their rows, not those of {problem.dtype}"
    # What the matrix unit takes does not depend on groups.
    reason = scaled_illegal_reason(GemmProblem(1, problem.n, problem.k, problem.dtype), config, arch)
    if reason is not None:
        return reason
    if config["load"] == "tma" and int(config["block_k"]) > MAX_TMA_BOX:
        return f"a TMA box has at most {MAX_TMA_BOX} elements a side"
    # The other rules count bytes: two elements are one of bf16.
    twin = replace(problem, dtype="bf16", k=ceil_div(problem.k, 2))
    return grouped_illegal_reason(twin, config.replace(block_k=int(config["block_k"]) // 2), arch)


@lru_cache(maxsize=8192)
def scaled_grouped_variant(
    config: KernelConfig, arch: ArchSpec, dtype: str, out_dtype: str, layout: str, groups: int, is_offsets: bool,
    units: tuple[int, int],
) -> KernelVariant:  # fmt: skip
    """Return what a configuration compiles. Independent of sizes, and of how scales are spread.

    Parameters
    ----------
    config : KernelConfig
        A complete, legal configuration.
    arch : ArchSpec
        The GPU.
    dtype, out_dtype, layout : str
        Of the operands and the result; that of the result only keeps variants apart.
    groups : int
        Experts that the kernel has room for, a power of two.
    is_offsets : bool
        Whether groups are given by where they begin.
    units : tuple of int
        Elements of 16 bytes of the inputs' rows and of the result's; 1 where they are not aligned to that.
    """
    block_k = int(config["block_k"])
    constants = {name.upper(): config[name] for name in ("block_m", "block_n", "block_k", "group_m")}
    constants |= {
        "GROUPS": groups,
        "IS_OFFSETS": is_offsets,
        "IS_TMA": config["load"] == "tma",
        "SWAP": _is_swapped(config, arch, layout),
        "GATED": layout == "gated",
        "PROMOTE": 0 if dtype == "fp8_fast" else max(PROMOTED_ELEMENTS // block_k, 1),
        "UNIT_K": units[0],
        "UNIT_N": units[1],
    }
    is_persistent = config["schedule"] == "persistent"
    kernel: Any = (
        grouped_gemm_scaled_device.persistent_scaled_grouped_kernel
        if is_persistent
        else grouped_gemm_scaled_device.tile_scaled_grouped_kernel
    )
    return KernelVariant(
        kernel, constants, int(config["num_warps"]), int(config["num_stages"]), arch, is_persistent=is_persistent
    )


def scaled_grouped_call(operands: GroupedGemmOperands, config: KernelConfig, arch: ArchSpec) -> KernelCall:
    """Describe the launch of an fp8 problem, as `wavetune.kernels.grouped_gemm.grouped_call` does for every other."""
    problem, x, w, out = operands.problem, operands.x, operands.w, operands.out
    unit_k, unit_n = row_units(operands)
    variant = scaled_grouped_variant(
        config, arch, problem.dtype, str(out.dtype), problem.layout, room_for(problem), operands.is_offsets,
        (unit_k, unit_n),
    )  # fmt: skip
    inputs: tuple[Any, Any] = (x, w)
    if config["load"] == "tma":
        boxes = int(config["block_m"]), int(config["block_k"])
        inputs = (matrix_descriptor(x, *boxes), _weight_descriptor(w, problem, config, arch))
    args = (
        *inputs, out, operands.groups, operands.scale_x, operands.scale_w, problem.experts, problem.tokens,
        problem.out_columns // unit_n, problem.k // unit_k, x.stride(0) // unit_k, w.stride(0) // unit_k,
        w.stride(1) // unit_k, out.stride(0) // unit_n, *grouped_scale_strides(operands.scale_x, operands.scale_w),
    )  # fmt: skip
    return KernelCall(variant, args, grid_size(problem, config))


def _is_swapped(config: KernelConfig, arch: ArchSpec, layout: str) -> bool:
    width = tile_width(layout, int(config["block_n"]))
    return arch.has_tma and int(config["block_m"]) < WARPGROUP_ROWS <= width


def _weight_descriptor(
    w: Any, problem: GroupedGemmProblem, config: KernelConfig, arch: ArchSpec
) -> TensorDescriptor:  # fmt: skip
    """Describe boxes of an expert's rows: of one half of a gated weight for a transposed tile, else of both."""
    columns, width = problem.out_columns, tile_width(problem.layout, int(config["block_n"]))
    halves = problem.n // columns
    box = [1, 1 if _is_swapped(config, arch, problem.layout) else halves, width, int(config["block_k"])]
    return TensorDescriptor(
        w, [problem.experts, halves, columns, problem.k], [w.stride(0), columns * w.stride(1), w.stride(1), 1], box
    )
