"""Expert layers of public models: the grouped GEMMs that servers run.

A router sends each token to ``top_k`` experts; the tokens of an expert are multiplied by its gate and up projection,
then by its down projection. Sizes come from each model's published ``config.json``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ExpertLayer:
    """One projection of all experts on one GPU.

    Parameters
    ----------
    model : str
        Repository on huggingface.co whose ``config.json`` has the numbers, projection and split.
    experts : int
        Experts on this GPU.
    share : float
        Tokens that arrive here for each token of the batch: experts per token, divided by the GPUs that the experts are
        spread over.
    n, k : int
        Rows and columns of an expert's weight on this GPU.
    """

    model: str
    experts: int
    share: float
    n: int
    k: int

    def rows(self, tokens: int) -> int:
        """Return the rows of x for a batch of ``tokens``, at least 1."""
        return max(round(tokens * self.share), 1)

    def weight_bytes(self, element_bytes: int) -> int:
        """Return the bytes of all weights."""
        return self.experts * self.n * self.k * element_bytes


@dataclass(frozen=True, slots=True)
class ExpertBlock:
    """The experts of one model.

    Parameters
    ----------
    model : str
        Repository on huggingface.co.
    hidden, intermediate : int
        ``hidden_size``, ``moe_intermediate_size``.
    experts, top_k : int
        Routed experts, and how many of them a token goes to.
    splits : tuple of (int, int)
        ``(expert parallel, tensor parallel)`` degrees: experts are dealt out to GPUs, and each expert's intermediate
        features are.
    """

    model: str
    hidden: int
    intermediate: int
    experts: int
    top_k: int
    splits: tuple[tuple[int, int], ...]

    def layers(self) -> Iterator[ExpertLayer]:
        """Yield gate and up projection in one weight, then the down projection, for each split."""
        for expert_parallel, tensor_parallel in self.splits:
            experts, share = self.experts // expert_parallel, self.top_k / expert_parallel
            intermediate = self.intermediate // tensor_parallel
            split = f"ep{expert_parallel} tp{tensor_parallel}"
            for name, n, k in (("up", 2 * intermediate, self.hidden), ("down", self.hidden, intermediate)):
                yield ExpertLayer(f"{self.model} {name} {split}", experts, share, n, k)


CALIBRATION_BLOCKS = (
    ExpertBlock("mistralai/Mixtral-8x7B-v0.1", 4096, 14336, 8, 2, ((1, 2), (2, 2))),
    ExpertBlock("Qwen/Qwen3-30B-A3B", 2048, 768, 128, 8, ((1, 2), (2, 1))),
    ExpertBlock("Qwen/Qwen3-235B-A22B", 4096, 1536, 128, 8, ((8, 1), (1, 4))),
    ExpertBlock("openai/gpt-oss-120b", 2880, 2880, 128, 4, ((4, 1), (1, 4))),
    ExpertBlock("deepseek-ai/DeepSeek-V3", 7168, 2048, 256, 8, ((16, 1), (1, 16))),
    ExpertBlock("deepseek-ai/DeepSeek-V2-Lite", 2048, 1408, 64, 6, ((1, 1),)),
    ExpertBlock("moonshotai/Kimi-K2-Instruct", 7168, 2048, 384, 8, ((32, 1), (2, 8))),
)
"""What the default plan measures."""

HOLDOUT_BLOCKS = (
    ExpertBlock("Qwen/Qwen3-30B-A3B", 2048, 768, 128, 8, ((1, 1), (4, 1))),
    ExpertBlock("deepseek-ai/DeepSeek-V3", 7168, 2048, 256, 8, ((8, 1), (1, 8))),
)
"""What choices are judged on. Qwen3-30B-A3B's weights are calibrated on half as many experts or split in two,
DeepSeek-V3's on half as many experts or split in sixteen: no pair of experts and weight is in both."""


def expert_layers(blocks: tuple[ExpertBlock, ...]) -> tuple[ExpertLayer, ...]:
    """Return the layers of blocks, smallest weight first."""
    layers = [layer for block in blocks for layer in block.layers()]
    return tuple(sorted(layers, key=lambda layer: (layer.weight_bytes(1), layer.model)))
