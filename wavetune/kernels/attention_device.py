# mypy: ignore-errors
# ruff: noqa: F821, SIM102 ("i64" and "fp32" are Triton types; branches on constants choose code, not values)
"""Device code of attention over whole sequences: out = softmax(scale Q K^T, masked) V, accumulated in fp32.

Follows `wavetune.mapping.attention`: one CTA computes BLOCK_M queries of one head, ``ceil(q_len / BLOCK_M)`` CTAs a
head, and walks over the keys that any of its queries sees, BLOCK_N at a time.

- Queries are aligned with the last keys: query i sees key j only if ``j <= i + kv_len - q_len`` under CAUSAL, and only
  if ``|i + kv_len - q_len - j| < window`` under WINDOW.
- Scores are shifted by their maximum before they are scaled. With one fused multiply-add instead the largest score of a
  row would not be exactly 0 afterwards, and beyond 2**26 the rounding error of the product over- or underflows.
- A query that sees no key gets 0, and -inf as its logsumexp.
- Operands are descriptors of [batch, heads, tokens, HEAD_DIM]. PACKED sequences lie one behind another in a batch of
  one; what follows a sequence belongs to the next one, so its values are cleared: 0 times NaN would be NaN.
- Sizes are never specialized on their values; strides of the result arrive in units of UNIT elements, 16 bytes.
"""

import triton
import triton.language as tl

SIZES = [
    "q_len", "kv_len", "heads", "group", "streams", "streams_per_group", "window", "out_batch", "out_head", "out_token",
    "lse_batch", "lse_head",
]  # fmt: skip


@triton.jit
def block_and_stream(cta, blocks, streams, streams_per_group, ORDER: tl.constexpr):
    """Return (block of queries, stream): a stream is one head of one sequence.

    ``in_order`` walks a stream from its first block to its last. ``longest_first`` starts with the last block, which
    sees most keys, of every stream of a group; a group's keys and values share the last-level cache.
    """
    if ORDER == "in_order":
        block = cta % blocks
        stream = cta // blocks
    else:
        per_group = blocks * streams_per_group
        first = (cta // per_group) * streams_per_group
        size = tl.minimum(streams - first, streams_per_group)
        within = cta % per_group
        block = blocks - 1 - within // size
        stream = first + within % size
    return block, stream


@triton.jit
def visible(positions, columns, kv_len, window, CAUSAL: tl.constexpr, WINDOW: tl.constexpr):
    """Return which keys the queries at ``positions`` see."""
    seen = (columns < kv_len)[None, :]
    distance = positions[:, None] - columns[None, :]
    if CAUSAL:
        seen = seen & (distance >= 0)
    if WINDOW:
        seen = seen & (distance < window) & (distance > -window)
    return seen


@triton.jit
def accumulate(p, alpha, v, acc):
    """Rescale what was summed so far and add one trip."""
    # ieee matters for fp32 inputs only: tf32 would lose the precision that their tests look at.
    return tl.dot(p.to(v.dtype), v, acc * alpha[:, None], input_precision="ieee")


@triton.jit
def online_softmax(scores, row_max, row_sum, scale):
    """Return weights of this trip, the factor that past trips shrink by, and the new maximum and sum of each row."""
    new_max = tl.maximum(row_max, tl.max(scores, 1))
    shift = tl.where(new_max == float("-inf"), 0.0, new_max)
    p = tl.math.exp2((scores - shift[:, None]) * scale)
    alpha = tl.math.exp2((row_max - shift) * scale)
    return p, alpha, new_max, row_sum * alpha + tl.sum(p, 1)


@triton.jit
def natural_lse(row_max, row_sum, scale):
    """Return the logsumexp of each row of scores, -inf for an empty one; ``scale`` holds log2(e), hence ln(2)."""
    is_empty = row_sum == 0.0
    lse = (row_max * scale + tl.math.log2(tl.where(is_empty, 1.0, row_sum))) * 0.6931471805599453
    return tl.where(is_empty, float("-inf"), lse)


@triton.jit
def normalize(acc, row_sum):
    """Divide by the sum of weights; rows without any are zero."""
    return acc * (1.0 / tl.where(row_sum == 0.0, 1.0, row_sum))[:, None]


@triton.jit
def attend(
    acc, row_max, row_sum, q, k_desc, v_desc, batch, kv_head, kv_start, positions, lo, hi, free_lo, free_hi, kv_len,
    window, scale, BLOCK_N: tl.constexpr, DIM: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr,
    MASK: tl.constexpr, CLEAR: tl.constexpr, NUM_STAGES: tl.constexpr,
):  # fmt: skip
    """Walk over the keys [lo, hi); ``MASK`` is "never", "always", or "edges": outside of [free_lo, free_hi)."""
    for start in tl.range(lo, hi, BLOCK_N, num_stages=NUM_STAGES):
        columns = start + tl.arange(0, BLOCK_N)
        k = k_desc.load([batch, kv_head, kv_start + start, 0]).reshape(BLOCK_N, DIM)
        scores = tl.dot(q, k.T, input_precision="ieee")
        if MASK == "always":
            scores = tl.where(visible(positions, columns, kv_len, window, CAUSAL, WINDOW), scores, float("-inf"))
        elif MASK == "edges":
            if (start < free_lo) | (start + BLOCK_N > free_hi):
                scores = tl.where(visible(positions, columns, kv_len, window, CAUSAL, WINDOW), scores, float("-inf"))
        p, alpha, row_max, row_sum = online_softmax(scores, row_max, row_sum, scale)
        v = v_desc.load([batch, kv_head, kv_start + start, 0]).reshape(BLOCK_N, DIM)
        if CLEAR:
            v = tl.where((columns < kv_len)[:, None], v, 0.0).to(v.dtype)
        acc = accumulate(p, alpha, v, acc)
    return acc, row_max, row_sum


@triton.jit
def key_range(
    start_m, end_m, kv_len, offset, window, BLOCK_N: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr
):
    """Return the keys that queries [start_m, end_m) see: (lo, free_lo, free_hi, hi), all but hi multiples of BLOCK_N.

    Some query sees something of every trip in [lo, hi); every query sees all keys of the trips in [free_lo, free_hi).
    """
    lo = 0
    free_lo = 0
    hi = kv_len
    free_hi = kv_len
    if CAUSAL:
        hi = tl.minimum(hi, end_m + offset)
        free_hi = tl.minimum(free_hi, start_m + offset + 1)
    if WINDOW:
        lo = tl.maximum(start_m + offset - window + 1, 0) // BLOCK_N * BLOCK_N
        free_lo = tl.cdiv(tl.maximum(end_m + offset - window, 0), BLOCK_N) * BLOCK_N
        hi = tl.minimum(hi, end_m - 1 + offset + window)
        free_hi = tl.minimum(free_hi, start_m + offset + window)
    hi = tl.maximum(hi, lo)
    free_lo = tl.minimum(free_lo, tl.cdiv(hi, BLOCK_N) * BLOCK_N)
    free_hi = tl.maximum(tl.maximum(free_hi, 0) // BLOCK_N * BLOCK_N, free_lo)
    return lo, free_lo, free_hi, hi


@triton.jit(do_not_specialize=SIZES)
def attention_kernel(
    q_desc, k_desc, v_desc, out_ptr, lse_ptr, q_starts_ptr, kv_starts_ptr, q_len, kv_len, heads, group, streams,
    streams_per_group, window, out_batch: "i64", out_head: "i64", out_token: "i64", lse_batch: "i64", lse_head: "i64",
    scale: "fp32", HEAD_DIM: tl.constexpr, DIM: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr,
    PACKED: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, ORDER: tl.constexpr, MASKING: tl.constexpr,
    HAS_LSE: tl.constexpr, UNIT: tl.constexpr,
):  # fmt: skip
    """Compute BLOCK_M queries of one head; ``q_len`` and ``kv_len`` are those of the longest sequence."""
    out_batch *= UNIT
    out_head *= UNIT
    out_token *= UNIT
    blocks = tl.cdiv(q_len, BLOCK_M)
    block, stream = block_and_stream(tl.program_id(0), blocks, streams, streams_per_group, ORDER)
    batch = stream // heads
    head = stream % heads
    kv_head = head // group
    q_start = 0
    kv_start = 0
    if PACKED:
        q_start = tl.load(q_starts_ptr + batch)
        q_len = tl.load(q_starts_ptr + batch + 1) - q_start
        kv_start = tl.load(kv_starts_ptr + batch)
        kv_len = tl.load(kv_starts_ptr + batch + 1) - kv_start
        batch = 0
    start_m = block * BLOCK_M
    if start_m >= q_len:
        return
    offset = kv_len - q_len
    rows = start_m + tl.arange(0, BLOCK_M)
    end_m = tl.minimum(start_m + BLOCK_M, q_len)
    lo, free_lo, free_hi, hi = key_range(start_m, end_m, kv_len, offset, window, BLOCK_N, CAUSAL, WINDOW)

    q = q_desc.load([batch, head, q_start + start_m, 0]).reshape(BLOCK_M, DIM)
    acc = tl.zeros((BLOCK_M, DIM), dtype=tl.float32)
    row_max = tl.full((BLOCK_M,), float("-inf"), dtype=tl.float32)
    row_sum = tl.zeros((BLOCK_M,), dtype=tl.float32)
    last = hi
    if PACKED:
        # The trip that reaches beyond the sequence comes alone.
        last = tl.maximum(tl.minimum(kv_len // BLOCK_N * BLOCK_N, hi), lo)
        free_lo = tl.minimum(free_lo, last)
        free_hi = tl.minimum(free_hi, last)
    if MASKING == "edges":
        acc, row_max, row_sum = attend(
            acc, row_max, row_sum, q, k_desc, v_desc, batch, kv_head, kv_start, rows + offset, lo, last, free_lo,
            free_hi, kv_len, window, scale, BLOCK_N, DIM, CAUSAL, WINDOW, "edges", False, None,
        )  # fmt: skip
    else:
        if WINDOW:
            acc, row_max, row_sum = attend(
                acc, row_max, row_sum, q, k_desc, v_desc, batch, kv_head, kv_start, rows + offset, lo, free_lo, 0, 0,
                kv_len, window, scale, BLOCK_N, DIM, CAUSAL, WINDOW, "always", False, None,
            )  # fmt: skip
        acc, row_max, row_sum = attend(
            acc, row_max, row_sum, q, k_desc, v_desc, batch, kv_head, kv_start, rows + offset, free_lo, free_hi, 0, 0,
            kv_len, window, scale, BLOCK_N, DIM, CAUSAL, WINDOW, "never", False, None,
        )  # fmt: skip
        acc, row_max, row_sum = attend(
            acc, row_max, row_sum, q, k_desc, v_desc, batch, kv_head, kv_start, rows + offset, free_hi, last, 0, 0,
            kv_len, window, scale, BLOCK_N, DIM, CAUSAL, WINDOW, "always", False, None,
        )  # fmt: skip
    if PACKED:
        acc, row_max, row_sum = attend(
            acc, row_max, row_sum, q, k_desc, v_desc, batch, kv_head, kv_start, rows + offset, last, hi, 0, 0,
            kv_len, window, scale, BLOCK_N, DIM, CAUSAL, WINDOW, "always", True, 1,
        )  # fmt: skip

    out = normalize(acc, row_sum)
    columns = tl.arange(0, DIM)
    token = (q_start + rows).to(tl.int64)
    out_ptrs = out_ptr + batch * out_batch + head * out_head + (token[:, None] * out_token + columns[None, :])
    inside = (rows < q_len)[:, None]
    if DIM != HEAD_DIM:
        inside = inside & (columns < HEAD_DIM)[None, :]
    tl.store(out_ptrs, out.to(out_ptr.dtype.element_ty), mask=inside)
    if HAS_LSE:
        lse = natural_lse(row_max, row_sum, scale)
        tl.store(lse_ptr + batch * lse_batch + head * lse_head + token, lse, mask=rows < q_len)
