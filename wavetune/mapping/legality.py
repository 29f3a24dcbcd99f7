"""Whether a configuration may be launched on a problem at all. Never raises: an illegal one is a miss.

`gemm_illegal_reason` holds the rules of the problem, for any GEMM kernel; `launch_limit_reason` those of this package's
own kernels and of the GPU besides. Registers and exact shared memory are known from compiled kernels only.
"""

from __future__ import annotations

from wavetune.core.arch import ArchSpec
from wavetune.core.config import KernelConfig
from wavetune.core.dtype import find_dtype
from wavetune.core.problem import MAX_DIMENSION, GemmProblem
from wavetune.mapping.gemm import ceil_div
from wavetune.mapping.numerics import WARPGROUP_ROWS

TMA_ALIGNMENT = 16
"""Bytes that base addresses and leading strides of a TMA descriptor must divide by (CUDA driver API,
``cuTensorMapEncodeTiled``)."""

MAX_TMA_BOX = 256
"""Elements of a TMA box along one axis (CUDA driver API, ``cuTensorMapEncodeTiled``, boxDim)."""

MIN_TILE = 16
"""Rows, columns and depth of the smallest tile that Triton gives to a matrix instruction (``tl.dot``)."""

PAIR_WIDTHS = {80: 64, 96: 64, 160: 128, 192: 128, 320: 256}
"""Tile widths made of two parts, and the columns of the left part; see `wavetune.kernels.gemm_pair_device`."""

SPECIALIZED_WARPS = 8
"""Warps that multiply in a warp-specialised kernel, two warpgroups; one more loads."""

SPECIALIZED_ROW_BYTES = 128
"""Bytes of k in a trip of a warp-specialised kernel: one swizzled row of shared memory."""

MIN_SPECIALIZED_STAGES = 2
"""Buffers of a warp-specialised kernel: one is filled again only when the product after its own has begun."""

MAX_CTA_THREADS = 1024
"""Threads of one CTA (CUDA C++ Programming Guide, technical specifications; AMD workgroups have the same limit)."""


def gemm_illegal_reason(problem: GemmProblem, config: KernelConfig, arch: ArchSpec) -> str | None:
    """Say why ``config`` cannot compute ``problem`` on ``arch``, or None if it can."""
    reason = tma_reason(problem.alignment, config, arch)
    if reason is not None:
        return reason
    scale_block, block_k = find_dtype(problem.dtype).scale_block, int(config["block_k"])
    if scale_block and block_k != scale_block:
        return f"a loop trip of {problem.dtype} is one block of {scale_block} scaled elements, got block_k={block_k}"
    split_k = int(config["split_k"])
    if (split_k > 1) != (config["schedule"] == "split_k"):
        return f"schedule {config['schedule']} does not go with split_k={split_k}"
    if config["schedule"] == "warp_specialized":
        reason = _specialized_reason(problem, config, arch)
        if reason is not None:
            return reason
    if not problem.is_empty:
        trips = ceil_div(problem.k, block_k)
        if split_k > trips:
            return f"split_k={split_k} exceeds the {trips} loop trips"
    return None


def tma_reason(alignment: int, config: KernelConfig, arch: ArchSpec) -> str | None:
    """Say why operands of an alignment class in bytes cannot be loaded as a configuration says, or None."""
    if config["load"] != "tma":
        return None
    if not arch.has_tma:
        return f"{arch.name} has no TMA"
    if alignment < TMA_ALIGNMENT:
        return f"TMA needs {TMA_ALIGNMENT}-byte alignment, the operands have {alignment}"
    return None


def column_parts(columns: int) -> tuple[int, int]:
    """Return the columns of the left and of the right part of a tile's, or a warpgroup's; 0 where there is one part."""
    width = PAIR_WIDTHS.get(columns, columns)
    return width, columns - width


def specialized_parts(config: KernelConfig) -> tuple[int, int]:
    """Return into how many parts the two warpgroups of a warp-specialised kernel cut the rows and columns of a tile."""
    return (2, 1) if int(config["block_m"]) > WARPGROUP_ROWS else (1, 2)


def _specialized_reason(problem: GemmProblem, config: KernelConfig, arch: ArchSpec) -> str | None:
    """Say which rule of the warp-specialised kernel a configuration breaks, or None."""
    dtype = find_dtype(problem.dtype)
    if arch.target != "sm_90":
        return f"warp_specialized kernels are for sm_90, {arch.name} is {arch.target}"
    if not (dtype.is_scaled or dtype.name in ("bf16", "fp16")) or problem.layout != "nk":
        return f"warp_specialized kernels take bf16, fp16 and fp8 in layout nk, not {dtype.name} in {problem.layout}"
    if config["load"] != "tma":
        return "schedule warp_specialized needs load=tma"
    if config["num_warps"] != SPECIALIZED_WARPS:
        return f"schedule warp_specialized has num_warps={SPECIALIZED_WARPS} that multiply, got {config['num_warps']}"
    if int(config["num_stages"]) < MIN_SPECIALIZED_STAGES:
        return f"schedule warp_specialized needs num_stages of at least {MIN_SPECIALIZED_STAGES}, or it waits for ever"
    if int(config["block_k"]) * dtype.input_bytes != SPECIALIZED_ROW_BYTES:
        return f"schedule warp_specialized needs block_k of {SPECIALIZED_ROW_BYTES} B, got {config['block_k']} elements"
    block_m, block_n = int(config["block_m"]), int(config["block_n"])
    parts_m, parts_n = specialized_parts(config)
    width, _ = column_parts(block_n // parts_n)
    if block_m // parts_m != WARPGROUP_ROWS or width < WARPGROUP_ROWS or width & (width - 1):
        return f"schedule warp_specialized has two parts of 64 rows and 64 columns or more, got {block_m}x{block_n}"
    return None


def launch_limit_reason(problem: GemmProblem, config: KernelConfig, arch: ArchSpec) -> str | None:
    """Say why no kernel can be compiled for a configuration, or which limit of the GPU it exceeds on ``problem``.

    None if nothing is against it. For configurations that nobody is known to have compiled: pinned, forced, or written
    by another program. What was compiled can only exceed the grid.
    """
    reason = _tile_reason(config)
    if reason is not None:
        return reason
    block_n, scale_block = int(config["block_n"]), find_dtype(problem.dtype).scale_block
    if scale_block and (block_n > scale_block or scale_block % block_n):
        return f"a tile of {block_n} columns has more than one scale of B; block_n must divide {scale_block}"
    stage_bytes = (int(config["block_m"]) + block_n) * int(config["block_k"]) * find_dtype(problem.dtype).input_bytes
    # Pointer pipelines may keep one stage in registers, hence the - 1.
    if stage_bytes * max(int(config["num_stages"]) - 1, 1) > arch.smem_per_cta_bytes:
        return f"{config['num_stages']} stages of {stage_bytes} B exceed the shared memory of {arch.name}"
    if int(config["num_warps"]) * arch.warp_size > MAX_CTA_THREADS:
        return f"{config['num_warps']} warps exceed the {MAX_CTA_THREADS} threads of a CTA"
    return grid_limit_reason(problem, config)


def refusal(problem: GemmProblem, config: KernelConfig, arch: ArchSpec) -> str | None:
    """Say why a configuration that nobody is known to have compiled may not be launched on ``problem``, or None."""
    return gemm_illegal_reason(problem, config, arch) or launch_limit_reason(problem, config, arch)


def grid_limit_reason(problem: GemmProblem, config: KernelConfig) -> str | None:
    """Say that the tiles of ``problem`` are too many to be launched, or None."""
    if problem.is_empty:
        return None
    tiles = ceil_div(problem.m, int(config["block_m"])) * ceil_div(problem.n, int(config["block_n"]))
    if tiles * int(config["split_k"]) > MAX_DIMENSION:
        return "the grid exceeds 2**31 - 1 CTAs"
    return None


def _tile_reason(config: KernelConfig) -> str | None:
    """Say which rule of the GEMM kernels a configuration breaks whatever the problem, or None."""
    sizes = {name: int(config[name]) for name in ("block_m", "block_n", "block_k", "num_warps")}
    block_m, block_n, epilogue_split = sizes["block_m"], sizes["block_n"], config["epilogue_split"]
    tile = (block_m, block_n, sizes["block_k"])
    is_pair = block_n in PAIR_WIDTHS
    for name, size in sizes.items():
        if size & (size - 1) and not (name == "block_n" and is_pair):
            return f"{name} must be a power of two (block_n also one of {tuple(PAIR_WIDTHS)}), got {size}"
    if min(tile) < MIN_TILE:
        return f"a matrix instruction needs tiles of at least {MIN_TILE} x {MIN_TILE} x {MIN_TILE}"
    if config["load"] == "tma":
        if max(block_m, column_parts(block_n)[0], tile[2]) > MAX_TMA_BOX:
            return f"a TMA box has at most {MAX_TMA_BOX} elements a side"
    elif epilogue_split != 1 or is_pair:
        return f"epilogue_split={epilogue_split} with block_n={block_n} needs load=tma"
    if epilogue_split not in (1, 2):
        return f"epilogue_split must be 1 or 2, got {epilogue_split}"
    is_whole = config["schedule"] == "split_k" or (is_pair and config["schedule"] != "warp_specialized")
    if epilogue_split == 2 and is_whole:
        return "epilogue_split=2 applies neither to split_k nor, unless warp_specialized, to a tile of two parts"
    if is_pair and block_m < WARPGROUP_ROWS:
        return f"block_n={block_n} needs block_m of at least {WARPGROUP_ROWS}"
    return None
