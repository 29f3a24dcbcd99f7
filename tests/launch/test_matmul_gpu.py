# ruff: noqa: E402 (what is imported below needs torch and triton)
"""The launchers on a GPU: results, graphs and their safety, streams, threads, batch invariance, warmup."""

import logging
import threading
from collections.abc import Callable, Iterator

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from triton import knobs

import wavetune
from wavetune.core.config import GEMM, KernelConfig
from wavetune.errors import CaptureError, NoModelError, OperandError
from wavetune.kernels import call as call_module
from wavetune.kernels import gemm_device, gemm_pair_device
from wavetune.kernels.gemm import gemm_variants
from wavetune.kernels.reference import MAX_RELATIVE_ERROR, relative_error
from wavetune.launch import live, product_launchers, source
from wavetune.launch.linear import patch_linear
from wavetune.launch.matmul import matmul
from wavetune.launch.warmup import warmup, warmup_model

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
FUNCTIONS = {
    None: lambda x: x,
    "relu": torch.relu,
    "gelu": torch.nn.functional.gelu,
    "silu": torch.nn.functional.silu,
}


def random(*shape: int, dtype: str = "bf16", scale: float = 1.0, device: str = "cuda") -> torch.Tensor:
    """Return normal data."""
    return (torch.randn(shape, device=device) * scale).to(DTYPES[dtype])


def weight(n: int, k: int, dtype: str = "bf16", layout: str = "nk", device: str = "cuda") -> torch.Tensor:
    """Return b of shape [k, n], stored as the layout says, that keeps results near 1."""
    data = random(n, k, dtype=dtype, scale=k**-0.5, device=device).t()
    return data if layout == "nk" else data.contiguous()


def reference(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None, activation: str | None) -> torch.Tensor:
    """Compute in float64."""
    product = a.double() @ b.double()
    return FUNCTIONS[activation](product if bias is None else product + bias.double())


def check(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None = None, activation: str | None = None) -> None:
    """Compare with float64, twice: the second call finds its launch bound."""
    expected = reference(a, b, bias, activation)
    limit = MAX_RELATIVE_ERROR["bf16" if a.dtype == torch.bfloat16 else "fp16"]
    for _ in range(2):
        result = matmul(a, b, bias, activation)
        assert result.shape == expected.shape
        assert result.is_contiguous()
        assert relative_error(result, expected) < limit


@pytest.fixture
def nothing_loaded() -> Iterator[None]:
    """Forget every compiled kernel and bound launch of this process; Triton's cache on disk stays."""
    for module in (gemm_device, gemm_pair_device):
        for kernel in vars(module).values():
            if hasattr(kernel, "device_caches"):
                kernel.device_caches.clear()
    gemm_variants.cache_clear()
    product_launchers.clear_launchers()
    yield
    product_launchers.clear_launchers()


class ForbiddenError(Exception):
    """Something was compiled or loaded that must not be."""


@pytest.fixture
def forbid_compiling(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Return a function after whose call compiling and loading fail, in wavetune and in Triton itself."""

    def fail(*args: object, **options: object) -> None:
        raise ForbiddenError("a kernel was compiled or loaded")

    def forbid() -> None:
        monkeypatch.setattr(call_module, "compile_call", fail)
        monkeypatch.setattr(call_module, "LoadedKernel", fail)
        monkeypatch.setattr(knobs.runtime, "jit_cache_hook", fail)
        monkeypatch.setattr(knobs.compilation, "listener", fail)

    return forbid


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", ["nk", "kn"])
@pytest.mark.parametrize("m", [1, 16, 200, 3000])
def test_shapes(m: int, layout: str, dtype: str) -> None:
    """Decode to prefill, ragged m, aligned and odd widths."""
    for n, k in ((4096, 4096), (1536, 520), (1000, 1016), (37, 4097), (8, 8)):
        check(random(m, k, dtype=dtype), weight(n, k, dtype, layout))


@pytest.mark.parametrize(
    ("has_bias", "activation"), [(True, None), (False, "relu"), (True, "relu"), (True, "gelu"), (False, "silu")]
)
@pytest.mark.parametrize("m", [1, 600])
def test_epilogues(m: int, has_bias: bool, activation: str | None) -> None:
    """Bias and activation behind every kind of configuration that m brings."""
    for n, k in ((768, 2048), (6144, 4096), (75, 130)):
        check(random(m, k), weight(n, k), random(n) if has_bias else None, activation)


@pytest.mark.parametrize("layout", ["nk", "kn"])
@pytest.mark.parametrize("m", [1, 20, 500])
def test_views(m: int, layout: str) -> None:
    """Padded rows, shifted bases, slices of weights, leading axes, vectors, and strides that must be copied."""
    n, k = 640, 1024
    wide, b = random(m, 2 * k), weight(n, k, layout=layout)
    for start in (0, 8, 4, 1):
        check(wide[:, start : start + k], b)
    check(random(m, k + 1)[:, :k], b)
    check(random(m, k), weight(n + 3, k, layout=layout)[:, 3:])
    check(random(m, k), weight(n, k + 5, layout=layout)[5:])
    check(random(2, m, k), b)
    check(random(2, m, 2 * k)[..., :k], b)
    check(random(m, 2, k).transpose(0, 1), b)
    check(random(k, m).t(), b)
    check(random(k), b)
    check(random(m, k), random(k))
    check(random(m, k), b[:, ::2])
    check(random(m, k), b, random(n + 1)[1:])


def test_out() -> None:
    """Contiguous, padded, strided, beside the input in one buffer; overlap is refused."""
    a, b, store = random(100, 512), weight(256, 512), torch.empty(100, 1024, dtype=torch.bfloat16, device="cuda")
    expected = matmul(a, b)
    outs = (torch.empty_like(expected), store[:, :256], store[:, 8:264], store[:, 1:257], store[:, ::4])
    for out in outs:
        for _ in range(2):
            out.fill_(torch.nan)
            assert matmul(a, b, out=out) is out
            assert relative_error(out, expected.double()) < MAX_RELATIVE_ERROR["bf16"]
    store[:, :512].copy_(a)
    for _ in range(2):
        matmul(store[:, :512], b, out=store[:, 512:768])
        assert relative_error(store[:, 512:768], expected.double()) < MAX_RELATIVE_ERROR["bf16"]
        assert torch.equal(store[:, :512], a)
    with pytest.raises(OperandError, match="out shares memory with a"):
        matmul(a, weight(512, 512), out=a)


@pytest.mark.parametrize("dims", [(0, 64, 64), (64, 0, 64), (64, 64, 0)])
def test_empty_sizes(dims: tuple[int, int, int]) -> None:
    """As torch: with k = 0 the bias remains."""
    m, n, k = dims
    a, b, bias = random(m, k), random(k, n), random(n)
    torch.testing.assert_close(matmul(a, b, bias, "relu"), torch.relu(torch.matmul(a, b) + bias))


def test_operands_on_the_cpu_are_refused() -> None:
    """Both ways of mixing devices name the argument."""
    with pytest.raises(OperandError, match="a is on cpu"):
        matmul(random(4, 8, device="cpu"), random(8, 8, device="cpu"))
    with pytest.raises(OperandError, match="b is on cpu but a is on cuda"):
        matmul(random(4, 8), random(8, 8, device="cpu"))


def test_without_a_model(monkeypatch: pytest.MonkeyPatch, nothing_loaded: None) -> None:
    """The fixed rule's configurations are right from decode to prefill, aligned or not."""

    def refuse(*args: object, **options: object) -> None:
        raise NoModelError("no model for this test")

    monkeypatch.setattr(source, "choose_config", refuse)
    monkeypatch.setattr(source, "rank_configs", refuse)
    for m in (1, 20, 50, 150, 700):
        for dtype in DTYPES:
            check(random(m, 1000, dtype=dtype), weight(520, 1000, dtype), random(520, dtype=dtype), "gelu")
            check(random(m, 1001, dtype=dtype), weight(521, 1001, dtype, "kn"))


def test_gradients() -> None:
    """Of a training step through two layers, against torch in fp32."""
    torch.manual_seed(0)
    x, first, second, bias = random(2, 300, 256), random(512, 256), random(128, 512), random(512)
    tensors = [(tensor.float() * 0.06).to(torch.bfloat16).requires_grad_() for tensor in (x, first, second, bias)]
    exact = [tensor.detach().float().requires_grad_() for tensor in tensors]
    x, first, second, bias = tensors
    matmul(matmul(x, first.t(), bias, "gelu"), second.t()).float().square().sum().backward()
    x, first, second, bias = exact
    (torch.nn.functional.gelu(x @ first.t() + bias) @ second.t()).square().sum().backward()
    for got, expected in zip(tensors, exact, strict=True):
        assert relative_error(got.grad.float(), expected.grad) < 2e-2


def test_opcheck() -> None:
    """Schema, fake kernel, autograd registration and dynamic tracing, on the device itself."""
    a, b, bias = random(40, 64).requires_grad_(), weight(32, 64), random(32)
    torch.library.opcheck(torch.ops.wavetune.matmul.default, (a, b, bias, "silu", "any"), atol=3e-2, rtol=3e-2)


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_compiled_by_inductor(mode: str) -> None:
    """One graph without breaks for every m, with and without CUDA graphs; two m get two configurations."""
    torch._dynamo.reset()
    b, bias = weight(4096, 1024), random(4096)

    def layer(x: torch.Tensor) -> torch.Tensor:
        return wavetune.matmul(torch.nn.functional.silu(x), b, bias, "relu") * 2

    compiled = torch.compile(layer, fullgraph=True, mode=mode, dynamic=mode == "default")
    chosen = set()
    with torch.no_grad():
        for m in (4, 2000, 33):
            x = random(m, 1024)
            expected = reference(torch.nn.functional.silu(x), b, bias, "relu") * 2
            for _ in range(3):
                torch.compiler.cudagraph_mark_step_begin()
                assert relative_error(compiled(x), expected) < 2 * MAX_RELATIVE_ERROR["bf16"]
            chosen.add(wavetune.choose_config(m, 4096, 1024, arch=torch.cuda.get_device_name()))
    assert len(chosen) > 1


def capture(run: Callable[[], torch.Tensor]) -> tuple[torch.cuda.CUDAGraph, torch.Tensor]:
    """Capture a call."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = run()
    return graph, result


@pytest.mark.parametrize("m", [1, 16, 700])
def test_captured_and_replayed(m: int) -> None:
    """A captured call, warm or through another address, sees the data of each replay."""
    a, b, bias = random(m, 4096), weight(1024, 4096), random(1024)
    matmul(a, b, bias, "gelu")
    graph, result = capture(lambda: matmul(a, b, bias, "gelu"))
    for _ in range(2):
        a.copy_(random(m, 4096))
        result.fill_(torch.nan)
        graph.replay()
        assert relative_error(result, reference(a, b, bias, "gelu")) < MAX_RELATIVE_ERROR["bf16"]


def test_nothing_is_compiled_or_measured_in_a_capture(
    nothing_loaded: None, forbid_compiling: Callable[[], None], caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """With nothing loaded, an error that says what to call; with something loaded, that runs, and a line says so."""
    b = weight(2048, 2048)
    small, large = random(4, 2048), random(3000, 2048)
    with pytest.raises(CaptureError, match=r"wavetune\.warmup\(2048, 2048"):
        capture(lambda: matmul(small, b))
    torch.cuda.synchronize()
    # Far beyond the measured range: the policy would measure it.
    far = random(3, 264), weight(8, 264)
    matmul(small, b)
    matmul(*far)
    forbid_compiling()
    monkeypatch.setattr(live.LiveMeasurer, "_measure", lambda *args: pytest.fail("measured in a capture"))
    wavetune.configure(on_miss="measure")
    try:
        with caplog.at_level(logging.WARNING, logger="wavetune"):
            graph, result = capture(lambda: matmul(large, b))
            far_graph, far_result = capture(lambda: matmul(*far))
    finally:
        wavetune.configure(on_miss=None)
    assert any("is not loaded" in record.getMessage() for record in caplog.records)
    graph.replay()
    far_graph.replay()
    assert relative_error(result, reference(large, b, None, None)) < MAX_RELATIVE_ERROR["bf16"]
    assert relative_error(far_result, reference(*far, None, None)) < MAX_RELATIVE_ERROR["bf16"]


def test_two_streams() -> None:
    """Calls go to the current stream: their order there is that of the results, and both streams keep launches."""
    a, b = random(512, 4096), weight(4096, 4096)
    expected = [reference(a * factor, b, None, None) for factor in (1, 2)]
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    inputs, results = [torch.empty_like(a), torch.empty_like(a)], [None, None]
    torch.cuda.synchronize()
    for _ in range(3):
        for index, stream in enumerate(streams):
            with torch.cuda.stream(stream):
                # Long work in front: a launch on another stream would read what is not yet there.
                torch.cuda._sleep(20_000_000)
                torch.mul(a, index + 1, out=inputs[index])
                results[index] = matmul(inputs[index], b)
        torch.cuda.synchronize()
        for index in range(2):
            assert relative_error(results[index], expected[index]) < MAX_RELATIVE_ERROR["bf16"]
            inputs[index].fill_(torch.nan)
        torch.cuda.synchronize()


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_another_device_than_the_current_one() -> None:
    """Launched where the tensors are; the current device of the thread stays, also in a fresh thread."""
    a, b, bias = random(64, 512, device="cuda:1"), weight(256, 512, device="cuda:1"), random(256, device="cuda:1")

    def run() -> None:
        for _ in range(2):
            result = matmul(a, b, bias, "silu")
            assert result.device == torch.device("cuda:1")
            assert relative_error(result, reference(a, b, bias, "silu")) < MAX_RELATIVE_ERROR["bf16"]
            assert torch.cuda.current_device() == 0
        check(random(64, 512), weight(256, 512))

    run()
    run_in_threads([run])
    with pytest.raises(OperandError, match="b is on cuda:0 but a is on cuda:1"):
        matmul(a, weight(256, 512))


def run_in_threads(tasks: list[Callable[[], None]]) -> None:
    """Run tasks at the same time; the first error of any is raised."""
    errors: list[BaseException] = []

    def guarded(task: Callable[[], None]) -> None:
        try:
            task()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(task,)) for task in tasks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def test_threads(nothing_loaded: None) -> None:
    """Eight threads that start with nothing loaded, all shapes mixed, get right results."""
    shapes = [(1, 768, 512), (17, 768, 512), (300, 520, 512), (64, 1024, 2048), (5, 33, 65)]
    operands = [(random(m, k), weight(n, k)) for m, n, k in shapes]
    expected = [reference(a, b, None, None) for a, b in operands]
    torch.cuda.synchronize()

    def work(offset: int) -> Callable[[], None]:
        def run() -> None:
            for step in range(40):
                index = (step + offset) % len(shapes)
                result = matmul(*operands[index])
                assert relative_error(result, expected[index]) < MAX_RELATIVE_ERROR["bf16"]

        return run

    run_in_threads([work(offset) for offset in range(8)])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", ["nk", "kn"])
@pytest.mark.parametrize(("n", "k"), [(1024, 4096), (6144, 4096), (4096, 14336), (520, 1000), (33, 65)])
def test_batch_invariant_bit_by_bit(n: int, k: int, layout: str, dtype: str) -> None:
    """A row has the same bits alone, in any batch, and at any place in it."""
    b, bias = weight(n, k, dtype, layout), random(n, dtype=dtype)
    a = random(4096, k, dtype=dtype)
    whole = matmul(a, b, bias, "gelu", numerics="batch_invariant")
    for m in (1, 2, 7, 16, 17, 32, 33, 64, 65, 100, 128, 200, 256, 300, 512, 700, 1000, 1024, 2000, 3000):
        for start in {0, 4096 - m}:
            part = matmul(a[start : start + m], b, bias, "gelu", numerics="batch_invariant")
            assert torch.equal(part, whole[start : start + m]), (m, start)


@pytest.mark.parametrize("numerics", ["any", "deterministic"])
def test_repeated_runs_have_the_same_bits(numerics: str) -> None:
    """Our split-k adds in a fixed order, so even `any` repeats on the same shape."""
    for m in (1, 16, 300):
        a, b = random(m, 8192), weight(1024, 8192)
        first = matmul(a, b, numerics=numerics)
        assert all(torch.equal(first, matmul(a, b, numerics=numerics)) for _ in range(5))


@pytest.mark.parametrize(
    ("dtype", "layout", "bias", "activation", "numerics"),
    [
        ("bf16", "nk", False, None, "any"),
        ("fp16", "nk", True, "silu", "any"),
        ("bf16", "kn", True, None, "any"),
        ("bf16", "nk", True, "gelu", "batch_invariant"),
    ],
)
def test_nothing_is_compiled_after_a_warmup(
    dtype: str, layout: str, bias: bool, activation: str | None, numerics: str, tmp_path: object,
    monkeypatch: pytest.MonkeyPatch, nothing_loaded: None, forbid_compiling: Callable[[], None],
) -> None:  # fmt: skip
    """From an empty cache on disk; then every m of the range, padded rows and captures included."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    n, k, top = 1536, 2048, 8192
    calls = []
    report = warmup(
        n, k, (1, top), dtype=dtype, layout=layout, bias=bias, activation=activation, numerics=numerics,
        progress=lambda done, total: calls.append((done, total)),
    )  # fmt: skip
    assert report.configs
    assert report.n_new == len(report.configs) + len(report.failed)
    assert calls[-1] == (2 * report.n_new, 2 * report.n_new)
    assert calls == sorted(calls)
    forbid_compiling()
    b, bias_values = weight(n, k, dtype, layout), random(n, dtype=dtype) if bias else None
    rows = random(top, k + 8, dtype=dtype)
    out = torch.empty(top, n, dtype=DTYPES[dtype], device="cuda")
    for m in (*range(1, 1100), *range(1100, top + 1, 61), top):
        matmul(rows[:m, :k], b, bias_values, activation, out[:m], numerics=numerics)
    check_m = 777
    expected = reference(rows[:check_m, :k], b, bias_values, activation)
    result = matmul(rows[:check_m, :k], b, bias_values, activation, numerics=numerics)
    assert relative_error(result, expected) < MAX_RELATIVE_ERROR[dtype]
    product_launchers.clear_launchers()
    for m in (3, 130, 5000):
        graph, captured = capture(lambda m=m: matmul(rows[:m, :k], b, bias_values, activation, numerics=numerics))
        graph.replay()
        assert relative_error(captured, reference(rows[:m, :k], b, bias_values, activation)) < MAX_RELATIVE_ERROR[dtype]
    again = warmup(n, k, (1, top), dtype=dtype, layout=layout, bias=bias, activation=activation, numerics=numerics)
    assert (again.configs, again.n_new) == (report.configs, 0)


def test_a_configuration_that_does_not_fit(monkeypatch: pytest.MonkeyPatch, nothing_loaded: None) -> None:
    """A choice that the device refuses is a miss, not a crash: the next best runs."""
    greedy = GEMM.config(
        {
            "block_m": 256, "block_n": 256, "block_k": 64, "group_m": 8, "num_warps": 8, "num_stages": 4,
            "load": "tma", "schedule": "tile",
        }
    )  # fmt: skip
    choose: Callable[..., KernelConfig] = source.choose_config
    monkeypatch.setattr(source, "choose_config", lambda *dims, **options: greedy)
    check(random(300, 512), weight(512, 512))
    monkeypatch.setattr(source, "choose_config", choose)


def test_linear_layers() -> None:
    """A patched model computes the same, eager, compiled and captured, and is warm after `warmup_model`."""
    torch.manual_seed(0)
    layers = torch.nn.Linear(1024, 4096), torch.nn.GELU(), torch.nn.Linear(4096, 1024, bias=False)
    model = torch.nn.Sequential(*layers).cuda().bfloat16()
    x = random(37, 1024)
    with torch.inference_mode():
        expected = model(x)
        patch = patch_linear(model)
        assert patch.count == 2
        reports = warmup_model(model, (1, 64))
        assert set(reports) == {"0", "2"}
        assert relative_error(model(x), expected.double()) < 3 * MAX_RELATIVE_ERROR["bf16"]
        graph, result = capture(lambda: model(x))
        graph.replay()
        assert relative_error(result, expected.double()) < 3 * MAX_RELATIVE_ERROR["bf16"]
    torch._dynamo.reset()
    with torch.no_grad():
        compiled = torch.compile(model, fullgraph=True, dynamic=True)
        assert relative_error(compiled(x), expected.double()) < 3 * MAX_RELATIVE_ERROR["bf16"]
    patch.undo()
    with torch.inference_mode():
        assert torch.equal(model(x), expected)


def test_autocast() -> None:
    """fp32 operands become bf16, as torch.matmul's do."""
    a, b = torch.randn(20, 512, device="cuda"), torch.randn(512, 256, device="cuda") / 20
    with torch.autocast("cuda", dtype=torch.bfloat16):
        result = matmul(a, b)
    assert result.dtype == torch.bfloat16
    assert relative_error(result, a.double() @ b.double()) < 2 * MAX_RELATIVE_ERROR["bf16"]
