"""The dispatch mode counts what torch runs, once, whatever is composed of what."""

from __future__ import annotations

import json
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from wavetune.core.workload_entry import WorkloadEntry
from wavetune.recording import products
from wavetune.recording.recorder import Counts, recording_mode

torch = pytest.importorskip("torch")
F = torch.nn.functional


class Seen(list):
    """Problems that were counted."""

    def counts(self) -> Counter[str]:
        """Return how often each was."""
        return Counter(json.dumps(problem, sort_keys=True) for problem in self)

    def one(self) -> WorkloadEntry:
        """Return the only one, as an entry of a workload."""
        assert len(self) == 1, self
        return WorkloadEntry.from_document(self[0])


@pytest.fixture
def seen() -> Any:
    """Record the operations of a test."""
    found = Seen()
    with recording_mode(products, found.append):
        yield found


def test_a_linear_layer_is_one_product(seen: Seen):
    """A linear layer is tokens x out x in with the weight's layout; its bias is known."""
    F.linear(torch.zeros(2, 7, 64), torch.zeros(32, 64), torch.zeros(32))
    key = seen.one().key
    assert (key.m, key.n, key.k, key.layout, key.layout_a, key.dtype, key.bias) == (
        14,
        32,
        64,
        "nk",
        "mk",
        "fp32",
        True,
    )


def test_inference_mode_counts_the_same():
    """What autograd takes apart and what inference mode does not are the same products."""

    def run() -> None:
        x = torch.zeros(2, 7, 64)
        F.linear(x, torch.zeros(32, 64), torch.zeros(32))
        F.linear(x, torch.zeros(32, 64))
        torch.einsum("bij,bjk->bik", torch.zeros(3, 4, 5), torch.zeros(3, 5, 6))
        x @ torch.zeros(64, 8)
        F.scaled_dot_product_attention(*(torch.zeros(2, 4, 16, 64) for _ in range(3)))
        F.dropout(F.gelu(x))

    totals = []
    for context in (torch.enable_grad, torch.no_grad, torch.inference_mode):
        found = Seen()
        with recording_mode(products, found.append), context():
            run()
        totals.append(found.counts())
    assert totals[0] == totals[1] == totals[2]
    assert totals[0].total() == 5


def test_products_keep_their_storage(seen: Seen):
    """Transposed operands, batches, batches of one, added matrices and padded rows are told apart."""
    torch.mm(torch.zeros(48, 16).t(), torch.zeros(48, 40))
    torch.bmm(torch.zeros(3, 4, 6), torch.zeros(3, 6, 8))
    torch.bmm(torch.zeros(1, 4, 6), torch.zeros(1, 6, 8))
    torch.baddbmm(torch.zeros(3, 4, 8), torch.zeros(3, 4, 6), torch.zeros(3, 8, 6).transpose(1, 2))
    torch.addmm(torch.zeros(4, 8), torch.zeros(4, 16), torch.zeros(16, 8))
    torch.mm(torch.zeros(4, 33)[:, :32], torch.zeros(32, 8))
    keys = [WorkloadEntry.from_document(problem).key for problem in seen]
    assert [(k.operation, k.layout_a, k.layout, k.batch, k.bias, k.alignment) for k in keys] == [
        ("gemm", "km", "kn", 1, False, 0),
        ("batched_gemm", "mk", "kn", 3, False, 0),
        ("gemm", "mk", "kn", 1, False, 0),
        ("batched_gemm", "mk", "nk", 3, False, 0),
        ("gemm", "mk", "kn", 1, False, 0),
        ("gemm", "mk", "kn", 1, False, 4),
    ]


@pytest.mark.parametrize(("scale_shape_a", "scale_shape_b", "mode"), [((), (), "tensor"), ((16, 1), (1, 48), "row")])
def test_scaled_products(seen: Seen, scale_shape_a: Any, scale_shape_b: Any, mode: str):
    """fp8 products say how they are scaled, what they give, and how they are summed."""
    a, b = torch.zeros(16, 32).to(torch.float8_e4m3fn), torch.zeros(48, 32).to(torch.float8_e4m3fn).t()
    scales = torch.ones(scale_shape_a), torch.ones(scale_shape_b)
    torch._scaled_mm(a, b, *scales, out_dtype=torch.bfloat16, use_fast_accum=True)
    key = seen.one().key
    assert (key.m, key.n, key.k, key.dtype, key.dtype_d, key.scale) == (16, 48, 32, "fp8", "bf16", mode)
    assert key.compute == "fp32_fast_fp8"


def test_grouped_products(seen: Seen):
    """The rows of every expert are counted, empty ones and padding too."""
    offsets = torch.tensor([3, 3, 10], dtype=torch.int32)
    x, w = torch.zeros(12, 64, dtype=torch.bfloat16), torch.zeros(3, 32, 64, dtype=torch.bfloat16)
    torch._grouped_mm(x, w.transpose(1, 2), offs=offsets)
    key = seen.one().key
    assert (key.operation, key.m, key.n, key.k, key.layout) == ("grouped_gemm", 10, 32, 64, "nk")
    assert [rows for rows, _, _ in key.groups] == [3, 0, 7]


def test_attention(seen: Seen):
    """Attention is queries x keys x head dimension, with its heads."""
    q, kv = torch.zeros(2, 8, 16, 64), torch.zeros(2, 8, 20, 64)
    F.scaled_dot_product_attention(q, kv, kv)
    F.scaled_dot_product_attention(q, q, q, is_causal=True)
    first, second = (WorkloadEntry.from_document(problem).key for problem in seen)
    assert (first.operation, first.m, first.n, first.k, first.batch) == ("attention", 16, 20, 64, 2)
    assert (first.heads, first.kv_heads, first.is_causal, second.is_causal) == (8, 8, False, True)


def test_what_is_not_computed_is_not_counted(seen: Seen):
    """Meta tensors, fake tensors and empty products are no work."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    torch.zeros(4, 8, device="meta") @ torch.zeros(8, 4, device="meta")
    torch.zeros(0, 8) @ torch.zeros(8, 4)
    with FakeTensorMode():
        torch.zeros(4, 8) @ torch.zeros(8, 4)
    assert seen == []


def test_wrapped_weights_are_counted_inside(seen: Seen):
    """A subclass that wraps other tensors is counted by the products that it becomes."""
    from torch.testing._internal.two_tensor import TwoTensor

    x, w = torch.zeros(4, 8), torch.zeros(8, 4)
    TwoTensor(x, x.clone()) @ TwoTensor(w, w.clone())
    assert [problem["m"] for problem in seen] == [4, 4]


@pytest.mark.filterwarnings("ignore:flex_attention called without")
def test_higher_order_operators_still_run(seen: Seen):
    """Flex attention and conditions run as without a recorder."""
    from torch.nn.attention.flex_attention import flex_attention

    q = torch.randn(1, 2, 16, 64)
    assert flex_attention(q, q, q).shape == q.shape
    x = torch.randn(4, 4)
    assert torch.equal(torch.cond(torch.tensor(True), torch.sin, torch.cos, (x,)), torch.sin(x))


def test_compiled_functions_are_counted(seen: Seen):
    """A function that must compile as a whole does, and its products are counted at every call."""
    compiled = torch.compile(torch.nn.Linear(8, 4), backend="aot_eager", fullgraph=True)
    for _ in range(3):
        compiled(torch.zeros(3, 8))
    assert [(p["m"], p["n"], p["k"]) for p in seen] == [(3, 4, 8)] * 3


def test_a_program_survives_what_cannot_be_described(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """An operation that is not understood runs, uncounted, and leaves a note; without a place for it, it raises."""

    def broken(*arguments: Any) -> Any:
        raise KeyError("mat3")

    monkeypatch.setattr(products, "describe", broken)
    monkeypatch.setattr("os._exit", lambda status: None)
    counts = Counts(str(tmp_path))
    x = torch.ones(2, 2)
    with recording_mode(products, counts.add, counts.fail):
        assert torch.equal(x @ x, 2 * x)
    (note,) = tmp_path.iterdir()
    assert "aten.mm.default: KeyError: 'mat3'" in note.read_text()
    with recording_mode(products, counts.add), pytest.raises(KeyError):
        x @ x


def test_results_are_untouched(seen: Seen):
    """Values and gradients are those of an unrecorded run; both products of the backward pass are counted."""
    layer = torch.nn.Linear(8, 4)
    x = torch.randn(3, 8, requires_grad=True)
    layer(x).sum().backward()
    assert torch.equal(x.grad, layer.weight.sum(0).expand(3, 8))
    assert len(seen) == 3


def test_counts_are_written_again_and_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """What several threads count adds up in the files, also beyond the keys that are held."""
    monkeypatch.setattr("wavetune.recording.recorder.MAX_KEYS", 5)
    monkeypatch.setattr("os._exit", lambda status: None)
    counts = Counts(str(tmp_path))

    def count() -> None:
        for m in range(300):
            counts.add({"m": 1 + m % 17, "n": 8, "k": 8})

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    counts.flush()
    lines = [json.loads(line) for path in tmp_path.glob("*.jsonl") for line in path.read_text().splitlines()]
    totals: Counter[int] = Counter()
    for line in lines:
        totals[line["m"]] += line["count"]
    assert totals == Counter(1 + m % 17 for m in range(300) for _ in range(4))
    assert not list(tmp_path.glob("*.part"))
