"""The operator under torch: opcheck, compile with symbolic sizes, autograd, autocast, fake tensors, modes."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode

import wavetune
from wavetune.core.config import GEMM, KernelConfig
from wavetune.core.problem import GemmProblem
from wavetune.errors import OperandError
from wavetune.launch import matmul as matmul_module
from wavetune.launch import source
from wavetune.launch.matmul import matmul

FUNCTIONS = {
    "none": lambda x: x,
    "relu": torch.relu,
    "gelu": torch.nn.functional.gelu,
    "silu": torch.nn.functional.silu,
}


def random(*shape: int, seed: int = 0, requires_grad: bool = False) -> torch.Tensor:
    """Return normal fp16 data."""
    data = torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape))).half()
    return data.requires_grad_(requires_grad)


def eager(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None, activation: str = "none") -> torch.Tensor:
    """Compute what matmul means, with torch, in fp32."""
    product = a.float() @ b.float()
    return FUNCTIONS[activation](product if bias is None else product + bias.float())


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("activation", ["none", "gelu"])
def test_opcheck(activation: str, requires_grad: bool) -> None:
    """Torch's own test of schema, fake kernel, autograd registration and dynamic tracing."""
    a, weight, bias = (random(*shape, requires_grad=requires_grad) for shape in ((2, 5, 32), (24, 32), (24,)))
    for b in (weight.t(), random(32, 24)):
        torch.library.opcheck(torch.ops.wavetune.matmul.default, (a, b, bias, activation, "any"), atol=2e-2, rtol=2e-2)
    torch.library.opcheck(torch.ops.wavetune.matmul.default, (a[0], weight.t()), atol=2e-2, rtol=2e-2)


def test_opcheck_with_out() -> None:
    """The variant that writes into a tensor declares it."""
    out = torch.empty(5, 24).half()
    arguments = (random(5, 32), random(24, 32).t(), random(24), "gelu", "any")
    torch.library.opcheck(torch.ops.wavetune.matmul_out.default, arguments, {"out": out})


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_without_breaks_and_with_a_symbolic_m(
    backend: str, launched: list[tuple[GemmProblem, KernelConfig]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One graph serves every m; two of them get two configurations, chosen when the graph runs."""
    narrow = GEMM.config(
        {"block_m": 16, "block_n": 64, "block_k": 64, "group_m": 8, "num_warps": 4, "num_stages": 3, "load": "tma"}
    )
    wide = narrow.replace(block_m=64)
    monkeypatch.setattr(source, "choose_config", lambda m, n, k, **options: narrow if m <= 16 else wide)

    def layer(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return matmul(x, weight.t(), bias, "relu") * 2

    graphs = []

    def count(graph: object, inputs: object) -> object:
        graphs.append(graph)
        return torch._dynamo.lookup_backend(backend)(graph, inputs)

    torch._dynamo.reset()
    compiled = torch.compile(layer, fullgraph=True, backend=count)
    weight, bias = random(64, 256), random(64)
    for m in (3, 100, 17):
        x = random(m, 256)
        torch._dynamo.mark_dynamic(x, 0)
        torch.testing.assert_close(
            compiled(x, weight, bias).float(), eager(x, weight.t(), bias, "relu") * 2, atol=3e-2, rtol=3e-3
        )
    assert len(graphs) == 1
    assert [problem.m for problem, _ in launched] == [3, 100, 17]
    assert [config for _, config in launched] == [narrow, wide, wide]


def test_the_name_of_the_package_compiles_without_breaks() -> None:
    """``wavetune.matmul`` is loaded when first used, also by a graph that is being traced."""
    torch._dynamo.reset()
    x, b = random(5, 32), random(32, 24)
    compiled = torch.compile(lambda x: wavetune.matmul(x, b) + 1, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x), matmul(x, b) + 1)
    assert wavetune.matmul is matmul


def test_compiled_with_out_and_vectors() -> None:
    """Mutation of out is part of the graph."""

    def fill(x: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        return matmul(x, b, out=out) + matmul(x, b[:, 0]).unsqueeze(1)

    torch._dynamo.reset()
    x, b, out = random(5, 32), random(32, 24), torch.zeros(5, 24).half()
    result = torch.compile(fill, fullgraph=True, backend="aot_eager")(x, b, out)
    torch.testing.assert_close(out.float(), eager(x, b, None), atol=2e-2, rtol=2e-3)
    torch.testing.assert_close(result.float(), eager(x, b, None) + eager(x, b[:, :1], None), atol=3e-2, rtol=3e-3)


@pytest.mark.parametrize("compiles", [False, True])
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("activation", FUNCTIONS)
def test_gradients(activation: str, has_bias: bool, compiles: bool) -> None:
    """Gradients of a [2, 3, k] input, a linear layer's weight and its bias equal those of torch."""
    shapes = ((2, 3, 32), (24, 32), (24,))
    inputs = [random(*shape, requires_grad=True) for shape in shapes]
    if not has_bias:
        inputs[2] = None
    references = [None if x is None else x.detach().float().requires_grad_() for x in inputs]

    def layer(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        return matmul(x, weight.t(), bias, None if activation == "none" else activation)

    torch._dynamo.reset()
    run = torch.compile(layer, fullgraph=True, backend="aot_eager") if compiles else layer
    incoming = random(2, 3, 24, seed=9)
    run(*inputs).backward(incoming)
    x, weight, bias = references
    eager(x, weight.t(), bias, activation).backward(incoming.float())
    for got, expected in zip(inputs, references, strict=True):
        if got is not None:
            assert got.grad.dtype == torch.float16
            torch.testing.assert_close(got.grad.float(), expected.grad, atol=3e-2, rtol=1e-2)


def test_only_wanted_gradients() -> None:
    """Frozen weights, a row-major b, a vector, and the expanded gradient of a sum."""
    a, b = random(3, 32, requires_grad=True), random(32, 24)
    matmul(a, b).sum().backward()
    torch.testing.assert_close(a.grad, b.sum(1).expand(3, 32), atol=2e-2, rtol=2e-3)
    a, b = random(3, 32), random(32, requires_grad=True)
    result = matmul(a, b)
    assert result.shape == (3,)
    result.sum().backward()
    torch.testing.assert_close(b.grad, a.sum(0), atol=2e-2, rtol=2e-3)
    with torch.no_grad():
        assert not matmul(a, b).requires_grad


def test_second_derivatives() -> None:
    """The backward pass is differentiable."""
    a, b = random(3, 32, requires_grad=True), random(32, 24, requires_grad=True)
    (grad,) = torch.autograd.grad(matmul(a, b).float().square().mean(), a, create_graph=True)
    grad.float().square().sum().backward()
    x, y = (tensor.detach().float().requires_grad_() for tensor in (a, b))
    (expected,) = torch.autograd.grad((x @ y).square().mean(), x, create_graph=True)
    expected.square().sum().backward()
    assert (a.grad.float() - x.grad).norm() < 1e-2 * x.grad.norm()
    assert (b.grad.float() - y.grad).norm() < 1e-2 * y.grad.norm()


def test_out_is_not_differentiable() -> None:
    """As torch says it: not with out, unless no gradient is recorded."""
    a, b, out = random(3, 32, requires_grad=True), random(32, 24), torch.empty(3, 24).half()
    with pytest.raises(OperandError, match="a requires grad"):
        matmul(a, b, out=out)
    with torch.no_grad():
        assert matmul(a, b, out=out) is out


def test_autocast_casts_like_torch() -> None:
    """fp32 operands become the region's dtype, a bias too; compiled as well; outside they are refused."""
    a, b, bias = random(3, 32).float(), random(32, 24).float(), random(24).float()

    def product(x: torch.Tensor) -> torch.Tensor:
        return matmul(x, b, bias)

    torch._dynamo.reset()
    for run in (product, torch.compile(product, fullgraph=True, backend="aot_eager")):
        with torch.autocast("cpu", dtype=torch.float16):
            result = run(a)
            assert result.dtype == torch.matmul(a, b).dtype == torch.float16
        torch.testing.assert_close(result.float(), a @ b + bias, atol=3e-2, rtol=3e-3)
    with torch.autocast("cpu", dtype=torch.float16), pytest.raises(OperandError, match="float64"):
        matmul(a.double(), b.double())
    with pytest.raises(OperandError, match="float32"):
        matmul(a, b)


def test_fake_tensors_have_the_shapes_of_torch() -> None:
    """No launch, no data; also on a GPU that is not there."""
    with FakeTensorMode():
        a, b = (torch.empty(shape, dtype=torch.bfloat16, device="cuda") for shape in ((2, 3, 32), (32, 24)))
        result = matmul(a, b)
        assert (result.shape, result.dtype, result.device.type) == ((2, 3, 24), torch.bfloat16, "cuda")
        assert result.stride() == (72, 24, 1)
        with pytest.raises(OperandError, match="rows"):
            matmul(a, b.t())


def test_exported(launched: list[tuple[GemmProblem, KernelConfig]]) -> None:
    """An exported program holds the operator, with a dynamic m."""

    class Layer(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return matmul(x, self.weight.t())

    layer = Layer()
    layer.weight = torch.nn.Parameter(random(24, 32), requires_grad=False)
    program = torch.export.export(layer, (random(5, 32),), dynamic_shapes=({0: torch.export.Dim("m")},))
    assert "wavetune.matmul" in str(program.graph)
    x = random(9, 32)
    torch.testing.assert_close(program.module()(x), matmul(x, layer.weight.t()))


def test_plain_calls_skip_the_dispatcher(monkeypatch: pytest.MonkeyPatch) -> None:
    """And whatever must be seen by torch does not: a gradient, a mode, a subclass, a transform."""
    calls = []
    operator = matmul_module.call_operator
    monkeypatch.setattr(matmul_module, "call_operator", lambda *args: (calls.append(args), operator(*args))[1])
    a, b = random(3, 32), random(32, 24)
    matmul(a, b)
    matmul(torch.nn.Parameter(a, requires_grad=False), b)
    assert not calls

    class Count(TorchDispatchMode):
        seen = 0

        def __torch_dispatch__(self, func: object, types: object, args: object = (), kwargs: object = None) -> object:
            self.seen += "wavetune" in str(func)
            return func(*args, **(kwargs or {}))

    with Count() as mode:
        matmul(a, b)
    assert mode.seen == 1
    matmul(random(3, 32, requires_grad=True), b)
    per_row = torch.func.vmap(lambda row: matmul(row, b))(a)
    torch.testing.assert_close(per_row, matmul(a, b))
    assert len(calls) == 3


@pytest.mark.filterwarnings("ignore:`torch.jit.script")
def test_forward_mode_is_refused() -> None:
    """Torch would drop the tangent and answer zero."""
    a, b = random(3, 32), random(32, 24)
    with pytest.raises(OperandError, match="a carries a forward-mode tangent"):
        torch.func.jvp(lambda x: matmul(x, b), (a,), (a,))
    with forward_ad.dual_level():
        with pytest.raises(OperandError, match="b carries"):
            matmul(a, forward_ad.make_dual(b, b))
        assert matmul(a, b).shape == (3, 24)


@pytest.mark.filterwarnings("ignore:`torch.jit.trace")
def test_traces_hold_the_operator() -> None:
    """A trace records the product, not its result."""
    b = random(32, 24)
    traced = torch.jit.trace(lambda x: matmul(x, b), (random(3, 32),), check_trace=False)
    x = random(3, 32, seed=5)
    torch.testing.assert_close(traced(x), matmul(x, b))
