# mypy: ignore-errors
# ruff: noqa: F821, SIM102, SIM108 ("i64" is a Triton type; branches on constants choose code, not values)
"""Device code of grouped GEMM for fp8: out[rows of e] = scale_x (x[rows of e] w[e]^T) scale_w[e], accumulated in fp32.

Groups, tile order and stores are those of `wavetune.kernels.grouped_gemm_device`; sums move to fp32 registers every
``PROMOTE`` trips, and why is said in `wavetune.kernels.gemm_scaled_device`. What is particular to both together:

- Gate and up rows of a GATED weight are one load and one product of BLOCK_N rows, which part in the epilogue: a wide
  product reads shared memory less often. A transposed tile (``SWAP``) has two, since only a matrix that lies in shared
  memory as it was loaded can be the left operand of wgmma without going through registers.
- Scales multiply the finished sums, of gate and up each by its own before ``silu(gate) * up``. They are applied to a
  transposed tile as it is, which spares a second layout of it.
- A stride of 0 repeats a scale: one for all tokens, for all experts, or for all rows of an expert.
"""

import triton
import triton.language as tl

from wavetune.kernels.gemm_device import last_trip, multiply
from wavetune.kernels.gemm_scaled_device import load_scales
from wavetune.kernels.grouped_gemm_device import SIZES, load_groups, locate, store_rows

SCALED_SIZES = [*SIZES, "scale_x_row", "scale_w_expert", "scale_w_row"]


@triton.jit
def weight_rows(
    w, expert, half, column, columns, first_k, k, lde, ldw,
    ROWS: tl.constexpr, WIDTH: tl.constexpr, BLOCK_K: tl.constexpr, IS_TMA: tl.constexpr,
):  # fmt: skip
    """Load WIDTH rows of an expert's weight from one half on: ROWS are as many, or twice as many for both halves."""
    if IS_TMA:
        return w.load([expert, half, column, first_k]).reshape(ROWS, BLOCK_K)
    else:
        place = tl.arange(0, ROWS)
        within = column + place % WIDTH
        rows = within + (half + place // WIDTH) * columns
        depth = first_k + tl.arange(0, BLOCK_K)
        pointers = w + (expert.to(tl.int64) * lde + rows.to(tl.int64)[:, None] * ldw + depth[None, :])
        return tl.load(pointers, mask=(within < columns)[:, None] & (depth < k)[None, :], other=0.0)


@triton.jit
def accumulate_groups(
    x, w, expert, first_row, end_row, column, columns, k, ldx, lde, ldw,
    BLOCK_M: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr, BLOCK_K: tl.constexpr,
    SWAP: tl.constexpr, IS_TMA: tl.constexpr, IS_PAIR: tl.constexpr, PROMOTE: tl.constexpr,
):  # fmt: skip
    """Run the main loop in fp32; returns the sum of ROWS weight rows and, if IS_PAIR, that of the other half's."""
    if SWAP:
        total = tl.zeros((ROWS, BLOCK_M), dtype=tl.float32)
    else:
        total = tl.zeros((BLOCK_M, ROWS), dtype=tl.float32)
    total_up = tl.zeros_like(total)
    acc = tl.zeros_like(total)
    up = tl.zeros_like(total)
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
        b = weight_rows(w, expert, 0, column, columns, first_k, k, lde, ldw, ROWS, WIDTH, BLOCK_K, IS_TMA)
        acc = multiply(acc, a, b, True, SWAP)
        if IS_PAIR:
            b = weight_rows(w, expert, 1, column, columns, first_k, k, lde, ldw, ROWS, WIDTH, BLOCK_K, IS_TMA)
            up = multiply(up, a, b, True, SWAP)
        if PROMOTE > 0:
            if trip % PROMOTE == PROMOTE - 1:
                total += acc
                acc = tl.zeros_like(total)
            if IS_PAIR:
                # Not in the same trip: waiting for two sums in one branch, ptxas runs one wgmma after another (Triton
                # 3.6).
                if trip % PROMOTE == (PROMOTE - 1) // 2:
                    total_up += up
                    up = tl.zeros_like(total)
    if PROMOTE > 0:
        acc += total
        up += total_up
    return acc, up


@triton.jit
def part_halves(acc, BLOCK_M: tl.constexpr, WIDTH: tl.constexpr):
    """Return the sums of gate and of up rows."""
    return tl.split(tl.permute(tl.reshape(acc, (BLOCK_M, 2, WIDTH)), (0, 2, 1)))


@triton.jit
def scale_tile(acc, of_rows, scale_w_ptr, first, end, row_stride, WIDTH: tl.constexpr, SWAP: tl.constexpr):
    """Multiply the sums of WIDTH weight rows from ``first`` on by the scales of their tokens and rows."""
    of_columns = load_scales(scale_w_ptr, first, end, row_stride, WIDTH)
    if SWAP:
        return acc * of_rows[None, :] * of_columns[:, None]
    else:
        return acc * of_rows[:, None] * of_columns[None, :]


@triton.jit
def finish_groups(
    acc, up, out_ptr, scale_x_ptr, scale_w_ptr, expert, first_row, end_row, column, columns, ldo,
    scale_x_row, scale_w_expert, scale_w_row,
    BLOCK_M: tl.constexpr, WIDTH: tl.constexpr, SWAP: tl.constexpr, GATED: tl.constexpr,
):  # fmt: skip
    """Scale a tile and store the rows that belong to its expert."""
    of_rows = load_scales(scale_x_ptr, first_row, end_row, scale_x_row, BLOCK_M)
    of_expert = scale_w_ptr + expert.to(tl.int64) * scale_w_expert
    if GATED and not SWAP:
        acc, up = part_halves(acc, BLOCK_M, WIDTH)
    acc = scale_tile(acc, of_rows, of_expert, column, columns, scale_w_row, WIDTH, SWAP)
    if GATED:
        up = scale_tile(up, of_rows, of_expert, columns + column, 2 * columns, scale_w_row, WIDTH, SWAP)
    store_rows(acc, up, out_ptr, first_row, end_row, column, columns, ldo, BLOCK_M, WIDTH, SWAP, GATED)


@triton.jit(do_not_specialize=SCALED_SIZES)
def tile_scaled_grouped_kernel(
    x, w, out_ptr, groups_ptr, scale_x_ptr, scale_w_ptr, experts, tokens, columns, k,
    ldx: "i64", lde: "i64", ldw: "i64", ldo: "i64", scale_x_row: "i64", scale_w_expert: "i64", scale_w_row: "i64",
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    GROUPS: tl.constexpr, IS_OFFSETS: tl.constexpr, IS_TMA: tl.constexpr, SWAP: tl.constexpr, GATED: tl.constexpr,
    PROMOTE: tl.constexpr, UNIT_K: tl.constexpr, UNIT_N: tl.constexpr,
):  # fmt: skip
    """Compute one output tile per CTA; CTAs beyond the last tile end at once."""
    columns *= UNIT_N
    k *= UNIT_K
    ldx *= UNIT_K
    lde *= UNIT_K
    ldw *= UNIT_K
    ldo *= UNIT_N
    WIDTH: tl.constexpr = BLOCK_N // 2 if GATED else BLOCK_N
    ROWS: tl.constexpr = WIDTH if SWAP else BLOCK_N
    ends = load_groups(groups_ptr, experts, tokens, BLOCK_M, GROUPS, IS_OFFSETS)
    tiles_n = tl.cdiv(columns, WIDTH)
    tile = tl.program_id(0)
    expert, first_row, end_row, tile_n = locate(tile, ends, tokens, tiles_n, BLOCK_M, GROUP_M)
    if expert >= experts:
        return
    column = tile_n * WIDTH
    acc, up = accumulate_groups(
        x, w, expert, first_row, end_row, column, columns, k, ldx, lde, ldw,
        BLOCK_M, ROWS, WIDTH, BLOCK_K, SWAP, IS_TMA, GATED and SWAP, PROMOTE,
    )  # fmt: skip
    finish_groups(
        acc, up, out_ptr, scale_x_ptr, scale_w_ptr, expert, first_row, end_row, column, columns, ldo,
        scale_x_row, scale_w_expert, scale_w_row, BLOCK_M, WIDTH, SWAP, GATED,
    )  # fmt: skip


@triton.jit(do_not_specialize=SCALED_SIZES)
def persistent_scaled_grouped_kernel(
    x, w, out_ptr, groups_ptr, scale_x_ptr, scale_w_ptr, experts, tokens, columns, k,
    ldx: "i64", lde: "i64", ldw: "i64", ldo: "i64", scale_x_row: "i64", scale_w_expert: "i64", scale_w_row: "i64",
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    GROUPS: tl.constexpr, IS_OFFSETS: tl.constexpr, IS_TMA: tl.constexpr, SWAP: tl.constexpr, GATED: tl.constexpr,
    PROMOTE: tl.constexpr, UNIT_K: tl.constexpr, UNIT_N: tl.constexpr,
):  # fmt: skip
    """Walk over tiles, one CTA per resident slot."""
    columns *= UNIT_N
    k *= UNIT_K
    ldx *= UNIT_K
    lde *= UNIT_K
    ldw *= UNIT_K
    ldo *= UNIT_N
    WIDTH: tl.constexpr = BLOCK_N // 2 if GATED else BLOCK_N
    ROWS: tl.constexpr = WIDTH if SWAP else BLOCK_N
    ends = load_groups(groups_ptr, experts, tokens, BLOCK_M, GROUPS, IS_OFFSETS)
    tiles_n = tl.cdiv(columns, WIDTH)
    tiles = (tl.max(ends, 0) >> 32).to(tl.int32) * tiles_n
    # Flattened, a promotion reads the accumulator of an instruction in flight, and ptxas runs one after another; so it
    # does with the two sums of a transposed pair.
    IS_FLAT: tl.constexpr = IS_TMA and PROMOTE == 0 and not (GATED and SWAP)
    for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0), flatten=IS_FLAT):
        expert, first_row, end_row, tile_n = locate(tile, ends, tokens, tiles_n, BLOCK_M, GROUP_M)
        column = tile_n * WIDTH
        acc, up = accumulate_groups(
            x, w, expert, first_row, end_row, column, columns, k, ldx, lde, ldw,
            BLOCK_M, ROWS, WIDTH, BLOCK_K, SWAP, IS_TMA, GATED and SWAP, PROMOTE,
        )  # fmt: skip
        finish_groups(
            acc, up, out_ptr, scale_x_ptr, scale_w_ptr, expert, first_row, end_row, column, columns, ldo,
            scale_x_row, scale_w_expert, scale_w_row, BLOCK_M, WIDTH, SWAP, GATED,
        )  # fmt: skip
