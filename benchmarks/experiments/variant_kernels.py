# mypy: ignore-errors
# ruff: noqa: SIM108 (branches on constants choose code, not values)
"""Device code of GEMM schedules that are tried out: C[m, n] = A[m, k] B[n, k]^T in bf16 or fp16, all by TMA.

- ``tile_kernel``, ``pair_kernel``: as the family's, with a loop that always makes a trip (``GUARD``), or with a B that
  is packed tile by tile (``PACKED``).
- ``walk_kernel``: as the family's persistent one, the loop guarded or not.
- ``specialized_kernel``: persistent, with a warp of its own for the loads where the compiler engages it.
- ``stream_k_kernel``, ``fix_up_kernel``: whole tiles in full waves, then equal shares of the remaining tiles' trips;
  the second kernel adds the pieces of each divided tile in order, so that results are the same in every run.
"""

import triton
import triton.language as tl

SIZES = ["m", "n", "k", "n_whole", "n_ctas", "ldc"]


@triton.jit
def place_of(tile, m, n, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, GROUP_M: tl.constexpr):
    """Return (row, column) of a tile, counted in tiles: groups of GROUP_M rows, each walked column by column."""
    tiles_m = tl.cdiv(m, BLOCK_M)
    tiles_per_group = GROUP_M * tl.cdiv(n, BLOCK_N)
    first_m = (tile // tiles_per_group) * GROUP_M
    rows = tl.minimum(tiles_m - first_m, GROUP_M)
    within = tile % tiles_per_group
    return first_m + within % rows, within // rows


@triton.jit
def start_of(place, size, BLOCK: tl.constexpr):
    """Return the first element of a tile; the last one is moved inside, as the family does."""
    return tl.minimum(place * BLOCK, tl.maximum(size - BLOCK, 0))


@triton.jit
def accumulate(
    a_desc, b_desc, start_m, start_n, tile_n, first, last, trips,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    SWAP: tl.constexpr, PACKED: tl.constexpr, GUARD: tl.constexpr,
):  # fmt: skip
    """Run the trips [first, last) of a tile."""
    if SWAP:
        acc = tl.zeros((BLOCK_N, BLOCK_M), dtype=tl.float32)
    else:
        acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    if GUARD:
        last = tl.maximum(last, first + 1)
    for trip in range(first, last):
        a = a_desc.load([start_m, trip * BLOCK_K])
        if PACKED:
            b = b_desc.load([(tile_n * trips + trip) * BLOCK_N, 0])
        else:
            b = b_desc.load([start_n, trip * BLOCK_K])
        if SWAP:
            acc = tl.dot(b, a.T, acc)
        else:
            acc = tl.dot(a, b.T, acc)
    if SWAP:
        acc = acc.T
    return acc


@triton.jit(do_not_specialize=SIZES)
def tile_kernel(
    a_desc, b_desc, c_desc, m, n, k,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    SWAP: tl.constexpr, PACKED: tl.constexpr, GUARD: tl.constexpr,
):  # fmt: skip
    """Compute one output tile per CTA."""
    tile_m, tile_n = place_of(tl.program_id(0), m, n, BLOCK_M, BLOCK_N, GROUP_M)
    start_m = start_of(tile_m, m, BLOCK_M)
    if PACKED:
        start_n = tile_n * BLOCK_N
    else:
        start_n = start_of(tile_n, n, BLOCK_N)
    trips = tl.cdiv(k, BLOCK_K)
    acc = accumulate(
        a_desc, b_desc, start_m, start_n, tile_n, 0, trips, trips, BLOCK_M, BLOCK_N, BLOCK_K, SWAP, PACKED, GUARD
    )
    c_desc.store([start_m, start_n], acc.to(c_desc.dtype))


@triton.jit(do_not_specialize=SIZES)
def walk_kernel(
    a_desc, b_desc, c_desc, m, n, k,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr, GUARD: tl.constexpr,
):  # fmt: skip
    """Walk over tiles, flattened; each is stored in two halves."""
    HALF: tl.constexpr = BLOCK_N // 2
    trips = tl.cdiv(k, BLOCK_K)
    step = tl.num_programs(0)
    stored = tl.program_id(0) - step
    tiles = tl.cdiv(m, BLOCK_M) * tl.cdiv(n, BLOCK_N)
    for tile in tl.range(tl.program_id(0), tiles, step, flatten=True):
        tile_m, tile_n = place_of(tile, m, n, BLOCK_M, BLOCK_N, GROUP_M)
        start_m = start_of(tile_m, m, BLOCK_M)
        start_n = start_of(tile_n, n, BLOCK_N)
        acc = accumulate(
            a_desc, b_desc, start_m, start_n, tile_n, 0, trips, trips,
            BLOCK_M, BLOCK_N, BLOCK_K, False, False, GUARD,
        )  # fmt: skip
        stored += step
        tile_m, tile_n = place_of(stored, m, n, BLOCK_M, BLOCK_N, GROUP_M)
        start_m = start_of(tile_m, m, BLOCK_M)
        start_n = start_of(tile_n, n, BLOCK_N)
        left, right = tl.split(tl.permute(tl.reshape(acc, (BLOCK_M, 2, HALF)), (0, 2, 1)))
        c_desc.store([start_m, start_n], left.to(c_desc.dtype))
        c_desc.store([start_m, start_n + HALF], right.to(c_desc.dtype))


@triton.jit
def accumulate_pair(
    a_desc, b_desc, b2_desc, start_m, start_n, trips,
    BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr, WIDTH: tl.constexpr, WIDTH2: tl.constexpr, GUARD: tl.constexpr,
):  # fmt: skip
    """Run the loop of a tile of WIDTH + WIDTH2 columns."""
    acc = tl.zeros((BLOCK_M, WIDTH), dtype=tl.float32)
    acc2 = tl.zeros((BLOCK_M, WIDTH2), dtype=tl.float32)
    if GUARD:
        trips = tl.maximum(trips, 1)
    for trip in range(trips):
        a = a_desc.load([start_m, trip * BLOCK_K])
        b = b_desc.load([start_n, trip * BLOCK_K])
        b2 = b2_desc.load([start_n + WIDTH, trip * BLOCK_K])
        acc = tl.dot(a, b.T, acc)
        acc2 = tl.dot(a, b2.T, acc2)
    return acc, acc2


@triton.jit(do_not_specialize=SIZES)
def pair_kernel(
    a_desc, b_desc, b2_desc, c_desc, c2_desc, m, n, k,
    BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr, WIDTH: tl.constexpr, WIDTH2: tl.constexpr,
    GUARD: tl.constexpr, PERSISTENT: tl.constexpr, FLATTEN: tl.constexpr,
):  # fmt: skip
    """Compute tiles of two parts, one per CTA or walked over."""
    BLOCK_N: tl.constexpr = WIDTH + WIDTH2
    trips = tl.cdiv(k, BLOCK_K)
    if PERSISTENT:
        step = tl.num_programs(0)
        stored = tl.program_id(0) - step
        tiles = tl.cdiv(m, BLOCK_M) * tl.cdiv(n, BLOCK_N)
        for tile in tl.range(tl.program_id(0), tiles, step, flatten=FLATTEN):
            tile_m, tile_n = place_of(tile, m, n, BLOCK_M, BLOCK_N, GROUP_M)
            start_m = start_of(tile_m, m, BLOCK_M)
            start_n = start_of(tile_n, n, BLOCK_N)
            acc, acc2 = accumulate_pair(
                a_desc, b_desc, b2_desc, start_m, start_n, trips, BLOCK_M, BLOCK_K, WIDTH, WIDTH2, GUARD
            )
            stored += step
            tile_m, tile_n = place_of(stored, m, n, BLOCK_M, BLOCK_N, GROUP_M)
            start_m = start_of(tile_m, m, BLOCK_M)
            start_n = start_of(tile_n, n, BLOCK_N)
            c_desc.store([start_m, start_n], acc.to(c_desc.dtype))
            c2_desc.store([start_m, start_n + WIDTH], acc2.to(c2_desc.dtype))
    else:
        tile_m, tile_n = place_of(tl.program_id(0), m, n, BLOCK_M, BLOCK_N, GROUP_M)
        start_m = start_of(tile_m, m, BLOCK_M)
        start_n = start_of(tile_n, n, BLOCK_N)
        acc, acc2 = accumulate_pair(
            a_desc, b_desc, b2_desc, start_m, start_n, trips, BLOCK_M, BLOCK_K, WIDTH, WIDTH2, GUARD
        )
        c_desc.store([start_m, start_n], acc.to(c_desc.dtype))
        c2_desc.store([start_m, start_n + WIDTH], acc2.to(c2_desc.dtype))


@triton.jit(do_not_specialize=SIZES)
def specialized_kernel(
    a_desc, b_desc, c_ptr, m, n, k, ldc,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr, UNIT: tl.constexpr,
):  # fmt: skip
    """Walk over tiles; loads and products belong to different warps if the compiler engages it. Pointer stores."""
    n *= UNIT
    ldc *= UNIT
    tiles = tl.cdiv(m, BLOCK_M) * tl.cdiv(n, BLOCK_N)
    for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0), flatten=False, warp_specialize=True):
        tile_m, tile_n = place_of(tile, m, n, BLOCK_M, BLOCK_N, GROUP_M)
        start_m = start_of(tile_m, m, BLOCK_M)
        start_n = start_of(tile_n, n, BLOCK_N)
        acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        for trip in range(tl.cdiv(k, BLOCK_K)):
            a = a_desc.load([start_m, trip * BLOCK_K])
            b = b_desc.load([start_n, trip * BLOCK_K])
            acc = tl.dot(a, b.T, acc)
        rows = start_m + tl.arange(0, BLOCK_M)
        columns = start_n + tl.arange(0, BLOCK_N)
        c_ptrs = c_ptr + (rows.to(tl.int64)[:, None] * ldc + columns[None, :])
        tl.store(c_ptrs, acc.to(c_ptr.dtype.element_ty), mask=(rows < m)[:, None] & (columns < n)[None, :])


@triton.jit
def share_of(total, n_ctas):
    """Return the trips of one CTA's share; the last CTAs may have fewer, even none."""
    return tl.cdiv(total, n_ctas)


@triton.jit(do_not_specialize=SIZES)
def stream_k_kernel(
    a_desc, b_desc, c_desc, piece_ptr, m, n, k, n_whole,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    OVERLAP: tl.constexpr,
):  # fmt: skip
    """Compute the first ``n_whole`` tiles whole, then this CTA's share of the others' trips, at most two in pieces."""
    if OVERLAP:
        tl.extra.cuda.gdc_launch_dependents()
    cta = tl.program_id(0)
    n_ctas = tl.num_programs(0)
    trips = tl.cdiv(k, BLOCK_K)
    tiles = tl.cdiv(m, BLOCK_M) * tl.cdiv(n, BLOCK_N)
    total = (tiles - n_whole) * trips
    share = share_of(total, n_ctas)
    begin = tl.minimum(cta * share, total)
    end = tl.minimum(begin + share, total)
    my_whole = tl.cdiv(tl.maximum(n_whole - cta, 0), n_ctas)
    n_pieces = tl.where(end > begin, (end - 1) // trips - begin // trips + 1, 0)
    for item in range(my_whole + n_pieces):
        is_tail = item >= my_whole
        divided = begin // trips + item - my_whole
        tile = tl.where(is_tail, n_whole + divided, cta + item * n_ctas)
        first = tl.where(is_tail, tl.maximum(begin - divided * trips, 0), 0)
        last = tl.where(is_tail, tl.minimum(end - divided * trips, trips), trips)
        tile_m, tile_n = place_of(tile, m, n, BLOCK_M, BLOCK_N, GROUP_M)
        # Not moved inside: two tiles may divide k differently, and then disagree in the last bit where they overlap.
        start_m = tile_m * BLOCK_M
        start_n = tile_n * BLOCK_N
        acc = accumulate(
            a_desc, b_desc, start_m, start_n, tile_n, first, last, trips,
            BLOCK_M, BLOCK_N, BLOCK_K, False, False, True,
        )  # fmt: skip
        if (first == 0) & (last == trips):
            c_desc.store([start_m, start_n], acc.to(c_desc.dtype))
        else:
            # A CTA has at most one piece from within a tile and one from its start.
            slot = 2 * cta + tl.where(first == 0, 1, 0)
            rows = tl.arange(0, BLOCK_M)
            columns = tl.arange(0, BLOCK_N)
            offsets = slot.to(tl.int64) * (BLOCK_M * BLOCK_N) + rows[:, None] * BLOCK_N + columns[None, :]
            tl.store(piece_ptr + offsets, acc)


@triton.jit(do_not_specialize=SIZES)
def fix_up_kernel(
    piece_ptr, c_ptr, m, n, k, n_whole, n_ctas, ldc,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    ROWS: tl.constexpr, UNIT: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """Add the pieces of ROWS rows of a divided tile in order of k."""
    if OVERLAP:
        tl.extra.cuda.gdc_wait()
    n *= UNIT
    ldc *= UNIT
    PARTS: tl.constexpr = BLOCK_M // ROWS
    divided = tl.program_id(0) // PARTS
    part = tl.program_id(0) % PARTS
    trips = tl.cdiv(k, BLOCK_K)
    tiles = tl.cdiv(m, BLOCK_M) * tl.cdiv(n, BLOCK_N)
    share = share_of((tiles - n_whole) * trips, n_ctas)
    first_cta = divided * trips // share
    last_cta = ((divided + 1) * trips - 1) // share
    if last_cta > first_cta:
        rows = part * ROWS + tl.arange(0, ROWS)
        columns = tl.arange(0, BLOCK_N)
        within = rows[:, None] * BLOCK_N + columns[None, :]
        # The first piece starts at the tile's start, the others within it.
        pointers = piece_ptr + ((2 * first_cta + 1).to(tl.int64) * (BLOCK_M * BLOCK_N) + within)
        total = tl.load(pointers)
        pointers += BLOCK_M * BLOCK_N
        for _ in range(first_cta, last_cta):
            total += tl.load(pointers)
            pointers += 2 * BLOCK_M * BLOCK_N
        tile_m, tile_n = place_of(n_whole + divided, m, n, BLOCK_M, BLOCK_N, GROUP_M)
        rows = tile_m * BLOCK_M + rows
        columns = tile_n * BLOCK_N + columns
        c_ptrs = c_ptr + (rows.to(tl.int64)[:, None] * ldc + columns[None, :])
        tl.store(c_ptrs, total.to(c_ptr.dtype.element_ty), mask=(rows < m)[:, None] & (columns < n)[None, :])
