# mypy: ignore-errors
# ruff: noqa: F821, SIM108 ("i64" is a Triton type; branches on constants choose code, not values)
"""Device code of the GEMM family for fp8: C[m, n] = activation(scales * A[m, k] B[n, k]^T + bias[n]).

Tile order, epilogue and the conventions of `wavetune.kernels.gemm_device` hold here too. What is particular to fp8:

- Hopper's matrix unit adds fp8 products with about 14 bits, cutting off the rest. Over a long loop the losses add up,
  all towards zero. So after every ``PROMOTE`` trips the sum moves to fp32 registers and starts again from zero; with
  ``PROMOTE`` = 0 it never does. The branch keeps the trips between two promotions asynchronous; Triton's own
  ``max_num_imprecise_acc`` adds behind every instruction, and ptxas then runs them one by one.
- With a scale for each row (or tensor) the scales multiply the finished sum. With one for each ``SCALE_BLOCK`` elements
  of k they multiply each trip's sum, which is one trip's promotion.
- The loop makes a trip even where there is none to make (the empty last split of k): it reads zeros. Otherwise the way
  around the loop defines the accumulator as well, and ptxas runs one wgmma after another (seen with Triton 3.6).
"""

import triton
import triton.language as tl

from wavetune.kernels.gemm_device import (
    SIZES,
    last_trip,
    let_reduction_start,
    multiply,
    split_range,
    store_partial,
    store_pointers,
    store_tma,
    tile_at,
)

SCALED_SIZES = [*SIZES, "scale_a_row", "scale_a_block", "scale_b_row", "scale_b_block"]


@triton.jit
def scaled_tile_at(
    tile, m, n, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, GROUP_M: tl.constexpr, SCALE_BLOCK: tl.constexpr
):
    """Return the first row and column of a tile; where scales are in blocks, no tile is moved across two of them."""
    if SCALE_BLOCK > 0:
        n = tl.cdiv(n, BLOCK_N) * BLOCK_N
    return tile_at(tile, m, n, BLOCK_M, BLOCK_N, GROUP_M)


@triton.jit
def load_scales(scale_ptr, first, size, row_stride, LENGTH: tl.constexpr):
    """Return the scales of LENGTH rows from ``first`` on, zero from ``size`` on; a stride of 0 repeats one scale."""
    rows = first + tl.arange(0, LENGTH)
    return tl.load(scale_ptr + rows.to(tl.int64) * row_stride, mask=rows < size, other=0.0)


@triton.jit
def accumulate_scaled(
    a, b, scale_a_ptr, scale_b_ptr, start_m, start_n, trip_start, trip_end, m, n, k, lda, ldb,
    scale_a_row, scale_a_block, scale_b_row, scale_b_block,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, SWAP: tl.constexpr, IS_TMA: tl.constexpr,
    PROMOTE: tl.constexpr, SCALE_BLOCK: tl.constexpr,
):  # fmt: skip
    """Run the main loop in fp32; ``a`` and ``b`` are descriptors or pointers. Scales in blocks are applied here."""
    if not IS_TMA:
        rows = start_m + tl.arange(0, BLOCK_M)
        columns = start_n + tl.arange(0, BLOCK_N)
        depth = tl.arange(0, BLOCK_K)
        a_ptrs = a + (rows.to(tl.int64)[:, None] * lda + depth[None, :])
        b_ptrs = b + (columns.to(tl.int64)[:, None] * ldb + depth[None, :])
    if SWAP:
        total = tl.zeros((BLOCK_N, BLOCK_M), dtype=tl.float32)
    else:
        total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    acc = tl.zeros_like(total)
    for trip in range(trip_start, last_trip(trip_start, trip_end)):
        first_k = trip * BLOCK_K
        if IS_TMA:
            a_tile = a.load([start_m, first_k])
            b_tile = b.load([start_n, first_k])
        else:
            in_k = depth < k - first_k
            a_tile = tl.load(a_ptrs + first_k, mask=(rows < m)[:, None] & in_k[None, :], other=0.0)
            b_tile = tl.load(b_ptrs + first_k, mask=(columns < n)[:, None] & in_k[None, :], other=0.0)
        if SCALE_BLOCK > 0:
            # One trip is one block of scales, and one tile's columns share theirs. Loaded ahead of the product; beyond
            # the last block the product is zero.
            block = tl.minimum(trip, tl.cdiv(k, SCALE_BLOCK) - 1)
            scales = load_scales(scale_a_ptr + block * scale_a_block, start_m, m, scale_a_row, BLOCK_M)
            b_offset = (start_n // SCALE_BLOCK).to(tl.int64) * scale_b_row + block * scale_b_block
            scales *= tl.load(scale_b_ptr + b_offset)
            product = multiply(acc, a_tile, b_tile, True, SWAP)
            if SWAP:
                total += product * scales[None, :]
            else:
                total += product * scales[:, None]
        elif PROMOTE > 0:
            acc = multiply(acc, a_tile, b_tile, True, SWAP)
            if trip % PROMOTE == PROMOTE - 1:
                total += acc
                acc = tl.zeros_like(total)
        else:
            acc = multiply(acc, a_tile, b_tile, True, SWAP)
    if SCALE_BLOCK == 0:
        if PROMOTE > 0:
            total += acc
        else:
            total = acc
    if SWAP:
        total = total.T
    return total


@triton.jit
def apply_scales(
    acc, scale_a_ptr, scale_b_ptr, start_m, start_n, m, n, scale_a_row, scale_b_row,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, SCALE_BLOCK: tl.constexpr,
):  # fmt: skip
    """Multiply a finished sum by the scales of its rows and columns, unless the loop has done so."""
    if SCALE_BLOCK == 0:
        acc *= load_scales(scale_a_ptr, start_m, m, scale_a_row, BLOCK_M)[:, None]
        acc *= load_scales(scale_b_ptr, start_n, n, scale_b_row, BLOCK_N)[None, :]
    return acc


@triton.jit
def store_scaled(
    acc, c, bias_ptr, scale_a_ptr, scale_b_ptr, start_m, start_n, m, n, ldc, scale_a_row, scale_b_row,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, SCALE_BLOCK: tl.constexpr, EPILOGUE_SPLIT: tl.constexpr,
    IS_TMA: tl.constexpr, HAS_BIAS: tl.constexpr, ACTIVATION: tl.constexpr,
):  # fmt: skip
    """Scale and finish a tile, and store it through a descriptor or pointers."""
    acc = apply_scales(
        acc, scale_a_ptr, scale_b_ptr, start_m, start_n, m, n, scale_a_row, scale_b_row, BLOCK_M, BLOCK_N, SCALE_BLOCK
    )
    if IS_TMA:
        store_tma(acc, c, bias_ptr, start_m, start_n, n, BLOCK_M, BLOCK_N, EPILOGUE_SPLIT, HAS_BIAS, ACTIVATION)
    else:
        store_pointers(acc, c, bias_ptr, start_m, start_n, m, n, ldc, BLOCK_M, BLOCK_N, HAS_BIAS, ACTIVATION)


@triton.jit(do_not_specialize=SCALED_SIZES)
def tile_scaled_kernel(
    a, b, c, bias_ptr, scale_a_ptr, scale_b_ptr, m, n, k, lda: "i64", ldb: "i64", ldc: "i64",
    scale_a_row: "i64", scale_a_block: "i64", scale_b_row: "i64", scale_b_block: "i64",
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    SWAP: tl.constexpr, IS_TMA: tl.constexpr, PROMOTE: tl.constexpr, SCALE_BLOCK: tl.constexpr,
    UNIT_K: tl.constexpr, UNIT_N: tl.constexpr, EPILOGUE_SPLIT: tl.constexpr,
    HAS_BIAS: tl.constexpr, ACTIVATION: tl.constexpr,
):  # fmt: skip
    """Compute one output tile per CTA."""
    n *= UNIT_N
    k *= UNIT_K
    lda *= UNIT_K
    ldb *= UNIT_K
    ldc *= UNIT_N
    start_m, start_n = scaled_tile_at(tl.program_id(0), m, n, BLOCK_M, BLOCK_N, GROUP_M, SCALE_BLOCK)
    acc = accumulate_scaled(
        a, b, scale_a_ptr, scale_b_ptr, start_m, start_n, 0, tl.cdiv(k, BLOCK_K), m, n, k, lda, ldb,
        scale_a_row, scale_a_block, scale_b_row, scale_b_block,
        BLOCK_M, BLOCK_N, BLOCK_K, SWAP, IS_TMA, PROMOTE, SCALE_BLOCK,
    )  # fmt: skip
    store_scaled(
        acc, c, bias_ptr, scale_a_ptr, scale_b_ptr, start_m, start_n, m, n, ldc, scale_a_row, scale_b_row,
        BLOCK_M, BLOCK_N, SCALE_BLOCK, EPILOGUE_SPLIT, IS_TMA, HAS_BIAS, ACTIVATION,
    )  # fmt: skip


@triton.jit(do_not_specialize=SCALED_SIZES)
def persistent_scaled_kernel(
    a, b, c, bias_ptr, scale_a_ptr, scale_b_ptr, m, n, k, lda: "i64", ldb: "i64", ldc: "i64",
    scale_a_row: "i64", scale_a_block: "i64", scale_b_row: "i64", scale_b_block: "i64",
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    SWAP: tl.constexpr, IS_TMA: tl.constexpr, PROMOTE: tl.constexpr, SCALE_BLOCK: tl.constexpr,
    UNIT_K: tl.constexpr, UNIT_N: tl.constexpr, EPILOGUE_SPLIT: tl.constexpr,
    HAS_BIAS: tl.constexpr, ACTIVATION: tl.constexpr,
):  # fmt: skip
    """Walk over tiles, one CTA per resident slot."""
    n *= UNIT_N
    k *= UNIT_K
    lda *= UNIT_K
    ldb *= UNIT_K
    ldc *= UNIT_N
    tiles = tl.cdiv(m, BLOCK_M) * tl.cdiv(n, BLOCK_N)
    step = tl.num_programs(0)
    # The epilogue counts its tiles on its own: sharing the loop's index would tie it to the prologue of the next tile.
    stored = tl.program_id(0) - step
    # Flattened, a promotion reads the accumulator of an instruction in flight, and ptxas runs one after another.
    for tile in tl.range(tl.program_id(0), tiles, step, flatten=IS_TMA and PROMOTE == 0):
        start_m, start_n = scaled_tile_at(tile, m, n, BLOCK_M, BLOCK_N, GROUP_M, SCALE_BLOCK)
        acc = accumulate_scaled(
            a, b, scale_a_ptr, scale_b_ptr, start_m, start_n, 0, tl.cdiv(k, BLOCK_K), m, n, k, lda, ldb,
            scale_a_row, scale_a_block, scale_b_row, scale_b_block,
            BLOCK_M, BLOCK_N, BLOCK_K, SWAP, IS_TMA, PROMOTE, SCALE_BLOCK,
        )  # fmt: skip
        stored += step
        start_m, start_n = scaled_tile_at(stored, m, n, BLOCK_M, BLOCK_N, GROUP_M, SCALE_BLOCK)
        store_scaled(
            acc, c, bias_ptr, scale_a_ptr, scale_b_ptr, start_m, start_n, m, n, ldc, scale_a_row, scale_b_row,
            BLOCK_M, BLOCK_N, SCALE_BLOCK, EPILOGUE_SPLIT, IS_TMA, HAS_BIAS, ACTIVATION,
        )  # fmt: skip


@triton.jit(do_not_specialize=SCALED_SIZES)
def split_scaled_kernel(
    a, b, partial_ptr, scale_a_ptr, scale_b_ptr, m, n, k, lda: "i64", ldb: "i64",
    scale_a_row: "i64", scale_a_block: "i64", scale_b_row: "i64", scale_b_block: "i64",
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    SPLIT_K: tl.constexpr, SWAP: tl.constexpr, IS_TMA: tl.constexpr, PROMOTE: tl.constexpr,
    SCALE_BLOCK: tl.constexpr, UNIT_K: tl.constexpr, UNIT_N: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """Compute one split of one output tile per CTA, scaled, for the reduction of `wavetune.kernels.gemm_device`."""
    let_reduction_start(OVERLAP)
    n *= UNIT_N
    k *= UNIT_K
    lda *= UNIT_K
    ldb *= UNIT_K
    tile = tl.program_id(0) // SPLIT_K
    split = tl.program_id(0) % SPLIT_K
    start_m, start_n = scaled_tile_at(tile, m, n, BLOCK_M, BLOCK_N, GROUP_M, SCALE_BLOCK)
    trip_start, trip_end = split_range(k, split, SPLIT_K, BLOCK_K)
    acc = accumulate_scaled(
        a, b, scale_a_ptr, scale_b_ptr, start_m, start_n, trip_start, trip_end, m, n, k, lda, ldb,
        scale_a_row, scale_a_block, scale_b_row, scale_b_block,
        BLOCK_M, BLOCK_N, BLOCK_K, SWAP, IS_TMA, PROMOTE, SCALE_BLOCK,
    )  # fmt: skip
    acc = apply_scales(
        acc, scale_a_ptr, scale_b_ptr, start_m, start_n, m, n, scale_a_row, scale_b_row, BLOCK_M, BLOCK_N, SCALE_BLOCK
    )
    store_partial(acc, partial_ptr, start_m, start_n, split, m, n, BLOCK_M, BLOCK_N)
