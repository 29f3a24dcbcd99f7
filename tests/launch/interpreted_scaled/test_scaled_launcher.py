"""`scaled_matmul`: results, shapes of scales, views, errors, and the operator under torch.

Results are fp16: the interpreter writes bf16 wrongly.
"""

from collections.abc import Iterator

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from wavetune.core.config import GEMM
from wavetune.core.problem import GemmProblem
from wavetune.errors import OperandError, OperandTypeError
from wavetune.launch import scaled_launcher
from wavetune.launch.product_launchers import clear_launchers
from wavetune.launch.scaled_matmul import scaled_matmul

HALF = torch.float16


@pytest.fixture(autouse=True)
def launched(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[GemmProblem]]:
    """Return a list that receives the problem of every first launch."""
    seen: list[GemmProblem] = []
    launch_first = scaled_launcher.launch_first

    def record(gpu: object, source: object, operands: object, config: object, stream: int) -> object:
        seen.append(operands.problem)
        return launch_first(gpu, source, operands, config, stream)

    monkeypatch.setattr(scaled_launcher, "launch_first", record)
    clear_launchers()
    yield seen
    clear_launchers()


def e4m3(*shape: int) -> torch.Tensor:
    """Return random elements."""
    return torch.randn(shape).to(torch.float8_e4m3fn)


def blocks(scale: torch.Tensor, axis: int, size: int) -> torch.Tensor:
    """Repeat scales over their blocks."""
    return scale.repeat_interleave(128, axis).narrow(axis, 0, size)


def check(result: torch.Tensor, a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None = None) -> None:
    """Compare with the product of what the operands stand for."""
    expected = a @ b if bias is None else a @ b + bias.double()
    assert result.shape == expected.shape
    assert (result.double() - expected).norm() < 1e-3 * expected.norm()


@pytest.mark.parametrize("use_fast_accum", [False, True])
@pytest.mark.parametrize("shape_a", [(), (1,), (1, 1), (20,), (20, 1)])
@pytest.mark.parametrize("shape_b", [(1,), (24,), (1, 24)])
def test_scales_for_tensors_and_rows(
    shape_a: tuple[int, ...], shape_b: tuple[int, ...], use_fast_accum: bool, launched: list[GemmProblem]
) -> None:
    """Every way to write them, each side for itself; dtype of the key says how sums are kept."""
    a, weight, bias = e4m3(20, 64), e4m3(24, 64), torch.randn(24).half()
    scale_a, scale_b = torch.rand(shape_a) + 0.5, torch.rand(shape_b) + 0.5
    result = scaled_matmul(a, weight.t(), scale_a, scale_b, bias, out_dtype=HALF, use_fast_accum=use_fast_accum)
    check(result, a.double() * scale_a.reshape(-1, 1), weight.double().t() * scale_b.reshape(1, -1), bias)
    assert launched == [GemmProblem(20, 24, 64, dtype="fp8_fast" if use_fast_accum else "fp8")]


@pytest.mark.parametrize("is_column_major", [False, True])
def test_scales_in_blocks(is_column_major: bool, launched: list[GemmProblem]) -> None:
    """Rows of blocks or columns of them, as some quantisers write; leading axes are rows."""
    a, weight = e4m3(2, 5, 400), e4m3(200, 400)
    scale_a, scale_b = torch.rand(2, 5, 4) + 0.5, torch.rand(2, 4) + 0.5
    if is_column_major:
        scale_a = scale_a.permute(2, 0, 1).contiguous().permute(1, 2, 0)
    result = scaled_matmul(a, weight.t(), scale_a, scale_b, out_dtype=HALF)
    wide_b = blocks(blocks(scale_b, 0, 200), 1, 400)
    check(result, a.double() * blocks(scale_a, 2, 400), (weight.double() * wide_b).t())
    assert launched == [GemmProblem(10, 200, 400, dtype="fp8_block128")]


@pytest.mark.parametrize(
    "fields",
    [
        {"schedule": "split_k", "split_k": 3},
        {"block_n": 80},
        {"block_n": 96, "schedule": "persistent"},
        {"block_n": 80, "schedule": "split_k", "split_k": 2},
    ],
)
def test_whatever_is_chosen_is_launched(fields: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    """The workspace of a split is there at every call; tiles of two parts get their descriptors."""
    base = {"block_m": 64, "block_n": 64, "block_k": 128, "group_m": 8, "num_warps": 4, "num_stages": 3, "load": "tma"}
    monkeypatch.setattr(scaled_launcher.ConfigSource, "choose", lambda *_: GEMM.config({**base, **fields}))
    weight, bias = e4m3(176, 640), torch.randn(176).half()
    for m in (5, 70, 70):
        a, scale_a, scale_b = e4m3(m, 640), torch.rand(m) + 0.5, torch.rand(176) + 0.5
        result = scaled_matmul(a, weight.t(), scale_a, scale_b, bias, out_dtype=HALF)
        check(result, a.double() * scale_a[:, None], weight.double().t() * scale_b, bias)


def test_one_block_of_k() -> None:
    """With k <= 128 the scales of A are also those of rows; B's decide."""
    a, weight = e4m3(4, 96), e4m3(200, 96)
    scale_a, scale_b = torch.rand(4, 1) + 0.5, torch.rand(2, 1) + 0.5
    result = scaled_matmul(a, weight.t(), scale_a, scale_b, out_dtype=HALF)
    check(result, a.double() * scale_a, (weight.double() * blocks(scale_b, 0, 200)).t())


def test_views_are_read_where_they_are(launched: list[GemmProblem]) -> None:
    """Rows with a stride, misaligned scales and bias, an output inside a larger tensor."""
    store = e4m3(2, 6, 96)
    a, weight = store[:, 1:5, 16:80], e4m3(40, 128)[:, 32:96]
    scale_a, scale_b, bias = torch.rand(9)[1:], torch.rand(41)[1:], torch.rand(41).half()[1:]
    surroundings = torch.zeros(8, 64, dtype=HALF)
    out = surroundings[:, 8:48]
    flat = a.reshape(8, 64)
    result = scaled_matmul(flat, weight.t(), scale_a, scale_b, bias, out)
    assert result is out
    check(out, flat.double() * scale_a[:, None], weight.double().t() * scale_b, bias)
    assert not surroundings[:, :8].any()
    assert not surroundings[:, 48:].any()
    again = scaled_matmul(a, weight.t(), scale_a.view(2, 4), scale_b, bias, out_dtype=HALF)
    check(again, a.double() * scale_a.view(2, 4, 1), weight.double().t() * scale_b, bias)
    assert [problem.dims for problem in launched] == [(8, 40, 64)] * 2


def test_what_cannot_be_read_in_place_is_copied() -> None:
    """Columns of A that are not adjacent, a strided bias, scales with uneven axes, an output with gaps in its rows."""
    a, weight = e4m3(48, 20).t(), e4m3(24, 48)
    scale_a, bias = torch.rand(20), torch.rand(48).half()[::2]
    one = torch.ones(())
    check(scaled_matmul(a, weight.t(), scale_a, one, bias, out_dtype=HALF), a.double() * scale_a[:, None],
          weight.double().t(), bias)  # fmt: skip
    uneven = torch.rand(3, 4, 5)[:, :2, 1]
    batch = e4m3(3, 2, 48)
    check(scaled_matmul(batch, weight.t(), uneven, one, out_dtype=HALF), batch.double() * uneven[:, :, None],
          weight.double().t())  # fmt: skip
    gaps = torch.zeros(20, 48, dtype=HALF)[:, ::2]
    assert scaled_matmul(a, weight.t(), scale_a, one, bias, gaps) is gaps
    check(gaps, a.double() * scale_a[:, None], weight.double().t(), bias)


def test_empty_sizes() -> None:
    """Without rows there is nothing, without k there is the bias."""
    one = torch.ones(())
    assert scaled_matmul(e4m3(0, 32), e4m3(16, 32).t(), one, one).shape == (0, 16)
    assert scaled_matmul(e4m3(0, 32), e4m3(16, 32).t(), one, one).dtype == torch.bfloat16
    bias = torch.rand(16).half()
    result = scaled_matmul(e4m3(4, 0), e4m3(16, 0).t(), one, one, bias, out_dtype=HALF)
    assert torch.equal(result, bias.expand(4, 16))


A, B, ONE = torch.zeros(4, 32).to(torch.float8_e4m3fn), torch.zeros(16, 32).to(torch.float8_e4m3fn).t(), torch.ones(1)


@pytest.mark.parametrize(
    ("arguments", "options", "words"),
    [
        ((A.half(), B, ONE, ONE), {}, "a is torch.float16; it must be torch.float8_e4m3fn"),
        ((A, B.half(), ONE, ONE), {}, "b is torch.float16"),
        ((A, B, ONE.double(), ONE), {}, "scale_a is torch.float64"),
        ((A, B, ONE, ONE.half()), {}, "scale_b is torch.float16"),
        ((A, B, torch.ones(5), ONE), {}, r"scale_a has shape \[5\]; it must be one value, \[4\] or \[4, 1\]"),
        ((A, B, ONE, torch.ones(4)), {}, r"scale_b has shape \[4\]; it must be one value, \[16\] or \[1, 16\]"),
        ((A, B, torch.ones(4, 2), torch.ones(1, 2)), {}, "scale_a has shape"),
        ((A, B.t().contiguous(), ONE, ONE), {}, r"a of shape \[4, 32\] has 32 columns, but b of shape \[16, 32\]"),
        ((A, B.t().contiguous().t().contiguous(), ONE, ONE), {}, "b of shape .* adjacent k"),
        ((A, B[0], ONE, ONE), {}, r"b has shape \[16\]"),
        ((A, B, ONE, ONE, torch.ones(16)), {}, "bias is torch.float32; it must be torch.bfloat16"),
        ((A, B, ONE, ONE, torch.ones(4).bfloat16()), {}, r"bias must have shape \[16\]"),
        ((A, B, ONE, ONE, None, torch.ones(4, 8).half()), {}, r"out must have shape \[4, 16\]"),
        ((A, B, ONE, ONE, None, torch.ones(4, 16)), {}, "out is torch.float32"),
        ((A, B, ONE, ONE, torch.ones(16).bfloat16().to_sparse()), {}, "bias is stored as torch.sparse_coo"),
        ((A, B, ONE, ONE, None, torch.ones(4, 16).half()), {"out_dtype": torch.bfloat16}, "out is torch.float16"),
    ],
)
def test_operands_that_cannot_be_used(arguments: tuple[object, ...], options: dict[str, object], words: str) -> None:
    """The message names the argument; the operator says the same."""
    with pytest.raises(OperandError, match=words):
        scaled_matmul(*arguments, **options)
    clear_launchers()


@pytest.mark.parametrize(
    ("arguments", "options", "words"),
    [
        ((1, B, ONE, ONE), {}, "a must be a torch.Tensor, got int"),
        ((A, B, 1.0, ONE), {}, "scale_a must be a torch.Tensor, got float"),
        ((A, B, ONE, None), {}, "scale_b must be a torch.Tensor, got NoneType"),
        ((A, B, ONE, ONE), {"out_dtype": torch.float32}, "out_dtype must be torch.bfloat16 or torch.float16"),
        ((A, B, ONE, ONE), {"out_dtype": []}, "out_dtype must be"),
        ((A, B, ONE, ONE), {"use_fast_accum": 1}, "use_fast_accum must be a bool"),
        ((A, B, ONE, ONE), {"numerics": "exact"}, "numerics must be one of"),
    ],
)
def test_arguments_of_a_wrong_kind(arguments: tuple[object, ...], options: dict[str, object], words: str) -> None:
    """A type error that names the argument."""
    with pytest.raises(OperandTypeError, match=words):
        scaled_matmul(*arguments, **options)


def test_gradients_are_refused() -> None:
    """A trained bias would silently not be trained."""
    bias = torch.zeros(16, dtype=torch.bfloat16, requires_grad=True)
    with pytest.raises(OperandError, match="bias requires grad"):
        scaled_matmul(A, B, ONE, ONE, bias)
    with torch.no_grad():
        assert scaled_matmul(A, B, ONE, ONE, bias).shape == (4, 16)


def test_the_operator_under_torch() -> None:
    """One node in a compiled graph, for several m; fake tensors give shape and dtype; outputs are mutated in place."""
    weight, scale_b = e4m3(24, 64), torch.rand(24)

    def layer(a: torch.Tensor, scale_a: torch.Tensor) -> torch.Tensor:
        return scaled_matmul(a, weight.t(), scale_a, scale_b, out_dtype=HALF) * 2

    compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend="aot_eager")
    for m in (3, 20):
        a, scale_a = e4m3(m, 64), torch.rand(m, 1)
        assert torch.equal(compiled(a, scale_a), layer(a, scale_a))
    with FakeTensorMode():
        a, stored = (torch.empty(rows, 64, dtype=torch.float8_e4m3fn) for rows in (5, 24))
        one = torch.empty(1)
        result = scaled_matmul(a, stored.t(), one, one)
        assert (result.shape, result.dtype) == ((5, 24), torch.bfloat16)
    out = torch.empty(4, 16, dtype=HALF)
    torch.ops.wavetune.scaled_matmul_out(A, B, ONE, ONE, out=out)
    assert not out.any()
    # Without the check of the schema, which multiplies e4m3 on the CPU.
    checks = ("test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
    torch.library.opcheck(torch.ops.wavetune.scaled_matmul, (A, B, ONE, ONE, None, HALF), test_utils=checks)
