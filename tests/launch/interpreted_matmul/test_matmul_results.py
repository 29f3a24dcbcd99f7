"""`matmul` against torch, in fp16 on the CPU: shapes, strides, vectors, empty sizes, out, wrong arguments."""

import logging
import math

import pytest
import torch

import wavetune
from wavetune.core.config import KernelConfig
from wavetune.core.problem import GemmProblem
from wavetune.errors import NoModelError, OperandError, OperandTypeError
from wavetune.kernels.reference import MAX_RELATIVE_ERROR, relative_error
from wavetune.launch import product_launchers, source
from wavetune.launch.matmul import matmul

ACTIVATIONS = {
    None: lambda x: x,
    "relu": torch.relu,
    "gelu": torch.nn.functional.gelu,
    "silu": torch.nn.functional.silu,
}


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    """Return normal fp16 data."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + math.prod(shape))).half()


def check(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None = None, activation: str | None = None) -> None:
    """Compare with float64, and the shape and strides of the result with torch.matmul."""
    result = matmul(a, b, bias, activation)
    product = a.double() @ b.double()
    reference = ACTIVATIONS[activation](product if bias is None else product + bias.double())
    assert result.shape == reference.shape
    assert result.dtype == a.dtype
    assert result.is_contiguous()
    assert relative_error(result, reference) < MAX_RELATIVE_ERROR["fp16"]


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("layout", ["nk", "kn"])
def test_epilogues(layout: str, has_bias: bool, activation: str | None) -> None:
    """Bias and activation, for both ways of storing b."""
    b = random(24, 40).t() if layout == "nk" else random(40, 24)
    check(random(5, 40), b, random(24) if has_bias else None, activation)


def test_what_the_interpreter_cannot_run_gives_way(caplog: pytest.LogCaptureFixture) -> None:
    """Models and users name warp-specialised kernels, which are written for a compiler."""
    specialised = {
        "block_m": 128, "block_n": 128, "block_k": 64, "schedule": "warp_specialized", "group_m": 8, "num_warps": 8,
        "num_stages": 5, "load": "tma",
    }  # fmt: skip
    wavetune.configure(force_config=specialised)
    try:
        for b in (random(24, 40).t(), random(40, 24)):
            check(random(5, 40), b)
    finally:
        wavetune.configure(force_config=None)
    assert "interpreter does not run warp_specialized kernels" in caplog.text


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (random(40), random(40, 24)),
        (random(40), random(40)),
        (random(3, 40), random(40)),
        (random(2, 3, 40), random(40)),
        (random(2, 3, 40), random(40, 24)),
        (random(2, 1, 3, 40), random(24, 40).t()),
        (random(7, 1), random(1, 24)),
        (random(1, 40), random(40, 1)),
        (random(1, 1), random(1, 1)),
        (random(33, 35), random(29, 35).t()),
        (random(33, 35), random(35, 29)),
    ],
)
def test_ranks_and_ragged_sizes(a: torch.Tensor, b: torch.Tensor) -> None:
    """Vectors, leading axes, single rows and columns, odd sizes."""
    check(a, b)


@pytest.mark.parametrize(
    ("a", "layout", "alignment"),
    [
        (random(5, 80)[:, 8:48], "nk", 16),
        (random(5, 80)[:, 4:44], "nk", 8),
        (random(5, 80)[:, 1:41], "nk", 2),
        (random(6, 41)[:, :40], "nk", 2),
        (random(2, 3, 80)[..., :40], "nk", 16),
        (random(3, 6, 40)[:, ::2], "nk", 16),
        (random(1, 41)[:, :40], "nk", 16),
    ],
)
def test_views_are_read_where_they_are(
    a: torch.Tensor, layout: str, alignment: int, launched: list[tuple[GemmProblem, object]]
) -> None:
    """Padded rows and shifted bases need no copy; the alignment class follows them, and TMA is not used below 16."""
    check(a, random(24, 40).t())
    ((problem, config),) = launched
    assert (problem.layout, problem.alignment) == (layout, alignment)
    assert alignment == 16 or config["load"] == "pointer"


@pytest.mark.parametrize(
    "a",
    [
        random(40, 5).t(),
        random(5, 80)[:, ::2],
        random(3, 2, 40).transpose(0, 1),
        random(1, 40).expand(5, 40),
        random(5, 1).expand(5, 40),
    ],
)
def test_other_strides_are_copied(a: torch.Tensor) -> None:
    """Transposed, strided, interleaved and expanded operands."""
    check(a, random(24, a.shape[-1]).t())


@pytest.mark.parametrize(
    "b", [random(40, 48)[:, ::2], random(80, 24)[::2], random(1, 24).expand(40, 24), random(40, 1).expand(40, 24)]
)
def test_other_strides_of_b(b: torch.Tensor) -> None:
    """Gaps between columns are copied, gaps between rows are not."""
    check(random(5, 40), b)


def test_strided_bias(launched: list[object]) -> None:
    """A bias with gaps, and one that does not begin at 16 bytes."""
    check(random(5, 40), random(24, 40).t(), random(48)[::2])
    check(random(5, 40), random(24, 40).t(), random(25)[1:])
    check(random(5, 40), random(24, 40).t(), random(1).expand(24))


@pytest.mark.parametrize(("m", "n", "k"), [(0, 24, 40), (5, 0, 40), (5, 24, 0), (0, 0, 0)])
@pytest.mark.parametrize("activation", [None, "gelu"])
def test_empty_sizes(m: int, n: int, k: int, activation: str | None) -> None:
    """With k = 0 the bias remains; without rows or columns the result has the right shape."""
    a, b, bias = random(m, k), random(k, n), random(n)
    expected = ACTIVATIONS[activation](torch.matmul(a, b) + bias)
    torch.testing.assert_close(matmul(a, b, bias, activation), expected)
    torch.testing.assert_close(matmul(a, b, activation=activation), ACTIVATIONS[activation](torch.matmul(a, b)))
    out = torch.full((m, n), torch.nan).half()
    assert matmul(a, b, bias, activation, out) is out
    torch.testing.assert_close(out, expected)


def test_out_is_written_where_it_is() -> None:
    """Contiguous, a view of rows with gaps, one whose columns are not adjacent; twice, through the kept launch."""
    a, b = random(5, 40), random(24, 40).t()
    expected = matmul(a, b)
    store = torch.full((5, 48), torch.nan).half()
    for out in (torch.empty_like(expected), store[:, :24], torch.empty(24, 5).half().t(), store[:, ::2]):
        for _ in range(2):
            out.fill_(torch.nan)
            assert matmul(a, b, out=out) is out
            assert torch.equal(out, expected)
    store.fill_(torch.nan)
    matmul(a, b, out=store[:, :24])
    assert store[:, 24:].isnan().all()
    vector = torch.empty(5).half()
    assert matmul(a, b[:, 0], out=vector) is vector
    assert torch.equal(vector, matmul(a, b[:, 0]))


def test_out_beside_an_input_in_one_buffer() -> None:
    """Columns of one buffer interleave without sharing an element: the result is right, the input untouched."""
    store = random(24, 64)
    a, out = store[:, :40], store[:, 40:]
    before, expected = a.clone(), matmul(a.clone(), random(24, 40).t())
    for _ in range(2):
        matmul(a, random(24, 40).t(), out=out)
        assert torch.equal(out, expected)
        assert torch.equal(a, before)


def test_launches_are_kept_and_dropped() -> None:
    """The same addresses bind once; new data at old addresses is seen; a batch of new sizes does not disturb it."""
    product_launchers.clear_launchers()
    a, b, out = random(5, 40), random(24, 40).t(), torch.empty(5, 24).half()
    matmul(a, b, out=out)
    a.copy_(random(5, 40, seed=1))
    matmul(a, b, out=out)
    assert relative_error(out, a.double() @ b.double()) < MAX_RELATIVE_ERROR["fp16"]


WRONG = {
    "a is a list": (lambda: matmul([1.0], random(1, 2)), OperandTypeError, "a must be a torch.Tensor, got list"),
    "b is None": (lambda: matmul(random(2, 2), None), OperandTypeError, "b must be a torch.Tensor, got NoneType"),
    "a is sparse": (lambda: matmul(random(2, 2).to_sparse(), random(2, 2)), OperandError, r"give a dense one: a\."),
    "b is sparse": (lambda: matmul(random(2, 2), random(2, 2).to_sparse_csr()), OperandError, "b is stored as torch"),
    "bias is a float": (lambda: matmul(random(2, 2), random(2, 2), 1.0), OperandTypeError, "bias must be"),
    "a is a scalar": (lambda: matmul(random(1)[0], random(1, 2)), OperandError, "a has no axis"),
    "b is a batch": (lambda: matmul(random(2, 3), random(2, 3, 4)), OperandError, "torch.bmm"),
    "inner sizes": (lambda: matmul(random(2, 40), random(24, 40)), OperandError, r"pass weight.t\(\)"),
    "fp32": (lambda: matmul(random(2, 3).float(), random(3, 4).float()), OperandError, "a is torch.float32; cast it"),
    "integers": (lambda: matmul(random(2, 3).int(), random(3, 4).int()), OperandError, "torch.int32"),
    "mixed": (lambda: matmul(random(2, 3), random(3, 4).bfloat16()), OperandError, "b is torch.bfloat16 but a is"),
    "meta": (lambda: matmul(random(2, 3), random(3, 4).to("meta")), OperandError, "b is on meta but a is on cpu"),
    "bias dtype": (lambda: matmul(random(2, 3), random(3, 4), random(4).float()), OperandError, "bias is torch.f"),
    "bias length": (lambda: matmul(random(2, 3), random(3, 4), random(3)), OperandError, r"bias must have shape \[4\]"),
    "bias rank": (lambda: matmul(random(2, 3), random(3, 4), random(1, 4)), OperandError, "bias must have shape"),
    "activation": (lambda: matmul(random(2, 3), random(3, 4), activation="tanh"), OperandTypeError, "got 'tanh'"),
    "unhashable": (lambda: matmul(random(2, 3), random(3, 4), activation=["relu"]), OperandTypeError, "activation"),
    "numerics": (lambda: matmul(random(2, 3), random(3, 4), numerics="exact"), OperandTypeError, "'batch_invariant'"),
    "out shape": (lambda: matmul(random(2, 3), random(3, 4), out=random(2, 5)), OperandError, r"shape \[2, 4\]"),
    "out dtype": (lambda: matmul(random(2, 3), random(3, 4), out=random(2, 4).float()), OperandError, "out is torch"),
    "out expanded": (
        lambda: matmul(random(2, 3), random(3, 4), out=random(1, 4).expand(2, 4)), OperandError, "share memory",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_wrong_arguments_are_named(case: str) -> None:
    """The error says which argument is wrong and what to do."""
    call, error, words = WRONG[case]
    with pytest.raises(error, match=words):
        call()


def test_out_must_not_overlap_an_input() -> None:
    """Neither equal nor shifted by a few elements."""
    store = random(200)
    a = store[:80].view(2, 40)
    for out in (store[:80].view(2, 40), store[40:120].view(2, 40)):
        with pytest.raises(OperandError, match="out shares memory with a"):
            matmul(a, random(40, 40), out=out)


@pytest.mark.parametrize(
    ("covered", "level", "words"),
    [({"nk"}, logging.INFO, "answered by the model for B as [n, k]"), (set(), logging.WARNING, "nobody tuned")],
)
def test_without_a_model(
    covered: set[str], level: int, words: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
    launched: list[tuple[GemmProblem, KernelConfig]],
) -> None:  # fmt: skip
    """The other layout's model answers, else a fixed rule; one line says so, and results are right."""
    choose = source.choose_config

    def choose_if_covered(*dims: int, layout: str, **options: object) -> KernelConfig:
        if layout not in covered:
            raise NoModelError(f"no model of layout {layout}")
        return choose(*dims, layout=layout, **options)

    monkeypatch.setattr(source, "choose_config", choose_if_covered)
    monkeypatch.setattr(source, "_logged", set())
    with caplog.at_level(logging.INFO, logger="wavetune"):
        for m in (3, 4, 3):
            check(random(m, 40), random(40, 24))
    (record,) = (record for record in caplog.records if "layout kn" in record.getMessage())
    assert record.levelno == level
    assert words in record.getMessage()
    assert {problem.layout for problem, _ in launched} == {"kn"}
    if not covered:
        assert {config["load"] for _, config in launched} == {"pointer"}
