"""Attention against a paged cache on the host: legality, and the launches of one problem under one configuration."""

from __future__ import annotations

from functools import lru_cache

from wavetune.core.arch import ArchSpec
from wavetune.core.attention_problem import AttentionDecodeProblem
from wavetune.core.config import KernelConfig
from wavetune.core.dtype import find_dtype
from wavetune.core.problem import MAX_DIMENSION
from wavetune.errors import ConfigError
from wavetune.kernels import attention_decode_device
from wavetune.kernels.attention import DTYPES, LOG2_E, padded_dim, store_unit
from wavetune.kernels.attention_operands import AttentionDecodeOperands, default_scale
from wavetune.kernels.call import IS_INTERPRETED, KernelCall, KernelVariant, Launch, LaunchSequence, bind
from wavetune.mapping.attention import decode_workspace_size, map_attention_decode, most_decode_trips, row_tile

MAX_SPLITS = 128
"""Splits that the combining kernel adds up at once: for head dimension 128 that takes 150 registers a thread, where 64
splits take 40 (compiled for sm_90, Triton 3.6)."""

COMBINE_WARPS = 4
"""Warps of the combining kernel."""


def decode_illegal_reason(problem: AttentionDecodeProblem, config: KernelConfig, arch: ArchSpec) -> str | None:
    """Say why a configuration cannot run a problem, or None if it can.

    Decides from the rules of the kernels alone; registers and exact shared memory come from the compiled kernel.
    """
    if problem.dtype not in DTYPES:
        return f"the kernels take {', '.join(DTYPES)}, not {problem.dtype}"
    for name in ("block_n", "num_warps"):
        size = int(config[name])
        if size & (size - 1):
            return f"{name} must be a power of two, got {size}"
    block_n, splits = int(config["block_n"]), int(config["splits"])
    if block_n < 16:
        return "a matrix instruction needs tiles of at least 16 x 16"
    if splits > MAX_SPLITS:
        return f"splits must be at most {MAX_SPLITS}, got {splits}"
    if splits > (trips := most_decode_trips(problem, block_n)):
        return f"splits={splits} exceeds the {trips} loop trips"
    # Tiles of K and of V that the pipeline keeps; page numbers take every other stage.
    tiles = 2 * max((int(config["num_stages"]) - 1) // 2, 1)
    smem_bytes = tiles * block_n * padded_dim(problem.head_dim) * find_dtype(problem.dtype).input_bytes
    if smem_bytes > arch.smem_per_cta_bytes:
        return f"tiles of {smem_bytes} B exceed the shared memory of {arch.name}"
    if map_attention_decode(problem, config).grid_size > MAX_DIMENSION:
        return "the grid exceeds 2**31 - 1 CTAs"
    return None


@lru_cache(maxsize=8192)
def decode_variants(
    config: KernelConfig, arch: ArchSpec, dtype: str, head_dim: int, page_size: int, group: int, has_window: bool,
    has_lse: bool,
) -> tuple[KernelVariant, ...]:  # fmt: skip
    """Return what a configuration compiles: one kernel, with splits two. Independent of sizes."""
    splits = int(config["splits"])
    # Programmatic dependent launch needs compute capability 9.0, as TMA does; the interpreter does not know it.
    overlap = arch.has_tma and not IS_INTERPRETED and splits > 1
    head = {"HEAD_DIM": head_dim, "DIM": padded_dim(head_dim)}
    last = {"HAS_LSE": has_lse, "UNIT": store_unit(dtype), "OVERLAP": overlap}
    main = KernelVariant(
        attention_decode_device.decode_kernel,
        {
            **head, "WINDOW": has_window, "PAGE_SIZE": page_size, "BLOCK_N": config["block_n"], "SPLITS": splits,
            "ROWS": row_tile(group), **last,
        },
        int(config["num_warps"]), int(config["num_stages"]), arch,
    )  # fmt: skip
    if splits == 1:
        return (main,)
    padded = {"SPLITS": splits, "SPLITS_PADDED": 1 << (splits - 1).bit_length()}
    combine = KernelVariant(
        attention_decode_device.combine_kernel, {**head, **padded, **last}, COMBINE_WARPS, 1, arch,
        overlaps_previous=overlap,
    )  # fmt: skip
    return main, combine


def decode_calls(operands: AttentionDecodeOperands, config: KernelConfig, arch: ArchSpec) -> list[KernelCall]:
    """Describe the launches of one decode step; the grid comes from `wavetune.mapping.attention.map_attention_decode`.

    Parameters
    ----------
    operands : AttentionDecodeOperands
        With the workspace of ``config``.
    config : KernelConfig
        A complete configuration that `decode_illegal_reason` accepts.
    arch : ArchSpec
        The GPU.

    Returns
    -------
    list of KernelCall
        One kernel, or with splits two, in order; their times add up to the latency of the configuration.

    Raises
    ------
    ConfigError
        If the workspace of the splits is missing or too small.
    """
    problem, q, out, lse = operands.problem, operands.q, operands.out, operands.lse
    k_cache, v_cache = operands.k_cache, operands.v_cache
    splits = int(config["splits"])
    needed = decode_workspace_size(problem, splits)
    if needed and (operands.partials is None or operands.partials.numel() < needed):
        has = "none" if operands.partials is None else operands.partials.numel()
        raise ConfigError(
            f"splits={splits} needs a workspace of {needed} fp32, got {has}; use AttentionDecodeOperands.with_workspace"
        )
    variants = decode_variants(
        config, arch, problem.dtype, problem.head_dim, problem.page_size, problem.group, problem.window > 0,
        lse is not None,
    )  # fmt: skip
    unit = store_unit(problem.dtype)
    out_strides = (out.stride(0) // unit, out.stride(1) // unit)
    args = (
        q, k_cache, v_cache, operands.block_table, operands.lengths, out, lse, operands.partials if needed else None,
        problem.heads, problem.kv_heads, problem.window, operands.block_table.shape[1] * problem.page_size,
        q.stride(0) // unit, q.stride(1) // unit,
        *(cache.stride(axis) // unit for cache in (k_cache, v_cache) for axis in range(3)),
        operands.block_table.stride(0), *out_strides,
        (operands.scale or default_scale(problem.head_dim)) * LOG2_E,
    )  # fmt: skip
    calls = [KernelCall(variants[0], args, map_attention_decode(problem, config).grid_size)]
    if splits > 1:
        combine_args = (operands.partials, out, lse, problem.heads, *out_strides)
        calls.append(KernelCall(variants[1], combine_args, len(problem.kv_lengths) * problem.heads))
    return calls


def bind_decode(operands: AttentionDecodeOperands, config: KernelConfig, arch: ArchSpec, stream: int) -> Launch:
    """Return a function that runs the decode step on ``stream``.

    Raises
    ------
    ConfigError
        If the workspace of the splits is missing or too small.
    """
    launches = [bind(call, stream) for call in decode_calls(operands, config, arch)]
    return launches[0] if len(launches) == 1 else LaunchSequence(tuple(launches))
