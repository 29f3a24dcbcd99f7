# mypy: ignore-errors
# ruff: noqa: F821, SIM108 ("i64" is a Triton type; branches on constants choose code, not values)
"""Device code of the GEMM family: C[m, n] = activation(A[m, k] B + bias[n]), accumulated in fp32.

All kernels share the tile order, the main loop and the epilogue below, and follow `wavetune.mapping.gemm`:
``ceil(m / BLOCK_M) * ceil(n / BLOCK_N)`` tiles, ``ceil(ceil(k / BLOCK_K) / SPLIT_K)`` trips.

Conventions of every kernel:

- Sizes and strides are never specialized on their values, so one compiled kernel serves all shapes. Where pointers are
  used, n, k and the strides arrive in units of ``UNIT`` elements: 16 bytes if everything is aligned, else 1. That
  is how the compiler learns that loads and their masks are 16 bytes wide; without it nothing is pipelined.
- Offsets are 64-bit wherever a row index meets a stride. Edges are masked (or clipped by TMA), never wrapped by a
  modulo: wrapped rows made m = 1 twice as slow (H200, 2026-10).
- Tiles narrower than a warpgroup's 64 rows compute the transpose (``SWAP``), so that wgmma runs on Hopper; without
  it a 16- or 32-row tile lowers to mma.sync.
"""

import triton
import triton.language as tl

SIZES = ["m", "n", "k", "lda", "ldb", "ldc"]


@triton.jit
def tile_at(tile, m, n, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, GROUP_M: tl.constexpr):
    """Return the first row and column of a tile: groups of GROUP_M tile rows, each walked column by column.

    The last tile of a row or column is moved inside the matrix, where it computes some elements a second time, to the
    same bits. Left hanging over the edge, it would load less than its neighbours and run ahead of them, and they would
    no longer share what they load: 1024 x 2304 x 7168 in tiles of 64 x 160 took 74 us, 1024 x 2400 55 us (H200,
    2026-11).
    """
    tiles_m = tl.cdiv(m, BLOCK_M)
    tiles_n = tl.cdiv(n, BLOCK_N)
    tiles_per_group = GROUP_M * tiles_n
    first_m = (tile // tiles_per_group) * GROUP_M
    rows = tl.minimum(tiles_m - first_m, GROUP_M)
    within = tile % tiles_per_group
    start_m = (first_m + within % rows) * BLOCK_M
    start_n = (within // rows) * BLOCK_N
    return tl.minimum(start_m, tl.maximum(m - BLOCK_M, 0)), tl.minimum(start_n, tl.maximum(n - BLOCK_N, 0))


@triton.jit
def last_trip(trip_start, trip_end):
    """Return the end of a main loop that makes at least one trip, and says so to the compiler.

    Where it has to leave a way around the loop, ptxas runs one wgmma after another in tiles of eight warps (Triton
    3.6). The trip that an empty split makes instead lies beyond k and adds zeros. The flattened loop over tiles needs
    no guard: none of its 92 configurations is serialized.
    """
    return tl.maximum(trip_end, trip_start + 1)


@triton.jit
def multiply(acc, a, b, B_IS_NK: tl.constexpr, SWAP: tl.constexpr):
    """Accumulate one trip; ``a`` is [BLOCK_M, BLOCK_K], ``b`` as stored; the accumulator is transposed under SWAP."""
    # ieee matters for fp32 inputs only: tf32 would lose the precision that their tests look at.
    if B_IS_NK:
        b = b.T
    if SWAP:
        acc = tl.dot(b.T, a.T, acc, input_precision="ieee")
    else:
        acc = tl.dot(a, b, acc, input_precision="ieee")
    return acc


@triton.jit
def activate(x, ACTIVATION: tl.constexpr):
    """Apply the activation in fp32; gelu is the exact one, as torch's default."""
    if ACTIVATION == "relu":
        x = tl.maximum(x, 0.0)
    elif ACTIVATION == "gelu":
        x = 0.5 * x * (1.0 + tl.math.erf(x * 0.7071067811865476))
    elif ACTIVATION == "silu":
        x = x * tl.sigmoid(x)
    return x


@triton.jit
def add_bias(x, bias_ptr, start_n, n, WIDTH: tl.constexpr, HAS_BIAS: tl.constexpr):
    """Add bias[start_n : start_n + WIDTH] to every row of ``x``."""
    if HAS_BIAS:
        columns = start_n + tl.arange(0, WIDTH)
        x += tl.load(bias_ptr + columns, mask=columns < n, other=0.0).to(tl.float32)[None, :]
    return x


@triton.jit
def accumulate_pointers(
    a_ptr, b_ptr, start_m, start_n, trip_start, trip_end, m, n, k, lda, ldb,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    B_IS_NK: tl.constexpr, SWAP: tl.constexpr,
):  # fmt: skip
    """Run the main loop with masked pointer loads."""
    rows = start_m + tl.arange(0, BLOCK_M)
    columns = start_n + tl.arange(0, BLOCK_N)
    depth = tl.arange(0, BLOCK_K)
    first_k = trip_start * BLOCK_K
    a_ptrs = a_ptr + (rows.to(tl.int64)[:, None] * lda + (first_k + depth)[None, :])
    if B_IS_NK:
        b_ptrs = b_ptr + (columns.to(tl.int64)[:, None] * ldb + (first_k + depth)[None, :])
    else:
        b_ptrs = b_ptr + ((first_k + depth).to(tl.int64)[:, None] * ldb + columns[None, :])
    in_m = rows < m
    in_n = columns < n
    if SWAP:
        acc = tl.zeros((BLOCK_N, BLOCK_M), dtype=tl.float32)
    else:
        acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for trip in range(trip_start, last_trip(trip_start, trip_end)):
        in_k = depth < k - trip * BLOCK_K
        a = tl.load(a_ptrs, mask=in_m[:, None] & in_k[None, :], other=0.0)
        if B_IS_NK:
            b = tl.load(b_ptrs, mask=in_n[:, None] & in_k[None, :], other=0.0)
            b_ptrs += BLOCK_K
        else:
            b = tl.load(b_ptrs, mask=in_k[:, None] & in_n[None, :], other=0.0)
            b_ptrs += BLOCK_K * ldb
        a_ptrs += BLOCK_K
        acc = multiply(acc, a, b, B_IS_NK, SWAP)
    if SWAP:
        acc = acc.T
    return acc


@triton.jit
def accumulate_tma(
    a_desc, b_desc, start_m, start_n, trip_start, trip_end,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    B_IS_NK: tl.constexpr, SWAP: tl.constexpr,
):  # fmt: skip
    """Run the main loop with TMA loads; what lies outside the matrices arrives as zeros."""
    if SWAP:
        acc = tl.zeros((BLOCK_N, BLOCK_M), dtype=tl.float32)
    else:
        acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for trip in range(trip_start, trip_end):
        a = a_desc.load([start_m, trip * BLOCK_K])
        if B_IS_NK:
            b = b_desc.load([start_n, trip * BLOCK_K])
        else:
            b = b_desc.load([trip * BLOCK_K, start_n])
        acc = multiply(acc, a, b, B_IS_NK, SWAP)
    if SWAP:
        acc = acc.T
    return acc


@triton.jit
def store_pointers(
    acc, c_ptr, bias_ptr, start_m, start_n, m, n, ldc,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, HAS_BIAS: tl.constexpr, ACTIVATION: tl.constexpr,
):  # fmt: skip
    """Finish a tile and store it with masked pointer stores."""
    acc = activate(add_bias(acc, bias_ptr, start_n, n, BLOCK_N, HAS_BIAS), ACTIVATION)
    rows = start_m + tl.arange(0, BLOCK_M)
    columns = start_n + tl.arange(0, BLOCK_N)
    c_ptrs = c_ptr + (rows.to(tl.int64)[:, None] * ldc + columns[None, :])
    tl.store(c_ptrs, acc.to(c_ptr.dtype.element_ty), mask=(rows < m)[:, None] & (columns < n)[None, :])


@triton.jit
def store_tma(
    acc, c_desc, bias_ptr, start_m, start_n, n,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, EPILOGUE_SPLIT: tl.constexpr,
    HAS_BIAS: tl.constexpr, ACTIVATION: tl.constexpr,
):  # fmt: skip
    """Finish a tile and store it by TMA, in one piece or as two halves that need half the staging memory."""
    if EPILOGUE_SPLIT == 1:
        whole = activate(add_bias(acc, bias_ptr, start_n, n, BLOCK_N, HAS_BIAS), ACTIVATION)
        c_desc.store([start_m, start_n], whole.to(c_desc.dtype))
    else:
        HALF: tl.constexpr = BLOCK_N // 2
        left, right = tl.split(tl.permute(tl.reshape(acc, (BLOCK_M, 2, HALF)), (0, 2, 1)))
        left = activate(add_bias(left, bias_ptr, start_n, n, HALF, HAS_BIAS), ACTIVATION)
        c_desc.store([start_m, start_n], left.to(c_desc.dtype))
        right = activate(add_bias(right, bias_ptr, start_n + HALF, n, HALF, HAS_BIAS), ACTIVATION)
        c_desc.store([start_m, start_n + HALF], right.to(c_desc.dtype))


@triton.jit(do_not_specialize=SIZES)
def tile_pointer_kernel(
    a_ptr, b_ptr, c_ptr, bias_ptr, m, n, k, lda: "i64", ldb: "i64", ldc: "i64",
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    B_IS_NK: tl.constexpr, SWAP: tl.constexpr, HAS_BIAS: tl.constexpr, ACTIVATION: tl.constexpr,
    UNIT: tl.constexpr,
):  # fmt: skip
    """Compute one output tile per CTA; pointer loads and stores."""
    n *= UNIT
    k *= UNIT
    lda *= UNIT
    ldb *= UNIT
    ldc *= UNIT
    start_m, start_n = tile_at(tl.program_id(0), m, n, BLOCK_M, BLOCK_N, GROUP_M)
    acc = accumulate_pointers(
        a_ptr, b_ptr, start_m, start_n, 0, tl.cdiv(k, BLOCK_K), m, n, k, lda, ldb,
        BLOCK_M, BLOCK_N, BLOCK_K, B_IS_NK, SWAP,
    )  # fmt: skip
    store_pointers(acc, c_ptr, bias_ptr, start_m, start_n, m, n, ldc, BLOCK_M, BLOCK_N, HAS_BIAS, ACTIVATION)


@triton.jit(do_not_specialize=SIZES)
def tile_tma_kernel(
    a_desc, b_desc, c_desc, bias_ptr, m, n, k,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    B_IS_NK: tl.constexpr, SWAP: tl.constexpr, EPILOGUE_SPLIT: tl.constexpr,
    HAS_BIAS: tl.constexpr, ACTIVATION: tl.constexpr,
):  # fmt: skip
    """Compute one output tile per CTA; TMA loads and stores."""
    start_m, start_n = tile_at(tl.program_id(0), m, n, BLOCK_M, BLOCK_N, GROUP_M)
    acc = accumulate_tma(
        a_desc, b_desc, start_m, start_n, 0, last_trip(0, tl.cdiv(k, BLOCK_K)),
        BLOCK_M, BLOCK_N, BLOCK_K, B_IS_NK, SWAP,
    )  # fmt: skip
    store_tma(acc, c_desc, bias_ptr, start_m, start_n, n, BLOCK_M, BLOCK_N, EPILOGUE_SPLIT, HAS_BIAS, ACTIVATION)


@triton.jit(do_not_specialize=SIZES)
def persistent_pointer_kernel(
    a_ptr, b_ptr, c_ptr, bias_ptr, m, n, k, lda: "i64", ldb: "i64", ldc: "i64",
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    B_IS_NK: tl.constexpr, SWAP: tl.constexpr, HAS_BIAS: tl.constexpr, ACTIVATION: tl.constexpr,
    UNIT: tl.constexpr,
):  # fmt: skip
    """Walk over tiles, one CTA per resident slot; pointer loads and stores."""
    n *= UNIT
    k *= UNIT
    lda *= UNIT
    ldb *= UNIT
    ldc *= UNIT
    tiles = tl.cdiv(m, BLOCK_M) * tl.cdiv(n, BLOCK_N)
    for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0)):
        start_m, start_n = tile_at(tile, m, n, BLOCK_M, BLOCK_N, GROUP_M)
        acc = accumulate_pointers(
            a_ptr, b_ptr, start_m, start_n, 0, tl.cdiv(k, BLOCK_K), m, n, k, lda, ldb,
            BLOCK_M, BLOCK_N, BLOCK_K, B_IS_NK, SWAP,
        )  # fmt: skip
        store_pointers(acc, c_ptr, bias_ptr, start_m, start_n, m, n, ldc, BLOCK_M, BLOCK_N, HAS_BIAS, ACTIVATION)


@triton.jit(do_not_specialize=SIZES)
def persistent_tma_kernel(
    a_desc, b_desc, c_desc, bias_ptr, m, n, k,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    B_IS_NK: tl.constexpr, SWAP: tl.constexpr, EPILOGUE_SPLIT: tl.constexpr,
    HAS_BIAS: tl.constexpr, ACTIVATION: tl.constexpr,
):  # fmt: skip
    """Walk over tiles, one CTA per resident slot; TMA loads of the next tile overlap the epilogue of this one."""
    tiles = tl.cdiv(m, BLOCK_M) * tl.cdiv(n, BLOCK_N)
    step = tl.num_programs(0)
    # The epilogue counts its tiles on its own: sharing the loop's index would tie it to the prologue of the next tile.
    stored = tl.program_id(0) - step
    for tile in tl.range(tl.program_id(0), tiles, step, flatten=True):
        start_m, start_n = tile_at(tile, m, n, BLOCK_M, BLOCK_N, GROUP_M)
        acc = accumulate_tma(
            a_desc, b_desc, start_m, start_n, 0, tl.cdiv(k, BLOCK_K), BLOCK_M, BLOCK_N, BLOCK_K, B_IS_NK, SWAP
        )
        stored += step
        start_m, start_n = tile_at(stored, m, n, BLOCK_M, BLOCK_N, GROUP_M)
        store_tma(acc, c_desc, bias_ptr, start_m, start_n, n, BLOCK_M, BLOCK_N, EPILOGUE_SPLIT, HAS_BIAS, ACTIVATION)


@triton.jit
def split_range(k, split, SPLIT_K: tl.constexpr, BLOCK_K: tl.constexpr):
    """Return the trips [start, end) of one split; the last splits may be shorter, even empty."""
    trips = tl.cdiv(k, BLOCK_K)
    per_split = tl.cdiv(trips, SPLIT_K)
    start = tl.minimum(split * per_split, trips)
    return start, tl.minimum(start + per_split, trips)


@triton.jit
def store_partial(acc, partial_ptr, start_m, start_n, split, m, n, HEIGHT: tl.constexpr, WIDTH: tl.constexpr):
    """Store the partial sums of one split into a workspace of shape [SPLIT_K, m, n]."""
    rows = start_m + tl.arange(0, HEIGHT)
    columns = start_n + tl.arange(0, WIDTH)
    row_offsets = (split.to(tl.int64) * m + rows) * n
    pointers = partial_ptr + (row_offsets[:, None] + columns[None, :])
    tl.store(pointers, acc, mask=(rows < m)[:, None] & (columns < n)[None, :])


@triton.jit
def let_reduction_start(OVERLAP: tl.constexpr):
    """Allow the reduction to be launched while this kernel still runs; it waits for our stores by itself."""
    if OVERLAP:
        tl.extra.cuda.gdc_launch_dependents()


@triton.jit(do_not_specialize=SIZES)
def split_pointer_kernel(
    a_ptr, b_ptr, partial_ptr, m, n, k, lda: "i64", ldb: "i64",
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    SPLIT_K: tl.constexpr, B_IS_NK: tl.constexpr, SWAP: tl.constexpr, UNIT: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """Compute one split of one output tile per CTA; pointer loads."""
    let_reduction_start(OVERLAP)
    n *= UNIT
    k *= UNIT
    lda *= UNIT
    ldb *= UNIT
    tile = tl.program_id(0) // SPLIT_K
    split = tl.program_id(0) % SPLIT_K
    start_m, start_n = tile_at(tile, m, n, BLOCK_M, BLOCK_N, GROUP_M)
    trip_start, trip_end = split_range(k, split, SPLIT_K, BLOCK_K)
    acc = accumulate_pointers(
        a_ptr, b_ptr, start_m, start_n, trip_start, trip_end, m, n, k, lda, ldb,
        BLOCK_M, BLOCK_N, BLOCK_K, B_IS_NK, SWAP,
    )  # fmt: skip
    store_partial(acc, partial_ptr, start_m, start_n, split, m, n, BLOCK_M, BLOCK_N)


@triton.jit(do_not_specialize=SIZES)
def split_tma_kernel(
    a_desc, b_desc, partial_ptr, m, n, k,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    SPLIT_K: tl.constexpr, B_IS_NK: tl.constexpr, SWAP: tl.constexpr, UNIT: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """Compute one split of one output tile per CTA; TMA loads."""
    let_reduction_start(OVERLAP)
    n *= UNIT
    k *= UNIT
    tile = tl.program_id(0) // SPLIT_K
    split = tl.program_id(0) % SPLIT_K
    start_m, start_n = tile_at(tile, m, n, BLOCK_M, BLOCK_N, GROUP_M)
    trip_start, trip_end = split_range(k, split, SPLIT_K, BLOCK_K)
    acc = accumulate_tma(
        a_desc, b_desc, start_m, start_n, trip_start, last_trip(trip_start, trip_end),
        BLOCK_M, BLOCK_N, BLOCK_K, B_IS_NK, SWAP,
    )  # fmt: skip
    store_partial(acc, partial_ptr, start_m, start_n, split, m, n, BLOCK_M, BLOCK_N)


@triton.jit(do_not_specialize=SIZES)
def reduce_splits_kernel(
    partial_ptr, c_ptr, bias_ptr, m, n, ldc: "i64",
    BLOCK_N: tl.constexpr, SPLIT_K: tl.constexpr, HAS_BIAS: tl.constexpr, ACTIVATION: tl.constexpr,
    UNIT: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """Add the partial sums of BLOCK_N elements of a row in split order, then finish and store them."""
    if OVERLAP:
        tl.extra.cuda.gdc_wait()
    n *= UNIT
    ldc *= UNIT
    blocks = tl.cdiv(n, BLOCK_N)
    row = (tl.program_id(0) // blocks).to(tl.int64)
    start_n = (tl.program_id(0) % blocks) * BLOCK_N
    columns = start_n + tl.arange(0, BLOCK_N)
    inside = columns < n
    pointers = partial_ptr + (row * n + columns)
    total = tl.zeros((BLOCK_N,), dtype=tl.float32)
    # Unrolled, so that the loads of all splits are in flight together; added in a fixed order: deterministic.
    for _ in tl.static_range(SPLIT_K):
        total += tl.load(pointers, mask=inside, other=0.0)
        pointers += m.to(tl.int64) * n
    if HAS_BIAS:
        total += tl.load(bias_ptr + columns, mask=inside, other=0.0).to(tl.float32)
    total = activate(total, ACTIVATION)
    tl.store(c_ptr + (row * ldc + columns), total.to(c_ptr.dtype.element_ty), mask=inside)
