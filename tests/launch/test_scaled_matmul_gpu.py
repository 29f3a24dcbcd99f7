# ruff: noqa: E402 (what is imported below needs torch and triton)
"""`scaled_matmul` on a GPU: beside torch._scaled_mm, under torch.compile, in graphs, and whatever m is."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from wavetune.errors import CaptureError
from wavetune.kernels.reference import relative_error
from wavetune.launch.product_launchers import clear_launchers
from wavetune.launch.scaled_matmul import scaled_matmul


def _has_e4m3() -> bool:
    return torch.cuda.is_available() and torch.cuda.get_device_capability() >= (8, 9)


pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not _has_e4m3(), reason="needs a GPU with e4m3")]


def e4m3(*shape: int) -> torch.Tensor:
    """Return random elements."""
    return (torch.randn(shape, device="cuda") * 64).to(torch.float8_e4m3fn)


def positive(*shape: int) -> torch.Tensor:
    """Return random scales."""
    return (torch.rand(shape, device="cuda") + 0.5) / 512


@pytest.mark.parametrize("use_fast_accum", [False, True])
@pytest.mark.parametrize("mode", ["tensor", "row"])
@pytest.mark.parametrize("m", [1, 16, 300, 2048])
def test_beside_torch(m: int, mode: str, use_fast_accum: bool) -> None:
    """Both are within rounding of float64; twice, the second time bound."""
    a, weight, bias = e4m3(m, 4096), e4m3(1024, 4096), torch.randn(1024, device="cuda", dtype=torch.bfloat16)
    scale_a, scale_b = (positive(m, 1), positive(1, 1024)) if mode == "row" else (positive(1), positive(1))
    expected = a.double() * scale_a @ (weight.double().t() * scale_b) + bias.double()
    of_torch = torch._scaled_mm(
        a, weight.t(), scale_a, scale_b, bias=bias, out_dtype=torch.bfloat16, use_fast_accum=use_fast_accum
    )
    for _ in range(2):
        result = scaled_matmul(a, weight.t(), scale_a, scale_b, bias, use_fast_accum=use_fast_accum)
        assert result.dtype == torch.bfloat16
        assert relative_error(result, expected) < 1.2 * relative_error(of_torch, expected) + 1e-4


def test_scales_in_blocks() -> None:
    """As DeepSeek stores them, for one token and for many."""
    weight, scale_b = e4m3(1536, 4096), positive(12, 32)
    wide = scale_b.double().repeat_interleave(128, 0).repeat_interleave(128, 1) * weight.double()
    for m in (1, 700):
        a, scale_a = e4m3(m, 4096), positive(m, 32)
        expected = a.double() * scale_a.double().repeat_interleave(128, 1) @ wide.t()
        assert relative_error(scaled_matmul(a, weight.t(), scale_a, scale_b), expected) < 2e-3


def test_rows_do_not_depend_on_others() -> None:
    """Under batch_invariant a row has the same bits alone and among 300."""
    a, weight, scale_a, scale_b = e4m3(300, 4096), e4m3(1024, 4096), positive(300, 1), positive(1024)
    together = scaled_matmul(a, weight.t(), scale_a, scale_b, numerics="batch_invariant")
    for m in (1, 17, 130):
        alone = scaled_matmul(a[:m], weight.t(), scale_a[:m], scale_b, numerics="batch_invariant")
        assert torch.equal(alone, together[:m])


def test_compiled_and_captured() -> None:
    """No graph break for several m; a captured launch sees new data."""
    weight, scale_b = e4m3(512, 1024), positive(512)

    def layer(a: torch.Tensor, scale_a: torch.Tensor) -> torch.Tensor:
        return torch.relu(scaled_matmul(a, weight.t(), scale_a, scale_b))

    compiled = torch.compile(layer, fullgraph=True, dynamic=True)
    for m in (5, 64, 700):
        a, scale_a = e4m3(m, 1024), positive(m, 1)
        assert torch.equal(compiled(a, scale_a), layer(a, scale_a))
    a, scale_a = e4m3(64, 1024), positive(64, 1)
    out = torch.empty(64, 512, dtype=torch.bfloat16, device="cuda")
    scaled_matmul(a, weight.t(), scale_a, scale_b, out=out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        scaled_matmul(a, weight.t(), scale_a, scale_b, out=out)
    a.copy_(e4m3(64, 1024))
    graph.replay()
    assert torch.equal(out, scaled_matmul(a, weight.t(), scale_a, scale_b))


def test_a_capture_compiles_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no kernel is loaded, the capture is refused with advice; nothing is compiled."""
    from wavetune.launch import first_launch

    monkeypatch.setattr(first_launch, "is_loaded", lambda operands, config, arch: False)
    clear_launchers()
    a, weight, one = e4m3(48, 768), e4m3(96, 768), positive(1)
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(CaptureError, match="warmup"), torch.cuda.graph(graph):
        scaled_matmul(a, weight.t(), one, one)
    clear_launchers()
    torch.cuda.synchronize()
