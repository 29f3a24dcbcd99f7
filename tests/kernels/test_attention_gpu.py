# ruff: noqa: E402 (what is imported below needs torch and triton)
"""Attention kernels on a GPU: bf16, host descriptors, register caps, programmatic launch, graphs."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from dataclasses import replace

from wavetune.core.arch import find_arch
from wavetune.core.attention_problem import AttentionDecodeProblem, AttentionProblem
from wavetune.core.config import ATTENTION, ATTENTION_DECODE, KernelConfig
from wavetune.kernels.attention import bind_attention, illegal_reason
from wavetune.kernels.attention_decode import bind_decode, decode_illegal_reason
from wavetune.kernels.attention_operands import make_attention_operands, make_decode_operands
from wavetune.kernels.attention_reference import MAX_RELATIVE_ERROR, attention_and_lse, decode_and_lse
from wavetune.kernels.reference import relative_error

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]

TILES = {
    "128x128": {"block_m": 128, "block_n": 128, "num_warps": 8},
    "128x64-capped": {"block_m": 128, "block_n": 64, "num_warps": 8, "max_registers": 128},
    "128x64-wide": {"block_m": 128, "block_n": 64, "num_warps": 4},
    "64x64": {"block_m": 64, "block_n": 64, "num_warps": 4, "num_stages": 3},
    "64x32": {"block_m": 64, "block_n": 32, "num_warps": 4},
}


@pytest.fixture(scope="module")
def arch() -> object:
    """Return the GPU that is present."""
    return find_arch(torch.cuda.get_device_name())


def make_config(**fields: object) -> KernelConfig:
    """Complete a prefill configuration."""
    return ATTENTION.config({"order": "longest_first", "masking": "edges", "num_stages": 2, **fields})


def make_decode_config(**fields: object) -> KernelConfig:
    """Complete a decode configuration."""
    return ATTENTION_DECODE.config({"block_n": 64, "splits": 1, "num_warps": 4, "num_stages": 3, **fields})


def launch(operands: object, config: KernelConfig, arch: object) -> None:
    """Launch twice on NaN-filled results and compare every element, and the logsumexps, with float64."""
    out, lse = attention_and_lse(operands)
    bound = bind_attention(operands, config, arch, torch.cuda.current_stream().cuda_stream)
    for _ in range(2):
        operands.out.fill_(float("nan"))
        bound()
        assert relative_error(operands.out, out) < MAX_RELATIVE_ERROR[operands.problem.dtype]
        if operands.lse is not None:
            torch.testing.assert_close(operands.lse.double(), lse, rtol=1e-3, atol=2e-3)


def launch_decode(operands: object, config: KernelConfig, arch: object) -> None:
    """Launch twice on NaN-filled results and compare every element, and the logsumexps, with float64."""
    out, lse = decode_and_lse(operands)
    operands = operands.with_workspace(config)
    if operands.partials is not None:
        operands.partials.fill_(float("nan"))
    bound = bind_decode(operands, config, arch, torch.cuda.current_stream().cuda_stream)
    for _ in range(2):
        operands.out.fill_(float("nan"))
        bound()
        assert relative_error(operands.out, out) < MAX_RELATIVE_ERROR[operands.problem.dtype]
        if operands.lse is not None:
            torch.testing.assert_close(operands.lse.double(), lse, rtol=1e-3, atol=2e-3)


@pytest.mark.parametrize("masking", ["edges", "separate"])
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize("head_dim", [64, 96, 128, 256])
@pytest.mark.parametrize("tile", TILES)
def test_prefill_matches_float64(tile: str, head_dim: int, dtype: str, masking: str, arch: object) -> None:
    """Causal, full, on top of a cache, packed, windowed; three query heads share one head of keys."""
    config = make_config(**TILES[tile], masking=masking)
    problems = (
        AttentionProblem((300, 300), (), 6, 2, head_dim, True, dtype=dtype),
        AttentionProblem((200,), (500,), 3, 1, head_dim, False, dtype=dtype),
        AttentionProblem((77,), (400,), 3, 1, head_dim, True, dtype=dtype),
        AttentionProblem((300, 0, 1, 129), (300, 0, 90, 129), 3, 1, head_dim, True, dtype=dtype),
        AttentionProblem((500, 70), (), 3, 1, head_dim, True, 150, dtype),
        AttentionProblem((400,), (), 3, 3, head_dim, False, 100, dtype),
    )
    if illegal_reason(problems[0], config, arch):
        pytest.skip("this tile is too large for the head dimension")
    for problem in problems:
        launch(make_attention_operands(problem, "cuda", 0, has_lse=True)[0], config, arch)


@pytest.mark.parametrize("order", ["in_order", "longest_first"])
def test_every_order_covers_every_block(order: str, arch: object) -> None:
    """More groups of heads than one, so that the last one is smaller."""
    problem = AttentionProblem((2048,) * 3, (), 40, 8, 128, True)
    launch(make_attention_operands(problem, "cuda", 1)[0], make_config(**TILES["128x64-capped"], order=order), arch)


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_extreme_inputs(dtype: str, arch: object) -> None:
    """Scores of 1e9 and more stay finite, keys of -inf are not attended to, queries that see nothing are 0."""
    problem = AttentionProblem((300,), (), 2, 1, 128, True, dtype=dtype)
    for tile in TILES:
        operands = make_attention_operands(problem, "cuda", 2, has_lse=True)[0]
        operands.q.mul_(1e4).clamp_(-6e4, 6e4)
        operands.k.mul_(1e4).clamp_(-6e4, 6e4)
        bind_attention(operands, make_config(**TILES[tile]), arch, torch.cuda.current_stream().cuda_stream)()
        assert operands.out.isfinite().all()
        assert relative_error(operands.out, attention_and_lse(operands)[0]) < 10 * MAX_RELATIVE_ERROR[dtype]
        operands = make_attention_operands(problem, "cuda", 3, has_lse=True)[0]
        operands.q.abs_().add_(0.1)  # 0 times -inf would be NaN
        operands.k[:, :, :70] = -torch.inf
        launch(operands, make_config(**TILES[tile]), arch)
        assert (operands.out[:, :, :70] == 0).all()


def test_packed_sequences_do_not_see_each_other(arch: object) -> None:
    """NaN in one sequence stays there, also in the tile that both share."""
    problem = AttentionProblem((100, 30, 200), (), 2, 1, 128, True)
    for masking in ("edges", "separate"):
        operands = make_attention_operands(problem, "cuda", 4)[0]
        out = attention_and_lse(operands)[0]
        for tensor in (operands.q, operands.k, operands.v):
            tensor[:, :, 100:130] = torch.nan
        config = make_config(**TILES["128x64-capped"], masking=masking)
        bind_attention(operands, config, arch, torch.cuda.current_stream().cuda_stream)()
        for part in (slice(0, 100), slice(130, None)):
            assert relative_error(operands.out[:, :, part], out[:, :, part]) < MAX_RELATIVE_ERROR["bf16"]


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize("page_size", [16, 64, 256])
@pytest.mark.parametrize("splits", [1, 3, 16])
@pytest.mark.parametrize(("block_n", "num_warps", "num_stages"), [(32, 2, 3), (64, 4, 5), (128, 8, 3)])
def test_decode_matches_float64(
    block_n: int, num_warps: int, num_stages: int, splits: int, page_size: int, dtype: str, arch: object
) -> None:
    """Ragged lengths, one of them 0, one a single key; head dimensions, groups and windows."""
    config = make_decode_config(block_n=block_n, num_warps=num_warps, num_stages=num_stages, splits=splits)
    for head_dim, heads, kv_heads, window in ((128, 32, 8, 0), (64, 20, 1, 0), (96, 8, 8, 0), (256, 8, 4, 2100)):
        problem = AttentionDecodeProblem((0, 1, 3000, 777), heads, kv_heads, head_dim, page_size, window, dtype)
        assert decode_illegal_reason(problem, config, arch) is None
        launch_decode(make_decode_operands(problem, "cuda", 5, has_lse=True)[0], config, arch)


def test_decode_reads_nothing_else(arch: object) -> None:
    """Pages of nobody and slots beyond a sequence hold NaN."""
    problem = AttentionDecodeProblem((37, 16, 200), 4, 2, 128, 16)
    operands = make_decode_operands(problem, "cuda", 6)[0]
    used = torch.zeros(operands.k_cache.shape[:2], dtype=torch.bool, device="cuda")
    for row, length in enumerate(problem.kv_lengths):
        tokens = torch.arange(length, device="cuda")
        used[operands.block_table[row, tokens // 16].long(), tokens % 16] = True
    for cache in (operands.k_cache, operands.v_cache):
        cache[~used] = torch.nan
    for splits in (1, 2):
        launch_decode(operands, make_decode_config(splits=splits), arch)


def test_decode_in_a_graph_sees_new_lengths(arch: object) -> None:
    """A server captures once; every replay reads lengths, table and cache anew; splits are deterministic."""
    problem = AttentionDecodeProblem((1000, 1000), 32, 8, 128, 16)
    config = make_decode_config(splits=8)
    operands = make_decode_operands(problem, "cuda", 7)[0].with_workspace(config)
    operands = replace(operands, lengths=operands.lengths.clone())
    launch_decode(operands, config, arch)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        bind_decode(operands, config, arch, torch.cuda.current_stream().cuda_stream)()
    operands.lengths.copy_(torch.tensor([1000, 37]))
    operands.q.normal_()
    graph.replay()
    first = operands.out.clone()
    expected = decode_and_lse(replace(operands, problem=replace(problem, kv_lengths=(1000, 37))))[0]
    assert relative_error(operands.out, expected) < MAX_RELATIVE_ERROR["bf16"]
    graph.replay()
    assert torch.equal(first, operands.out)


def test_offsets_beyond_32_bits(arch: object) -> None:
    """A cache of more than 2**31 elements, and a batch whose last sequence begins behind as many."""
    problem = AttentionDecodeProblem((64,), 8, 8, 128, 64)
    operands = make_decode_operands(problem, "cuda", 8)[0]
    pages = 2**31 // (64 * 8 * 128) + 2
    caches = [torch.zeros((pages, 64, 8, 128), dtype=torch.bfloat16, device="cuda") for _ in range(2)]
    table = torch.full_like(operands.block_table, pages - 1)
    for cache, small in zip(caches, (operands.k_cache, operands.v_cache), strict=True):
        cache[-1] = small[operands.block_table[0, 0]]
    launch_decode(
        replace(operands, k_cache=caches[0], v_cache=caches[1], block_table=table), make_decode_config(), arch
    )
    del caches
    torch.cuda.empty_cache()
    heads, length = 8, 2**13
    batch = 2**31 // (heads * length * 128) + 1
    problem = AttentionProblem((length,) * batch, (), heads, heads, 128, True)
    operands = make_attention_operands(problem, "cuda", 9)[0]
    bind_attention(
        operands, make_config(**TILES["128x64-capped"]), arch, torch.cuda.current_stream().cuda_stream
    )()  # fmt: skip
    last = replace(
        operands, problem=AttentionProblem((length,), (), heads, heads, 128, True),
        q=operands.q[-1:], k=operands.k[-1:], v=operands.v[-1:], out=operands.out[-1:],
    )  # fmt: skip
    assert relative_error(last.out, attention_and_lse(last)[0]) < MAX_RELATIVE_ERROR["bf16"]
