"""Facts about GPUs that the wave model needs, each with its source.

Names are matched exactly (after case folding), never by prefix: an H200 NVL is not an H200.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypedDict

from wavetune.errors import ArchError

KIB = 1024
MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class ArchSpec:
    """One GPU model.

    Parameters
    ----------
    name : str
        Folder name under ``models/``.
    aliases : tuple of str
        Other names that mean exactly this GPU; includes the device name that the driver reports.
    target : str
        Compiler target, ``sm_90`` or ``gfx942``.
    num_sms : int
        Streaming multiprocessors (compute units on AMD).
    warp_size : int
        Threads a warp (wavefront on AMD).
    max_warps_per_sm, max_ctas_per_sm : int
        Residency limits.
    registers_per_sm : int
        32-bit registers.
    smem_per_sm_bytes, smem_per_cta_bytes, smem_reserved_bytes : int
        Shared memory of an SM, the most one CTA may take, and what the system reserves for each CTA.
    l2_bytes : int
        Last-level cache shared by all SMs.
    dram_gb_per_s : float
        Peak memory bandwidth, 1e9 bytes a second.
    bf16_tflops : float
        Peak dense bf16 matrix rate with fp32 accumulation, 1e12 FLOP a second.
    source : str
        Where the numbers come from.
    """

    name: str
    aliases: tuple[str, ...]
    target: str
    num_sms: int
    warp_size: int
    max_warps_per_sm: int
    max_ctas_per_sm: int
    registers_per_sm: int
    smem_per_sm_bytes: int
    smem_per_cta_bytes: int
    smem_reserved_bytes: int
    l2_bytes: int
    dram_gb_per_s: float
    bf16_tflops: float
    source: str

    @property
    def has_tma(self) -> bool:
        """Whether the bulk tensor copy engine exists (NVIDIA compute capability 9.0 and later)."""
        return self.target.startswith("sm_") and int(self.target[3:]) >= 90


# Residency limits: CUDA C++ Programming Guide, table "Technical Specifications per Compute Capability"
# (8.0, 8.9, 9.0, 10.0). The 1 KiB that the system reserves for each CTA is from the same guide, section
# "Shared Memory" of the compute capability. Bandwidth and matrix rates: the vendor's datasheet of the product,
# dense, without sparsity.
class _Residency(TypedDict):
    target: str
    warp_size: int
    max_warps_per_sm: int
    max_ctas_per_sm: int
    registers_per_sm: int
    smem_per_sm_bytes: int
    smem_per_cta_bytes: int
    smem_reserved_bytes: int


_CC_80: _Residency = {
    "target": "sm_80", "warp_size": 32, "max_warps_per_sm": 64, "max_ctas_per_sm": 32,
    "registers_per_sm": 65536, "smem_per_sm_bytes": 164 * KIB, "smem_per_cta_bytes": 163 * KIB,
    "smem_reserved_bytes": KIB,
}  # fmt: skip
_CC_89: _Residency = {
    "target": "sm_89", "warp_size": 32, "max_warps_per_sm": 48, "max_ctas_per_sm": 24,
    "registers_per_sm": 65536, "smem_per_sm_bytes": 100 * KIB, "smem_per_cta_bytes": 99 * KIB,
    "smem_reserved_bytes": KIB,
}  # fmt: skip
_CC_90: _Residency = {
    "target": "sm_90", "warp_size": 32, "max_warps_per_sm": 64, "max_ctas_per_sm": 32,
    "registers_per_sm": 65536, "smem_per_sm_bytes": 228 * KIB, "smem_per_cta_bytes": 227 * KIB,
    "smem_reserved_bytes": KIB,
}  # fmt: skip
_CC_100: _Residency = {**_CC_90, "target": "sm_100"}

_ALL = (
    ArchSpec(
        name="nvidia-a100", aliases=("a100", "NVIDIA A100-SXM4-80GB"), num_sms=108, l2_bytes=40 * MIB,
        dram_gb_per_s=2039.0, bf16_tflops=312.0,
        source="NVIDIA A100 datasheet (SXM4 80 GB); SMs and L2: GA100 whitepaper", **_CC_80,
    ),
    ArchSpec(
        name="nvidia-h100", aliases=("h100", "NVIDIA H100 80GB HBM3"), num_sms=132, l2_bytes=50 * MIB,
        dram_gb_per_s=3350.0, bf16_tflops=989.4,
        source="NVIDIA H100 datasheet (SXM5 80 GB); SMs and L2: GH100 whitepaper", **_CC_90,
    ),
    ArchSpec(
        name="nvidia-h200", aliases=("h200", "NVIDIA H200"), num_sms=132, l2_bytes=60 * MIB,
        dram_gb_per_s=4800.0, bf16_tflops=989.4,
        source="NVIDIA H200 datasheet (SXM); SMs and L2 as the driver reports them, 2026-10-28", **_CC_90,
    ),
    ArchSpec(
        name="nvidia-h20", aliases=("h20", "NVIDIA H20"), num_sms=78, l2_bytes=60 * MIB,
        dram_gb_per_s=4000.0, bf16_tflops=148.0,
        source="NVIDIA H20 product brief (96 GB); never measured by this project", **_CC_90,
    ),
    ArchSpec(
        name="nvidia-b200", aliases=("b200", "NVIDIA B200"), num_sms=148, l2_bytes=126 * MIB,
        dram_gb_per_s=8000.0, bf16_tflops=2250.0,
        source="NVIDIA Blackwell datasheet (B200 SXM); never measured by this project", **_CC_100,
    ),
    ArchSpec(
        name="nvidia-l40s", aliases=("l40s", "NVIDIA L40S"), num_sms=142, l2_bytes=96 * MIB,
        dram_gb_per_s=864.0, bf16_tflops=362.05,
        source="NVIDIA L40S datasheet; L2: Ada whitepaper; never measured by this project", **_CC_89,
    ),
    ArchSpec(
        name="nvidia-rtx-4090", aliases=("rtx-4090", "rtx4090", "NVIDIA GeForce RTX 4090"), num_sms=128,
        l2_bytes=72 * MIB, dram_gb_per_s=1008.0, bf16_tflops=165.2,
        source="NVIDIA Ada GPU architecture whitepaper (RTX 4090); never measured by this project", **_CC_89,
    ),
    ArchSpec(
        name="amd-mi300x", aliases=("mi300x", "AMD Instinct MI300X"), target="gfx942", num_sms=304,
        warp_size=64, max_warps_per_sm=32, max_ctas_per_sm=32, registers_per_sm=131072,
        smem_per_sm_bytes=64 * KIB, smem_per_cta_bytes=64 * KIB, smem_reserved_bytes=0,
        l2_bytes=256 * MIB, dram_gb_per_s=5300.0, bf16_tflops=1307.4,
        source="AMD Instinct MI300X datasheet; CDNA 3 whitepaper (512 VGPRs a lane, 4 SIMDs a CU; "
        "256 MB Infinity Cache as the last level); never measured by this project",
    ),
)  # fmt: skip

ARCHS: Mapping[str, ArchSpec] = MappingProxyType({arch.name: arch for arch in _ALL})
_BY_SPELLING = {spelling.casefold(): arch for arch in _ALL for spelling in (arch.name, *arch.aliases)}


def find_arch(name: str) -> ArchSpec:
    """Resolve an architecture by name, alias or driver device name, exactly.

    Raises
    ------
    ArchError
        If no known GPU has this name.
    """
    try:
        return _BY_SPELLING[name.casefold()]
    except (KeyError, AttributeError):
        raise ArchError(f"unknown GPU architecture {name!r}; known: {', '.join(ARCHS)}") from None
