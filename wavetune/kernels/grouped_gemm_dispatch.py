"""Grouped GEMM of any dtype: which of the two sets of kernels serves a problem, that of fp8 or that of the others."""

from __future__ import annotations

from wavetune.core.arch import ArchSpec
from wavetune.core.config import KernelConfig
from wavetune.core.dtype import find_dtype
from wavetune.core.grouped_problem import GroupedGemmProblem
from wavetune.kernels.call import KernelCall, Launch, bind
from wavetune.kernels.grouped_gemm import (
    current_stream,
    grid_size,
    grouped_call,
    grouped_illegal_reason,
    launch_grouped,
)
from wavetune.kernels.grouped_gemm_operands import GroupedGemmOperands
from wavetune.kernels.grouped_gemm_scaled import scaled_grouped_call, scaled_grouped_illegal_reason
from wavetune.kernels.grouped_gemm_scales import grouped_scale_strides
from wavetune.kernels.launch_cache import LaunchCache


def illegal_reason(problem: GroupedGemmProblem, config: KernelConfig, arch: ArchSpec) -> str | None:
    """Say why a configuration cannot run a problem, or None if it can; decides from the rules of the kernels alone."""
    if find_dtype(problem.dtype).is_scaled:
        return scaled_grouped_illegal_reason(problem, config, arch)
    return grouped_illegal_reason(problem, config, arch)


def describe_call(operands: GroupedGemmOperands, config: KernelConfig, arch: ArchSpec) -> KernelCall:
    """Describe the launch of operands that are not empty under a configuration that `illegal_reason` accepts."""
    if find_dtype(operands.problem.dtype).is_scaled:
        return scaled_grouped_call(operands, config, arch)
    return grouped_call(operands, config, arch)


def bind_operands(operands: GroupedGemmOperands, config: KernelConfig, arch: ArchSpec, stream: int) -> Launch:
    """Return a function that runs the grouped GEMM on ``stream``; descriptors and grid are prepared once, here."""
    return bind(describe_call(operands, config, arch), stream)


def launch_operands(operands: GroupedGemmOperands, config: KernelConfig, arch: ArchSpec) -> None:
    """Run one grouped GEMM on the current stream of the operands' device, without allocating.

    Without tokens or columns nothing happens; with k = 0 the result is zero.
    """
    problem = operands.problem
    if problem.is_empty or not find_dtype(problem.dtype).is_scaled:
        launch_grouped(operands, config, arch)
        return
    x, w, out, groups = operands.x, operands.w, operands.out, operands.groups
    scale_x, scale_w = operands.scale_x, operands.scale_w
    stream = current_stream(out)
    # Of the histogram only the grid matters: the kernel reads the rest.
    key = (
        grid_size(problem, config), config, problem.dtype, problem.layout, problem.alignment, stream, out.device.index,
        out.dtype, x.data_ptr(), w.data_ptr(), out.data_ptr(), groups.data_ptr(), scale_x.data_ptr(),
        scale_w.data_ptr(), tuple(x.shape), tuple(w.shape), x.stride(0), w.stride(0), w.stride(1), out.stride(0),
        *grouped_scale_strides(scale_x, scale_w), operands.is_offsets,
    )  # fmt: skip
    launch = _BOUND.get(key)
    if launch is None:
        launch = bind_operands(operands, config, arch, stream)
        _BOUND.add(key, launch)
    launch()


_BOUND = LaunchCache()
