"""The GEMM family on the host: legality, and the launches of one problem under one configuration."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

from wavetune.core.arch import ArchSpec
from wavetune.core.config import KernelConfig
from wavetune.core.dtype import find_dtype
from wavetune.core.problem import GemmProblem
from wavetune.errors import InfeasibleConfigError
from wavetune.kernels import gemm_device, gemm_pair_device
from wavetune.kernels.call import (
    IS_INTERPRETED,
    KernelCall,
    KernelVariant,
    Launch,
    LaunchSequence,
    bind,
    find_loaded,
)
from wavetune.kernels.gemm_descriptors import input_descriptors, output_descriptors
from wavetune.kernels.gemm_operands import TORCH_DTYPES, GemmOperands
from wavetune.kernels.gemm_reduction import check_workspace, overlaps_reduction, reduction_call, reduction_variant
from wavetune.kernels.gemm_scaled import scaled_calls, scaled_illegal_reason
from wavetune.kernels.gemm_scales import scale_strides
from wavetune.kernels.gemm_specialized import specialized_descriptors, specialized_variant
from wavetune.kernels.launch_cache import LaunchCache
from wavetune.kernels.placeholder import AMPLE_WORKSPACE
from wavetune.mapping.gemm import map_gemm
from wavetune.mapping.legality import PAIR_WIDTHS, TMA_ALIGNMENT, gemm_illegal_reason, launch_limit_reason
from wavetune.mapping.numerics import computes_transpose


def illegal_reason(problem: GemmProblem, config: KernelConfig, arch: ArchSpec) -> str | None:
    """Say why a configuration cannot run a problem, or None if it can.

    Decides from the rules of the kernels alone; registers and exact shared memory come from the compiled kernel.
    """
    reason = gemm_illegal_reason(problem, config, arch)
    if reason is not None:
        return reason
    if _needs_a_compiler(config):
        return _NOT_INTERPRETED
    if problem.dtype not in TORCH_DTYPES:
        return f"the kernels take {', '.join(TORCH_DTYPES)}, not {problem.dtype}"
    if find_dtype(problem.dtype).is_scaled:
        reason = scaled_illegal_reason(problem, config, arch)
        if reason is not None:
            return reason
    return launch_limit_reason(problem, config, arch)


@lru_cache(maxsize=8192)
def gemm_variants(
    config: KernelConfig, arch: ArchSpec, dtype: str, layout: str, unit: int, has_bias: bool, activation: str
) -> tuple[KernelVariant, ...]:
    """Return what a configuration compiles: one kernel, for split-k two. Independent of sizes.

    Parameters
    ----------
    config : KernelConfig
        A complete, legal GEMM configuration.
    arch : ArchSpec
        The GPU.
    dtype, layout : str
        Of the operands; the dtype only keeps the variants of different dtypes apart.
    unit : int
        Elements of 16 bytes where pointers are aligned to that, else 1.
    has_bias : bool
        Whether a bias is added.
    activation : str
        One of `wavetune.kernels.gemm_operands.ACTIVATIONS`.
    """
    schedule, is_tma = config["schedule"], config["load"] == "tma"
    block_n = _int(config, "block_n")
    is_pair, width = block_n in PAIR_WIDTHS, {"WIDTH": PAIR_WIDTHS.get(block_n)}
    tile = {name.upper(): config[name] for name in ("block_m", "block_n", "block_k", "group_m")}
    b_is_nk = {"B_IS_NK": layout == "nk"}
    swap = {"SWAP": computes_transpose(config, arch)}
    finish = {"HAS_BIAS": has_bias, "ACTIVATION": activation}
    in_units, overlap = {"UNIT": unit}, {"OVERLAP": overlaps_reduction(arch)}
    num_warps, num_stages = _int(config, "num_warps"), _int(config, "num_stages")

    def variant(kernel: Any, *constants: dict[str, Any]) -> KernelVariant:
        merged = {name: value for part in constants for name, value in part.items()}
        return KernelVariant(kernel, merged, num_warps, num_stages, arch, is_persistent=schedule == "persistent")

    if schedule == "warp_specialized":
        return (specialized_variant(config, arch, has_bias=has_bias, activation=activation),)
    if schedule == "split_k":
        split = {"SPLIT_K": config["split_k"]}
        reduction = reduction_variant(config, arch, unit, has_bias, activation)
        if is_pair:
            main = variant(gemm_pair_device.split_pair_kernel, tile, width, split, b_is_nk, in_units, overlap)
        else:
            kernel = gemm_device.split_tma_kernel if is_tma else gemm_device.split_pointer_kernel
            main = variant(kernel, tile, split, b_is_nk, swap, in_units, overlap)
        return main, reduction
    is_persistent = schedule == "persistent"
    if is_pair:
        kernel = gemm_pair_device.persistent_pair_kernel if is_persistent else gemm_pair_device.tile_pair_kernel
        return (variant(kernel, tile, width, b_is_nk, finish),)
    if is_tma:
        kernel = gemm_device.persistent_tma_kernel if is_persistent else gemm_device.tile_tma_kernel
        return (variant(kernel, tile, b_is_nk, swap, {"EPILOGUE_SPLIT": config["epilogue_split"]}, finish),)
    kernel = gemm_device.persistent_pointer_kernel if is_persistent else gemm_device.tile_pointer_kernel
    return (variant(kernel, tile, b_is_nk, swap, finish, in_units),)


def gemm_calls(operands: GemmOperands, config: KernelConfig, arch: ArchSpec) -> list[KernelCall]:
    """Describe the launches of one GEMM; the grid comes from `wavetune.mapping.gemm.map_gemm`.

    Parameters
    ----------
    operands : GemmOperands
        Not empty, with the workspace of ``config``.
    config : KernelConfig
        A complete GEMM configuration that `illegal_reason` accepts.
    arch : ArchSpec
        The GPU.

    Returns
    -------
    list of KernelCall
        One kernel, or for split-k two, in order; their times add up to the latency of the configuration.

    Raises
    ------
    ConfigError
        If the workspace of split-k is missing or too small.
    ProblemError
        If a size is zero.
    """
    if operands.scale_a is not None:
        return scaled_calls(operands, config, arch)
    problem = operands.problem
    m, n, k = problem.dims
    a, b, out, bias = operands.a, operands.b, operands.out, operands.bias
    unit = TMA_ALIGNMENT // find_dtype(problem.dtype).input_bytes
    if problem.alignment < TMA_ALIGNMENT or n % unit or k % unit:
        unit = 1
    variants = gemm_variants(config, arch, problem.dtype, problem.layout, unit, bias is not None, operands.activation)
    grid_size = map_gemm(problem, config, arch).grid_size
    if config["schedule"] == "warp_specialized":
        no_scales = (None, None, m, n, k, 0, 0, 0, 0)
        args: tuple[Any, ...] = (*specialized_descriptors(a, b, out, config), bias, *no_scales)
        return [KernelCall(variants[0], args, grid_size)]
    is_tma = config["load"] == "tma"
    inputs = input_descriptors(a, b, problem.layout, config) if is_tma else (a, b)
    in_units = (m, n // unit, k // unit)
    if config["schedule"] == "split_k":
        check_workspace(operands, config)
        strides = () if is_tma else (a.stride(0) // unit, b.stride(0) // unit)
        main = KernelCall(variants[0], (*inputs, operands.partials, *in_units, *strides), grid_size)
        return [main, reduction_call(operands, variants[1], unit)]
    if is_tma:
        args = (*inputs, *output_descriptors(out, config), bias, m, n, k)
    else:
        args = (*inputs, out, bias, *in_units, *(tensor.stride(0) // unit for tensor in (a, b, out)))
    return [KernelCall(variants[0], args, grid_size)]


def bind_gemm(operands: GemmOperands, config: KernelConfig, arch: ArchSpec, stream: int) -> Launch:
    """Return a function that runs the GEMM on ``stream``; descriptors and grid are prepared once, here.

    Raises
    ------
    ConfigError
        If the workspace of split-k is missing or too small.
    InfeasibleConfigError
        If Triton's interpreter is to run a warp-specialised kernel: models know nothing of it.
    ProblemError
        If a size is zero.
    """
    if _needs_a_compiler(config):
        raise InfeasibleConfigError(_NOT_INTERPRETED)
    launches = [bind(call, stream) for call in gemm_calls(operands, config, arch)]
    if len(launches) == 1:
        return launches[0]
    return LaunchSequence(tuple(launches))


_NOT_INTERPRETED = "Triton's interpreter does not run warp_specialized kernels"


def _needs_a_compiler(config: KernelConfig) -> bool:
    return IS_INTERPRETED and config["schedule"] == "warp_specialized"


def is_loaded(operands: GemmOperands, config: KernelConfig, arch: ArchSpec) -> bool:
    """Whether `bind_gemm` would compile nothing on the current device; needs no workspace and allocates none."""
    if IS_INTERPRETED:
        return True
    calls = gemm_calls(replace(operands, partials=AMPLE_WORKSPACE), config, arch)
    return all(find_loaded(call) is not None for call in calls)


def launch_gemm(operands: GemmOperands, config: KernelConfig, arch: ArchSpec) -> None:
    """Run one GEMM on the current stream of the operands' device, without allocating.

    Costs the host 17 us where the operands were seen before, as torch.mm costs 16 (H200 machine, Triton 3.6, 2026-11).
    With k = 0 the result is the activation of the bias (of zero without a bias), as torch gives; without rows or
    columns nothing happens.

    Raises
    ------
    ConfigError
        If the workspace of split-k is missing or too small.
    """
    problem = operands.problem
    if problem.is_empty:
        if problem.m and problem.n:
            fill_empty_product(operands)
        return
    a, b, out, bias, partials = operands.a, operands.b, operands.out, operands.bias, operands.partials
    stream = _current_stream(out)
    key = (
        problem, config, operands.activation, stream, out.device.index,
        a.data_ptr(), b.data_ptr(), out.data_ptr(), a.stride(0), b.stride(0), out.stride(0),
        0 if bias is None else bias.data_ptr(), 0 if partials is None else partials.data_ptr(),
        _scale_key(operands),
    )  # fmt: skip
    launch = _BOUND.get(key)
    if launch is None:
        launch = bind_gemm(operands, config, arch, stream)
        _BOUND.add(key, launch)
    launch()


_BOUND = LaunchCache()


def _int(config: KernelConfig, name: str) -> int:
    return int(config[name])


def _scale_key(operands: GemmOperands) -> tuple[object, ...] | None:
    if operands.scale_a is None:
        return None
    scales = (operands.scale_a, operands.scale_b)
    return operands.out.dtype, *((scale.data_ptr(), scale_strides(scale)) for scale in scales)


def _current_stream(tensor: Any) -> int:
    if tensor.device.type == "cpu":
        return 0
    import torch

    return int(torch.cuda.current_stream(tensor.device).cuda_stream)


def fill_empty_product(operands: GemmOperands) -> None:
    """Write the result of an empty sum: the activation of the bias, of zero without one."""
    import torch

    if operands.bias is None:
        operands.out.zero_()
    else:
        operands.out.copy_(operands.bias)
    if operands.activation != "none":
        functions = {"relu": torch.relu, "gelu": torch.nn.functional.gelu, "silu": torch.nn.functional.silu}
        operands.out.copy_(functions[operands.activation](operands.out.float()))
