"""The first launch, without a GPU: what stands in during a capture, and for what cannot be compiled or loaded."""

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

from idle_gpu import FakeGpu
from triton.runtime.errors import OutOfResources

from wavetune.core.arch import find_arch
from wavetune.core.config import GEMM, KernelConfig
from wavetune.core.problem import GemmProblem
from wavetune.errors import CaptureError, InfeasibleConfigError
from wavetune.kernels.placeholder import placeholder_operands
from wavetune.launch import first_launch, next_best

H200 = find_arch("h200")
PROBLEM = GemmProblem(16, 256, 512)
BEST, SECOND, SPLIT, LAST = (
    GEMM.config({"block_m": 64, "block_n": 64, "block_k": 64, "group_m": 8, "num_warps": 4, "num_stages": 2, **fields})
    for fields in ({}, {"block_n": 128}, {"schedule": "split_k", "split_k": 2}, {"block_m": 16})
)


class FakeSource:
    """Ranks four configurations."""

    def rank(self, problem: GemmProblem) -> Iterator[KernelConfig]:
        """Yield them, best first."""
        yield from (BEST, SPLIT, SECOND, LAST)


@dataclass
class FakeDriver:
    """Which kernels are loaded, which cannot be, and what was launched."""

    loaded: set[KernelConfig] = field(default_factory=set)
    broken: dict[KernelConfig, Exception] = field(default_factory=dict)
    bound: list[KernelConfig] = field(default_factory=list)
    launched: list[KernelConfig] = field(default_factory=list)

    def bind(self, operands: object, config: KernelConfig, arch: object, stream: int) -> object:
        """Load a kernel, or fail as it does."""
        self.bound.append(config)
        if config in self.broken:
            raise self.broken[config]
        self.loaded.add(config)
        return lambda: self.launched.append(config)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    """Replace what compiles and loads."""
    fake = FakeDriver()
    monkeypatch.setattr(first_launch, "bind_gemm", fake.bind)
    monkeypatch.setattr(first_launch, "is_loaded", lambda operands, config, arch: config in fake.loaded)
    monkeypatch.setattr(next_best, "_unusable", set())
    monkeypatch.setattr(first_launch, "_logged", set())
    return fake


def launch(config: KernelConfig, *, capturing: bool = False) -> object:
    """Launch a choice for the first time; return what may be kept."""
    return first_launch.launch_first(
        FakeGpu(0, H200, None, capturing), FakeSource(), placeholder_operands(PROBLEM), config, 0
    )


def test_outside_of_a_capture_the_choice_is_compiled(driver: FakeDriver) -> None:
    """It is launched once, and may be kept."""
    kept = launch(SECOND)
    assert driver.launched == [SECOND]
    kept()
    assert driver.launched == [SECOND, SECOND]


def test_in_a_capture_the_best_loaded_one_stands_in(driver: FakeDriver, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing else is bound, nothing is kept for later, one line says what to do."""
    driver.loaded = {SECOND, LAST}
    with caplog.at_level(logging.WARNING, logger="wavetune"):
        assert launch(BEST, capturing=True) is None
        assert launch(BEST, capturing=True) is None
    assert driver.bound == driver.launched == [SECOND, SECOND]
    (record,) = caplog.records
    assert "wavetune.warmup(256, 512, dtype='bf16', layout='nk')" in record.getMessage()
    assert launch(LAST, capturing=True) is not None


def test_in_a_capture_with_nothing_loaded(driver: FakeDriver) -> None:
    """An error that names the call to make before, and nothing is compiled."""
    with pytest.raises(CaptureError, match=r"wavetune\.warmup\(256, 512"):
        launch(BEST, capturing=True)
    assert not driver.bound


@pytest.mark.parametrize("failure", [OutOfResources(300_000, 232_448, "shared memory"), InfeasibleConfigError("none")])
def test_what_cannot_be_loaded_gives_way(
    failure: Exception, driver: FakeDriver, caplog: pytest.LogCaptureFixture
) -> None:
    """The next best runs; the broken one is tried once in the life of the process, and said once."""
    driver.broken = {BEST: failure}
    with caplog.at_level(logging.WARNING, logger="wavetune"):
        assert launch(BEST) is None, "a launch with a workspace of its own is not kept for another configuration"
        launch(BEST)
    assert driver.bound == [BEST, SPLIT, SPLIT]
    assert driver.launched == [SPLIT, SPLIT]
    assert len(caplog.records) == 1
    driver.loaded.remove(SPLIT)
    driver.loaded.add(LAST)
    kept = launch(BEST)
    assert driver.launched[-1] == LAST, "what is loaded comes before what is predicted to be faster"
    assert kept is not None


def test_when_nothing_can_be_loaded_the_first_failure_is_raised(driver: FakeDriver) -> None:
    """The error of the choice itself; other errors are not swallowed at all."""
    driver.broken = {
        config: InfeasibleConfigError(f"failure {i}") for i, config in enumerate((BEST, SPLIT, SECOND, LAST))
    }
    with pytest.raises(InfeasibleConfigError, match="failure 2"):
        launch(SECOND)
    driver.broken = {BEST: ZeroDivisionError("a bug")}
    next_best._unusable.clear()
    with pytest.raises(ZeroDivisionError):
        launch(BEST)
