"""Whether a configuration may be launched on a problem of any kernel family; see `wavetune.mapping.legality` for GEMM.

The rules of the problem, not those of one kernel: what a compiled kernel cannot compute, and what no launch can hold.
"""

from __future__ import annotations

from wavetune.core.arch import ArchSpec
from wavetune.core.attention_problem import AttentionDecodeProblem, AttentionProblem
from wavetune.core.config import KernelConfig
from wavetune.core.grouped_problem import GroupedGemmProblem
from wavetune.core.problem import MAX_DIMENSION, GemmProblem, Problem
from wavetune.mapping.attention import launched_blocks, most_decode_trips, row_tiles
from wavetune.mapping.gemm import ceil_div
from wavetune.mapping.grouped_gemm import tile_rows
from wavetune.mapping.legality import gemm_illegal_reason, tma_reason

_TOO_MANY_CTAS = "the grid exceeds 2**31 - 1 CTAs"


def illegal_reason(problem: Problem, config: KernelConfig, arch: ArchSpec) -> str | None:
    """Say why ``config`` cannot compute ``problem`` on ``arch``, or None if it can.

    Also None for kernels of which no rules are known, those of users.
    """
    if isinstance(problem, GemmProblem):
        return gemm_illegal_reason(problem, config, arch)
    if isinstance(problem, GroupedGemmProblem):
        return _grouped_reason(problem, config, arch)
    if isinstance(problem, AttentionDecodeProblem):
        return _decode_reason(problem, config)
    if isinstance(problem, AttentionProblem):
        ctas = launched_blocks(problem, int(config["block_m"])) * problem.heads
        return _TOO_MANY_CTAS if ctas > MAX_DIMENSION else None
    return None


def _grouped_reason(problem: GroupedGemmProblem, config: KernelConfig, arch: ArchSpec) -> str | None:
    reason = tma_reason(problem.alignment, config, arch)
    if reason is not None:
        return reason
    rows, _ = tile_rows(problem.group_sizes, int(config["block_m"]))
    return _TOO_MANY_CTAS if rows * ceil_div(problem.n, int(config["block_n"])) > MAX_DIMENSION else None


def _decode_reason(problem: AttentionDecodeProblem, config: KernelConfig) -> str | None:
    splits, trips = int(config["splits"]), most_decode_trips(problem, int(config["block_n"]))
    if splits > trips:
        return f"splits={splits} exceeds the {trips} loop trips"
    ctas = len(problem.kv_lengths) * problem.kv_heads * row_tiles(problem.group) * splits
    return _TOO_MANY_CTAS if ctas > MAX_DIMENSION else None
