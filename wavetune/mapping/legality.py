"""Whether a configuration may be launched on a problem at all. Never raises: an illegal one is a miss.

The rules that depend on the problem, for any GEMM kernel; what a kernel can compile is the kernel's own matter.
"""

from __future__ import annotations

from wavetune.core.arch import ArchSpec
from wavetune.core.config import KernelConfig
from wavetune.core.problem import GemmProblem
from wavetune.mapping.gemm import ceil_div

TMA_ALIGNMENT = 16
"""Bytes that base addresses and leading strides of a TMA descriptor must divide by (CUDA driver API,
``cuTensorMapEncodeTiled``)."""


def gemm_illegal_reason(problem: GemmProblem, config: KernelConfig, arch: ArchSpec) -> str | None:
    """Say why ``config`` cannot compute ``problem`` on ``arch``, or None if it can."""
    if config["load"] == "tma":
        if not arch.has_tma:
            return f"{arch.name} has no TMA"
        if problem.alignment < TMA_ALIGNMENT:
            return f"TMA needs {TMA_ALIGNMENT}-byte alignment, the operands have {problem.alignment}"
    split_k = int(config["split_k"])
    if (split_k > 1) != (config["schedule"] == "split_k"):
        return f"schedule {config['schedule']} does not go with split_k={split_k}"
    if not problem.is_empty:
        trips = ceil_div(problem.k, int(config["block_k"]))
        if split_k > trips:
            return f"split_k={split_k} exceeds the {trips} loop trips"
    return None
