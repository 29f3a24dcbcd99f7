"""fp8 through `grouped_matmul` on the CPU: scales of every shape, errors, the operator; results stored as fp16."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from wavetune.errors import OperandError, OperandTypeError
from wavetune.launch.grouped_matmul import grouped_matmul

SIZES = [7, 0, 33, 0, 1]
HALF = torch.float16


def e4m3(*shape: int) -> torch.Tensor:
    """Return random elements."""
    return torch.randn(shape).to(torch.float8_e4m3fn)


def expected(
    x: torch.Tensor, w: torch.Tensor, scale_x: torch.Tensor, scale_w: torch.Tensor, *, is_gated: bool = False
) -> torch.Tensor:
    """Return the result in float64 from scales that broadcast against (tokens, 1) and (experts, n, 1)."""
    wide_x, wide_w = x.double() * scale_x, w.double() * scale_w
    product = torch.cat([rows @ weight.T for rows, weight in zip(wide_x.split(SIZES), wide_w, strict=True)])
    if not is_gated:
        return product
    gate, up = product.chunk(2, dim=1)
    return torch.nn.functional.silu(gate) * up


def assert_close(out: torch.Tensor, reference: torch.Tensor) -> None:
    """Compare with what rounding to fp16 allows."""
    assert out.dtype == HALF
    assert tuple(out.shape) == tuple(reference.shape)
    assert float((out.double() - reference).norm() / reference.norm()) < 1e-3


@pytest.mark.parametrize("activation", [None, "silu_and_mul"])
@pytest.mark.parametrize("of_x", [(), (1,), (41,), (41, 1)], ids=str)
@pytest.mark.parametrize("of_w", [(), (1,), (5,), (5, 1), (5, 1, 1), (5, 40), (5, 40, 1)], ids=str)
def test_scales_of_every_shape(of_w: tuple[int, ...], of_x: tuple[int, ...], activation: str | None) -> None:
    """One for all, for each token, for each expert, for each row of each expert, with axes of 1 or without."""
    x, w, scale_x, scale_w = e4m3(41, 64), e4m3(5, 40, 64), torch.rand(of_x) + 0.5, (torch.rand(of_w) + 0.5) / 8
    out = grouped_matmul(x, w, SIZES, activation=activation, scale_x=scale_x, scale_w=scale_w, out_dtype=HALF)
    wide_x = scale_x.reshape(-1, 1)
    wide_w = scale_w.reshape(-1, 40 if 40 in of_w else 1, 1)
    assert_close(out, expected(x, w, wide_x, wide_w, is_gated=activation is not None))


@pytest.mark.parametrize("use_fast_accum", [False, True])
def test_what_is_launched(use_fast_accum: bool, launched: list[object]) -> None:
    """The key says how sums are kept; sizes of the host decide it, and sizes of the device stand for any histogram."""
    x, w, scale_x, scale_w = e4m3(41, 64), e4m3(5, 40, 64), torch.rand(41), torch.rand(5)
    options = {"scale_x": scale_x, "scale_w": scale_w, "use_fast_accum": use_fast_accum, "out_dtype": HALF}
    reference = expected(x, w, scale_x[:, None], scale_w[:, None, None])
    assert_close(grouped_matmul(x, w, SIZES, **options), reference)
    groups = torch.tensor(SIZES, dtype=torch.int32)
    assert_close(torch.ops.wavetune.grouped_matmul(x, w, groups, **options), reference)
    dtype = "fp8_fast" if use_fast_accum else "fp8"
    assert [(problem.dtype, problem.group_sizes) for problem, _ in launched] == [
        (dtype, tuple(SIZES)), (dtype, (37, 1, 1, 1, 1)),
    ]  # fmt: skip
    assert all(config["block_k"] >= 128 for _, config in launched)


def test_views_are_read_where_they_are(launched: list[object]) -> None:
    """Rows with a stride, scales with one, an output inside a larger tensor; what cannot be read is copied."""
    x, w = e4m3(41, 128)[:, 16:80], e4m3(5, 45, 96)[:, :40, 16:80]
    scale_x, scale_w = torch.rand(41, 3)[:, 1] + 0.5, (torch.rand(40, 7) + 0.5)[:, 1:6].T
    store = torch.zeros(41, 100, dtype=HALF)
    out = store[:, 8:48]
    reference = expected(x, w, scale_x[:, None], scale_w[:, :, None])
    assert grouped_matmul(x, w, SIZES, scale_x=scale_x, scale_w=scale_w, out=out) is out
    assert_close(out, reference)
    assert not store[:, :8].any()
    assert not store[:, 48:].any()
    copied = x.T.contiguous().T
    assert_close(grouped_matmul(copied, w, SIZES, scale_x=scale_x, scale_w=scale_w, out_dtype=HALF), reference)
    assert [problem.alignment for problem, _ in launched] == [16, 16]


def test_results_are_bf16_unless_asked() -> None:
    """Of fp8 operands; an output says so itself. Without tokens or k nothing is launched."""
    one = torch.ones(1)
    assert grouped_matmul(e4m3(0, 32), e4m3(2, 16, 32), [0, 0], scale_x=one, scale_w=one).dtype == torch.bfloat16
    zero = grouped_matmul(e4m3(4, 0), e4m3(2, 16, 0), [4, 0], scale_x=one, scale_w=one, out_dtype=HALF)
    assert zero.dtype == HALF
    assert not zero.any()


X, W, ONE = torch.zeros(41, 64).to(torch.float8_e4m3fn), torch.zeros(5, 40, 64).to(torch.float8_e4m3fn), torch.ones(1)


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"scale_x": None}, OperandError, "scale_x is missing, which torch.float8_e4m3fn needs"),
        ({"scale_w": None}, OperandError, "scale_w is missing"),
        ({"scale_x": 1.0}, OperandTypeError, "scale_x must be a torch.Tensor, got float"),
        ({"scale_w": ONE.double()}, OperandError, "scale_w is torch.float64; it must be torch.float32"),
        ({"scale_x": torch.ones(40)}, OperandError, r"scale_x has shape \[40\]; it must be one value, or \[41\] or"),
        ({"scale_x": torch.ones(1, 41)}, OperandError, r"scale_x has shape \[1, 41\]"),
        ({"scale_w": torch.ones(40)}, OperandError, r"scale_w has shape \[40\]; .* \[5, 40\] or \[5, 40, 1\]"),
        ({"scale_w": torch.ones(5, 2)}, OperandError, r"scale_w has shape \[5, 2\]"),
        ({"scale_w": torch.ones(5, device="meta")}, OperandError, "scale_w is on meta but x is on cpu"),
        ({"x": X.half(), "w": W.half()}, OperandError, "scale_x is for torch.float8_e4m3fn, but x is torch.float16"),
        ({"x": X.half()}, OperandError, "w is torch.float8_e4m3fn but x is torch.float16"),
        ({"x": X.to(torch.float8_e5m2)}, OperandError, "x is torch.float8_e5m2; cast it"),
        ({"use_fast_accum": 1}, OperandTypeError, "use_fast_accum must be a bool, got 1"),
        ({"out_dtype": torch.float32}, OperandTypeError, "out_dtype must be torch.bfloat16 or torch.float16"),
        ({"out": torch.ones(41, 40)}, OperandError, "out is torch.float32; it must be torch.bfloat16 or torch.float16"),
        ({"out": torch.ones(41, 40).half(), "out_dtype": torch.bfloat16}, OperandError, "out is torch.float16"),
        ({"w": W.mT.contiguous().mT}, OperandError, "make it contiguous once"),
    ],
)
def test_mistakes_are_named(change: dict[str, object], error: type[Exception], words: str) -> None:
    """Each says the argument, what it is, and what it must be."""
    arguments = {"x": X, "w": W, "group_sizes": SIZES, "scale_x": ONE, "scale_w": ONE, **change}
    with pytest.raises(error, match=words):
        grouped_matmul(**arguments)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"use_fast_accum": True}, "use_fast_accum is for torch.float8_e4m3fn"),
        ({"out_dtype": torch.bfloat16}, "out_dtype is torch.bfloat16, but products of torch.float16"),
        ({"scale_w": ONE}, "scale_w is for torch.float8_e4m3fn"),
    ],
)
def test_what_is_of_fp8_alone(options: dict[str, object], words: str) -> None:
    """Other dtypes refuse it, rather than ignore it."""
    with pytest.raises(OperandError, match=words):
        grouped_matmul(X.half(), W.half(), SIZES, **options)


def test_gradients_of_scales_are_refused() -> None:
    """A trained scale would silently not be trained."""
    with pytest.raises(OperandError, match="no backward pass"):
        grouped_matmul(X, W, SIZES, scale_x=ONE, scale_w=torch.ones(5, requires_grad=True))


def test_the_operator_under_torch() -> None:
    """One node in a compiled graph for several token counts; fake tensors give shape and dtype; outputs are mutated."""
    traces = []

    def backend(module: torch.fx.GraphModule, inputs: list[object]) -> object:
        traces.append(str(module.graph))
        return module.forward

    @torch.compile(backend=backend, fullgraph=True, dynamic=True)
    def layer(
        x: torch.Tensor, w: torch.Tensor, groups: torch.Tensor, scale_x: torch.Tensor, scale_w: torch.Tensor
    ) -> torch.Tensor:
        out = torch.ops.wavetune.grouped_matmul(x, w, groups, scale_x=scale_x, scale_w=scale_w, out_dtype=HALF)
        return out * 2

    w, scale_w = e4m3(5, 40, 64), torch.rand(5)
    for tokens in (41, 20):
        x, scale_x = e4m3(tokens, 64), torch.rand(tokens, 1)
        groups = torch.tensor([tokens - 3, 1, 0, 2, 0], dtype=torch.int32)
        plain = torch.ops.wavetune.grouped_matmul(x, w, groups, scale_x=scale_x, scale_w=scale_w, out_dtype=HALF)
        assert torch.equal(layer(x, w, groups, scale_x, scale_w), plain * 2)
    assert len(traces) == 1
    with FakeTensorMode():
        x, w = (torch.empty(shape, dtype=torch.float8_e4m3fn) for shape in ((7, 32), (2, 16, 32)))
        groups, one = torch.empty(2, dtype=torch.int32), torch.empty(1)
        result = torch.ops.wavetune.grouped_matmul(x, w, groups, None, "silu_and_mul", 0, one, one)
        assert (result.shape, result.dtype) == ((7, 8), torch.bfloat16)
    groups, out = torch.tensor(SIZES, dtype=torch.int32), torch.ones(41, 40, dtype=HALF)
    torch.ops.wavetune.grouped_matmul_out(X, W, groups, scale_x=ONE, scale_w=ONE, out=out)
    assert not out.any()
    # Without the check of the schema, which multiplies e4m3 on the CPU.
    torch.library.opcheck(
        torch.ops.wavetune.grouped_matmul,
        (X, W, groups, SIZES, "none", 0, ONE, ONE, False, HALF),
        test_utils=("test_faketensor",),
    )
