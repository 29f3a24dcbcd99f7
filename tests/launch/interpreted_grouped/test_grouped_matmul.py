"""`grouped_matmul` on the CPU against torch in float64, expert by expert; errors, operator, fake kernel."""

import pytest
import torch

from wavetune.errors import OperandError, OperandTypeError
from wavetune.launch.grouped_matmul import grouped_matmul

SIZES = [7, 0, 33, 0, 1]


def tensors(
    sizes: list[int] = SIZES, n: int = 40, k: int = 48, seed: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Return tokens and weights."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(sum(sizes), k, generator=generator).half()
    return x, (torch.randn(len(sizes), n, k, generator=generator) * k**-0.5).half()


def expected(x: torch.Tensor, w: torch.Tensor, sizes: list[int], *, is_gated: bool = False) -> torch.Tensor:
    """Return the result in float64."""
    parts = [rows @ weight.T for rows, weight in zip(x.double().split(sizes), w.double(), strict=True)]
    product = torch.cat(parts)
    if not is_gated:
        return product
    gate, up = product.chunk(2, dim=1)
    return torch.nn.functional.silu(gate) * up


def assert_close(out: torch.Tensor, reference: torch.Tensor) -> None:
    """Compare with what rounding to fp16 allows."""
    assert out.dtype == torch.float16
    assert tuple(out.shape) == tuple(reference.shape)
    assert float((out.double() - reference).norm() / reference.norm()) < 1e-3


@pytest.mark.parametrize("as_", ["list", "tuple", "int64 tensor", "int32 tensor", "offsets", "offsets tensor"])
def test_group_sizes_come_in_many_forms(as_: str) -> None:
    """A sequence, a tensor on the CPU, or offsets with one entry more."""
    x, w = tensors()
    offsets = [0, 7, 7, 40, 40, 41]
    given = {
        "list": SIZES, "tuple": tuple(SIZES), "int64 tensor": torch.tensor(SIZES),
        "int32 tensor": torch.tensor(SIZES, dtype=torch.int32), "offsets": offsets,
        "offsets tensor": torch.tensor(offsets),
    }[as_]  # fmt: skip
    assert_close(grouped_matmul(x, w, given), expected(x, w, SIZES))


def test_gate_and_up_are_fused() -> None:
    """The first half of w's rows is the gate."""
    x, w = tensors()
    assert_close(grouped_matmul(x, w, SIZES, activation="silu_and_mul"), expected(x, w, SIZES, is_gated=True))


@pytest.mark.parametrize("activation", [None, "silu_and_mul"])
def test_out_is_written_where_it_is(activation: str | None) -> None:
    """Plain rows in place, anything else through a copy; what lies between is left alone."""
    x, w = tensors()
    reference = expected(x, w, SIZES, is_gated=activation is not None)
    columns = reference.shape[1]
    store = torch.zeros(41, 100, dtype=torch.float16)
    for out in (store[:, 8 : 8 + columns], torch.zeros(columns, 41, dtype=torch.float16).T):
        assert grouped_matmul(x, w, SIZES, activation=activation, out=out) is out
        assert_close(out, reference)
    assert not store[:, :8].any()
    assert not store[:, 8 + columns :].any()


def test_views_are_read_where_they_are_and_the_rest_is_copied(launched: list[object]) -> None:
    """Evenly spaced rows keep their alignment class; a transposed x is copied."""
    x, w = tensors()
    wide = torch.zeros(41, 64, dtype=torch.float16)
    wide[:, 8:56] = x
    assert_close(grouped_matmul(wide[:, 8:56], w, SIZES), expected(x, w, SIZES))
    assert_close(grouped_matmul(x.T.contiguous().T, w, SIZES), expected(x, w, SIZES))
    padded = torch.zeros(5, 45, 56, dtype=torch.float16)
    padded[:, :40, :48] = w
    assert_close(grouped_matmul(x, padded[:, :40, :48], SIZES), expected(x, w, SIZES))
    odd = torch.zeros(41, 49, dtype=torch.float16)
    odd[:, :48] = x
    assert_close(grouped_matmul(odd[:, :48], w, SIZES), expected(x, w, SIZES))
    assert [problem.alignment for problem, _ in launched] == [16, 16, 16, 2]
    assert launched[-1][1]["load"] == "pointer"


def test_the_host_histogram_decides_what_is_launched(launched: list[object]) -> None:
    """Known sizes are launched as they are; sizes of the device as any histogram of the tokens."""
    x, w = tensors()
    grouped_matmul(x, w, SIZES)
    groups = torch.tensor(SIZES, dtype=torch.int32)
    assert_close(torch.ops.wavetune.grouped_matmul(x, w, groups), expected(x, w, SIZES))
    known, unknown = (problem.group_sizes for problem, _ in launched)
    assert known == tuple(SIZES)
    assert unknown == (37, 1, 1, 1, 1)


def test_device_sizes_follow_the_tensor() -> None:
    """One choice serves every histogram; rows that no group holds are not written."""
    x, w = tensors()
    groups = torch.tensor(SIZES, dtype=torch.int32)
    for sizes in ([41, 0, 0, 0, 0], [9, 8, 8, 8, 8], [0, 5, 0, 20, 0]):
        groups.copy_(torch.tensor(sizes))
        out = torch.full((41, 40), 5.0, dtype=torch.float16)
        torch.ops.wavetune.grouped_matmul_out(x, w, groups, out=out)
        rows = sum(sizes)
        assert_close(out[:rows], expected(x[:rows], w, sizes))
        assert (out[rows:] == 5.0).all()


@pytest.mark.parametrize(
    ("shape", "n", "sizes"), [((0, 48), 40, [0, 0]), ((5, 48), 0, [2, 3]), ((5, 0), 40, [2, 3]), ((0, 48), 40, [])]
)
def test_empty_sizes(shape: tuple[int, int], n: int, sizes: list[int]) -> None:
    """Without tokens, columns or experts there is no result; without a sum it is zero."""
    x, w = torch.ones(shape).half(), torch.ones(len(sizes), n, shape[1]).half()
    out = grouped_matmul(x, w, sizes)
    assert tuple(out.shape) == (shape[0], n)
    assert not out.any()


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"x": [1]}, OperandTypeError, "x must be a torch.Tensor, got list"),
        ({"w": None}, OperandTypeError, "w must be a torch.Tensor"),
        ({"activation": "gelu"}, OperandTypeError, "activation must be None or 'silu_and_mul', got 'gelu'"),
        ({"group_sizes": [7, 0, 33, 0, 2]}, OperandError, "must sum to the 41 rows of x, got 42"),
        ({"group_sizes": [8, 0, 33, 0]}, OperandError, "has 4 entries, but w has 5 experts"),
        ({"group_sizes": [8, -1, 33, 0, 1]}, OperandError, r"group_sizes\[1\] must not be negative, got -1"),
        ({"group_sizes": [7, 0.0, 33, 0, 1]}, OperandTypeError, r"group_sizes\[1\] must be an integer"),
        ({"group_sizes": [1, 7, 7, 40, 40, 41]}, OperandError, "must begin with 0, got 1"),
        ({"group_sizes": [0, 7, 6, 40, 40, 41]}, OperandError, r"must not fall, but \[1\] is 7 and the next 6"),
        ({"group_sizes": [0, 7, 7, 40, 40, 40]}, OperandError, "must end with the 41 rows of x, got 40"),
        ({"group_sizes": torch.tensor([7.0, 0, 33, 0, 1])}, OperandTypeError, "must hold integers"),
        ({"group_sizes": torch.tensor([SIZES])}, OperandTypeError, "along one axis"),
        ({"group_sizes": 41}, OperandTypeError, "got int"),
        ({"group_sizes": torch.tensor(SIZES, device="meta")}, OperandError, "group_sizes is on meta but x is on cpu"),
        ({"x": torch.ones(41).half()}, OperandError, r"it must be \(tokens, k\)"),
        ({"w": torch.ones(40, 48).half()}, OperandError, r"it must be \(experts, n, k\)"),
        ({"x": torch.ones(41, 48)}, OperandError, "x is torch.float32; cast it"),
        ({"w": torch.ones(5, 40, 48).bfloat16()}, OperandError, "w is torch.bfloat16 but x is torch.float16"),
        ({"w": torch.ones(5, 40, 56).half()}, OperandError, "has 48 columns, but w of shape"),
        ({"w": torch.ones(5, 40, 48, device="meta").half()}, OperandError, "w is on meta but x is on cpu"),
        ({"w": torch.ones(5, 48, 40).half().mT}, OperandError, "make it contiguous once"),
        ({"w": torch.ones(5, 41, 48).half(), "activation": "silu_and_mul"}, OperandError, "n must be even, got 41"),
        ({"out": torch.ones(41, 39).half()}, OperandError, r"out must have shape \[41, 40\], got \[41, 39\]"),
        ({"out": torch.ones(41, 40)}, OperandError, "out is torch.float32 but x is torch.float16"),
        ({"top_k": -1}, OperandError, "top_k must not be negative"),
        ({"top_k": "two"}, OperandTypeError, "top_k must be an integer"),
    ],
)  # fmt: skip
def test_mistakes_are_named(change: dict[str, object], error: type[Exception], words: str) -> None:
    """Each says the argument, what it is, and what it must be."""
    x, w = tensors()
    arguments = {"x": x, "w": w, "group_sizes": SIZES, **change}
    with pytest.raises(error, match=words):
        grouped_matmul(**arguments)


def test_gradients_are_refused() -> None:
    """Nothing is silently left out of a backward pass."""
    x, w = tensors()
    with pytest.raises(OperandError, match="no backward pass"):
        grouped_matmul(x, w.requires_grad_(), SIZES)
    with torch.no_grad():
        assert_close(grouped_matmul(x, w, SIZES), expected(x, w.detach(), SIZES))


def test_the_operator_is_well_made() -> None:
    """Schema, fake kernel and dispatch agree, with and without sizes and activation."""
    x, w = tensors()
    groups = torch.tensor(SIZES, dtype=torch.int32)
    utilities = ("test_schema", "test_faketensor")
    for sizes, activation in ((None, "none"), (SIZES, "silu_and_mul")):
        torch.library.opcheck(
            torch.ops.wavetune.grouped_matmul, (x, w, groups, sizes, activation), test_utils=utilities
        )
        out = torch.empty(41, 40 if activation == "none" else 20, dtype=torch.float16)
        torch.library.opcheck(
            torch.ops.wavetune.grouped_matmul_out, (x, w, groups, sizes, activation), {"out": out}, test_utils=utilities
        )


def test_compiled_graphs_keep_the_operator() -> None:
    """A graph with sizes on the device is traced once for all token counts and chooses when it runs."""
    traces = []

    def backend(module: torch.fx.GraphModule, inputs: list[object]) -> object:
        traces.append(str(module.graph))
        return module.forward

    @torch.compile(backend=backend, fullgraph=True, dynamic=True)
    def layer(x: torch.Tensor, w: torch.Tensor, groups: torch.Tensor) -> torch.Tensor:
        return torch.ops.wavetune.grouped_matmul(x, w, groups) * 2

    for sizes in (SIZES, [3, 3, 0, 10, 4]):
        x, w = tensors(sizes)
        out = layer(x, w, torch.tensor(sizes, dtype=torch.int32))
        assert_close(out / 2, expected(x, w, sizes))
    assert len(traces) == 1
    assert "wavetune.grouped_matmul" in traces[0]
