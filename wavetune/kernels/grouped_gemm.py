"""The grouped GEMM family on the host: legality, and the launch of one problem under one configuration."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from triton.tools.tensor_descriptor import TensorDescriptor

from wavetune.core.arch import ArchSpec
from wavetune.core.config import KernelConfig
from wavetune.core.dtype import find_dtype
from wavetune.core.grouped_problem import GroupedGemmProblem
from wavetune.core.problem import MAX_DIMENSION
from wavetune.kernels import grouped_gemm_device
from wavetune.kernels.call import KernelCall, KernelVariant, Launch, bind
from wavetune.kernels.gemm_descriptors import MAX_TMA_BOX, matrix_descriptor
from wavetune.kernels.gemm_operands import TORCH_DTYPES
from wavetune.kernels.grouped_gemm_operands import GroupedGemmOperands
from wavetune.kernels.launch_cache import LaunchCache
from wavetune.mapping.gemm import ceil_div
from wavetune.mapping.grouped_gemm import tile_rows
from wavetune.mapping.legality import TMA_ALIGNMENT
from wavetune.mapping.numerics import WARPGROUP_ROWS

MIN_GROUPS = 256
"""Experts that every compiled kernel takes, so that models of up to as many share it."""

MAX_EXPERTS = 4096
"""Each thread of a CTA holds an equal part of the group sizes; beyond this they would crowd out the accumulator."""


def grouped_illegal_reason(problem: GroupedGemmProblem, config: KernelConfig, arch: ArchSpec) -> str | None:
    """Say why a configuration cannot run a problem, or None if it can.

    Decides from the rules of the kernels alone; registers and exact shared memory come from the compiled kernel.
    """
    element = find_dtype(problem.dtype)
    block_m, block_n, block_k, num_warps = (
        int(config[name]) for name in ("block_m", "block_n", "block_k", "num_warps")
    )
    if problem.dtype not in TORCH_DTYPES or element.is_scaled:
        known = ", ".join(name for name in TORCH_DTYPES if not find_dtype(name).is_scaled)
        return f"the kernels take {known}, not {problem.dtype}"
    for name, size in (("block_m", block_m), ("block_n", block_n), ("block_k", block_k), ("num_warps", num_warps)):
        if size & (size - 1):
            return f"{name} must be a power of two, got {size}"
    width = tile_width(problem.layout, block_n)
    if min(block_m, width, block_k) < 16:
        return "a matrix instruction needs tiles of at least 16 x 16 x 16; a gated one has half of block_n twice"
    if config["load"] == "tma":
        if not arch.has_tma:
            return f"{arch.name} has no TMA"
        if problem.alignment < TMA_ALIGNMENT:
            return f"TMA needs {TMA_ALIGNMENT}-byte alignment, the operands have {problem.alignment}"
        if max(block_m, width, block_k) > MAX_TMA_BOX:
            return f"a TMA box has at most {MAX_TMA_BOX} elements a side"
    stage_bytes = (block_m + block_n) * block_k * element.input_bytes
    # Pointer pipelines may keep one stage in registers.
    stages = int(config["num_stages"]) - (config["load"] == "pointer")
    if stage_bytes * max(stages, 1) > arch.smem_per_cta_bytes:
        return f"{config['num_stages']} stages of {stage_bytes} B exceed the shared memory of {arch.name}"
    if problem.experts > MAX_EXPERTS:
        return f"the kernels take at most {MAX_EXPERTS} experts, not {problem.experts}"
    if tile_rows(problem.group_sizes, block_m)[0] * ceil_div(problem.n, block_n) > MAX_DIMENSION:
        return "the grid exceeds 2**31 - 1 CTAs"
    return None


def tile_width(layout: str, block_n: int) -> int:
    """Return the columns of the result that a tile of ``block_n`` weight rows computes."""
    return block_n // 2 if layout == "gated" else block_n


@lru_cache(maxsize=8192)
def grouped_variant(
    config: KernelConfig, arch: ArchSpec, dtype: str, layout: str, groups: int, is_offsets: bool, units: tuple[int, int]
) -> KernelVariant:
    """Return what a configuration compiles. Independent of sizes.

    Parameters
    ----------
    config : KernelConfig
        A complete, legal configuration.
    arch : ArchSpec
        The GPU.
    dtype, layout : str
        Of the operands; the dtype only keeps the variants of different dtypes apart.
    groups : int
        Experts that the kernel has room for, a power of two.
    is_offsets : bool
        Whether groups are given by where they begin.
    units : tuple of int
        Elements of 16 bytes of the inputs' rows and of the result's; 1 where they are not aligned to that.
    """
    block_m, block_n = int(config["block_m"]), int(config["block_n"])
    constants = {name.upper(): config[name] for name in ("block_m", "block_n", "block_k", "group_m")}
    constants |= {
        "GROUPS": groups,
        "IS_OFFSETS": is_offsets,
        "IS_TMA": config["load"] == "tma",
        "SWAP": arch.has_tma and block_m < WARPGROUP_ROWS <= tile_width(layout, block_n),
        "GATED": layout == "gated",
        "UNIT_K": units[0],
        "UNIT_N": units[1],
    }
    is_persistent = config["schedule"] == "persistent"
    kernel: Any = (
        grouped_gemm_device.persistent_grouped_kernel if is_persistent else grouped_gemm_device.tile_grouped_kernel
    )
    return KernelVariant(
        kernel, constants, int(config["num_warps"]), int(config["num_stages"]), arch, is_persistent=is_persistent
    )


def grouped_call(operands: GroupedGemmOperands, config: KernelConfig, arch: ArchSpec) -> KernelCall:
    """Describe the launch of a grouped GEMM; its grid is that of `wavetune.mapping.grouped_gemm`.

    Parameters
    ----------
    operands : GroupedGemmOperands
        Not empty.
    config : KernelConfig
        A complete configuration that `grouped_illegal_reason` accepts.
    arch : ArchSpec
        The GPU.
    """
    problem, x, w, out = operands.problem, operands.x, operands.w, operands.out
    block_m, block_n, block_k = (int(config[name]) for name in ("block_m", "block_n", "block_k"))
    unit_k, unit_n = row_units(operands)
    variant = grouped_variant(
        config, arch, problem.dtype, problem.layout, room_for(problem), operands.is_offsets, (unit_k, unit_n)
    )
    if config["load"] == "tma":
        inputs: tuple[Any, ...] = (
            matrix_descriptor(x, block_m, block_k),
            TensorDescriptor(
                w, list(w.shape), [w.stride(0), w.stride(1), 1], [1, tile_width(problem.layout, block_n), block_k]
            ),
        )
    else:
        inputs = (x, w)
    args = (
        *inputs, out, operands.groups, problem.experts, problem.tokens, problem.out_columns // unit_n,
        problem.k // unit_k, x.stride(0) // unit_k, w.stride(0) // unit_k, w.stride(1) // unit_k,
        out.stride(0) // unit_n,
    )  # fmt: skip
    return KernelCall(variant, args, grid_size(problem, config))


def row_units(operands: GroupedGemmOperands) -> tuple[int, int]:
    """Return the elements of 16 bytes of the inputs' rows and of the result's; 1 where they are not aligned to that."""
    problem, x, w, out = operands.problem, operands.x, operands.w, operands.out
    element = find_dtype(problem.dtype)
    unit_k, unit_n = TMA_ALIGNMENT // element.input_bytes, TMA_ALIGNMENT // element.output_bytes
    rows = (problem.k, x.stride(0), w.stride(0), w.stride(1))
    is_aligned = problem.alignment >= TMA_ALIGNMENT and not any(size % unit_k for size in rows)
    return unit_k if is_aligned else 1, 1 if problem.out_columns % unit_n or out.stride(0) % unit_n else unit_n


def room_for(problem: GroupedGemmProblem) -> int:
    """Return the experts that the kernel of a problem has room for, a power of two."""
    return max(MIN_GROUPS, 1 << (problem.experts - 1).bit_length())


def bind_grouped(operands: GroupedGemmOperands, config: KernelConfig, arch: ArchSpec, stream: int) -> Launch:
    """Return a function that runs the grouped GEMM on ``stream``; descriptors and grid are prepared once, here."""
    return bind(grouped_call(operands, config, arch), stream)


def launch_grouped(operands: GroupedGemmOperands, config: KernelConfig, arch: ArchSpec) -> None:
    """Run one grouped GEMM on the current stream of the operands' device, without allocating.

    Without tokens or columns nothing happens; with k = 0 the result is zero.
    """
    problem = operands.problem
    if problem.is_empty:
        operands.out.zero_()
        return
    x, w, out, groups = operands.x, operands.w, operands.out, operands.groups
    stream = current_stream(out)
    # Of the histogram only the grid matters: the kernel reads the rest.
    key = (
        grid_size(problem, config), config, problem.dtype, problem.layout, problem.alignment, stream, out.device.index,
        x.data_ptr(), w.data_ptr(), out.data_ptr(), groups.data_ptr(), tuple(x.shape), tuple(w.shape), x.stride(0),
        w.stride(0), w.stride(1), out.stride(0), operands.is_offsets,
    )  # fmt: skip
    launch = _BOUND.get(key)
    if launch is None:
        launch = bind_grouped(operands, config, arch, stream)
        _BOUND.add(key, launch)
    launch()


_BOUND = LaunchCache()


def grid_size(problem: GroupedGemmProblem, config: KernelConfig) -> int:
    """Return the tiles of a problem, one for each CTA of a launch that does not walk."""
    rows, _ = tile_rows(problem.group_sizes, int(config["block_m"]))
    return rows * int(ceil_div(problem.n, int(config["block_n"])))


def current_stream(tensor: Any) -> int:
    """Return the handle of the current stream of a tensor's device; 0 for the CPU."""
    if tensor.device.type == "cpu":
        return 0
    import torch

    return int(torch.cuda.current_stream(tensor.device).cuda_stream)
