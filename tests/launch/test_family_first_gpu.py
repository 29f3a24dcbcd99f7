# ruff: noqa: E402 (what is imported below needs torch and triton)
"""A choice that needs more shared memory than the GPU has: families give the right result with what stands in."""

import logging
from collections.abc import Callable
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from torch.nn.functional import scaled_dot_product_attention

from wavetune.core.config import ATTENTION, ATTENTION_DECODE, GROUPED_GEMM, KernelConfig
from wavetune.kernels.launch_cache import LaunchCache
from wavetune.launch import attention_launcher, grouped_launcher, next_best
from wavetune.launch.attention import attention, attention_decode
from wavetune.launch.choices import Choices
from wavetune.launch.grouped_matmul import grouped_matmul

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]

# 426 KB, 471 KB and 295 KB of shared memory, compiled for sm_90; an H200 has 227 KB for one CTA.
PREFILL = ATTENTION.config(
    {"block_m": 128, "block_n": 128, "order": "longest_first", "masking": "edges", "num_warps": 8, "num_stages": 6}
)
DECODE = ATTENTION_DECODE.config({"block_n": 128, "splits": 1, "num_warps": 4, "num_stages": 15})
GROUPED = GROUPED_GEMM.config({"block_m": 128, "block_n": 256, "block_k": 64, "num_warps": 8, "num_stages": 6})


def bf16(*shape: int) -> torch.Tensor:
    """Return normal data."""
    return torch.randn(shape, device="cuda", dtype=torch.bfloat16)


def make_prefill() -> tuple[Callable[[], torch.Tensor], torch.Tensor]:
    """Return a launch, and what torch computes."""
    q, k, v = bf16(2, 8, 300, 128), bf16(2, 2, 300, 128), bf16(2, 2, 300, 128)
    shared = (tensor.repeat_interleave(4, 1) for tensor in (k, v))
    return lambda: attention(q, k, v, causal=True), scaled_dot_product_attention(q, *shared, is_causal=True)


def make_decode() -> tuple[Callable[[], torch.Tensor], torch.Tensor]:
    """Return a launch over pages in their order, and what torch computes."""
    q, k_cache, v_cache = bf16(3, 8, 128), bf16(48, 16, 2, 128), bf16(48, 16, 2, 128)
    table = torch.arange(48, device="cuda", dtype=torch.int32).view(3, 16)
    lengths = torch.full((3,), 256, device="cuda", dtype=torch.int32)
    k, v = (cache.view(3, 256, 2, 128).transpose(1, 2).repeat_interleave(4, 1) for cache in (k_cache, v_cache))
    expected = scaled_dot_product_attention(q.unsqueeze(2), k, v).squeeze(2)
    return lambda: attention_decode(q, k_cache, v_cache, table, lengths), expected


def make_grouped() -> tuple[Callable[[], torch.Tensor], torch.Tensor]:
    """Return a launch with sizes on the GPU, and what torch computes."""
    sizes = (7, 0, 120, 33)
    x, w = bf16(160, 512), bf16(4, 256, 512) * 512**-0.5
    groups = torch.tensor(sizes, device="cuda", dtype=torch.int32)
    expected = torch.cat([rows @ weight.T for rows, weight in zip(x.split(sizes), w, strict=True)])
    return lambda: grouped_matmul(x, w, groups), expected


@pytest.mark.parametrize(
    ("make", "config"), [(make_prefill, PREFILL), (make_decode, DECODE), (make_grouped, GROUPED)]
)  # fmt: skip
def test_the_next_best_takes_the_place_of_what_the_gpu_refuses(
    make: Callable[[], tuple[Callable[[], torch.Tensor], torch.Tensor]],
    config: KernelConfig,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The result is right, one line names the configuration, and a graph is captured with what stands in."""
    monkeypatch.setattr(next_best, "_unusable", set())
    monkeypatch.setattr(attention_launcher, "_launches", LaunchCache())
    for launcher in (attention_launcher, grouped_launcher):
        monkeypatch.setattr(launcher, "_choices", Choices())
    monkeypatch.setattr(
        attention_launcher, "choose_attention", lambda problem, **options: SimpleNamespace(config=config)
    )
    monkeypatch.setattr(grouped_launcher, "choose_grouped_gemm_for_graph", lambda *sizes, **options: config)
    launch, expected = make()
    with caplog.at_level(logging.WARNING, logger="wavetune"):
        for _ in range(2):
            torch.testing.assert_close(launch(), expected, atol=2e-2, rtol=2e-2)
    refused = [record.getMessage() for record in caplog.records if "cannot run" in record.getMessage()]
    assert [repr(config) in message for message in refused] == [True]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = launch()
    out.zero_()
    graph.replay()
    torch.testing.assert_close(out, expected, atol=2e-2, rtol=2e-2)
