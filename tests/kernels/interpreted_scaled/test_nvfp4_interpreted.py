"""The NVFP4 scale search on the CPU against a plain loop over all 126 scales."""

from dataclasses import replace

import pytest
import torch

from wavetune.core.arch import find_arch
from wavetune.kernels.registry import find_family
from wavetune.mapping.kernel_mapping import KernelProblem

H200 = find_arch("h200")
FAMILY = find_family("nvfp4_scales")


@pytest.mark.parametrize("config", FAMILY.configs(H200, "fp16"), ids=lambda config: str(config["blocks_per_cta"]))
@pytest.mark.parametrize("blocks", [1, 77])
def test_equals_the_plain_loop(blocks: int, config: object) -> None:
    """Every scale is that of the loop in float64: zeros, tiny and huge blocks, and more blocks than whole CTAs."""
    operands = FAMILY.make_operands(KernelProblem("nvfp4_scales", (blocks,), "fp16"), "cpu", 0)[0]
    if blocks > 3:
        operands.x[0], operands.x[1], operands.x[2] = 0.0, operands.x[1] * 1e-3, operands.x[2] * 1e4
    for factor in (0.01, 2.0**-6):
        wanted = replace(operands, factor=factor)
        FAMILY.launch(wanted, config, H200)
        torch.testing.assert_close(wanted.out.double(), FAMILY.reference(wanted), rtol=1e-6, atol=0.0)


def test_the_best_scale_beats_the_usual_one() -> None:
    """Blocks that lose least are what is chosen: never worse than the largest element over 6, mostly better."""
    operands = FAMILY.make_operands(KernelProblem("nvfp4_scales", (64,), "fp16"), "cpu", 1)[0]
    FAMILY.launch(operands, FAMILY.configs(H200, "fp16")[0], H200)
    x = operands.x.double().abs()
    grid = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0], dtype=torch.float64)

    def loss(scale: torch.Tensor) -> torch.Tensor:
        nearest = grid[(x[..., None] / scale[..., None] - grid).abs().argmin(-1)]
        return (x - nearest * scale).square().sum(1)

    codes = torch.arange(1, 127)
    values = torch.where(codes < 8, codes * 2.0**-9, (1 + codes % 8 / 8) * 2.0 ** (codes // 8 - 7)).double() * 0.01
    usual = values[((x.amax(1, keepdim=True) / 6.0)[..., None] - values).abs().argmin(-1)]
    found, before = loss(operands.out.double() / 6.0), loss(usual)
    assert (found <= before * (1 + 1e-4)).all()
    assert (found < 0.95 * before).float().mean() > 0.4
