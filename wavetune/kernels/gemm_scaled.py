"""The fp8 kernels of the GEMM family on the host: legality, and the launches of one problem."""

from __future__ import annotations

from functools import lru_cache, partial
from typing import Any

from wavetune.core.arch import ArchSpec
from wavetune.core.config import KernelConfig
from wavetune.core.dtype import find_dtype
from wavetune.core.problem import GemmProblem
from wavetune.kernels import gemm_scaled_device, gemm_scaled_pair_device
from wavetune.kernels.call import KernelCall, KernelVariant
from wavetune.kernels.gemm_descriptors import input_descriptors, output_descriptors
from wavetune.kernels.gemm_operands import GemmOperands
from wavetune.kernels.gemm_reduction import check_workspace, overlaps_reduction, reduction_call, reduction_variant
from wavetune.kernels.gemm_scales import scale_strides
from wavetune.kernels.gemm_specialized import specialized_descriptors, specialized_variant
from wavetune.mapping.gemm import map_gemm
from wavetune.mapping.legality import PAIR_WIDTHS, TMA_ALIGNMENT
from wavetune.mapping.numerics import computes_transpose

PROMOTED_ELEMENTS = 512
"""Elements of k that Hopper's matrix unit sums at its own precision before the sum moves to fp32 registers.

The unit keeps 13 fraction bits of the largest summand and cuts off the rest. Computed so with numpy (normal inputs in
e4m3, 2026-11), the relative error of a result is 1.3e-4 for 128 elements, 3.3e-4 for 512 and 5.2e-4 for 1024, whatever
k is; never promoted, it is 1.4e-3 at k = 4096 and 4.2e-3 at k = 28672, and with inputs of mean half their deviation
7e-3 and 8e-2. Rounding the result to bf16 costs 1.7e-3, which hides the error of 512 at a quarter of the additions.
"""

MIN_BLOCK_K = 32
"""Elements of k of one fp8 instruction (PTX ISA, wgmma.mma_async and mma.sync: k32)."""

_FP8_TARGETS = ("sm_89", "sm_90", "sm_100")
"""Targets with e4m3 in the matrix unit as torch stores it; gfx942 has another e4m3 (fnuz)."""


def scaled_illegal_reason(problem: GemmProblem, config: KernelConfig, arch: ArchSpec) -> str | None:
    """Say which rule of the fp8 kernels a configuration breaks that others of the family do not have, or None."""
    block_k = int(config["block_k"])
    if arch.target not in _FP8_TARGETS:
        return f"{arch.name} has no matrix instruction for e4m3"
    if problem.layout != "nk":
        return "the matrix unit takes fp8 only with adjacent k: B must be stored as [n, k] (layout nk)"
    if block_k < MIN_BLOCK_K:
        return f"an fp8 matrix instruction needs block_k of at least {MIN_BLOCK_K}, got {block_k}"
    return None


@lru_cache(maxsize=8192)
def scaled_variants(
    config: KernelConfig, arch: ArchSpec, dtype: str, out_dtype: str, is_aligned: bool, has_bias: bool, activation: str
) -> tuple[KernelVariant, ...]:  # fmt: skip
    """Return what a configuration compiles: one kernel, for split-k two. Independent of sizes.

    Parameters
    ----------
    config : KernelConfig
        A complete, legal GEMM configuration.
    arch : ArchSpec
        The GPU.
    dtype, out_dtype : str
        Of the operands and the result; that of the result only keeps variants apart.
    is_aligned : bool
        Whether rows and pointers are multiples of 16 bytes.
    has_bias : bool
        Whether a bias is added.
    activation : str
        One of `wavetune.kernels.gemm_operands.ACTIVATIONS`.
    """
    schedule, scale_block = config["schedule"], find_dtype(dtype).scale_block
    unit_k, unit_n = _units(dtype, is_aligned)
    promote = _promoted_trips(dtype, int(config["block_k"]))
    # Scales in blocks are applied before anything else is added.
    fuses = scale_block > 0
    if schedule == "warp_specialized":
        specialized = specialized_variant(
            config, arch, has_bias=has_bias, activation=activation, has_scales=True, promote=promote,
            scale_block=scale_block, units=(unit_k, unit_n), fuses_multiply_add=fuses,
        )  # fmt: skip
        return (specialized,)
    if int(config["block_n"]) in PAIR_WIDTHS:
        return _pair_variants(config, arch, dtype, (unit_k, unit_n), has_bias, activation)
    constants = {name.upper(): config[name] for name in ("block_m", "block_n", "block_k", "group_m")}
    if schedule == "split_k":
        constants["SPLIT_K"] = config["split_k"]
    constants |= {
        "SWAP": computes_transpose(config, arch),
        "IS_TMA": config["load"] == "tma",
        "PROMOTE": promote,
        "SCALE_BLOCK": scale_block,
        "UNIT_K": unit_k,
        "UNIT_N": unit_n,
    }
    variant = partial(_variant, config, arch, constants, fuses_multiply_add=fuses)
    if schedule == "split_k":
        constants["OVERLAP"] = overlaps_reduction(arch)
        main = variant(gemm_scaled_device.split_scaled_kernel)
        return main, reduction_variant(config, arch, unit_n, has_bias, activation)
    constants |= {"EPILOGUE_SPLIT": config["epilogue_split"], "HAS_BIAS": has_bias, "ACTIVATION": activation}
    if schedule == "persistent":
        return (variant(gemm_scaled_device.persistent_scaled_kernel, is_persistent=True),)
    return (variant(gemm_scaled_device.tile_scaled_kernel),)


def _pair_variants(
    config: KernelConfig, arch: ArchSpec, dtype: str, units: tuple[int, int], has_bias: bool, activation: str
) -> tuple[KernelVariant, ...]:  # fmt: skip
    """Return what a configuration whose tile has two parts compiles."""
    schedule, block_n = config["schedule"], int(config["block_n"])
    constants = {name.upper(): config[name] for name in ("block_m", "block_n", "block_k", "group_m")}
    constants["WIDTH"] = PAIR_WIDTHS[block_n]
    if schedule == "split_k":
        constants["SPLIT_K"] = config["split_k"]
    constants |= {"PROMOTE": _promoted_trips(dtype, int(config["block_k"])), "UNIT_K": units[0], "UNIT_N": units[1]}
    variant = partial(_variant, config, arch, constants, fuses_multiply_add=False)
    if schedule == "split_k":
        constants["OVERLAP"] = overlaps_reduction(arch)
        main = variant(gemm_scaled_pair_device.split_scaled_pair_kernel)
        return main, reduction_variant(config, arch, units[1], has_bias, activation)
    constants |= {"HAS_BIAS": has_bias, "ACTIVATION": activation}
    if schedule == "persistent":
        return (variant(gemm_scaled_pair_device.persistent_scaled_pair_kernel, is_persistent=True),)
    return (variant(gemm_scaled_pair_device.tile_scaled_pair_kernel),)


def _variant(
    config: KernelConfig, arch: ArchSpec, constants: dict[str, Any], kernel: Any, *, is_persistent: bool = False,
    fuses_multiply_add: bool,
) -> KernelVariant:  # fmt: skip
    return KernelVariant(
        kernel, constants, int(config["num_warps"]), int(config["num_stages"]), arch,
        is_persistent=is_persistent, fuses_multiply_add=fuses_multiply_add,
    )  # fmt: skip


def scaled_calls(operands: GemmOperands, config: KernelConfig, arch: ArchSpec) -> list[KernelCall]:
    """Describe the launches of one fp8 GEMM, as `wavetune.kernels.gemm.gemm_calls` does for every other."""
    problem = operands.problem
    m, n, k = problem.dims
    a, b, out = operands.a, operands.b, operands.out
    unit_k, unit_n = _units(problem.dtype, True)
    is_aligned = problem.alignment >= TMA_ALIGNMENT and k % unit_k == 0 and n % unit_n == 0
    if not is_aligned:
        unit_k = unit_n = 1
    variants = scaled_variants(
        config, arch, problem.dtype, str(out.dtype), is_aligned, operands.bias is not None, operands.activation
    )
    grid_size = map_gemm(problem, config, arch).grid_size
    scales = (operands.scale_a, operands.scale_b)
    sizes = (m, n // unit_n, k // unit_k)
    strides: tuple[int, ...] = (*scale_strides(operands.scale_a), *scale_strides(operands.scale_b))
    if config["schedule"] == "warp_specialized":
        args: tuple[Any, ...] = (*specialized_descriptors(a, b, out, config), operands.bias, *scales, *sizes, *strides)
        return [KernelCall(variants[0], args, grid_size)]
    is_tma, is_pair = config["load"] == "tma", int(config["block_n"]) in PAIR_WIDTHS
    if is_pair:
        # Everything comes by descriptors, and no scales lie along k.
        strides = strides[::2]
    inputs = input_descriptors(a, b, "nk", config) if is_tma else (a, b)
    input_strides = () if is_pair else (a.stride(0) // unit_k, b.stride(0) // unit_k)
    if config["schedule"] == "split_k":
        check_workspace(operands, config)
        args = (*inputs, operands.partials, *scales, *sizes, *input_strides, *strides)
        return [KernelCall(variants[0], args, grid_size), reduction_call(operands, variants[1], unit_n)]
    targets = output_descriptors(out, config) if is_tma else (out,)
    output_stride = () if is_pair else (out.stride(0) // unit_n,)
    args = (*inputs, *targets, operands.bias, *scales, *sizes, *input_strides, *output_stride, *strides)
    return [KernelCall(variants[0], args, grid_size)]


def _units(dtype: str, is_aligned: bool) -> tuple[int, int]:
    element = find_dtype(dtype)
    return (TMA_ALIGNMENT // element.input_bytes, TMA_ALIGNMENT // element.output_bytes) if is_aligned else (1, 1)


def _promoted_trips(dtype: str, block_k: int) -> int:
    """Return the trips between two promotions; 0 for never, or where every trip is scaled by itself."""
    if dtype == "fp8_fast" or find_dtype(dtype).scale_block:
        return 0
    return max(PROMOTED_ELEMENTS // block_k, 1)
