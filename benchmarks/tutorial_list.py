"""The configurations of Triton's matmul tutorial (03-matrix-multiplication), its list for fp16 on CUDA."""

from __future__ import annotations

from wavetune.core.config import GEMM, KernelConfig

# block_m, block_n, block_k, num_stages, num_warps
TUTORIAL = (
    (128, 256, 64, 3, 8), (64, 256, 32, 4, 4), (128, 128, 32, 4, 4), (128, 64, 32, 4, 4), (64, 128, 32, 4, 4),
    (128, 32, 32, 4, 4), (64, 32, 32, 5, 2), (32, 64, 32, 5, 2),
)  # fmt: skip


def tutorial_configs() -> list[KernelConfig]:
    """Return the tutorial's list as configurations of the pointer kernel."""
    return [
        GEMM.config({"block_m": m, "block_n": n, "block_k": k, "group_m": 8, "num_warps": warps, "num_stages": stages})
        for m, n, k, stages, warps in TUTORIAL
    ]
