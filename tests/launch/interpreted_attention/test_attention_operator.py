"""The attention launchers on the CPU: results against torch, what they copy, refuse and choose, and torch.compile."""

from __future__ import annotations

import logging

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.functional import scaled_dot_product_attention

from wavetune.core.attention_problem import AttentionDecodeProblem, AttentionProblem
from wavetune.errors import OperandError, OperandTypeError
from wavetune.kernels.attention_operands import page_table
from wavetune.launch.attention import attention, attention_decode

TOLERANCE = {"atol": 4e-3, "rtol": 4e-3}


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    """Return normal fp16 data."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape))).half()


def expected(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **options: object) -> torch.Tensor:
    """Compute with torch in fp32; keys and values are shared by consecutive heads."""
    group = q.shape[1] // k.shape[1]
    k, v = (tensor.float().repeat_interleave(group, 1) for tensor in (k, v))
    return scaled_dot_product_attention(q.float(), k, v, **options)


def cache_of(lengths: tuple[int, ...], page_size: int = 16) -> tuple[torch.Tensor, ...]:
    """Return (k_cache, v_cache, block_table, lengths) with two heads of 64."""
    table, counts = page_table(AttentionDecodeProblem(lengths, page_size=page_size), "cpu")
    n_pages = int(table.max()) + 1
    return random(n_pages, page_size, 2, 64, seed=1), random(n_pages, page_size, 2, 64, seed=2), table, counts


@pytest.mark.parametrize("causal", [True, False])
def test_a_batch_is_what_torch_computes(causal: bool) -> None:
    """Grouped heads, a ragged length, a scale, and the logsumexp."""
    q, k, v = random(2, 4, 70, 64), random(2, 2, 70, 64, seed=1), random(2, 2, 70, 64, seed=2)
    out, lse = attention(q, k, v, causal=causal, scale=0.3, return_lse=True)
    torch.testing.assert_close(out.float(), expected(q, k, v, is_causal=causal, scale=0.3), **TOLERANCE)
    assert lse.shape == (2, 4, 70)
    scores = q.float() @ k.float().repeat_interleave(2, 1).transpose(-1, -2) * 0.3
    last = torch.logsumexp(scores, -1)[:, :, -1]
    torch.testing.assert_close(lse[:, :, -1], last, atol=1e-3, rtol=1e-3)


def test_a_window_hides_distant_keys() -> None:
    """With a causal mask a query sees itself and window - 1 keys before."""
    q, k, v = (random(1, 2, 50, 64, seed=seed) for seed in range(3))
    distance = torch.arange(50)[:, None] - torch.arange(50)[None, :]
    mask = (distance >= 0) & (distance < 7)
    result = attention(q, k, v, causal=True, window=7)
    torch.testing.assert_close(result.float(), expected(q, k, v, attn_mask=mask), **TOLERANCE)


@pytest.mark.parametrize("max_seqlen", [None, 40])
def test_packed_sequences_are_what_each_alone_is(max_seqlen: int | None) -> None:
    """Starts on the CPU are read, those elsewhere are not if the longest is known; one sequence is empty."""
    starts, starts_k = (
        torch.tensor([0, 33, 33, 43], dtype=torch.int32),
        torch.tensor([0, 40, 40, 60], dtype=torch.int32),
    )
    q, k, v = random(43, 4, 64), random(60, 2, 64, seed=1), random(60, 2, 64, seed=2)
    out, lse = attention(
        q, k, v, causal=True, cu_seqlens=starts, cu_seqlens_k=starts_k, max_seqlen=max_seqlen, max_seqlen_k=max_seqlen,
        return_lse=True,
    )  # fmt: skip
    assert lse.shape == (4, 43)
    for start, end, start_k, end_k in ((0, 33, 0, 40), (33, 43, 40, 60)):
        alone = attention(
            q[None, start:end].transpose(1, 2), k[None, start_k:end_k].transpose(1, 2),
            v[None, start_k:end_k].transpose(1, 2), causal=True,
        )  # fmt: skip
        torch.testing.assert_close(out[start:end], alone[0].transpose(0, 1), atol=0, rtol=0)


def test_lengths_on_the_gpu_are_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The guess has the longest length and about the right sum."""
    from wavetune.launch.attention_launcher import packed_lengths

    class OnGpu:
        device = torch.device("cuda")
        shape = (5,)

    lengths = packed_lengths("cu_seqlens", OnGpu(), 3000, 1000)
    assert max(lengths) == 1000
    assert abs(sum(lengths) - 3000) < 60
    assert packed_lengths("cu_seqlens", OnGpu(), 10**6, 1000) == (1000,) * 4


def test_views_are_read_where_they_are(launched: list) -> None:
    """The transpose of (batch, tokens, heads, dim), as projections leave it, is not copied; odd strides are."""
    q, k, v = (random(2, 40, 2, 64, seed=seed).transpose(1, 2) for seed in range(3))
    result = attention(q, k, v)
    assert launched[-1][0].q.data_ptr() == q.data_ptr()
    assert result.stride() == q.stride()
    wide = random(2, 2, 40, 67)
    odd = wide[..., 3:]
    torch.testing.assert_close(attention(odd, k, v).float(), expected(odd, k, v), **TOLERANCE)
    assert launched[-1][0].q.data_ptr() != odd.data_ptr()
    expanded = k[:1, :1].expand(2, 2, -1, -1)
    torch.testing.assert_close(attention(q, expanded, v).float(), expected(q, expanded, v), **TOLERANCE)
    sideways = random(2, 2, 64, 40).transpose(-1, -2)
    result = attention(sideways, k, v)
    assert result.stride() == sideways.stride()
    torch.testing.assert_close(result.float(), expected(sideways, k, v), **TOLERANCE)


def test_empty_tensors() -> None:
    """No sequences or queries give nothing, no keys give zeros."""
    for shape_q, shape_k in (((0, 2, 5, 64), (0, 2, 5, 64)), ((1, 2, 0, 64), (1, 2, 5, 64))):
        assert attention(random(*shape_q), random(*shape_k), random(*shape_k)).shape == shape_q
    out, lse = attention(random(1, 2, 5, 64), random(1, 2, 0, 64), random(1, 2, 0, 64), return_lse=True)
    assert (out == 0).all()
    assert (lse == -torch.inf).all()
    starts = torch.tensor([0, 5], dtype=torch.int32)
    out = attention(random(5, 2, 64), random(0, 2, 64), random(0, 2, 64), cu_seqlens=starts, cu_seqlens_k=starts * 0)
    assert (out == 0).all()
    caches = (torch.empty(0, 16, 2, 64).half(),) * 2
    table, lengths = torch.zeros(3, 0, dtype=torch.int32), torch.zeros(3, dtype=torch.int32)
    assert (attention_decode(random(3, 4, 64), *caches, table, lengths) == 0).all()
    assert attention_decode(random(0, 4, 64), *caches, table[:0], lengths[:0]).shape == (0, 4, 64)


@pytest.mark.parametrize("max_length", [None, 20, 100])
def test_a_decode_step_is_the_last_query_of_a_prefill(max_length: int | None) -> None:
    """Whatever length was expected; a length beyond the table counts as what the table holds."""
    lengths = (100, 0, 33)
    k_cache, v_cache, table, counts = cache_of(lengths)
    q = random(3, 4, 64)
    out, lse = attention_decode(q, k_cache, v_cache, table, counts, max_length=max_length, return_lse=True)
    assert lse.shape == (3, 4)
    assert (out[1] == 0).all()
    for row in (0, 2):
        n_pages = -(-lengths[row] // 16)
        k, v = (cache[table[row, :n_pages].long()].flatten(0, 1)[: lengths[row]] for cache in (k_cache, v_cache))
        alone = expected(q[row, None, :, None], k[None].transpose(1, 2), v[None].transpose(1, 2))
        torch.testing.assert_close(out[row].float(), alone[0, :, 0], **TOLERANCE)
    beyond = attention_decode(q[:1], k_cache, v_cache, table[:1], torch.tensor([10**6], dtype=torch.int32))
    within = attention_decode(q[:1], k_cache, v_cache, table[:1], torch.tensor([7 * 16], dtype=torch.int32))
    torch.testing.assert_close(beyond, within, atol=0, rtol=0)


def test_the_fixed_rule_answers_without_a_model(launched: list, caplog: pytest.LogCaptureFixture) -> None:
    """One warning a kernel; few queries get a small tile, few CTAs get splits."""
    with caplog.at_level(logging.WARNING, "wavetune"):
        for _ in range(2):
            attention(random(1, 2, 5, 64), random(1, 2, 30, 64), random(1, 2, 30, 64))
    assert [record.message for record in caplog.records if "nobody tuned" in record.message].__len__() == 1
    assert launched[-1][1]["block_m"] == 64
    assert launched[-1][0].problem == AttentionProblem((5,), (30,), 2, 2, 64, False, dtype="fp16")
    attention_decode(random(1, 2, 64), *cache_of((300,)))
    assert int(launched[-1][1]["splits"]) > 1


def test_fake_tensors_have_the_right_shapes() -> None:
    """Nothing is launched; errors are the same."""
    with FakeTensorMode():
        q, k, odd = (torch.empty(2, heads, 9, 64, dtype=torch.float16, device="cuda") for heads in (4, 2, 3))
        out, lse = attention(q, k, k, return_lse=True)
        assert (out.shape, lse.shape, lse.dtype) == ((2, 4, 9, 64), (2, 4, 9), torch.float32)
        with pytest.raises(OperandError, match="multiple"):
            attention(odd, k, k)


def test_opcheck() -> None:
    """Torch's own test of schema, fake kernel and dynamic tracing."""
    q, k, v = (random(2, heads, 20, 64, seed=heads) for heads in (4, 2, 2))
    torch.library.opcheck(torch.ops.wavetune.attention.default, (q, k, v), {"causal": True, "return_lse": True})
    starts = torch.tensor([0, 7, 20], dtype=torch.int32)
    packed = [tensor[0].transpose(0, 1) for tensor in (q, k, v)]
    torch.library.opcheck(torch.ops.wavetune.attention.default, (*packed, starts), {"max_seqlen": 13})
    torch.library.opcheck(torch.ops.wavetune.attention_decode.default, (random(2, 4, 64), *cache_of((40, 5))))


def test_compiled_without_breaks_and_with_symbolic_sizes() -> None:
    """One graph serves every length."""
    compiled = torch.compile(attention, backend="aot_eager", fullgraph=True, dynamic=True)
    for length in (20, 33):
        q, k, v = (random(1, 2, length, 64, seed=seed) for seed in range(3))
        torch.testing.assert_close(compiled(q, k, v, causal=True), attention(q, k, v, causal=True), atol=0, rtol=0)


def test_gradients_are_refused() -> None:
    """There is no backward pass, and saying so beats a silent graph break."""
    q = random(1, 2, 5, 64).requires_grad_()
    with pytest.raises(OperandError, match="no backward pass"):
        attention(q, q, q)
    with torch.no_grad():
        attention(q, q, q)


Q, K = random(2, 4, 9, 64), random(2, 2, 9, 64)
P, STARTS = random(9, 4, 64), torch.tensor([0, 4, 9], dtype=torch.int32)


@pytest.mark.parametrize(
    ("arguments", "options", "error", "word"),
    [
        (([1], K, K), {}, OperandTypeError, "q must be a torch.Tensor"),
        ((Q, K, K), {"causal": 1}, OperandTypeError, "causal"),
        ((Q, K, K), {"scale": "x"}, OperandTypeError, "scale"),
        ((Q, K, K), {"scale": -1.0}, OperandError, "positive and finite"),
        ((Q, K, K), {"scale": float("nan")}, OperandError, "positive and finite"),
        ((Q, K, K), {"window": 0}, OperandError, "window must be a positive integer"),
        ((Q, K, K), {"window": 1.5}, OperandTypeError, "window"),
        ((Q[0], K, K), {}, OperandError, r"q has shape \[4, 9, 64\]; without cu_seqlens"),
        ((Q, K, K), {"cu_seqlens": STARTS}, OperandError, "with cu_seqlens it must be"),
        ((Q.float(), K.float(), K.float()), {}, OperandError, "q is torch.float32"),
        ((Q, K.bfloat16(), K), {}, OperandError, "k is torch.bfloat16 but q is torch.float16"),
        ((Q, K, K[:, :, :8]), {}, OperandError, "must be the same"),
        ((Q, K[:1], K[:1]), {}, OperandError, "q has 2 sequences but k has 1"),
        ((Q[:, :3], K, K), {}, OperandError, "3 heads of q must be a multiple of the 2"),
        ((Q[..., :32], K, K), {}, OperandError, "q has head dimension 32 but k has 64"),
        ((Q[..., :32], K[..., :32], K[..., :32]), {}, OperandError, "one of 64, 96, 128, 256, got 32"),
        ((Q, K, K), {"cu_seqlens_k": STARTS}, OperandError, "needs cu_seqlens"),
        ((P, P, P), {"cu_seqlens": STARTS.long()}, OperandError, "must be torch.int32"),
        ((P, P, P), {"cu_seqlens": STARTS[:1]}, OperandError, "n_sequences"),
        ((P, P, P), {"cu_seqlens": STARTS + 1}, OperandError, "begin with 0"),
        ((P, P, P), {"cu_seqlens": STARTS * 2}, OperandError, "end with the 9 tokens"),
        ((P, P, P), {"cu_seqlens": torch.tensor([0, 12, 9], dtype=torch.int32)}, OperandError, "from 12 to 9"),
        ((P, P[:8], P[:8]), {"cu_seqlens": STARTS}, OperandError, "give cu_seqlens_k as well"),
        ((P, P, P), {"cu_seqlens": STARTS, "cu_seqlens_k": STARTS[1:]}, OperandError, "2 sequences but cu_seqlens_k"),
        ((P, P, P), {"cu_seqlens": STARTS, "max_seqlen": -2}, OperandError, "max_seqlen"),
        ((Q, K, K), {"max_seqlen": 3}, OperandError, "give cu_seqlens as well"),
        ((P, P, P), {"cu_seqlens": STARTS, "max_seqlen_k": 3}, OperandError, "give cu_seqlens_k as well"),
        ((Q.to("meta"), K, K), {}, OperandError, "k is on cpu but q is on meta"),
        ((Q.to("meta"), K.to("meta"), K.to("meta")), {}, None, ""),
    ],
)
def test_what_cannot_be_used_is_named(
    arguments: tuple, options: dict, error: type[Exception] | None, word: str
) -> None:  # fmt: skip
    """Each mistake has its message; meta tensors only have shapes."""
    if error is None:
        assert attention(*arguments, **options).shape == arguments[0].shape
        return
    with pytest.raises(error, match=word):
        attention(*arguments, **options)


@pytest.mark.parametrize(
    ("change", "error", "word"),
    [
        ({"q": random(1, 4, 1, 64)}, OperandError, "one query a sequence"),
        ({"k_cache": random(4, 2, 64)}, OperandError, "n_pages, page_size"),
        ({"k_cache": random(4, 8, 2, 64)}, OperandError, "but v_cache has"),
        ({"q": random(1, 3, 64)}, OperandError, "multiple"),
        ({"q": random(1, 4, 128)}, OperandError, "head dimension 128"),
        ({"block_table": torch.zeros(2, 3, dtype=torch.int32)}, OperandError, r"block_table must have shape \(1, max"),
        ({"block_table": torch.zeros(1, 3)}, OperandError, "block_table must be torch.int32"),
        ({"lengths": torch.zeros(2, dtype=torch.int32)}, OperandError, "lengths must have shape"),
        ({"lengths": torch.zeros(1, dtype=torch.int64)}, OperandError, "lengths must be torch.int32"),
        ({"lengths": [3]}, OperandTypeError, "lengths must be a torch.Tensor"),
    ],
)
def test_what_a_decode_step_cannot_use_is_named(change: dict, error: type[Exception], word: str) -> None:
    """Each mistake has its message."""
    k_cache, v_cache, table, counts = cache_of((40,))
    arguments = {"q": random(1, 4, 64), "k_cache": k_cache, "v_cache": v_cache, "block_table": table, "lengths": counts}
    with pytest.raises(error, match=word):
        attention_decode(**{**arguments, **change})
