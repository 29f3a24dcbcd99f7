"""What a workload can be exported as, and what not."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

OVERRIDE = "hipblaslt-override"
"""The format that is made of bench output, not of answers."""

EXPORT_FORMATS = (
    "vllm", "sglang", "aiter-triton", "triton-configs", "quicktune-csv", "tunableop-untuned", OVERRIDE, "json",
)  # fmt: skip

SERVER_FORMATS = ("vllm", "sglang")
"""Formats with a row for each capture size, in files that carry the GPU's name."""

NOT_EXPORTED: Mapping[str, str] = MappingProxyType(
    {"aiter": "its tuned tables name kernels of AMD's libraries, which Triton configurations are not: aiter-triton"}
)
"""Formats that nothing here can be said in, and why."""

CAPTURE_SIZES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 256, 512, 1024, 1536, 2048, 3072, 4096)
"""Token counts of the files that vLLM and SGLang ship."""
