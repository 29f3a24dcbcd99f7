"""What a live calibration would do, before anything is compiled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from wavetune.core.arch import ArchSpec
from wavetune.core.config import KernelConfig
from wavetune.core.dtype import find_dtype
from wavetune.pipeline.family_job import FamilyJob
from wavetune.plan.sampling import PlanOptions, sparse_plan
from wavetune.store.record import CompiledConfig

ASSUMED_REGS = 96
"""Registers of a thread before compilation: the median of 330 recorded GEMM configurations (H200, Triton 3.6)."""


@dataclass(frozen=True, slots=True)
class DryRun:
    """Size and time of a calibration's plan.

    Parameters
    ----------
    n_configs : int
        Configurations to compile and check.
    sparse_points : int
        Points of the first stage.
    sparse_seconds : float
        What they are expected to take.
    max_points : int
        The most of both stages together; the second depends on what the first finds.
    max_seconds : float
        The most expected for both stages, without compilation.
    """

    n_configs: int
    sparse_points: int
    sparse_seconds: float
    max_points: int
    max_seconds: float


def dry_run(space: Sequence[KernelConfig], arch: ArchSpec, *, dtype: str, layout: str, options: PlanOptions) -> DryRun:
    """Plan the first stage with assumed registers and shared memory, and bound the second by the budget."""
    assumed = [_assume(config, arch, find_dtype(dtype).input_bytes) for config in space]
    plan = sparse_plan(assumed, arch, dtype=dtype, layout=layout, options=options)
    return DryRun(len(space), len(plan), plan.predicted_seconds, options.max_points, options.max_seconds)


@dataclass(frozen=True, slots=True)
class FamilyDryRun:
    """Size and time of the plan of a kernel family.

    Parameters
    ----------
    n_configs : int
        Configurations to compile and check.
    points : dict of str to int
        Points by stratum.
    problems : int
        Problems that they are of.
    seconds : float
        What measuring them is expected to take; the clock ends it earlier if a budget is given.
    """

    n_configs: int
    points: dict[str, int]
    problems: int
    seconds: float


def dry_run_family(job: FamilyJob, arch: ArchSpec, n_bytes: int = 2**15) -> FamilyDryRun:
    """Plan the calibration of a family with assumed registers, and ``n_bytes`` of shared memory a CTA."""
    assumed = [CompiledConfig(config, _assumed_regs(config, arch), 0, n_bytes) for config in job.configs]
    plan = job.plan(assumed, arch)
    return FamilyDryRun(
        len(job.configs), plan.strata(), len({point.problem for point in plan.points}), plan.predicted_seconds
    )


def _assumed_regs(config: KernelConfig, arch: ArchSpec) -> int:
    return min(ASSUMED_REGS, arch.registers_per_sm // (arch.warp_size * int(config["num_warps"])))


def _assume(config: KernelConfig, arch: ArchSpec, input_bytes: int) -> CompiledConfig:
    block_m, block_n, block_k, stages = (int(config[name]) for name in ("block_m", "block_n", "block_k", "num_stages"))
    smem_bytes = min((block_m + block_n) * block_k * input_bytes * stages, arch.smem_per_cta_bytes)
    return CompiledConfig(config, _assumed_regs(config, arch), 0, smem_bytes)
