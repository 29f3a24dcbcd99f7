"""The second kernel of split-k on the host: its variant, its launch, and the workspace between the two."""

from __future__ import annotations

from wavetune.core.arch import ArchSpec
from wavetune.core.config import KernelConfig
from wavetune.errors import ConfigError
from wavetune.kernels import gemm_device
from wavetune.kernels.call import IS_INTERPRETED, KernelCall, KernelVariant
from wavetune.kernels.gemm_operands import GemmOperands, workspace_size
from wavetune.mapping.gemm import ceil_div

REDUCTION_BLOCK = 512
"""Columns that one CTA of the split-k reduction adds up: one 16-byte load of each split for each of 128 threads."""


def overlaps_reduction(arch: ArchSpec) -> bool:
    """Whether the reduction may be launched while the first kernel runs (programmatic dependent launch).

    It needs compute capability 9.0, as TMA does; the interpreter does not know it.
    """
    return arch.has_tma and not IS_INTERPRETED


def reduction_variant(
    config: KernelConfig, arch: ArchSpec, unit: int, has_bias: bool, activation: str
) -> KernelVariant:  # fmt: skip
    """Return the kernel that adds up the partial sums of a split-k configuration.

    Parameters
    ----------
    unit : int
        Elements of C in 16 bytes where its rows are aligned to that, else 1.
    """
    overlap = overlaps_reduction(arch)
    return KernelVariant(
        gemm_device.reduce_splits_kernel,
        {
            "BLOCK_N": REDUCTION_BLOCK, "SPLIT_K": config["split_k"], "HAS_BIAS": has_bias,
            "ACTIVATION": activation, "UNIT": unit, "OVERLAP": overlap,
        },
        num_warps=4,
        num_stages=1,
        arch=arch,
        overlaps_previous=overlap,
    )  # fmt: skip


def reduction_call(operands: GemmOperands, variant: KernelVariant, unit: int) -> KernelCall:
    """Return the launch that adds up the partial sums of ``operands``."""
    m, n, _ = operands.problem.dims
    args = (operands.partials, operands.out, operands.bias, m, n // unit, operands.out.stride(0) // unit)
    return KernelCall(variant, args, m * ceil_div(n, REDUCTION_BLOCK))


def check_workspace(operands: GemmOperands, config: KernelConfig) -> None:
    """Refuse operands whose workspace is too small for a split-k configuration.

    Raises
    ------
    ConfigError
        If it is missing or too small.
    """
    needed = workspace_size(operands.problem, config)
    if operands.partials is None or operands.partials.numel() < needed:
        has = "none" if operands.partials is None else operands.partials.numel()
        raise ConfigError(f"split_k needs a workspace of {needed} fp32, got {has}; use GemmOperands.with_workspace")
