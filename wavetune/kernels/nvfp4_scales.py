"""The best NVFP4 scale of every block: of all 126 positive E4M3 values, the one that loses least.

NVFP4 stores a weight as E2M1, 16 elements with one E4M3 scale, and one factor for the tensor; the usual scale, largest
element over 6, is not the best one. The smallest family, and the example of ``CONTRIBUTING.md``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from wavetune.core.arch import ArchSpec
from wavetune.core.config import NVFP4_SCALES, KernelConfig
from wavetune.kernels import nvfp4_scales_device
from wavetune.kernels.one_kernel_family import OneKernelFamily, Take
from wavetune.mapping.kernel_mapping import KernelProblem
from wavetune.mapping.nvfp4_scales import BLOCK_ELEMENTS, NVFP4_MAPPING


@dataclass(frozen=True, slots=True)
class Nvfp4Operands:
    """Blocks ``x`` of shape (blocks, 16), contiguous; ``out`` fp32 of shape (blocks, 1): 6 times the best scale."""

    problem: KernelProblem
    x: Any
    out: Any
    factor: float = 0.01

    def with_workspace(self, config: KernelConfig) -> Nvfp4Operands:
        """Return the operands: no workspace is needed."""
        return self


class Nvfp4ScalesFamily(OneKernelFamily):
    """Scales of NVFP4 by exhaustive search."""

    spec = NVFP4_SCALES
    mapping = NVFP4_MAPPING
    kernel = nvfp4_scales_device.nvfp4_scales_kernel
    sources = (nvfp4_scales_device,)
    validation_sizes = ((20011,), (1,))

    def configs(self, arch: ArchSpec, dtype: str) -> list[KernelConfig]:
        """Return small CTAs for few blocks to large ones for many."""
        sizes = ((32, 4), (16, 2), (64, 4), (64, 8), (128, 8))
        return [self.spec.config({"blocks_per_cta": blocks, "num_warps": warps}) for blocks, warps in sizes]

    def lay_out(self, problem: KernelProblem, take: Take) -> Nvfp4Operands:
        """Return blocks in rows."""
        (blocks,) = problem.dims
        return Nvfp4Operands(
            problem, take(problem.dtype, blocks, BLOCK_ELEMENTS), take("fp32", blocks, 1, is_output=True)
        )  # fmt: skip

    def arguments(self, operands: Nvfp4Operands) -> tuple[Any, ...]:
        """Return tensors, blocks and the factor of the tensor."""
        return operands.x, operands.out, operands.problem.dims[0], operands.factor

    def reference(self, operands: Nvfp4Operands) -> Any:
        """Compute the result by a plain loop in float64; the first of equals wins."""
        import torch

        x = operands.x.double().abs()
        grid = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0], dtype=torch.float64, device=x.device)
        least, best = torch.full_like(x[:, :1], torch.inf), torch.zeros_like(x[:, :1])
        for code in range(1, 127):
            scale = operands.factor * (code * 2.0**-9 if code < 8 else (1 + code % 8 / 8) * 2.0 ** (code // 8 - 7))
            nearest = (x[..., None] / scale - grid).abs().argmin(-1)
            loss = (x - grid[nearest] * scale).square().sum(1, keepdim=True)
            best[loss < least] = scale
            least = torch.minimum(loss, least)
        return 6.0 * best

    def max_error(self, dtype: str) -> float:
        """Return what near ties may cost that rounding decides otherwise, in a few blocks of thousands."""
        return 5e-3

    def flops(self, problem: KernelProblem) -> int:
        """Return 126 times about 20 operations an element: for a sweep this wide, memory is not the limit."""
        return 126 * 20 * BLOCK_ELEMENTS * problem.dims[0]
