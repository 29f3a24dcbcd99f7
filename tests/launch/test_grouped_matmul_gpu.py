# ruff: noqa: E402 (what is imported below needs torch and triton)
"""`grouped_matmul` on a GPU: bf16, graphs, devices, beside torch's own grouped product."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from wavetune.core.routing import UNIFORM, Routing, sample_groups
from wavetune.errors import CaptureError, OperandError
from wavetune.launch import grouped_launcher
from wavetune.launch.grouped_matmul import grouped_matmul

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]

SIZES = sample_groups(Routing("zipf", 1.0), 64, 2048, 0)


def tensors(
    sizes: tuple[int, ...] = SIZES, n: int = 512, k: int = 1024, dtype: torch.dtype = torch.bfloat16
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Return tokens and weights."""
    generator = torch.Generator("cuda").manual_seed(0)
    x = torch.randn(sum(sizes), k, generator=generator, device="cuda", dtype=dtype)
    w = torch.randn(len(sizes), n, k, generator=generator, device="cuda", dtype=dtype) * k**-0.5
    return x, w


def expected(x: torch.Tensor, w: torch.Tensor, sizes: tuple[int, ...], *, is_gated: bool = False) -> torch.Tensor:
    """Return the result in float64."""
    parts = x.split(list(sizes))
    product = torch.cat([rows.double() @ weight.double().T for rows, weight in zip(parts, w, strict=True)])
    if not is_gated:
        return product
    gate, up = product.chunk(2, dim=1)
    return torch.nn.functional.silu(gate) * up


def assert_close(out: torch.Tensor, reference: torch.Tensor) -> None:
    """Compare with what rounding to bf16 allows."""
    assert float((out.double() - reference).norm() / reference.norm()) < 8e-3


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("activation", [None, "silu_and_mul"])
@pytest.mark.parametrize("tokens", [1, 8, 200, 2048, 20000])
def test_right_for_sizes_on_either_side(tokens: int, activation: str | None, dtype: torch.dtype) -> None:
    """Sizes on the host, sizes on the GPU, offsets on the GPU, 64-bit ones; decode to prefill."""
    for routing in (UNIFORM, Routing("dirichlet", 0.1)):
        sizes = sample_groups(routing, 64, tokens, 0)
        x, w = tensors(sizes, dtype=dtype)
        reference = expected(x, w, sizes, is_gated=activation is not None)
        offsets = torch.tensor([0, *sizes]).cumsum(0)
        for given in (sizes, torch.tensor(sizes), torch.tensor(sizes).cuda(), offsets.int().cuda(), offsets.cuda()):
            assert_close(grouped_matmul(x, w, given, activation=activation), reference)


def test_torch_agrees() -> None:
    """The same product as torch's own grouped one."""
    function = getattr(torch.nn.functional, "grouped_mm", None) or getattr(torch, "_grouped_mm", None)
    if function is None:
        pytest.skip("this torch has no grouped product")
    x, w = tensors()
    ends = torch.tensor(SIZES).cumsum(0).int().cuda()
    theirs = function(x, w.transpose(-2, -1), offs=ends)
    torch.testing.assert_close(grouped_matmul(x, w, SIZES), theirs, rtol=2e-2, atol=2e-2)


def test_a_graph_follows_the_sizes_on_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Captured once; sizes on the host are refused while capturing, and a kernel that is not loaded as well."""
    x, w = tensors()
    groups = torch.tensor(SIZES, dtype=torch.int32, device="cuda")
    grouped_matmul(x, w, groups)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = grouped_matmul(x, w, groups)
    for seed, routing in enumerate((UNIFORM, Routing("zipf", 2.0))):
        sizes = sample_groups(routing, 64, 2048, seed)
        groups.copy_(torch.tensor(sizes))
        graph.replay()
        assert_close(out, expected(x, w, sizes))
    monkeypatch.setattr(grouped_launcher, "is_loaded", lambda *args: False)
    for given, words in ((SIZES, "on the GPU"), (groups, "not loaded")):
        failing = torch.cuda.CUDAGraph()
        with pytest.raises(CaptureError, match=words), torch.cuda.graph(failing):
            grouped_matmul(x, w, given)
        torch.cuda.synchronize()


def test_nothing_is_copied_to_the_host() -> None:
    """Sizes on the GPU never make the host wait."""
    x, w = tensors()
    groups = torch.tensor(SIZES, dtype=torch.int32, device="cuda")
    grouped_matmul(x, w, groups)
    torch.cuda.set_sync_debug_mode("error")
    try:
        grouped_matmul(x, w, groups)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_sizes_on_another_device_are_refused() -> None:
    """The error names both devices."""
    x, w = tensors()
    with pytest.raises(OperandError, match="w is on cpu but x is on cuda"):
        grouped_matmul(x, w.cpu(), SIZES)
    if torch.cuda.device_count() > 1:
        elsewhere = torch.tensor(SIZES, device="cuda:1")
        with pytest.raises(OperandError, match="group_sizes is on cuda:1 but x is on cuda:0"):
            grouped_matmul(x, w, elsewhere)


def test_compiled_with_a_graph_break_free_operator() -> None:
    """torch.compile keeps the operator, and chooses again for every token count."""
    layer = torch.compile(lambda x, w, groups: torch.relu(grouped_matmul(x, w, groups)), dynamic=True)
    for tokens in (64, 700):
        sizes = sample_groups(UNIFORM, 64, tokens, 0)
        x, w = tensors(sizes)
        out = layer(x, w, torch.tensor(sizes, dtype=torch.int32, device="cuda"))
        assert_close(out, expected(x, w, sizes).relu())
