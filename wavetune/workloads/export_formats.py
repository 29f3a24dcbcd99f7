"""What a workload can be exported as, and what not."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

EXPORT_FORMATS = ("vllm", "sglang", "triton-configs", "quicktune-csv", "tunableop-untuned", "json")

NOT_EXPORTED: Mapping[str, str] = MappingProxyType(
    {
        "hipblaslt-override": "it holds solution indices of hipBLASLt, which Triton configurations do not have",
        "aiter": "its tuned tables name kernels of AMD's libraries, which Triton configurations are not",
        "aiter-triton": "its kernels take waves_per_eu, matrix_instr_nonkdim and kpack, which no table here knows",
    }
)
"""Formats that nothing here can be said in, and why."""

CAPTURE_SIZES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 256, 512, 1024, 1536, 2048, 3072, 4096)
"""Token counts of the files that vLLM and SGLang ship."""
