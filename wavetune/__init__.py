"""Near-best GPU kernel configurations in microseconds.

>>> import wavetune
>>> wavetune.choose_config(512, 4096, 4096, arch="h200")["block_m"] in (64, 128)
True

Importing this package loads the standard library only; names of the offline and GPU layers are loaded when used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from wavetune.core.arch import ARCHS, ArchSpec, find_arch
from wavetune.core.config import KernelConfig, KernelSpec
from wavetune.core.problem import GemmProblem, Problem
from wavetune.errors import WavetuneError
from wavetune.runtime.choice import Choice, RankedConfig, Source
from wavetune.runtime.choose import choose, choose_config, clear_caches, explain_choice, rank_configs
from wavetune.runtime.misses import Miss, misses, write_misses
from wavetune.runtime.settings import Settings, configure, settings

if TYPE_CHECKING:
    from wavetune.core.attention_problem import AttentionDecodeProblem, AttentionProblem
    from wavetune.core.grouped_problem import GroupedGemmProblem
    from wavetune.fit.model import WaveLatencyModel
    from wavetune.launch.attention import attention, attention_decode
    from wavetune.launch.autotune import autotune
    from wavetune.launch.grouped_matmul import grouped_matmul
    from wavetune.launch.linear import patch_linear
    from wavetune.launch.matmul import matmul
    from wavetune.launch.perf_model import perf_model
    from wavetune.launch.scaled_matmul import scaled_matmul
    from wavetune.launch.warmup import warmup, warmup_model
    from wavetune.runtime.attention_choice import choose_attention_config, choose_attention_decode_config
    from wavetune.runtime.fingerprint import fingerprint
    from wavetune.runtime.grouped_choice import RoutingPrior, choose_grouped_gemm_config, choose_grouped_gemm_for_graph
    from wavetune.runtime.grouped_pair import choose_grouped_gemm_pair
    from wavetune.runtime.reachable import reachable_configs

__version__ = "0.1.0"

__all__ = [
    "ARCHS",
    "ArchSpec",
    "AttentionDecodeProblem",
    "AttentionProblem",
    "Choice",
    "GemmProblem",
    "GroupedGemmProblem",
    "KernelConfig",
    "KernelSpec",
    "Miss",
    "Problem",
    "RankedConfig",
    "RoutingPrior",
    "Settings",
    "Source",
    "WaveLatencyModel",
    "WavetuneError",
    "__version__",
    "attention",
    "attention_decode",
    "autotune",
    "choose",
    "choose_attention_config",
    "choose_attention_decode_config",
    "choose_config",
    "choose_grouped_gemm_config",
    "choose_grouped_gemm_for_graph",
    "choose_grouped_gemm_pair",
    "clear_caches",
    "configure",
    "explain_choice",
    "find_arch",
    "fingerprint",
    "grouped_matmul",
    "matmul",
    "misses",
    "patch_linear",
    "perf_model",
    "rank_configs",
    "reachable_configs",
    "scaled_matmul",
    "settings",
    "warmup",
    "warmup_model",
    "write_misses",
]

_LAZY = {
    "AttentionDecodeProblem": "wavetune.core.attention_problem",
    "AttentionProblem": "wavetune.core.attention_problem",
    "GroupedGemmProblem": "wavetune.core.grouped_problem",
    "RoutingPrior": "wavetune.runtime.grouped_choice",
    "WaveLatencyModel": "wavetune.fit.model",
    "attention": "wavetune.launch.attention",
    "attention_decode": "wavetune.launch.attention",
    "autotune": "wavetune.launch.autotune",
    "choose_attention_config": "wavetune.runtime.attention_choice",
    "choose_attention_decode_config": "wavetune.runtime.attention_choice",
    "choose_grouped_gemm_config": "wavetune.runtime.grouped_choice",
    "choose_grouped_gemm_for_graph": "wavetune.runtime.grouped_choice",
    "choose_grouped_gemm_pair": "wavetune.runtime.grouped_pair",
    "fingerprint": "wavetune.runtime.fingerprint",
    "grouped_matmul": "wavetune.launch.grouped_matmul",
    "matmul": "wavetune.launch.matmul",
    "patch_linear": "wavetune.launch.linear",
    "perf_model": "wavetune.launch.perf_model",
    "reachable_configs": "wavetune.runtime.reachable",
    "scaled_matmul": "wavetune.launch.scaled_matmul",
    "warmup": "wavetune.launch.warmup",
    "warmup_model": "wavetune.launch.warmup",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        import importlib

        # Kept, so that the next access is a plain attribute: to the interpreter and to torch.compile.
        value = globals()[name] = getattr(importlib.import_module(_LAZY[name]), name)
        return value
    raise AttributeError(f"module 'wavetune' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
