"""What vLLM launches for the experts of a model that it has no tuned table for: a baseline of grouped GEMM."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from wavetune.core.config import KernelConfig
from wavetune.core.dtype import find_dtype
from wavetune.core.grouped_problem import GroupedGemmProblem
from wavetune.errors import ConfigError, ProblemError

_BLOCK_M = ((32, 16), (96, 32), (512, 64))
"""``(most tokens, block_m)``; 128 beyond. Tokens are those of the batch, before each is sent to its experts."""

_FIELD_WEIGHTS = {
    "block_m": 1.0, "block_n": 1.0, "block_k": 0.5, "num_warps": 0.25, "num_stages": 0.25, "group_m": 0.05,
}  # fmt: skip
"""How much an octave of a field counts: tiles decide the grid, the rest tunes it."""

_PERSISTENT, _POINTER = 0.02, 0.1
"""Of equally near configurations a plain grid is taken, as vLLM launches, and TMA, the better way to load."""


def vllm_moe_config(problem: GroupedGemmProblem, topk: int) -> dict[str, int]:
    """Return vLLM's default configuration of its fused experts kernel, without a tuned table for the GPU.

    The rule of ``get_default_config`` for NVIDIA GPUs in ``vllm/model_executor/layers/fused_moe/fused_moe.py``, as it
    has been since vllm-project/vllm#34846 (merged in February 2026, read in August 2026), for bf16, fp16 and fp8
    without blocks of scales. Only the tokens of the batch, the experts and the type matter to it; n and k do not.

    Parameters
    ----------
    problem : GroupedGemmProblem
        Its rows are tokens times ``topk``.
    topk : int
        Experts that each token is sent to, at least 1.

    Returns
    -------
    dict of str to int
        block_m, block_n, block_k, group_m, num_warps and num_stages.

    Raises
    ------
    ProblemError
        If ``topk`` is not in ``[1, problem.experts]``, or the dtype has scales of blocks, for which vLLM's rule needs
        their shape.
    """
    if type(topk) is not int or not 1 <= topk <= problem.experts:
        raise ProblemError(f"topk must be from 1 to the {problem.experts} experts, got {topk!r}")
    dtype = find_dtype(problem.dtype)
    if dtype.scale_block:
        raise ProblemError(
            f"vLLM's default for {dtype.name} depends on the blocks of its scales; take fp8, bf16 or fp16"
        )
    tokens = -(-problem.tokens // topk)
    return {
        "block_m": next((block_m for most, block_m in _BLOCK_M if tokens <= most), 128),
        "block_n": 64 if tokens <= 64 else 128,
        "block_k": 128 if tokens <= 64 or dtype.is_scaled else 64,
        "group_m": 16 if tokens // problem.experts > 128 else 1,
        "num_warps": 4 if tokens <= 128 else 8,
        "num_stages": 4 if tokens <= 32 else 3,
    }


def nearest_grouped_config(fields: Mapping[str, int], configs: Sequence[KernelConfig]) -> KernelConfig:
    """Map fields to the nearest configuration of a space: octaves of each field, weighted; the first of equals.

    What a choice loses by being mapped is not the fault of who made it; tables that show it say "nearest
    configuration" for that reason.

    Parameters
    ----------
    fields : mapping of str to int
        As `vllm_moe_config` returns them.
    configs : sequence of KernelConfig
        Grouped GEMM configurations, those that were measured for example.

    Raises
    ------
    ConfigError
        If there is no configuration.
    """
    if not configs:
        raise ConfigError("no configuration to map to: the space is empty")

    def distance(config: KernelConfig) -> float:
        octaves = (weight * abs(math.log2(int(config[name]) / fields[name])) for name, weight in _FIELD_WEIGHTS.items())
        return (
            sum(octaves) + _PERSISTENT * (config["schedule"] == "persistent") + _POINTER * (config["load"] == "pointer")
        )

    return min(configs, key=distance)
