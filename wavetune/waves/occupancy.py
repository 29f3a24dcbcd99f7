"""How many CTAs of a launch configuration are resident on one SM."""

from __future__ import annotations

from wavetune.core.arch import ArchSpec
from wavetune.errors import InfeasibleConfigError

REGISTER_ALLOCATION_UNIT = 256
"""Registers are given to a warp in units of 256 (CUDA occupancy calculator, compute capability 3.0 and later)."""

SUBPARTITIONS = 4
"""Parts of an SM with a warp scheduler and registers of their own (CUDA occupancy calculator, warp allocation
granularity, compute capability 3.0 and later; a compute unit of CDNA has four SIMDs)."""


def ctas_per_sm(arch: ArchSpec, *, num_warps: int, num_regs: int, smem_bytes: int) -> int:
    """Count the CTAs that fit on an SM at once.

    Parameters
    ----------
    arch : ArchSpec
        The GPU.
    num_warps : int
        Warps of one CTA.
    num_regs : int
        Registers of one thread, as compiled.
    smem_bytes : int
        Shared memory of one CTA, as compiled.

    Returns
    -------
    int
        At least 1.

    Raises
    ------
    InfeasibleConfigError
        If one CTA exceeds a limit of the SM; names the limit.
    """
    if smem_bytes > arch.smem_per_cta_bytes:
        raise InfeasibleConfigError(
            f"a CTA needs {smem_bytes} B of shared memory, {arch.name} gives at most {arch.smem_per_cta_bytes} B; "
            "use a smaller tile or fewer stages"
        )
    if num_warps > arch.max_warps_per_sm:
        raise InfeasibleConfigError(
            f"a CTA needs {num_warps} warps, an SM of {arch.name} holds {arch.max_warps_per_sm}"
        )
    unit = REGISTER_ALLOCATION_UNIT
    regs_per_warp = -(-max(num_regs, 1) * arch.warp_size // unit) * unit
    # Each quarter of an SM has its own registers, which hold whole warps.
    warps = arch.registers_per_sm // SUBPARTITIONS // regs_per_warp * SUBPARTITIONS
    by_registers = warps // num_warps
    if by_registers == 0:
        raise InfeasibleConfigError(
            f"a CTA needs {regs_per_warp * num_warps} registers, an SM of {arch.name} has {arch.registers_per_sm}; "
            "use a smaller tile or more warps"
        )
    by_smem = arch.smem_per_sm_bytes // max(smem_bytes + arch.smem_reserved_bytes, 1)
    return min(by_registers, by_smem, arch.max_warps_per_sm // num_warps, arch.max_ctas_per_sm)
