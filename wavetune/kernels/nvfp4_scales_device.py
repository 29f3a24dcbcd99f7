# mypy: ignore-errors
# ruff: noqa: F821 ("fp32" is a Triton type)
"""Device code of the NVFP4 scale search."""

import triton
import triton.language as tl


@triton.jit
def round_e2m1(x):
    """Round positive numbers to 0, 0.5, 1, 1.5, 2, 3, 4 or 6, halves to the even code; no fp4 type is needed."""
    halves = (x > 0.25).to(tl.float32) + (x >= 0.75) + (x > 1.25) + (x >= 1.75)
    return 0.5 * halves + (x > 2.5) + (x >= 3.5) + 2.0 * (x > 5.0)


@triton.jit(do_not_specialize=["blocks"])
def nvfp4_scales_kernel(x_ptr, out_ptr, blocks, factor: "fp32", BLOCKS_PER_CTA: tl.constexpr):
    """Try every positive E4M3 value as the scale of each block, and store six times the best one and the factor."""
    rows = tl.program_id(0) * BLOCKS_PER_CTA + tl.arange(0, BLOCKS_PER_CTA)
    pointers = x_ptr + (rows.to(tl.int64)[:, None] * 16 + tl.arange(0, 16)[None, :])
    x = tl.abs(tl.load(pointers, mask=(rows < blocks)[:, None], other=0.0).to(tl.float32))
    least = tl.full((BLOCKS_PER_CTA,), float("inf"), tl.float32)
    best = tl.zeros((BLOCKS_PER_CTA,), tl.float32)
    codes = tl.zeros((BLOCKS_PER_CTA,), tl.int32)
    for _ in range(126):
        codes += 1
        # E4M3 has bias 7 and 3 bits of mantissa; below code 8 it is subnormal. 127 is NaN.
        normal = ((((codes >> 3) + 120) << 23) | ((codes & 7) << 20)).to(tl.float32, bitcast=True)
        scale = tl.where(codes < 8, codes * 0.001953125, normal) * factor
        error = x - round_e2m1(x / scale[:, None]) * scale[:, None]
        loss = tl.sum(error * error, 1)
        best = tl.where(loss < least, scale, best)
        least = tl.minimum(loss, least)
    tl.store(out_ptr + rows, 6.0 * best, mask=rows < blocks)
