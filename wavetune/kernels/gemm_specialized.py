"""Warp-specialised GEMM on the host: what is compiled, and its descriptors.

The device code is imported where it is needed: Gluon takes time to import, and Triton's interpreter does not know it.
"""

from __future__ import annotations

from typing import Any

from wavetune.core.arch import ArchSpec
from wavetune.core.config import KernelConfig
from wavetune.kernels.call import KernelVariant
from wavetune.mapping.legality import column_parts, specialized_parts

_LAUNCHED_WARPS = 4
"""Warps of the partition that Triton counts as the CTA's own; the other partitions add theirs."""

_REGISTERS = 240
"""Registers of a thread that multiplies: what is left of 65,536 for 256 threads beside the 24 of the loading warps, in
units of 8 (PTX ISA, setmaxnreg)."""

_SWIZZLE_BYTES = 128
"""The widest swizzle of TMA and wgmma (PTX ISA, shared memory matrix layout); a narrower box has its own width."""


def specialized_variant(
    config: KernelConfig, arch: ArchSpec, *, has_bias: bool, activation: str, has_scales: bool = False,
    promote: int = 0, scale_block: int = 0, units: tuple[int, int] = (1, 1), fuses_multiply_add: bool = True,
) -> KernelVariant:  # fmt: skip
    """Return what a configuration compiles.

    Parameters
    ----------
    config : KernelConfig
        A GEMM configuration that `wavetune.mapping.legality` accepts, of the schedule ``warp_specialized``.
    arch : ArchSpec
        The GPU.
    has_bias : bool
        Whether a bias is added.
    activation : str
        One of `wavetune.kernels.gemm_operands.ACTIVATIONS`.
    has_scales : bool, default=False
        Whether the operands have scales.
    promote : int, default=0
        Trips whose sum leaves the matrix unit together; 0 for all.
    scale_block : int, default=0
        Elements of k with one scale; 0 where a scale is of a whole row.
    units : (int, int), default=(1, 1)
        Elements in whose units k and n are passed.
    fuses_multiply_add : bool, default=True
        See `KernelVariant`.
    """
    from wavetune.kernels.gemm_specialized_device import specialized_kernel

    parts_m, parts_n = specialized_parts(config)
    _, rest = _widths(config)
    # In the order of the kernel's signature.
    constants = {
        "PARTS_M": parts_m, "PARTS_N": parts_n, "REST": rest, "GROUP_M": config["group_m"],
        "STAGES": config["num_stages"], "REGISTERS": _REGISTERS, "PROMOTE": promote, "HAS_SCALES": has_scales,
        "SCALE_BLOCK": scale_block, "UNIT_K": units[0], "UNIT_N": units[1],
        "EPILOGUE_SPLIT": config["epilogue_split"], "HAS_BIAS": has_bias, "ACTIVATION": activation,
    }  # fmt: skip
    return KernelVariant(
        specialized_kernel, constants, _LAUNCHED_WARPS, int(config["num_stages"]), arch,
        is_persistent=True, fuses_multiply_add=fuses_multiply_add,
    )  # fmt: skip


def specialized_descriptors(a: Any, b: Any, out: Any, config: KernelConfig) -> tuple[Any, ...]:
    """Describe the boxes of A, B [n, k] and C that one warpgroup works on: in the order of the kernel's signature.

    B and C have a second box each, None where the columns of a warpgroup are one part.
    """
    parts_m, _ = specialized_parts(config)
    rows, block_k = int(config["block_m"]) // parts_m, int(config["block_k"])
    width, rest = _widths(config)
    return (
        _describe(a, rows, block_k), _describe(b, width, block_k), _describe(b, rest, block_k),
        _describe(out, rows, width // int(config["epilogue_split"])), _describe(out, rows, rest),
    )  # fmt: skip


def _widths(config: KernelConfig) -> tuple[int, int]:
    """Return the columns of a warpgroup in its first part and in its second, which may be 0."""
    _, parts_n = specialized_parts(config)
    return column_parts(int(config["block_n"]) // parts_n)


def _describe(tensor: Any, rows: int, columns: int) -> Any:
    """Describe a box of a matrix, None for an empty one."""
    if not rows * columns:
        return None
    from triton.experimental.gluon.language import NVMMASharedLayout
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    itemsize = tensor.dtype.itemsize
    swizzle = min(_SWIZZLE_BYTES, columns * itemsize)
    layout = NVMMASharedLayout(swizzle_byte_width=swizzle, element_bitwidth=8 * itemsize, rank=2)
    return TensorDescriptor(tensor, list(tensor.shape), [tensor.stride(0), 1], [rows, columns], layout)
