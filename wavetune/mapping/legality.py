"""Whether a configuration may be launched on a problem at all. Never raises: an illegal one is a miss."""

from __future__ import annotations

from wavetune.core.arch import ArchSpec
from wavetune.core.config import KernelConfig
from wavetune.core.problem import GemmProblem

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
    if config["split_k"] != 1 and config["schedule"] != "split_k":
        return f"split_k={config['split_k']} needs schedule split_k, not {config['schedule']}"
    return None
