# mypy: ignore-errors
# ruff: noqa: F821, RUF005 ("i64" is a Triton type; Gluon knows no starred lists)
"""Device code of warp-specialised GEMM on Hopper, in Gluon: C = activation(scales * A[m, k] B[n, k]^T + bias[n]).

One warp loads tiles by TMA into a ring of ``STAGES`` buffers, ahead of two warpgroups that multiply, each its own half
of the CTA's tile: 64 rows of two, or half of the columns where the tile has 64 rows. Each CTA walks over tiles, and
the loads of the next one hide behind the epilogue of the last. Where a half's columns are no power of two, they are
two parts with an accumulator each, as in `wavetune.kernels.gemm_pair_device`: ``REST`` columns beside the others. With
``EPILOGUE_SPLIT`` 2 the first part is stored in halves, one after the other, and leaves room for another buffer.

What that buys: an fp8 sum has to leave the matrix unit now and then (see `wavetune.kernels.gemm_scaled_device`), and
while one warpgroup adds, the other multiplies. In a kernel whose warps all run the same loop both add at once, and the
matrix unit waits: 6144 x 8192 x 5376 runs at 1,408 TFLOP/s here and at 1,117 there (H200, Triton 3.6, 2026-11).

The order of tiles, of products and of the epilogue is that of `wavetune.kernels.gemm_device` and
`wavetune.kernels.gemm_scaled_device`, so results are equal bit by bit.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_init,
    warpgroup_mma_wait,
)

# Triton 3.7 renamed both.
load_box = tma.async_load if hasattr(tma, "async_load") else tma.async_copy_global_to_shared
store_box = tma.async_store if hasattr(tma, "async_load") else tma.async_copy_shared_to_global

SIZES = ["m", "n", "k", "scale_a_row", "scale_a_block", "scale_b_row", "scale_b_block"]


@gluon.jit
def cdiv(a, b):
    """Return ceil(a / b)."""
    return (a + b - 1) // b


@gluon.jit
def tile_at(tile, m, n, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, GROUP_M: gl.constexpr, SCALE_BLOCK: gl.constexpr):
    """Return the first row and column of a tile, as `wavetune.kernels.gemm_scaled_device.scaled_tile_at` does."""
    tiles_m = cdiv(m, BLOCK_M)
    tiles_n = cdiv(n, BLOCK_N)
    tiles_per_group = GROUP_M * tiles_n
    first_m = (tile // tiles_per_group) * GROUP_M
    rows = min(tiles_m - first_m, GROUP_M)
    within = tile % tiles_per_group
    start_m = (first_m + within % rows) * BLOCK_M
    start_n = (within // rows) * BLOCK_N
    last_n = n - BLOCK_N
    if SCALE_BLOCK > 0:
        last_n = start_n
    return min(start_m, max(m - BLOCK_M, 0)), min(start_n, max(last_n, 0))


@gluon.jit
def next_stage(stage, phase, STAGES: gl.constexpr):
    """Return the buffer after ``stage``, and the parity of its barriers' phase."""
    is_last = stage == STAGES - 1
    return gl.where(is_last, 0, stage + 1), phase ^ is_last.to(gl.int32)


@gluon.jit
def stage_before(stage, STAGES: gl.constexpr):
    """Return the buffer before ``stage``."""
    return gl.where(stage == 0, STAGES - 1, stage - 1)


@gluon.jit
def load_tiles(
    a_desc, b_desc, b_rest_desc, a_ring, b_ring, b_rest_ring, full, empty, m, n, k,
    PARTS_M: gl.constexpr, PARTS_N: gl.constexpr, REST: gl.constexpr, GROUP_M: gl.constexpr, STAGES: gl.constexpr,
    SCALE_BLOCK: gl.constexpr,
):  # fmt: skip
    """Fill the ring with the boxes of every trip of every tile, as buffers become empty."""
    ROWS: gl.constexpr = a_desc.block_shape[0]
    WIDTH: gl.constexpr = b_desc.block_shape[0]
    COLUMNS: gl.constexpr = WIDTH + REST
    BLOCK_K: gl.constexpr = a_desc.block_shape[1]
    BLOCK_M: gl.constexpr = ROWS * PARTS_M
    BLOCK_N: gl.constexpr = COLUMNS * PARTS_N
    BYTES: gl.constexpr = (BLOCK_M + BLOCK_N) * BLOCK_K * (a_desc.dtype.primitive_bitwidth // 8)
    stage = 0
    phase = 0
    for tile in range(gl.program_id(0), cdiv(m, BLOCK_M) * cdiv(n, BLOCK_N), gl.num_programs(0)):
        start_m, start_n = tile_at(tile, m, n, BLOCK_M, BLOCK_N, GROUP_M, SCALE_BLOCK)
        for trip in range(cdiv(k, BLOCK_K)):
            mbarrier.wait(empty.index(stage), phase ^ 1)
            mbarrier.expect(full.index(stage), BYTES)
            for part in gl.static_range(PARTS_M):
                box = a_ring.index(stage * PARTS_M + part)
                load_box(a_desc, [start_m + part * ROWS, trip * BLOCK_K], full.index(stage), box)
            for part in gl.static_range(PARTS_N):
                box = b_ring.index(stage * PARTS_N + part)
                load_box(b_desc, [start_n + part * COLUMNS, trip * BLOCK_K], full.index(stage), box)
                if REST > 0:
                    box = b_rest_ring.index(stage * PARTS_N + part)
                    load_box(b_rest_desc, [start_n + part * COLUMNS + WIDTH, trip * BLOCK_K], full.index(stage), box)
            stage, phase = next_stage(stage, phase, STAGES)


@gluon.jit
def multiply_trip(
    acc, acc_rest, a_ring, b_ring, b_rest_ring, full, stage, phase, use_acc,
    PART_M: gl.constexpr, PART_N: gl.constexpr, PARTS_M: gl.constexpr, PARTS_N: gl.constexpr, REST: gl.constexpr,
):  # fmt: skip
    """Begin the product of one trip, of both parts of the columns, as soon as its boxes are there."""
    mbarrier.wait(full.index(stage), phase)
    a = a_ring.index(stage * PARTS_M + PART_M)
    b = b_ring.index(stage * PARTS_N + PART_N).permute((1, 0))
    acc = warpgroup_mma(a, b, acc, use_acc=use_acc, is_async=True)
    if REST > 0:
        b_rest = b_rest_ring.index(stage * PARTS_N + PART_N).permute((1, 0))
        acc_rest = warpgroup_mma(a, b_rest, acc_rest, use_acc=use_acc, is_async=True)
    return acc, acc_rest


@gluon.jit
def wait_for_trips(acc, acc_rest, PENDING: gl.constexpr, REST: gl.constexpr):
    """Wait until no more than PENDING trips are under way."""
    if REST > 0:
        acc, acc_rest = warpgroup_mma_wait(2 * PENDING, deps=[acc, acc_rest])
    else:
        acc = warpgroup_mma_wait(PENDING, deps=[acc])
    return acc, acc_rest


@gluon.jit
def accumulate(
    a_ring, b_ring, b_rest_ring, full, empty, stage, phase, k, total, rest,
    PART_M: gl.constexpr, PART_N: gl.constexpr, PARTS_M: gl.constexpr, PARTS_N: gl.constexpr, REST: gl.constexpr,
    STAGES: gl.constexpr, BLOCK_K: gl.constexpr,
):  # fmt: skip
    """Run the main loop in the matrix unit's own accumulator."""
    for trip in range(cdiv(k, BLOCK_K)):
        total, rest = multiply_trip(
            total, rest, a_ring, b_ring, b_rest_ring, full, stage, phase, True, PART_M, PART_N, PARTS_M, PARTS_N, REST
        )
        # With this product under way the one before is done, and its buffer may be filled again.
        total, rest = wait_for_trips(total, rest, 1, REST)
        mbarrier.arrive(empty.index(stage_before(stage, STAGES)), pred=trip > 0)
        stage, phase = next_stage(stage, phase, STAGES)
    total, rest = wait_for_trips(total, rest, 0, REST)
    mbarrier.arrive(empty.index(stage_before(stage, STAGES)))
    return total, rest, stage, phase


@gluon.jit
def accumulate_promoted(
    a_ring, b_ring, b_rest_ring, full, empty, stage, phase, k, total, rest,
    PART_M: gl.constexpr, PART_N: gl.constexpr, PARTS_M: gl.constexpr, PARTS_N: gl.constexpr, REST: gl.constexpr,
    STAGES: gl.constexpr, BLOCK_K: gl.constexpr, PROMOTE: gl.constexpr,
):  # fmt: skip
    """Run the main loop and add the sum of every PROMOTE trips in fp32."""
    trips = cdiv(k, BLOCK_K)
    for _ in range(trips // PROMOTE):
        acc = warpgroup_mma_init(gl.zeros_like(total))
        acc_rest = warpgroup_mma_init(gl.zeros_like(rest)) if REST > 0 else rest
        for trip in gl.static_range(PROMOTE):
            acc, acc_rest = multiply_trip(
                acc, acc_rest, a_ring, b_ring, b_rest_ring, full, stage, phase, trip > 0,
                PART_M, PART_N, PARTS_M, PARTS_N, REST,
            )  # fmt: skip
            if trip > 0:
                acc, acc_rest = wait_for_trips(acc, acc_rest, 1, REST)
                mbarrier.arrive(empty.index(stage_before(stage, STAGES)))
            stage, phase = next_stage(stage, phase, STAGES)
        acc, acc_rest = wait_for_trips(acc, acc_rest, 0, REST)
        mbarrier.arrive(empty.index(stage_before(stage, STAGES)))
        total += acc
        if REST > 0:
            rest += acc_rest
    last = gl.zeros_like(total)
    last_rest = gl.zeros_like(rest)
    for _ in range(trips % PROMOTE):
        last, last_rest = multiply_trip(
            last, last_rest, a_ring, b_ring, b_rest_ring, full, stage, phase, True,
            PART_M, PART_N, PARTS_M, PARTS_N, REST,
        )  # fmt: skip
        last, last_rest = wait_for_trips(last, last_rest, 0, REST)
        mbarrier.arrive(empty.index(stage))
        stage, phase = next_stage(stage, phase, STAGES)
    return total + last, rest + last_rest, stage, phase


@gluon.jit
def accumulate_blocks(
    a_ring, b_ring, full, empty, stage, phase, k, total, scale_a_ptrs, in_m, scale_b_ptr, scale_a_block, scale_b_block,
    PART_M: gl.constexpr, PART_N: gl.constexpr, PARTS_M: gl.constexpr, PARTS_N: gl.constexpr, STAGES: gl.constexpr,
    BLOCK_K: gl.constexpr,
):  # fmt: skip
    """Run the main loop where every trip has scales of its own, which multiply its sum."""
    for _ in range(cdiv(k, BLOCK_K)):
        # Under way while the boxes are.
        scales = gl.load(scale_a_ptrs, mask=in_m, other=0.0) * gl.load(scale_b_ptr)
        scale_a_ptrs += scale_a_block
        scale_b_ptr += scale_b_block
        acc = warpgroup_mma_init(gl.zeros_like(total))
        acc, _ = multiply_trip(
            acc, acc, a_ring, b_ring, b_ring, full, stage, phase, False, PART_M, PART_N, PARTS_M, PARTS_N, 0
        )
        done = warpgroup_mma_wait(0, deps=[acc])
        mbarrier.arrive(empty.index(stage))
        total += done * scales.expand_dims(1)
        stage, phase = next_stage(stage, phase, STAGES)
    return total, stage, phase


@gluon.jit
def activate(x, ACTIVATION: gl.constexpr):
    """Apply the activation as `wavetune.kernels.gemm_device.activate` does."""
    if ACTIVATION == "relu":
        x = gl.maximum(x, 0.0)
    elif ACTIVATION == "gelu":
        x = 0.5 * x * (1.0 + gl.erf(x * 0.7071067811865476))
    elif ACTIVATION == "silu":
        x = x * (1 / (1 + gl.exp(-x)))
    return x


@gluon.jit
def store_part(
    total, c_box, c_desc, bias_ptr, scale_a_ptr, scale_b_ptr, start_m, start_n, m, n, scale_a_row, scale_b_row,
    PENDING: gl.constexpr, HAS_SCALES: gl.constexpr, HAS_BIAS: gl.constexpr, ACTIVATION: gl.constexpr,
):  # fmt: skip
    """Scale, finish and store one part of a tile, when no more than PENDING stores still read their boxes."""
    rows = start_m + gl.arange(0, total.shape[0], layout=gl.SliceLayout(1, total.type.layout))
    columns = start_n + gl.arange(0, total.shape[1], layout=gl.SliceLayout(0, total.type.layout))
    if HAS_SCALES:
        scale_a = gl.load(scale_a_ptr + rows.to(gl.int64) * scale_a_row, mask=rows < m, other=0.0)
        scale_b = gl.load(scale_b_ptr + columns.to(gl.int64) * scale_b_row, mask=columns < n, other=0.0)
        total *= scale_a.expand_dims(1)
        total *= scale_b.expand_dims(0)
    if HAS_BIAS:
        bias = gl.load(bias_ptr + columns, mask=columns < n, other=0.0).to(gl.float32)
        total += bias.expand_dims(0)
    total = activate(total, ACTIVATION)
    tma.store_wait(PENDING)
    c_box.store(total.to(c_desc.dtype))
    fence_async_shared()
    store_box(c_desc, [start_m, start_n], c_box)


@gluon.jit
def halves(x):
    """Return the left and the right half of the columns: of each thread's registers, nothing moves."""
    return x.reshape([x.shape[0], 2, x.shape[1] // 2]).permute((0, 2, 1)).split()


@gluon.jit
def multiply_tiles(
    a_desc, b_desc, c_desc, c_rest_desc, bias_ptr, scale_a_ptr, scale_b_ptr,
    a_ring, b_ring, b_rest_ring, c_boxes, c_rest_boxes, full, empty, m, n, k,
    scale_a_row, scale_a_block, scale_b_row, scale_b_block,
    PART: gl.constexpr, PARTS_M: gl.constexpr, PARTS_N: gl.constexpr, REST: gl.constexpr, GROUP_M: gl.constexpr,
    STAGES: gl.constexpr, PROMOTE: gl.constexpr, HAS_SCALES: gl.constexpr, SCALE_BLOCK: gl.constexpr,
    EPILOGUE_SPLIT: gl.constexpr, HAS_BIAS: gl.constexpr, ACTIVATION: gl.constexpr,
):  # fmt: skip
    """Multiply, scale, finish and store one half of every tile."""
    ROWS: gl.constexpr = a_desc.block_shape[0]
    WIDTH: gl.constexpr = b_desc.block_shape[0]
    COLUMNS: gl.constexpr = WIDTH + REST
    BLOCK_K: gl.constexpr = a_desc.block_shape[1]
    BLOCK_M: gl.constexpr = ROWS * PARTS_M
    BLOCK_N: gl.constexpr = COLUMNS * PARTS_N
    PART_M: gl.constexpr = PART // PARTS_N
    PART_N: gl.constexpr = PART % PARTS_N
    # One instruction is 32 bytes deep (PTX ISA, wgmma.mma_async).
    DEPTH: gl.constexpr = 256 // a_desc.dtype.primitive_bitwidth
    layout: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, WIDTH, DEPTH]
    )
    # Without a rest its accumulator is never touched, and vanishes.
    REST_WIDTH: gl.constexpr = REST if REST > 0 else 16
    rest_layout: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, REST_WIDTH, DEPTH]
    )
    # The stores of the tile before may still read their boxes: the one of the other part may go on.
    PENDING: gl.constexpr = 1 if REST > 0 else 0
    stage = 0
    phase = 0
    for tile in range(gl.program_id(0), cdiv(m, BLOCK_M) * cdiv(n, BLOCK_N), gl.num_programs(0)):
        start_m, start_n = tile_at(tile, m, n, BLOCK_M, BLOCK_N, GROUP_M, SCALE_BLOCK)
        start_m += PART_M * ROWS
        start_n += PART_N * COLUMNS
        total = gl.zeros([ROWS, WIDTH], gl.float32, layout)
        rest = gl.zeros([ROWS, REST_WIDTH], gl.float32, rest_layout)
        if SCALE_BLOCK > 0:
            rows = start_m + gl.arange(0, ROWS, layout=gl.SliceLayout(1, layout))
            scale_b_start = scale_b_ptr + (start_n // SCALE_BLOCK).to(gl.int64) * scale_b_row
            total, stage, phase = accumulate_blocks(
                a_ring, b_ring, full, empty, stage, phase, k, total,
                scale_a_ptr + rows.to(gl.int64) * scale_a_row, rows < m, scale_b_start, scale_a_block, scale_b_block,
                PART_M, PART_N, PARTS_M, PARTS_N, STAGES, BLOCK_K,
            )  # fmt: skip
        elif PROMOTE > 0:
            total, rest, stage, phase = accumulate_promoted(
                a_ring, b_ring, b_rest_ring, full, empty, stage, phase, k, total, rest,
                PART_M, PART_N, PARTS_M, PARTS_N, REST, STAGES, BLOCK_K, PROMOTE,
            )  # fmt: skip
        else:
            total, rest, stage, phase = accumulate(
                a_ring, b_ring, b_rest_ring, full, empty, stage, phase, k, total, rest,
                PART_M, PART_N, PARTS_M, PARTS_N, REST, STAGES, BLOCK_K,
            )  # fmt: skip
        IS_SCALED: gl.constexpr = HAS_SCALES and SCALE_BLOCK == 0
        if EPILOGUE_SPLIT == 2:
            left, right = halves(total)
            store_part(
                left, c_boxes.index(PART), c_desc, bias_ptr, scale_a_ptr, scale_b_ptr, start_m, start_n, m, n,
                scale_a_row, scale_b_row, PENDING, IS_SCALED, HAS_BIAS, ACTIVATION,
            )  # fmt: skip
            # In the same box.
            store_part(
                right, c_boxes.index(PART), c_desc, bias_ptr, scale_a_ptr, scale_b_ptr,
                start_m, start_n + WIDTH // 2, m, n, scale_a_row, scale_b_row, 0, IS_SCALED, HAS_BIAS, ACTIVATION,
            )  # fmt: skip
        else:
            store_part(
                total, c_boxes.index(PART), c_desc, bias_ptr, scale_a_ptr, scale_b_ptr, start_m, start_n, m, n,
                scale_a_row, scale_b_row, PENDING, IS_SCALED, HAS_BIAS, ACTIVATION,
            )  # fmt: skip
        if REST > 0:
            store_part(
                rest, c_rest_boxes.index(PART), c_rest_desc, bias_ptr, scale_a_ptr, scale_b_ptr,
                start_m, start_n + WIDTH, m, n, scale_a_row, scale_b_row, PENDING, IS_SCALED, HAS_BIAS, ACTIVATION,
            )  # fmt: skip
    tma.store_wait(0)


@gluon.jit(do_not_specialize=SIZES)
def specialized_kernel(
    a_desc, b_desc, b_rest_desc, c_desc, c_rest_desc, bias_ptr, scale_a_ptr, scale_b_ptr, m, n, k,
    scale_a_row: "i64", scale_a_block: "i64", scale_b_row: "i64", scale_b_block: "i64",
    PARTS_M: gl.constexpr, PARTS_N: gl.constexpr, REST: gl.constexpr, GROUP_M: gl.constexpr, STAGES: gl.constexpr,
    REGISTERS: gl.constexpr, PROMOTE: gl.constexpr, HAS_SCALES: gl.constexpr, SCALE_BLOCK: gl.constexpr,
    UNIT_K: gl.constexpr, UNIT_N: gl.constexpr, EPILOGUE_SPLIT: gl.constexpr, HAS_BIAS: gl.constexpr,
    ACTIVATION: gl.constexpr,
):  # fmt: skip
    """Walk over tiles: the CTA's own four warps and four more multiply, one loads."""
    n *= UNIT_N
    k *= UNIT_K
    a_ring = gl.allocate_shared_memory(a_desc.dtype, [STAGES * PARTS_M] + a_desc.block_shape, a_desc.layout)
    b_ring = gl.allocate_shared_memory(b_desc.dtype, [STAGES * PARTS_N] + b_desc.block_shape, b_desc.layout)
    c_boxes = gl.allocate_shared_memory(c_desc.dtype, [PARTS_M * PARTS_N] + c_desc.block_shape, c_desc.layout)
    if REST > 0:
        b_rest_ring = gl.allocate_shared_memory(
            b_rest_desc.dtype, [STAGES * PARTS_N] + b_rest_desc.block_shape, b_rest_desc.layout
        )
        c_rest_boxes = gl.allocate_shared_memory(
            c_rest_desc.dtype, [PARTS_M * PARTS_N] + c_rest_desc.block_shape, c_rest_desc.layout
        )
    else:
        b_rest_ring = b_ring
        c_rest_boxes = c_boxes
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(full.index(stage), count=1)
        mbarrier.init(empty.index(stage), count=PARTS_M * PARTS_N)
    fence_async_shared()
    gl.warp_specialize(
        [
            (
                multiply_tiles,
                (
                    a_desc, b_desc, c_desc, c_rest_desc, bias_ptr, scale_a_ptr, scale_b_ptr,
                    a_ring, b_ring, b_rest_ring, c_boxes, c_rest_boxes, full, empty, m, n, k,
                    scale_a_row, scale_a_block, scale_b_row, scale_b_block,
                    0, PARTS_M, PARTS_N, REST, GROUP_M, STAGES, PROMOTE, HAS_SCALES, SCALE_BLOCK, EPILOGUE_SPLIT,
                    HAS_BIAS, ACTIVATION,
                ),
            ),
            (
                multiply_tiles,
                (
                    a_desc, b_desc, c_desc, c_rest_desc, bias_ptr, scale_a_ptr, scale_b_ptr,
                    a_ring, b_ring, b_rest_ring, c_boxes, c_rest_boxes, full, empty, m, n, k,
                    scale_a_row, scale_a_block, scale_b_row, scale_b_block,
                    1, PARTS_M, PARTS_N, REST, GROUP_M, STAGES, PROMOTE, HAS_SCALES, SCALE_BLOCK, EPILOGUE_SPLIT,
                    HAS_BIAS, ACTIVATION,
                ),
            ),
            (
                load_tiles,
                (
                    a_desc, b_desc, b_rest_desc, a_ring, b_ring, b_rest_ring, full, empty, m, n, k,
                    PARTS_M, PARTS_N, REST, GROUP_M, STAGES, SCALE_BLOCK,
                ),
            ),
        ],
        [4, 1],
        [REGISTERS, 24],
    )  # fmt: skip
