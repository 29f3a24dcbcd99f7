"""Whether a configuration may be launched on a problem at all. Never raises: an illegal one is a miss.

The rules that depend on the problem, for any GEMM kernel; what a kernel can compile is the kernel's own matter.
"""

from __future__ import annotations

from wavetune.core.arch import ArchSpec
from wavetune.core.config import KernelConfig
from wavetune.core.dtype import find_dtype
from wavetune.core.problem import MAX_DIMENSION, GemmProblem
from wavetune.mapping.gemm import ceil_div

TMA_ALIGNMENT = 16
"""Bytes that base addresses and leading strides of a TMA descriptor must divide by (CUDA driver API,
``cuTensorMapEncodeTiled``)."""

MAX_CTA_THREADS = 1024
"""Threads of one CTA (CUDA C++ Programming Guide, technical specifications; AMD workgroups have the same limit)."""


def gemm_illegal_reason(problem: GemmProblem, config: KernelConfig, arch: ArchSpec) -> str | None:
    """Say why ``config`` cannot compute ``problem`` on ``arch``, or None if it can."""
    if config["load"] == "tma":
        if not arch.has_tma:
            return f"{arch.name} has no TMA"
        if problem.alignment < TMA_ALIGNMENT:
            return f"TMA needs {TMA_ALIGNMENT}-byte alignment, the operands have {problem.alignment}"
    scale_block, block_k = find_dtype(problem.dtype).scale_block, int(config["block_k"])
    if scale_block and block_k != scale_block:
        return f"a loop trip of {problem.dtype} is one block of {scale_block} scaled elements, got block_k={block_k}"
    split_k = int(config["split_k"])
    if (split_k > 1) != (config["schedule"] == "split_k"):
        return f"schedule {config['schedule']} does not go with split_k={split_k}"
    if not problem.is_empty:
        trips = ceil_div(problem.k, block_k)
        if split_k > trips:
            return f"split_k={split_k} exceeds the {trips} loop trips"
    return None


def launch_limit_reason(problem: GemmProblem, config: KernelConfig, arch: ArchSpec) -> str | None:
    """Say which limit of the GPU a legal configuration exceeds on ``problem``, or None.

    For configurations that nobody is known to have compiled: pinned, forced, or written by another program. What was
    compiled can only exceed the grid.
    """
    stage_bytes = (
        (int(config["block_m"]) + int(config["block_n"]))
        * int(config["block_k"])
        * find_dtype(problem.dtype).input_bytes
    )
    # Pointer pipelines may keep one stage in registers, hence the - 1.
    if stage_bytes * max(int(config["num_stages"]) - 1, 1) > arch.smem_per_cta_bytes:
        return f"{config['num_stages']} stages of {stage_bytes} B exceed the shared memory of {arch.name}"
    if int(config["num_warps"]) * arch.warp_size > MAX_CTA_THREADS:
        return f"{config['num_warps']} warps exceed the {MAX_CTA_THREADS} threads of a CTA"
    return grid_limit_reason(problem, config)


def grid_limit_reason(problem: GemmProblem, config: KernelConfig) -> str | None:
    """Say that the tiles of ``problem`` are too many to be launched, or None."""
    tiles = ceil_div(problem.m, int(config["block_m"])) * ceil_div(problem.n, int(config["block_n"]))
    if tiles * int(config["split_k"]) > MAX_DIMENSION:
        return "the grid exceeds 2**31 - 1 CTAs"
    return None
