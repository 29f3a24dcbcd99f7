# mypy: ignore-errors
# ruff: noqa: F821 ("i64" and "fp32" are Triton types)
"""Device code of attention of one query a sequence against a paged cache, with the keys split over CTAs.

Follows `wavetune.mapping.attention`: one CTA takes the query heads of one key and value head, ROWS of them as the rows
of one tile, and walks over ``ceil(trips / SPLITS)`` trips of BLOCK_N keys. With more than one split it stores what it
has in fp32, normalized, together with its logsumexp, and a second kernel weights the parts. A split without keys stores
-inf as its logsumexp and nothing else; a sequence without keys gets 0.

- The cache is [pages, PAGE_SIZE, kv_heads, HEAD_DIM] with any strides but the last; strides arrive in units of UNIT
  elements, 16 bytes. Token t of a sequence is in page ``block_table[sequence, t // PAGE_SIZE]``.
- Where a page holds a whole trip, its number is looked up once; else once for each token.
- Nothing beyond a sequence's length is read, neither of the table nor of the cache; a length beyond what the table has
  pages for counts as that, a negative one as 0.
"""

import triton
import triton.language as tl

from wavetune.kernels.attention_device import accumulate, natural_lse, normalize, online_softmax

SIZES = [
    "heads", "kv_heads", "window", "capacity", "q_batch", "q_head", "k_page", "k_token", "k_head", "v_page", "v_token",
    "v_head", "table_batch", "out_batch", "out_head",
]  # fmt: skip
COMBINE_SIZES = ["heads", "out_batch", "out_head"]


@triton.jit
def split_range(kv_len, window, split, SPLITS: tl.constexpr, BLOCK_N: tl.constexpr, WINDOW: tl.constexpr):
    """Return the trips [start, end) of one split; the last splits may be shorter, even empty."""
    first = 0
    if WINDOW:
        first = tl.maximum(kv_len - window, 0) // BLOCK_N
    trips = tl.cdiv(kv_len, BLOCK_N) - first
    per_split = tl.cdiv(trips, SPLITS)
    start = tl.minimum(split * per_split, trips)
    return first + start, first + tl.minimum(start + per_split, trips)


@triton.jit
def token_offsets(table_ptr, trip, positions, kv_len, page, token, BLOCK_N: tl.constexpr, PAGE_SIZE: tl.constexpr):
    """Return where the tokens of a trip are in the cache; ``page`` and ``token`` are its strides."""
    if PAGE_SIZE % BLOCK_N == 0:
        number = tl.load(table_ptr + trip * BLOCK_N // PAGE_SIZE).to(tl.int64)
        within = trip * BLOCK_N % PAGE_SIZE + tl.arange(0, BLOCK_N)
        return number * page + within * token
    number = tl.load(table_ptr + positions // PAGE_SIZE, mask=positions < kv_len, other=0).to(tl.int64)
    return number * page + (positions % PAGE_SIZE) * token


@triton.jit(do_not_specialize=SIZES)
def decode_kernel(
    q_ptr, k_ptr, v_ptr, table_ptr, lengths_ptr, out_ptr, lse_ptr, partial_ptr, heads, kv_heads, window, capacity,
    q_batch: "i64", q_head: "i64", k_page: "i64", k_token: "i64", k_head: "i64", v_page: "i64", v_token: "i64",
    v_head: "i64", table_batch: "i64", out_batch: "i64", out_head: "i64", scale: "fp32", HEAD_DIM: tl.constexpr,
    DIM: tl.constexpr, WINDOW: tl.constexpr, PAGE_SIZE: tl.constexpr, BLOCK_N: tl.constexpr, SPLITS: tl.constexpr,
    ROWS: tl.constexpr, HAS_LSE: tl.constexpr, UNIT: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """Compute one split of the query heads of one key and value head."""
    if OVERLAP:
        # The combining kernel may be launched while this one runs; it waits for our stores by itself.
        tl.extra.cuda.gdc_launch_dependents()
    group = heads // kv_heads
    tiles = tl.cdiv(group, ROWS)
    cta = tl.program_id(0)
    split = cta % SPLITS
    tile = cta // SPLITS % tiles
    kv_head = cta // (SPLITS * tiles) % kv_heads
    batch = (cta // (SPLITS * tiles) // kv_heads).to(tl.int64)
    kv_len = tl.maximum(tl.minimum(tl.load(lengths_ptr + batch), capacity), 0)
    start, end = split_range(kv_len, window, split, SPLITS, BLOCK_N, WINDOW)

    rows = tile * ROWS + tl.arange(0, ROWS)
    dims = tl.arange(0, DIM)
    head = kv_head * group + rows
    inside = (rows < group)[:, None]
    in_head = dims < HEAD_DIM
    q_ptrs = q_ptr + batch * (q_batch * UNIT) + (head[:, None] * (q_head * UNIT) + dims[None, :])
    q = tl.load(q_ptrs, mask=inside & in_head[None, :], other=0.0)
    table_ptr += batch * table_batch
    k_ptr += kv_head * (k_head * UNIT)
    v_ptr += kv_head * (v_head * UNIT)
    acc = tl.zeros((ROWS, DIM), dtype=tl.float32)
    row_max = tl.full((ROWS,), float("-inf"), dtype=tl.float32)
    row_sum = tl.zeros((ROWS,), dtype=tl.float32)
    for trip in tl.range(start, end):
        positions = trip * BLOCK_N + tl.arange(0, BLOCK_N)
        seen = positions < kv_len
        read = seen[:, None]
        if DIM != HEAD_DIM:
            read = read & in_head[None, :]
        k_offsets = token_offsets(table_ptr, trip, positions, kv_len, k_page * UNIT, k_token * UNIT, BLOCK_N, PAGE_SIZE)
        k = tl.load(k_ptr + (k_offsets[:, None] + dims[None, :]), mask=read, other=0.0)
        scores = tl.dot(q, k.T, input_precision="ieee")
        if WINDOW:
            seen = seen & (positions >= kv_len - window)
        scores = tl.where(seen[None, :], scores, float("-inf"))
        p, alpha, row_max, row_sum = online_softmax(scores, row_max, row_sum, scale)
        v_offsets = token_offsets(table_ptr, trip, positions, kv_len, v_page * UNIT, v_token * UNIT, BLOCK_N, PAGE_SIZE)
        v = tl.load(v_ptr + (v_offsets[:, None] + dims[None, :]), mask=read, other=0.0)
        acc = accumulate(p, alpha, v, acc)

    result = normalize(acc, row_sum)
    row = batch * heads + head
    if SPLITS == 1:
        out_ptrs = out_ptr + batch * (out_batch * UNIT) + (head[:, None] * (out_head * UNIT) + dims[None, :])
        tl.store(out_ptrs, result.to(out_ptr.dtype.element_ty), mask=inside & in_head[None, :])
        if HAS_LSE:
            tl.store(lse_ptr + row, natural_lse(row_max, row_sum, scale), mask=rows < group)
    else:
        part = row * SPLITS + split
        if start < end:
            result_ptrs = partial_ptr + (part[:, None] * HEAD_DIM + dims[None, :])
            tl.store(result_ptrs, result, mask=inside & in_head[None, :])
        # The logsumexps follow the results of all rows.
        n_parts = tl.num_programs(0).to(tl.int64) // tiles * group
        tl.store(partial_ptr + n_parts * HEAD_DIM + part, natural_lse(row_max, row_sum, scale), mask=rows < group)


@triton.jit(do_not_specialize=COMBINE_SIZES)
def combine_kernel(
    partial_ptr, out_ptr, lse_ptr, heads, out_batch: "i64", out_head: "i64", HEAD_DIM: tl.constexpr, DIM: tl.constexpr,
    SPLITS: tl.constexpr, SPLITS_PADDED: tl.constexpr, HAS_LSE: tl.constexpr, UNIT: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """Weight the splits of one query head of one sequence by their sums, in a fixed order: deterministic."""
    if OVERLAP:
        tl.extra.cuda.gdc_wait()
    row = tl.program_id(0).to(tl.int64)
    splits = tl.arange(0, SPLITS_PADDED)
    dims = tl.arange(0, DIM)
    parts = row * SPLITS + splits
    lse_ptrs = partial_ptr + tl.num_programs(0).to(tl.int64) * SPLITS * HEAD_DIM + parts
    lse = tl.load(lse_ptrs, mask=splits < SPLITS, other=float("-inf"))
    largest = tl.max(lse, 0)
    weights = tl.exp(lse - tl.where(largest == float("-inf"), 0.0, largest))
    total = tl.sum(weights, 0)
    # A split without keys has stored no result.
    stored = (lse != float("-inf"))[:, None] & (dims < HEAD_DIM)[None, :]
    results = tl.load(partial_ptr + (parts[:, None] * HEAD_DIM + dims[None, :]), mask=stored, other=0.0)
    result = tl.sum(results * weights[:, None], 0) / tl.where(total == 0.0, 1.0, total)
    out_ptrs = out_ptr + row // heads * (out_batch * UNIT) + (row % heads * (out_head * UNIT) + dims)
    tl.store(out_ptrs, result.to(out_ptr.dtype.element_ty), mask=dims < HEAD_DIM)
    if HAS_LSE:
        tl.store(lse_ptr + row, tl.where(total == 0.0, float("-inf"), largest + tl.log(total)))
