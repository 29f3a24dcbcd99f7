"""Linear layers of public models: the GEMM shapes that servers run.

A linear layer multiplies ``m`` tokens of ``k`` input features into ``n`` output features. Sizes come from each model's
published ``config.json``; fused projections (q, k and v; gate and up) count as one layer, as serving engines run them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LinearLayer:
    """One weight matrix.

    Parameters
    ----------
    n, k : int
        Output and input features on one GPU.
    used_by : tuple of str
        ``model layer tp``, where each came from.
    """

    n: int
    k: int
    used_by: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TransformerBlock:
    """The sizes of a decoder block.

    Parameters
    ----------
    model : str
        Repository on huggingface.co whose ``config.json`` has the numbers.
    hidden, intermediate : int
        ``hidden_size``, ``intermediate_size``; 0 intermediate where experts do the feed-forward (grouped GEMM).
    heads, kv_heads, head_dim : int
        Attention heads.
    tensor_parallel : tuple of int
        GPUs that a layer is sensibly split over.
    is_gated : bool, default=True
        Gate and up projection in one matrix of twice the intermediate size.
    """

    model: str
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    tensor_parallel: tuple[int, ...]
    is_gated: bool = True

    def layers(self) -> Iterator[LinearLayer]:
        """Yield the block's layers for each degree of tensor parallelism.

        Column-parallel layers (qkv, up) split n, row-parallel ones (o, down) split k; key and value heads are
        copied where there are more GPUs than heads.
        """
        for tp in self.tensor_parallel:
            heads, kv_heads = self.heads // tp, max(self.kv_heads // tp, 1)
            intermediate = self.intermediate // tp
            sizes = {
                "qkv": ((heads + 2 * kv_heads) * self.head_dim, self.hidden),
                "o": (self.hidden, heads * self.head_dim),
            }
            if intermediate:
                sizes["up"] = (intermediate * (2 if self.is_gated else 1), self.hidden)
                sizes["down"] = (self.hidden, intermediate)
            for name, (n, k) in sizes.items():
                yield LinearLayer(n, k, (f"{self.model} {name} tp{tp}",))


_SMALL, _MEDIUM, _LARGE = (1,), (1, 2), (1, 2, 4, 8)

BLOCKS = (
    TransformerBlock("meta-llama/Llama-2-7b-hf", 4096, 11008, 32, 32, 128, _SMALL),
    TransformerBlock("meta-llama/Llama-2-13b-hf", 5120, 13824, 40, 40, 128, _MEDIUM),
    TransformerBlock("meta-llama/Meta-Llama-3-8B", 4096, 14336, 32, 8, 128, _MEDIUM),
    TransformerBlock("meta-llama/Meta-Llama-3-70B", 8192, 28672, 64, 8, 128, _LARGE),
    TransformerBlock("Qwen/Qwen2.5-7B", 3584, 18944, 28, 4, 128, _MEDIUM),
    TransformerBlock("Qwen/Qwen2.5-72B", 8192, 29568, 64, 8, 128, _LARGE),
    TransformerBlock("Qwen/Qwen3-0.6B", 1024, 3072, 16, 8, 128, _SMALL),
    TransformerBlock("Qwen/Qwen3-4B", 2560, 9728, 32, 8, 128, _SMALL),
    TransformerBlock("Qwen/Qwen3-8B", 4096, 12288, 32, 8, 128, _MEDIUM),
    TransformerBlock("Qwen/Qwen3-14B", 5120, 17408, 40, 8, 128, _MEDIUM),
    TransformerBlock("Qwen/Qwen3-32B", 5120, 25600, 64, 8, 128, _LARGE),
    TransformerBlock("Qwen/Qwen3-30B-A3B", 2048, 0, 32, 4, 128, _MEDIUM),
    TransformerBlock("mistralai/Mistral-Small-24B-Base-2501", 5120, 32768, 32, 8, 128, _MEDIUM),
    TransformerBlock("google/gemma-2-9b", 3584, 14336, 16, 8, 256, _MEDIUM),
    TransformerBlock("google/gemma-3-27b-pt", 5376, 21504, 32, 16, 128, _MEDIUM),
    TransformerBlock("microsoft/Phi-3-mini-4k-instruct", 3072, 8192, 32, 32, 96, _SMALL),
    TransformerBlock("microsoft/phi-4", 5120, 17920, 40, 10, 128, _MEDIUM),
    TransformerBlock("openai/gpt-oss-120b", 2880, 0, 64, 8, 64, _MEDIUM),
)
"""Models of the default plan. Mistral-7B has the layers of Llama-3-8B, Llama-2-70B those of Llama-3-70B."""

_DEEPSEEK_V3 = "deepseek-ai/DeepSeek-V3"
# Multi-head latent attention: hidden 7168, q rank 1536, kv rank 512 + 64 rope, 128 heads of 128 + 64 and 128;
# dense intermediate 18432 (first three blocks), shared expert 2048.
OTHER_LAYERS = (
    LinearLayer(2112, 7168, (f"{_DEEPSEEK_V3} qkv_a tp1",)),
    LinearLayer(24576, 1536, (f"{_DEEPSEEK_V3} q_b tp1",)),
    LinearLayer(3072, 1536, (f"{_DEEPSEEK_V3} q_b tp8",)),
    LinearLayer(32768, 512, (f"{_DEEPSEEK_V3} kv_b tp1",)),
    LinearLayer(4096, 512, (f"{_DEEPSEEK_V3} kv_b tp8",)),
    LinearLayer(7168, 16384, (f"{_DEEPSEEK_V3} o tp1",)),
    LinearLayer(7168, 2048, (f"{_DEEPSEEK_V3} o tp8, shared down tp1",)),
    LinearLayer(4608, 7168, (f"{_DEEPSEEK_V3} dense up tp8",)),
    LinearLayer(7168, 2304, (f"{_DEEPSEEK_V3} dense down tp8",)),
    LinearLayer(4096, 7168, (f"{_DEEPSEEK_V3} shared up tp1",)),
    LinearLayer(256, 7168, (f"{_DEEPSEEK_V3} router tp1",)),
    LinearLayer(128256, 4096, ("meta-llama/Meta-Llama-3-8B lm_head tp1",)),
    LinearLayer(16032, 8192, ("meta-llama/Meta-Llama-3-70B lm_head tp8",)),
)
"""Layers that are no part of a `TransformerBlock`."""

DECODE_TOKENS = (
    1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160, 176, 192, 208, 240, 256, 288, 320, 384, 448,
)  # fmt: skip
"""Sequences decoded together: the batch sizes that serving engines capture in CUDA graphs."""

PREFILL_TOKENS = (512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192)
"""Tokens of a prefill chunk."""

RAGGED_TOKENS = (
    3, 5, 7, 9, 13, 21, 29, 37, 53, 69, 77, 93, 117, 133, 171, 200, 271, 333, 457, 613, 900, 1111, 1777, 2500, 3333,
    5000,
)  # fmt: skip
"""Lengths that real prompts and batches have: multiples of nothing."""

TOKENS = tuple(sorted(DECODE_TOKENS + PREFILL_TOKENS + RAGGED_TOKENS))
"""Three quarters are at most 512: they are the cheapest to measure, and where the best configurations differ most
(half as many of them lost 0.004 of held-out efficiency there, half as many above 2048 none; H200, 2026-11)."""


def distinct_layers(layers: Iterable[LinearLayer]) -> tuple[LinearLayer, ...]:
    """Join layers of the same sizes, smallest weight first."""
    used_by: dict[tuple[int, int], list[str]] = {}
    for layer in layers:
        used_by.setdefault((layer.n, layer.k), []).extend(layer.used_by)
    ordered = sorted(used_by, key=lambda nk: (nk[0] * nk[1], nk))
    return tuple(LinearLayer(n, k, tuple(used_by[n, k])) for n, k in ordered)


def plan_layers() -> tuple[LinearLayer, ...]:
    """Return the distinct layers that the default plan measures, smallest weight first."""
    return distinct_layers([layer for block in BLOCKS for layer in block.layers()] + list(OTHER_LAYERS))


def spread_shapes(
    n_shapes: int, layers: tuple[LinearLayer, ...], tokens: tuple[int, ...] = TOKENS
) -> list[tuple[int, int, int]]:
    """Pick distinct ``(m, n, k)`` evenly over layers and token counts; more shapes extend fewer.

    Follows the two-dimensional golden-ratio sequence (M. Roberts, "The unreasonable effectiveness of quasirandom
    sequences", 2018), so any prefix covers decode to prefill and small to large weights.
    """
    shapes: dict[tuple[int, int, int], None] = {}
    wanted = min(n_shapes, len(layers) * len(tokens))
    plastic = 1.324717957244746
    index = 0
    while len(shapes) < wanted:
        index += 1
        layer = layers[int((0.5 + index / plastic) % 1.0 * len(layers))]
        m = tokens[int((0.5 + index / plastic**2) % 1.0 * len(tokens))]
        shapes[m, layer.n, layer.k] = None
    return list(shapes)
