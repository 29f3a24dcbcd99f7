# mypy: ignore-errors
# ruff: noqa: F821 ("i64" is a Triton type)
"""Device code for fp8 tiles whose width is no power of two: 64 + 16, 64 + 32, 128 + 32 and 128 + 64 columns.

Two accumulators side by side share the rows of A, as in `wavetune.kernels.gemm_pair_device`; sums are promoted and
scales applied as in `wavetune.kernels.gemm_scaled_device`. Operands come by TMA; scales are those of rows or tensors.
"""

import triton
import triton.language as tl

from wavetune.kernels.gemm_device import last_trip, let_reduction_start, multiply, split_range, store_partial, tile_at
from wavetune.kernels.gemm_pair_device import store_pair
from wavetune.kernels.gemm_scaled_device import SCALED_SIZES, apply_scales


@triton.jit
def accumulate_scaled_pair(
    a_desc, b_desc, b2_desc, start_m, start_n, trip_start, trip_end,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, WIDTH: tl.constexpr, PROMOTE: tl.constexpr,
):  # fmt: skip
    """Run the main loop for WIDTH columns and for the BLOCK_N - WIDTH columns beside them."""
    total = tl.zeros((BLOCK_M, WIDTH), dtype=tl.float32)
    total2 = tl.zeros((BLOCK_M, BLOCK_N - WIDTH), dtype=tl.float32)
    acc = tl.zeros_like(total)
    acc2 = tl.zeros_like(total2)
    for trip in range(trip_start, last_trip(trip_start, trip_end)):
        first_k = trip * BLOCK_K
        a = a_desc.load([start_m, first_k])
        b = b_desc.load([start_n, first_k])
        b2 = b2_desc.load([start_n + WIDTH, first_k])
        acc = multiply(acc, a, b, True, False)
        acc2 = multiply(acc2, a, b2, True, False)
        if PROMOTE > 0:
            # One condition twice, written so that the compiler does not see it: with both parts in one branch, each
            # waits for its own instructions there, and ptxas runs one after another (Triton 3.6).
            if trip % PROMOTE == PROMOTE - 1:
                total += acc
                acc = tl.zeros_like(total)
            if (trip + 1) % PROMOTE == 0:
                total2 += acc2
                acc2 = tl.zeros_like(total2)
    if PROMOTE > 0:
        acc += total
        acc2 += total2
    return acc, acc2


@triton.jit
def apply_scales_to_pair(
    acc, acc2, scale_a_ptr, scale_b_ptr, start_m, start_n, m, n, scale_a_row, scale_b_row,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Multiply both parts of a finished tile by the scales of its rows and columns."""
    acc = apply_scales(
        acc, scale_a_ptr, scale_b_ptr, start_m, start_n, m, n, scale_a_row, scale_b_row, BLOCK_M, WIDTH, 0
    )
    acc2 = apply_scales(
        acc2, scale_a_ptr, scale_b_ptr, start_m, start_n + WIDTH, m, n, scale_a_row, scale_b_row,
        BLOCK_M, BLOCK_N - WIDTH, 0,
    )  # fmt: skip
    return acc, acc2


@triton.jit(do_not_specialize=SCALED_SIZES)
def tile_scaled_pair_kernel(
    a_desc, b_desc, b2_desc, c_desc, c2_desc, bias_ptr, scale_a_ptr, scale_b_ptr, m, n, k,
    scale_a_row: "i64", scale_b_row: "i64",
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    WIDTH: tl.constexpr, PROMOTE: tl.constexpr, UNIT_K: tl.constexpr, UNIT_N: tl.constexpr,
    HAS_BIAS: tl.constexpr, ACTIVATION: tl.constexpr,
):  # fmt: skip
    """Compute one output tile per CTA."""
    n *= UNIT_N
    k *= UNIT_K
    start_m, start_n = tile_at(tl.program_id(0), m, n, BLOCK_M, BLOCK_N, GROUP_M)
    acc, acc2 = accumulate_scaled_pair(
        a_desc, b_desc, b2_desc, start_m, start_n, 0, tl.cdiv(k, BLOCK_K), BLOCK_M, BLOCK_N, BLOCK_K, WIDTH, PROMOTE
    )
    acc, acc2 = apply_scales_to_pair(
        acc, acc2, scale_a_ptr, scale_b_ptr, start_m, start_n, m, n, scale_a_row, scale_b_row, BLOCK_M, BLOCK_N, WIDTH
    )
    store_pair(acc, acc2, c_desc, c2_desc, bias_ptr, start_m, start_n, n, BLOCK_M, BLOCK_N, WIDTH, HAS_BIAS, ACTIVATION)


@triton.jit(do_not_specialize=SCALED_SIZES)
def persistent_scaled_pair_kernel(
    a_desc, b_desc, b2_desc, c_desc, c2_desc, bias_ptr, scale_a_ptr, scale_b_ptr, m, n, k,
    scale_a_row: "i64", scale_b_row: "i64",
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    WIDTH: tl.constexpr, PROMOTE: tl.constexpr, UNIT_K: tl.constexpr, UNIT_N: tl.constexpr,
    HAS_BIAS: tl.constexpr, ACTIVATION: tl.constexpr,
):  # fmt: skip
    """Walk over tiles, one CTA per resident slot."""
    n *= UNIT_N
    k *= UNIT_K
    tiles = tl.cdiv(m, BLOCK_M) * tl.cdiv(n, BLOCK_N)
    for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0), flatten=False):
        start_m, start_n = tile_at(tile, m, n, BLOCK_M, BLOCK_N, GROUP_M)
        acc, acc2 = accumulate_scaled_pair(
            a_desc, b_desc, b2_desc, start_m, start_n, 0, tl.cdiv(k, BLOCK_K), BLOCK_M, BLOCK_N, BLOCK_K, WIDTH, PROMOTE
        )
        acc, acc2 = apply_scales_to_pair(
            acc, acc2, scale_a_ptr, scale_b_ptr, start_m, start_n, m, n, scale_a_row, scale_b_row,
            BLOCK_M, BLOCK_N, WIDTH,
        )  # fmt: skip
        store_pair(
            acc, acc2, c_desc, c2_desc, bias_ptr, start_m, start_n, n, BLOCK_M, BLOCK_N, WIDTH, HAS_BIAS, ACTIVATION
        )


@triton.jit(do_not_specialize=SCALED_SIZES)
def split_scaled_pair_kernel(
    a_desc, b_desc, b2_desc, partial_ptr, scale_a_ptr, scale_b_ptr, m, n, k, scale_a_row: "i64", scale_b_row: "i64",
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    WIDTH: tl.constexpr, SPLIT_K: tl.constexpr, PROMOTE: tl.constexpr, UNIT_K: tl.constexpr, UNIT_N: tl.constexpr,
    OVERLAP: tl.constexpr,
):  # fmt: skip
    """Compute one split of one output tile per CTA, scaled, for the reduction of `wavetune.kernels.gemm_device`."""
    let_reduction_start(OVERLAP)
    n *= UNIT_N
    k *= UNIT_K
    tile = tl.program_id(0) // SPLIT_K
    split = tl.program_id(0) % SPLIT_K
    start_m, start_n = tile_at(tile, m, n, BLOCK_M, BLOCK_N, GROUP_M)
    trip_start, trip_end = split_range(k, split, SPLIT_K, BLOCK_K)
    acc, acc2 = accumulate_scaled_pair(
        a_desc, b_desc, b2_desc, start_m, start_n, trip_start, trip_end, BLOCK_M, BLOCK_N, BLOCK_K, WIDTH, PROMOTE
    )
    acc, acc2 = apply_scales_to_pair(
        acc, acc2, scale_a_ptr, scale_b_ptr, start_m, start_n, m, n, scale_a_row, scale_b_row, BLOCK_M, BLOCK_N, WIDTH
    )
    store_partial(acc, partial_ptr, start_m, start_n, split, m, n, BLOCK_M, WIDTH)
    store_partial(acc2, partial_ptr, start_m, start_n + WIDTH, split, m, n, BLOCK_M, BLOCK_N - WIDTH)
