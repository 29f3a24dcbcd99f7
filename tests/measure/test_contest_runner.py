"""What a contest adds to a GPU session, tested on the CPU: torch.mm as a candidate, and turns before the readings."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from wavetune.core.problem import GemmProblem  # noqa: E402
from wavetune.errors import RunnerError  # noqa: E402
from wavetune.measure.contest import TORCH_MM, ContestRule  # noqa: E402
from wavetune.measure.contest_runner import ContestSession  # noqa: E402
from wavetune.measure.cuda_timing import Candidate  # noqa: E402
from wavetune.measure.timing import CALIBRATION_RULE, STREAM_METHOD  # noqa: E402
from wavetune.store.record import Point  # noqa: E402


class Windows:
    """Hands out tensors, and keeps them."""

    def __init__(self) -> None:
        self.taken: list[Any] = []

    def take(self, dtype: str, rows: int, columns: int, *, is_output: bool = False) -> Any:
        """Return a matrix on the CPU."""
        self.taken.append(torch.zeros(rows, columns) if is_output else torch.randn(rows, columns))
        return self.taken[-1]


class Stream:
    """Counts how often it is waited for."""

    waits = 0

    def synchronize(self) -> None:
        """Count."""
        self.waits += 1


class Timer:
    """Times nothing."""

    def time(self, candidates: Any, rule: Any) -> list[None]:
        """Return no reading."""
        return [None] * len(candidates)


@pytest.fixture
def session() -> Any:
    """Return a session without a GPU."""
    made: Any = ContestSession.__new__(ContestSession)
    made.windows, made.stream, made.timer = Windows(), Stream(), Timer()
    return made


@pytest.mark.parametrize("layout", ["nk", "kn"])
def test_the_library_computes_the_product(session: Any, layout: str):
    """Each launch of torch.mm multiplies its own operands, stored as the layout says."""
    problem = GemmProblem(5, 24, 16, "fp32", layout)
    launches = session.bind(Point(problem, TORCH_MM, ""), 3)
    for launch in launches:
        launch()
    assert len(launches) == 3
    for a, b, out in zip(*[iter(session.windows.taken)] * 3, strict=True):
        assert b.shape == ((24, 16) if layout == "nk" else (16, 24))
        torch.testing.assert_close(out, a @ (b.T if layout == "nk" else b))


def test_scales_are_not_for_torch_mm(session: Any):
    """A product with scales is refused, so that nobody compares with something else."""
    with pytest.raises(RunnerError, match="takes no scales"):
        session.bind(Point(GemmProblem(16, 32, 32, "fp8"), TORCH_MM, ""), 1)


def test_untimed_launches_are_shared(session: Any):
    """Candidates of a problem take turns until the rule's number is reached; each gets one at least."""
    calls: list[tuple[str, int]] = []

    def candidate(name: str, group: int) -> Candidate:
        return Candidate([lambda i=i: calls.append((name, i)) for i in range(2)], group)

    candidates = [candidate("a", 0), candidate("b", 0), candidate("c", 1)]
    session._time(candidates, STREAM_METHOD, ContestRule(cold_launches=5))
    assert calls == [
        *[("a", 0), ("b", 0), ("a", 1), ("b", 1), ("a", 0)],
        *[("c", i % 2) for i in range(5)],
    ]
    assert session.stream.waits == 2
    calls.clear()
    session._time(candidates, STREAM_METHOD, ContestRule(cold_launches=1))
    assert sorted({name for name, _ in calls}) == ["a", "b", "c"]
    calls.clear()
    session._time(candidates, STREAM_METHOD, CALIBRATION_RULE)
    assert calls == []
