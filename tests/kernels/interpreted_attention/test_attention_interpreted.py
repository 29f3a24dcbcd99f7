"""Attention kernels on the CPU against torch in float64."""

import pytest
import torch

from wavetune.core.arch import find_arch
from wavetune.core.attention_problem import AttentionDecodeProblem, AttentionProblem
from wavetune.core.config import ATTENTION, ATTENTION_DECODE, KernelConfig
from wavetune.errors import ConfigError
from wavetune.kernels.attention import attention_calls, bind_attention, illegal_reason
from wavetune.kernels.attention_decode import bind_decode, decode_illegal_reason
from wavetune.kernels.attention_operands import (
    AttentionDecodeOperands,
    AttentionOperands,
    make_attention_operands,
    make_decode_operands,
)
from wavetune.kernels.attention_reference import MAX_RELATIVE_ERROR, attention_and_lse, decode_and_lse
from wavetune.kernels.reference import relative_error
from wavetune.mapping.attention import map_attention

H200 = find_arch("h200")


def make_config(**fields: object) -> KernelConfig:
    """Complete a configuration of the prefill kernel."""
    base = {"block_m": 32, "block_n": 16, "order": "in_order", "masking": "separate", "num_warps": 2, "num_stages": 2}
    return ATTENTION.config({**base, **fields})


def make_decode_config(**fields: object) -> KernelConfig:
    """Complete a configuration of the decode kernel."""
    return ATTENTION_DECODE.config({"block_n": 32, "splits": 1, "num_warps": 4, "num_stages": 2, **fields})


def launch(operands: AttentionOperands, config: KernelConfig) -> None:
    """Launch a prefill and compare every element, and the logsumexps, with the reference."""
    assert illegal_reason(operands.problem, config, H200) is None
    bind_attention(operands, config, H200, 0)()
    out, lse = attention_and_lse(operands)
    assert relative_error(operands.out, out) < MAX_RELATIVE_ERROR[operands.problem.dtype]
    if operands.lse is not None:
        torch.testing.assert_close(operands.lse.double(), lse, rtol=1e-4, atol=1e-3)


def launch_decode(operands: AttentionDecodeOperands, config: KernelConfig) -> None:
    """Launch a decode step and compare every element, and the logsumexps, with the reference."""
    assert decode_illegal_reason(operands.problem, config, H200) is None
    bind_decode(operands.with_workspace(config), config, H200, 0)()
    out, lse = decode_and_lse(operands)
    assert relative_error(operands.out, out) < MAX_RELATIVE_ERROR[operands.problem.dtype]
    if operands.lse is not None:
        torch.testing.assert_close(operands.lse.double(), lse, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("masking", ["separate", "edges"])
@pytest.mark.parametrize("order", ["in_order", "longest_first"])
@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("dtype", ["fp16", "fp32"])
def test_ragged_tiles_match_the_reference(dtype: str, is_causal: bool, order: str, masking: str) -> None:
    """Neither queries nor keys fill the last tile; three query heads share one head of keys."""
    problem = AttentionProblem((70, 70), (70, 70), 6, 2, 64, is_causal, dtype=dtype)
    operands = make_attention_operands(problem, "cpu", 0, has_lse=True)[0]
    launch(operands, make_config(order=order, masking=masking))


@pytest.mark.parametrize("masking", ["separate", "edges"])
@pytest.mark.parametrize(("block_m", "block_n"), [(16, 64), (64, 16), (32, 32)])
@pytest.mark.parametrize(("q_len", "kv_len"), [(20, 75), (75, 20), (1, 50), (64, 64)])
def test_queries_are_aligned_with_the_last_keys(
    q_len: int, kv_len: int, block_m: int, block_n: int, masking: str
) -> None:  # fmt: skip
    """A prefill on top of a cache, and queries that see no key at all: those are 0, not NaN."""
    problem = AttentionProblem((q_len,), (kv_len,), 2, 1, 64, True, dtype="fp32")
    operands = make_attention_operands(problem, "cpu", 1, has_lse=True)[0]
    config = make_config(block_m=block_m, block_n=block_n, masking=masking, num_warps=1, order="longest_first")
    launch(operands, config)
    if q_len > kv_len:
        assert (operands.out[:, :, : q_len - kv_len] == 0).all()


@pytest.mark.parametrize("masking", ["separate", "edges"])
@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("window", [1, 20, 33, 200])
def test_sliding_windows(window: int, is_causal: bool, masking: str) -> None:
    """From seeing only oneself to seeing everything; full attention looks the same distance ahead."""
    problem = AttentionProblem((90,), (100,), 2, 2, 64, is_causal, window, "fp32")
    launch(make_attention_operands(problem, "cpu", 2, has_lse=True)[0], make_config(masking=masking))


@pytest.mark.parametrize("masking", ["separate", "edges"])
@pytest.mark.parametrize("order", ["in_order", "longest_first"])
@pytest.mark.parametrize(("is_causal", "window"), [(True, 0), (True, 24), (False, 0)])
def test_packed_sequences(is_causal: bool, window: int, order: str, masking: str) -> None:
    """Lengths of zero, one, a whole tile and ragged ones; what follows a sequence is NaN, and stays outside."""
    lengths, kv_lengths = (33, 0, 1, 64, 5), (40, 0, 17, 64, 3)
    problem = AttentionProblem(lengths, kv_lengths, 4, 2, 64, is_causal, window, "fp32")
    operands = make_attention_operands(problem, "cpu", 3, has_lse=True)[0]
    for tensor in (operands.k, operands.v):
        tensor[:, :, 40:57] = torch.nan  # the third sequence
    bind_attention(operands, make_config(order=order, masking=masking), H200, 0)()
    out, lse = attention_and_lse(operands)
    others = torch.arange(operands.out.shape[2]) != 33
    assert relative_error(operands.out[:, :, others], out[:, :, others]) < MAX_RELATIVE_ERROR["fp32"]
    torch.testing.assert_close(operands.lse[:, :, others].double(), lse[:, :, others], rtol=1e-4, atol=1e-3)
    assert operands.out[:, :, 33].isnan().all()


@pytest.mark.parametrize("head_dim", [64, 96, 128, 256])
def test_head_dimensions(head_dim: int) -> None:
    """96 is padded to 128; the padding is neither read into the result nor written."""
    problem = AttentionProblem((40,), (), 2, 1, head_dim, True, dtype="fp16")
    store = torch.full((1, 40, 2, head_dim + 32), 7.0, dtype=torch.float16)
    made = make_attention_operands(problem, "cpu", 4)[0]
    operands = AttentionOperands(problem, made.q, made.k, made.v, store[..., :head_dim].transpose(1, 2))
    launch(operands, make_config())
    assert (store[..., head_dim:] == 7.0).all()


@pytest.mark.parametrize("masking", ["separate", "edges"])
@pytest.mark.parametrize("dtype", ["fp16", "fp32"])
def test_extreme_scores(dtype: str, masking: str) -> None:
    """Scores of 1e9 decide a row without overflow; keys of -inf are never attended to; equal ones share."""
    problem = AttentionProblem((40,), (), 2, 1, 64, True, dtype=dtype)
    operands = make_attention_operands(problem, "cpu", 5, has_lse=True)[0]
    operands.q.mul_(1e4).clamp_(-6e4, 6e4)
    operands.k.mul_(1e4).clamp_(-6e4, 6e4)
    operands.k[:, :, 3] = operands.k[:, :, 2]
    bind_attention(operands, make_config(masking=masking), H200, 0)()
    assert operands.out.isfinite().all()
    # Only the nearest of these enormous scores differ by less than they are rounded by.
    assert relative_error(operands.out, attention_and_lse(operands)[0]) < 10 * MAX_RELATIVE_ERROR[dtype]

    operands = make_attention_operands(problem, "cpu", 6, has_lse=True)[0]
    operands.q.abs_()
    operands.k[:, :, 5:9] = -torch.inf
    launch(operands, make_config(masking=masking))
    operands.k[:, :, :20] = -torch.inf
    launch(operands, make_config(masking=masking))
    assert (operands.out[:, :, :20] == 0).all()


def test_no_keys_and_no_queries() -> None:
    """Nothing is launched: zeros without keys, nothing at all without queries."""
    problem = AttentionProblem((5, 3), (0, 0), 2, 1, 64, True, dtype="fp16")
    launch(make_attention_operands(problem, "cpu", 7, has_lse=True)[0], make_config())
    problem = AttentionProblem((0,), (4,), 2, 1, 64, True, dtype="fp16")
    launch(make_attention_operands(problem, "cpu", 7)[0], make_config())


def test_launched_grid_is_that_of_the_mapping() -> None:
    """Model and launch cannot disagree."""
    problem = AttentionProblem((33, 64, 5), (), 4, 2, 64, True, dtype="fp16")
    operands = make_attention_operands(problem, "cpu", 8)[0]
    for block_m in (16, 64):
        config = make_config(block_m=block_m, num_warps=1)
        (call,) = attention_calls(operands, config, H200)
        assert call.grid_size == map_attention(problem, config).grid_size


@pytest.mark.parametrize("splits", [1, 2, 3, 7])
@pytest.mark.parametrize("page_size", [16, 24, 64])
@pytest.mark.parametrize("dtype", ["fp16", "fp32"])
def test_decode_matches_the_reference(dtype: str, page_size: int, splits: int) -> None:
    """Ragged lengths, one of them 0, one a single key: most splits of those are empty."""
    problem = AttentionDecodeProblem((0, 1, 223, 100, 64), 8, 2, 64, page_size, dtype=dtype)
    launch_decode(make_decode_operands(problem, "cpu", 0, has_lse=True)[0], make_decode_config(splits=splits))


@pytest.mark.parametrize(("heads", "kv_heads"), [(1, 1), (16, 1), (20, 1), (70, 1), (6, 2)])
def test_decode_packs_heads_into_rows(heads: int, kv_heads: int) -> None:
    """Fewer heads than rows, as many, more than one tile of them."""
    problem = AttentionDecodeProblem((50, 37), heads, kv_heads, 64, dtype="fp16")
    for splits in (1, 2):
        launch_decode(make_decode_operands(problem, "cpu", 1, has_lse=True)[0], make_decode_config(splits=splits))


@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize("window", [1, 40, 500])
def test_decode_sees_a_window_of_the_last_keys(window: int, splits: int) -> None:
    """What lies before the window is not counted, and its pages may hold anything."""
    problem = AttentionDecodeProblem((130, 31), 4, 2, 64, 16, window, "fp32")
    splits = min(splits, max(-(-min(window, 130) // 32), 1))
    launch_decode(make_decode_operands(problem, "cpu", 2, has_lse=True)[0], make_decode_config(splits=splits))


@pytest.mark.parametrize("head_dim", [96, 128])
def test_decode_reads_nothing_else(head_dim: int) -> None:
    """Pages of nobody and slots beyond a sequence hold NaN."""
    problem = AttentionDecodeProblem((37, 16, 20), 4, 2, head_dim, 16, dtype="fp16")
    operands = make_decode_operands(problem, "cpu", 3, has_lse=True)[0]
    used = torch.zeros(operands.k_cache.shape[:2], dtype=torch.bool)
    for row, length in enumerate(problem.kv_lengths):
        for token in range(length):
            used[operands.block_table[row, token // 16], token % 16] = True
    for cache in (operands.k_cache, operands.v_cache):
        cache[~used] = torch.nan
    for splits in (1, 2):
        launch_decode(operands, make_decode_config(splits=splits, block_n=16))


def test_decode_of_extreme_scores() -> None:
    """Large scores and keys of -inf, with a split in which every key is -inf."""
    problem = AttentionDecodeProblem((64,), 4, 2, 64, 16, dtype="fp32")
    operands = make_decode_operands(problem, "cpu", 4, has_lse=True)[0]
    operands.q.abs_().mul_(1e4)
    operands.k_cache[operands.block_table[0, :2].long()] = -torch.inf
    launch_decode(operands, make_decode_config(splits=2))
    operands.k_cache[:] = -torch.inf
    launch_decode(operands, make_decode_config(splits=2))
    assert (operands.out == 0).all()


def test_decode_without_workspace_is_refused() -> None:
    """A launch never allocates."""
    operands = make_decode_operands(AttentionDecodeProblem((64,), 2, 1, 64, dtype="fp16"), "cpu", 0)[0]
    with pytest.raises(ConfigError, match="workspace of 260 fp32"):
        bind_decode(operands, make_decode_config(splits=2), H200, 0)
