# mypy: ignore-errors
"""Device code for tiles whose width is no power of two: 64 + 16, 64 + 32, 128 + 32 and 128 + 64 columns.

Two accumulators side by side share the rows of A. Such widths fill the waves where powers of two do not. On 132 SMs,
256 x 10240 is 160 tiles of 128 x 128 (0.61 of two waves) but 128 of 128 x 160 (0.97 of one); 512 x 10240 is 320 (0.81)
but 256 (0.97). H200, 2026-11: 256 x 10240 x 8192 took 81 us with powers of two and 64 us with 64 x 160.
"""

import triton
import triton.language as tl

from wavetune.kernels.gemm_device import (
    SIZES,
    activate,
    add_bias,
    last_trip,
    let_reduction_start,
    multiply,
    split_range,
    store_partial,
    tile_at,
)


@triton.jit
def accumulate_pair(
    a_desc, b_desc, b2_desc, start_m, start_n, trip_start, trip_end,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, WIDTH: tl.constexpr, B_IS_NK: tl.constexpr,
):  # fmt: skip
    """Run the main loop for WIDTH columns and for the BLOCK_N - WIDTH columns beside them."""
    acc = tl.zeros((BLOCK_M, WIDTH), dtype=tl.float32)
    acc2 = tl.zeros((BLOCK_M, BLOCK_N - WIDTH), dtype=tl.float32)
    for trip in range(trip_start, last_trip(trip_start, trip_end)):
        a = a_desc.load([start_m, trip * BLOCK_K])
        if B_IS_NK:
            b = b_desc.load([start_n, trip * BLOCK_K])
            b2 = b2_desc.load([start_n + WIDTH, trip * BLOCK_K])
        else:
            b = b_desc.load([trip * BLOCK_K, start_n])
            b2 = b2_desc.load([trip * BLOCK_K, start_n + WIDTH])
        acc = multiply(acc, a, b, B_IS_NK, False)
        acc2 = multiply(acc2, a, b2, B_IS_NK, False)
    return acc, acc2


@triton.jit
def store_pair(
    acc, acc2, c_desc, c2_desc, bias_ptr, start_m, start_n, n,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, WIDTH: tl.constexpr,
    HAS_BIAS: tl.constexpr, ACTIVATION: tl.constexpr,
):  # fmt: skip
    """Finish both parts of a tile and store them by TMA."""
    acc = activate(add_bias(acc, bias_ptr, start_n, n, WIDTH, HAS_BIAS), ACTIVATION)
    c_desc.store([start_m, start_n], acc.to(c_desc.dtype))
    acc2 = activate(add_bias(acc2, bias_ptr, start_n + WIDTH, n, BLOCK_N - WIDTH, HAS_BIAS), ACTIVATION)
    c2_desc.store([start_m, start_n + WIDTH], acc2.to(c2_desc.dtype))


@triton.jit(do_not_specialize=SIZES)
def tile_pair_kernel(
    a_desc, b_desc, b2_desc, c_desc, c2_desc, bias_ptr, m, n, k,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    WIDTH: tl.constexpr, B_IS_NK: tl.constexpr, HAS_BIAS: tl.constexpr, ACTIVATION: tl.constexpr,
):  # fmt: skip
    """Compute one output tile per CTA."""
    start_m, start_n = tile_at(tl.program_id(0), m, n, BLOCK_M, BLOCK_N, GROUP_M)
    acc, acc2 = accumulate_pair(
        a_desc, b_desc, b2_desc, start_m, start_n, 0, tl.cdiv(k, BLOCK_K), BLOCK_M, BLOCK_N, BLOCK_K, WIDTH, B_IS_NK
    )
    store_pair(acc, acc2, c_desc, c2_desc, bias_ptr, start_m, start_n, n, BLOCK_M, BLOCK_N, WIDTH, HAS_BIAS, ACTIVATION)


@triton.jit(do_not_specialize=SIZES)
def persistent_pair_kernel(
    a_desc, b_desc, b2_desc, c_desc, c2_desc, bias_ptr, m, n, k,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    WIDTH: tl.constexpr, B_IS_NK: tl.constexpr, HAS_BIAS: tl.constexpr, ACTIVATION: tl.constexpr,
):  # fmt: skip
    """Walk over tiles, one CTA per resident slot."""
    tiles = tl.cdiv(m, BLOCK_M) * tl.cdiv(n, BLOCK_N)
    step = tl.num_programs(0)
    for tile in tl.range(tl.program_id(0), tiles, step, flatten=False):
        start_m, start_n = tile_at(tile, m, n, BLOCK_M, BLOCK_N, GROUP_M)
        acc, acc2 = accumulate_pair(
            a_desc, b_desc, b2_desc, start_m, start_n, 0, tl.cdiv(k, BLOCK_K), BLOCK_M, BLOCK_N, BLOCK_K, WIDTH, B_IS_NK
        )
        store_pair(
            acc, acc2, c_desc, c2_desc, bias_ptr, start_m, start_n, n, BLOCK_M, BLOCK_N, WIDTH, HAS_BIAS, ACTIVATION
        )


@triton.jit(do_not_specialize=SIZES)
def split_pair_kernel(
    a_desc, b_desc, b2_desc, partial_ptr, m, n, k,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    WIDTH: tl.constexpr, SPLIT_K: tl.constexpr, B_IS_NK: tl.constexpr, UNIT: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """Compute one split of one output tile per CTA."""
    let_reduction_start(OVERLAP)
    n *= UNIT
    k *= UNIT
    tile = tl.program_id(0) // SPLIT_K
    split = tl.program_id(0) % SPLIT_K
    start_m, start_n = tile_at(tile, m, n, BLOCK_M, BLOCK_N, GROUP_M)
    trip_start, trip_end = split_range(k, split, SPLIT_K, BLOCK_K)
    acc, acc2 = accumulate_pair(
        a_desc, b_desc, b2_desc, start_m, start_n, trip_start, trip_end, BLOCK_M, BLOCK_N, BLOCK_K, WIDTH, B_IS_NK
    )
    store_partial(acc, partial_ptr, start_m, start_n, split, m, n, BLOCK_M, WIDTH)
    store_partial(acc2, partial_ptr, start_m, start_n + WIDTH, split, m, n, BLOCK_M, BLOCK_N - WIDTH)
