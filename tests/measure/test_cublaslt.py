"""cuBLASLt's list, with a library of NumPy in place of NVIDIA's."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from fake_cublaslt import FakeLibrary, install  # noqa: E402

from wavetune.core.arch import find_arch  # noqa: E402
from wavetune.core.config import GEMM  # noqa: E402
from wavetune.core.problem import GemmProblem  # noqa: E402
from wavetune.errors import OperandError, ProblemError, RunnerError  # noqa: E402
from wavetune.kernels.windows import DataWindows  # noqa: E402
from wavetune.measure.contest import TORCH_MM  # noqa: E402
from wavetune.measure.cublaslt import POINTER_ALIGNMENT, CublasLt  # noqa: E402
from wavetune.measure.cublaslt_contest import VendorContest  # noqa: E402
from wavetune.measure.cuda_timing import Timing  # noqa: E402
from wavetune.store.record import Point  # noqa: E402

CONFIG = GEMM.config(
    {"block_m": 64, "block_n": 64, "block_k": 64, "group_m": 8, "num_warps": 4, "num_stages": 3, "load": "pointer"}
)


def aligned(rows: int, columns: int, offset: int = 0) -> Any:
    """Return a random matrix ``offset`` bytes past a multiple of 256, as a GPU's allocator would give it for 0."""
    pool = torch.randn(rows * columns + 256, generator=torch.Generator().manual_seed(rows)).half()
    start = (-pool.data_ptr() % POINTER_ALIGNMENT + offset) // 2
    return pool[start : start + rows * columns].view(rows, columns)


def make_operands(problem: GemmProblem) -> tuple[Any, Any, Any]:
    """Return a, b as the layout says, and an output of NaN."""
    m, n, k = problem.dims
    return aligned(m, k), aligned(n, k) if problem.layout == "nk" else aligned(k, n), aligned(m, n).fill_(math.nan)


@pytest.mark.parametrize("dims", [(5, 7, 3), (1, 64, 32), (16, 1, 9)])
@pytest.mark.parametrize("layout", ["nk", "kn"])
def test_row_major_products_come_out_of_a_column_major_library(
    monkeypatch: pytest.MonkeyPatch, layout: str, dims: tuple[int, int, int]
) -> None:
    """Both layouts of B, and sizes that all differ, so that a swapped one shows; every algorithm of the list."""
    install(monkeypatch, FakeLibrary([0, 0]))
    problem = GemmProblem(*dims, dtype="fp16", layout=layout)
    a, b, out = make_operands(problem)
    expected = a.float() @ (b.T if layout == "nk" else b).float()
    with CublasLt("cpu") as library, library.plan(problem, 8) as plan:
        assert len(plan.algorithms) == 2
        for algorithm in plan.algorithms:
            out.fill_(math.nan)
            plan.bind(algorithm, a, b, out, 0)()
            torch.testing.assert_close(out.float(), expected, rtol=2e-3, atol=2e-3)


def test_the_list_is_read_and_described(monkeypatch: pytest.MonkeyPatch) -> None:
    """Entries that failed are left out, ranks count what is left, and unknown tiles are numbers."""
    install(monkeypatch, FakeLibrary([0, 7, 0]))
    with CublasLt("cpu") as library, library.plan(GemmProblem(8, 8, 8, "fp16"), 8) as plan:
        assert [entry.describe() for entry in plan.algorithms] == [
            "#0 id60 128x128 64xAUTO 2x1x1",
            "#1 id62 22 64xAUTO 2x1x1 split3",
        ]
        assert [entry.workspace_bytes for entry in plan.algorithms] == [0, 2048]


def test_everything_is_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Descriptors, layouts, preferences and the handle, also where the heuristic finds nothing."""
    for states in ([0], []):
        fake = install(monkeypatch, FakeLibrary(states))
        with CublasLt("cpu") as library, library.plan(GemmProblem(8, 8, 8, "fp16"), 8) as plan:
            assert bool(plan.algorithms) == bool(states)
            assert plan.reason == ("" if states else "not supported")
        assert not fake.alive


def test_what_cannot_be_asked_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other dtypes, empty products, strided or misaligned tensors: a wrong address must never reach the library."""
    install(monkeypatch, FakeLibrary([0]))
    problem = GemmProblem(8, 8, 8, "fp16")
    a, b, out = make_operands(problem)
    with CublasLt("cpu") as library:
        for wrong in (GemmProblem(8, 8, 8, "fp32"), GemmProblem(0, 8, 8, "fp16")):
            with pytest.raises(ProblemError):
                library.plan(wrong, 8)
        with library.plan(problem, 8) as plan:
            entry = plan.algorithms[0]
            for operands in ((a.T, b, out), (a[:4], b, out), (a, b, aligned(8, 8, offset=64))):
                with pytest.raises(OperandError):
                    plan.bind(entry, *operands, 0)


def test_without_nvmath_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """The extra has a name."""
    monkeypatch.setitem(sys.modules, "nvmath", None)
    with pytest.raises(RunnerError, match=r"wavetune\[cublaslt\]"):
        CublasLt("cpu")


class FakeTimer:
    """Runs each candidate once, and answers what the table says of whatever ran; the list looks better at first."""

    def __init__(self, library: FakeLibrary, latency_us: dict[int | str, float], flattered: int) -> None:
        self.library, self.latency_us, self.flattered = library, latency_us, flattered
        self.contests: list[list[int | str]] = []

    def time(self, candidates: list[Any], rule: Any) -> list[Timing]:
        """Time them."""
        ran: list[int | str] = []
        for candidate in candidates:
            self.library.last = None
            candidate.launches[0]()
            assert self.library.last is not None
            ran.append(self.library.last)
        self.contests.append(ran)
        flattery = {self.flattered: 0.5} if len(self.contests) == 1 else {}
        return [Timing(self.latency_us[name] * flattery.get(name, 1.0), 0.1, 9) for name in ran]


@pytest.fixture
def make_contest(monkeypatch: pytest.MonkeyPatch) -> Callable[..., VendorContest]:
    """Return a function that makes a contest whose session is the CPU and a table of latencies."""
    # The host's allocator aligns to 64 bytes.
    monkeypatch.setattr("wavetune.measure.cublaslt.POINTER_ALIGNMENT", 2)
    return _contest


def _contest(library: FakeLibrary, latency_us: dict[int | str, float], flattered: int = -1) -> VendorContest:
    contest = VendorContest(find_arch("h200"), "fp16")

    def bind(point: Point, n_windows: int) -> list[Callable[[], None]]:
        name = "torch" if point.config == TORCH_MM else "own"
        return [lambda: setattr(library, "last", name)] * n_windows

    contest.library = CublasLt("cpu")
    contest.session = SimpleNamespace(
        windows=DataWindows("fp16", "cpu", 1 << 20), n_windows=lambda *_: 4,
        stream=SimpleNamespace(cuda_stream=0, synchronize=lambda: None),
        graph_timer=FakeTimer(library, latency_us, flattered), bind=bind,
    )  # fmt: skip
    return contest


def test_the_fastest_of_the_list_is_found_and_timed_again(
    monkeypatch: pytest.MonkeyPatch, make_contest: Callable[..., VendorContest]
) -> None:
    """The final has the default, ours, the winner and the heuristic's first; what it reads is what is reported."""
    fake = install(monkeypatch, FakeLibrary([0, 0, 0, 0]))
    latency = {"torch": 10.0, "own": 9.0, 0: 10.0, 1: 12.0, 2: 8.0, 3: 11.0}
    contest = make_contest(fake, latency)
    result = contest.run(GemmProblem(24, 32, 16, "fp16"), CONFIG, top=8)
    assert contest.session.graph_timer.contests == [[0, 1, 2, 3], ["torch", "own", 2, 0]]
    assert (result.default.latency_us, result.own.latency_us, result.best.latency_us) == (10.0, 9.0, 8.0)
    assert (result.algorithm.rank, result.first.latency_us) == (2, 10.0)
    assert result.qualifying_us == {0: 10.0, 1: 12.0, 2: 8.0, 3: 11.0}


def test_a_lucky_qualifier_is_reported_as_slow_as_it_is(
    monkeypatch: pytest.MonkeyPatch, make_contest: Callable[..., VendorContest]
) -> None:
    """Selection among noise flatters the winner; the final's reading counts."""
    fake = install(monkeypatch, FakeLibrary([0, 0, 0]))
    contest = make_contest(fake, {"torch": 10.0, 0: 10.0, 1: 14.0, 2: 9.0}, flattered=1)
    result = contest.run(GemmProblem(24, 32, 16, "fp16"), None, top=8)
    assert (result.algorithm.rank, result.qualifying_us[1], result.best.latency_us) == (1, 7.0, 14.0)
    assert result.own is None


def test_wrong_and_broken_algorithms_are_not_timed(
    monkeypatch: pytest.MonkeyPatch, make_contest: Callable[..., VendorContest]
) -> None:
    """One that computes something else never wins, however fast."""
    fake = install(monkeypatch, FakeLibrary([0, 0, 0], wrong={0}, broken={2}))
    contest = make_contest(fake, {"torch": 10.0, 0: 1.0, 1: 9.0, 2: 1.0})
    result = contest.run(GemmProblem(24, 32, 16, "fp16", "kn"), None, top=8)
    assert (result.algorithm.rank, result.first) == (1, None)
    assert "relative error" in result.failures[0]
    assert "execution failed" in result.failures[2]


def test_without_a_list_the_default_is_timed_all_the_same(
    monkeypatch: pytest.MonkeyPatch, make_contest: Callable[..., VendorContest]
) -> None:
    """And the row says why there is no list."""
    fake = install(monkeypatch, FakeLibrary([]))
    result = make_contest(fake, {"torch": 10.0, "own": 9.0}).run(GemmProblem(24, 32, 16, "fp16"), CONFIG, top=8)
    assert (result.default.latency_us, result.own.latency_us, result.best) == (10.0, 9.0, None)
    assert "not supported" in result.reason
