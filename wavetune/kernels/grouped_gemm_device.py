# mypy: ignore-errors
# ruff: noqa: F821, SIM108 ("i64" is a Triton type; branches on constants choose code, not values)
"""Device code of grouped GEMM: out[rows of e] = x[rows of e] w[e]^T for every expert e, accumulated in fp32.

The conventions of `wavetune.kernels.gemm_device` hold here too; `wavetune.mapping.grouped_gemm` counts the tiles: each
expert has ``ceil(rows / BLOCK_M)`` tile rows of ``ceil(n / BLOCK_N)`` tiles. What is particular to groups:

- Group sizes are in device memory and are never read by the host. Every CTA sums them up, and finds the expert of its
  tile by comparing: 256 experts are one or two elements a thread. So a launch may hold more CTAs than there are tiles,
  and a graph that was captured for a number of tokens serves every routing of them.
- A tile's rows end with its expert's. What follows them is loaded all the same, by TMA, and never stored.
- GATED weights hold gate rows and then up rows. A tile is half of BLOCK_N of each, which share the rows of x, and as
  many columns of the result, ``silu(gate) * up``.
- Wrong sizes do not lead outside of the tensors: negative ones count as 0, and rows end with those of x.
"""

import triton
import triton.language as tl

from wavetune.kernels.gemm_device import activate, last_trip, multiply

SIZES = ["experts", "tokens", "columns", "k", "ldx", "lde", "ldw", "ldo"]


@triton.jit
def load_groups(groups_ptr, experts, tokens, BLOCK_M: tl.constexpr, GROUPS: tl.constexpr, IS_OFFSETS: tl.constexpr):
    """Return where groups end: tile rows in the upper, rows in the lower 32 bits, so that one scan sums both."""
    index = tl.arange(0, GROUPS)
    inside = index < experts
    if IS_OFFSETS:
        rows = tl.load(groups_ptr + index + 1, mask=inside, other=0) - tl.load(groups_ptr + index, mask=inside, other=0)
    else:
        rows = tl.load(groups_ptr + index, mask=inside, other=0)
    rows = tl.minimum(tl.maximum(rows, 0), tokens)
    return tl.cumsum((tl.cdiv(rows, BLOCK_M).to(tl.int64) << 32) + rows, 0)


@triton.jit
def find_group(ends, tile_row):
    """Return (expert, where it starts, where it ends) of a tile row; there is no such expert beyond the last tile."""
    is_before = (ends >> 32).to(tl.int32) <= tile_row
    expert = tl.sum(is_before.to(tl.int32), 0)
    start = tl.max(tl.where(is_before, ends, 0), 0)
    end = tl.min(tl.where(is_before, 0x7FFFFFFFFFFFFFFF, ends), 0)
    return expert, start, end


@triton.jit
def locate(tile, ends, tokens, tiles_n, BLOCK_M: tl.constexpr, GROUP_M: tl.constexpr):
    """Return (expert, first row, end of its rows, tile column); an expert's tiles go in groups of GROUP_M tile rows."""
    expert, start, end = find_group(ends, tile // tiles_n)
    first_tile_row = (start >> 32).to(tl.int32)
    first_row = start.to(tl.int32)
    end_row = tl.minimum(end.to(tl.int32), tokens)
    tile_rows = (end >> 32).to(tl.int32) - first_tile_row
    tiles_per_group = GROUP_M * tiles_n
    within = tile - first_tile_row * tiles_n
    first_m = (within // tiles_per_group) * GROUP_M
    height = tl.minimum(tile_rows - first_m, GROUP_M)
    within = within % tiles_per_group
    tile_m = first_m + within % height
    return expert, first_row + tile_m * BLOCK_M, end_row, within // height


@triton.jit
def weight_tile(
    w, expert, row, end_row, first_k, k, lde, ldw,
    WIDTH: tl.constexpr, BLOCK_K: tl.constexpr, IS_TMA: tl.constexpr,
):  # fmt: skip
    """Load WIDTH rows of an expert's weight."""
    if IS_TMA:
        return w.load([expert, row, first_k]).reshape(WIDTH, BLOCK_K)
    else:
        rows = row + tl.arange(0, WIDTH)
        depth = first_k + tl.arange(0, BLOCK_K)
        pointers = w + (expert.to(tl.int64) * lde + rows.to(tl.int64)[:, None] * ldw + depth[None, :])
        return tl.load(pointers, mask=(rows < end_row)[:, None] & (depth < k)[None, :], other=0.0)


@triton.jit
def accumulate(
    x, w, expert, first_row, end_row, column, columns, k, ldx, lde, ldw,
    BLOCK_M: tl.constexpr, WIDTH: tl.constexpr, BLOCK_K: tl.constexpr,
    SWAP: tl.constexpr, IS_TMA: tl.constexpr, GATED: tl.constexpr,
):  # fmt: skip
    """Run the main loop for WIDTH columns of the result; returns two sums, of gate and up projection if GATED."""
    if SWAP:
        acc = tl.zeros((WIDTH, BLOCK_M), dtype=tl.float32)
    else:
        acc = tl.zeros((BLOCK_M, WIDTH), dtype=tl.float32)
    up = acc
    if not IS_TMA:
        rows = first_row + tl.arange(0, BLOCK_M)
        depth = tl.arange(0, BLOCK_K)
        x_ptrs = x + (rows.to(tl.int64)[:, None] * ldx + depth[None, :])
    for trip in range(last_trip(0, tl.cdiv(k, BLOCK_K))):
        first_k = trip * BLOCK_K
        if IS_TMA:
            a = x.load([first_row, first_k])
        else:
            a = tl.load(x_ptrs + first_k, mask=(rows < end_row)[:, None] & (depth < k - first_k)[None, :], other=0.0)
        b = weight_tile(w, expert, column, columns, first_k, k, lde, ldw, WIDTH, BLOCK_K, IS_TMA)
        acc = multiply(acc, a, b, True, SWAP)
        if GATED:
            b = weight_tile(w, expert, columns + column, 2 * columns, first_k, k, lde, ldw, WIDTH, BLOCK_K, IS_TMA)
            up = multiply(up, a, b, True, SWAP)
    return acc, up


@triton.jit
def store_rows(
    acc, up, out_ptr, first_row, end_row, column, columns, ldo,
    BLOCK_M: tl.constexpr, WIDTH: tl.constexpr, SWAP: tl.constexpr, GATED: tl.constexpr,
):  # fmt: skip
    """Finish a tile and store the rows that belong to its expert."""
    if GATED:
        acc = activate(acc, "silu") * up
    if SWAP:
        acc = acc.T
    rows = first_row + tl.arange(0, BLOCK_M)
    places = column + tl.arange(0, WIDTH)
    pointers = out_ptr + (rows.to(tl.int64)[:, None] * ldo + places[None, :])
    tl.store(pointers, acc.to(out_ptr.dtype.element_ty), mask=(rows < end_row)[:, None] & (places < columns)[None, :])


@triton.jit(do_not_specialize=SIZES)
def tile_grouped_kernel(
    x, w, out_ptr, groups_ptr, experts, tokens, columns, k, ldx: "i64", lde: "i64", ldw: "i64", ldo: "i64",
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    GROUPS: tl.constexpr, IS_OFFSETS: tl.constexpr, IS_TMA: tl.constexpr, SWAP: tl.constexpr, GATED: tl.constexpr,
    UNIT_K: tl.constexpr, UNIT_N: tl.constexpr,
):  # fmt: skip
    """Compute one output tile per CTA; CTAs beyond the last tile end at once."""
    columns *= UNIT_N
    k *= UNIT_K
    ldx *= UNIT_K
    lde *= UNIT_K
    ldw *= UNIT_K
    ldo *= UNIT_N
    WIDTH: tl.constexpr = BLOCK_N // 2 if GATED else BLOCK_N
    ends = load_groups(groups_ptr, experts, tokens, BLOCK_M, GROUPS, IS_OFFSETS)
    tiles_n = tl.cdiv(columns, WIDTH)
    tile = tl.program_id(0)
    expert, first_row, end_row, tile_n = locate(tile, ends, tokens, tiles_n, BLOCK_M, GROUP_M)
    if expert >= experts:
        return
    column = tile_n * WIDTH
    acc, up = accumulate(
        x, w, expert, first_row, end_row, column, columns, k, ldx, lde, ldw,
        BLOCK_M, WIDTH, BLOCK_K, SWAP, IS_TMA, GATED,
    )  # fmt: skip
    store_rows(acc, up, out_ptr, first_row, end_row, column, columns, ldo, BLOCK_M, WIDTH, SWAP, GATED)


@triton.jit(do_not_specialize=SIZES)
def persistent_grouped_kernel(
    x, w, out_ptr, groups_ptr, experts, tokens, columns, k, ldx: "i64", lde: "i64", ldw: "i64", ldo: "i64",
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    GROUPS: tl.constexpr, IS_OFFSETS: tl.constexpr, IS_TMA: tl.constexpr, SWAP: tl.constexpr, GATED: tl.constexpr,
    UNIT_K: tl.constexpr, UNIT_N: tl.constexpr,
):  # fmt: skip
    """Walk over tiles, one CTA per resident slot."""
    columns *= UNIT_N
    k *= UNIT_K
    ldx *= UNIT_K
    lde *= UNIT_K
    ldw *= UNIT_K
    ldo *= UNIT_N
    WIDTH: tl.constexpr = BLOCK_N // 2 if GATED else BLOCK_N
    ends = load_groups(groups_ptr, experts, tokens, BLOCK_M, GROUPS, IS_OFFSETS)
    tiles_n = tl.cdiv(columns, WIDTH)
    tiles = (tl.max(ends, 0) >> 32).to(tl.int32) * tiles_n
    for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0), flatten=IS_TMA):
        expert, first_row, end_row, tile_n = locate(tile, ends, tokens, tiles_n, BLOCK_M, GROUP_M)
        column = tile_n * WIDTH
        acc, up = accumulate(
            x, w, expert, first_row, end_row, column, columns, k, ldx, lde, ldw,
            BLOCK_M, WIDTH, BLOCK_K, SWAP, IS_TMA, GATED,
        )  # fmt: skip
        store_rows(acc, up, out_ptr, first_row, end_row, column, columns, ldo, BLOCK_M, WIDTH, SWAP, GATED)
