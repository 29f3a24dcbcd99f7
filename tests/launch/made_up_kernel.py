"""A kernel and a device that exist in memory only: launches are noted, latencies are made up."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from wavetune.launch.autotune.stopwatch import Lap
from wavetune.launch.autotune.tables import Place
from wavetune.launch.live import NotMeasuredError

OPTIONS = ("num_warps", "num_stages", "num_ctas", "maxnreg", "ir_override")


def scale_rows(x, y, M, N, BLOCK):  # type: ignore[no-untyped-def]
    """Stand for the source of a kernel."""
    return x, y, M, N, BLOCK


@dataclass
class Tensor:
    """Enough of a tensor: an element type, and a value that can be copied."""

    value: float = 0.0
    dtype: str = "torch.float16"

    def clone(self) -> Tensor:
        """Return a copy."""
        return Tensor(self.value, self.dtype)

    def copy_(self, other: Tensor) -> None:
        """Take the value of another."""
        self.value = other.value

    def zero_(self) -> None:
        """Become zero."""
        self.value = 0.0


@dataclass(frozen=True)
class Metadata:
    """Enough of a compiled kernel's metadata."""

    shared: int = 1024


@dataclass(frozen=True)
class Compiled:
    """Enough of a compiled kernel."""

    n_regs: int = 32
    n_spills: int = 0
    metadata: Metadata = Metadata()


class MadeUpKernel:
    """Acts like a ``triton.JITFunction``.

    Parameters
    ----------
    effect : callable, optional
        Called with all arguments by name at every launch.
    refuse : callable, optional
        Given the options of a launch, returns the error it raises, or None.
    """

    def __init__(
        self,
        effect: Callable[[Mapping[str, Any]], None] | None = None,
        refuse: Callable[[Mapping[str, Any]], Exception | None] | None = None,
    ) -> None:
        self.fn = scale_rows
        self.arg_names = ["x", "y", "M", "N", "BLOCK"]
        self.effect, self.refuse = effect, refuse
        self.launched: list[dict[str, Any]] = []
        self.compiled: list[dict[str, Any]] = []
        self.grids: list[Any] = []

    def run(self, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        """Note a launch, or a compilation."""
        everything = {**dict(zip(self.arg_names, args, strict=False)), **kwargs}
        if self.refuse is not None and (error := self.refuse(everything)) is not None:
            raise error
        if warmup:
            self.compiled.append(everything)
            return Compiled()
        if self.effect is not None:
            self.effect(everything)
        self.grids.append(grid)
        self.launched.append(everything)
        return "launched"

    def warmup(self, *args: Any, grid: Any, **kwargs: Any) -> Any:
        """Compile."""
        return self.run(*args, grid=grid, warmup=True, **kwargs)

    def blocks(self) -> list[int]:
        """Return the block of every launch so far."""
        return [launch["BLOCK"] for launch in self.launched]


@dataclass
class MadeUpBench:
    """Acts like `wavetune.launch.autotune.bench.CudaBench`, with a clock that only its launches move.

    Parameters
    ----------
    kernel : MadeUpKernel
        The kernel whose launches are timed.
    latency_us : callable
        Given the arguments and options of a launch, its latency.
    """

    kernel: MadeUpKernel
    latency_us: Callable[[Mapping[str, Any]], float]
    where: Place | None = field(default_factory=lambda: Place("nvidia-h200", 132))
    index: int = 0
    capturing: bool = False
    busy: str = ""
    opened: int = 0
    lock: Any = field(default_factory=threading.Lock)

    def device_index(self) -> int:
        """Return the device."""
        return self.index

    def place(self) -> Place | None:
        """Return where the device is."""
        return self.where

    def is_capturing(self) -> bool:
        """Whether a graph is being captured."""
        return self.capturing

    @contextlib.contextmanager
    def open(self, budget_ms: float) -> Iterator[MadeUpBench]:
        """Give the stopwatch, unless somebody else is said to be timing."""
        if self.busy:
            raise NotMeasuredError(self.busy)
        assert not self.capturing, "something is timed while a graph is being captured"
        with self.lock:
            self.opened += 1
            yield self

    def read(self, laps: Sequence[Lap]) -> list[float | None]:
        """Launch every lap and make its latency up."""
        readings: list[float | None] = []
        for lap in laps:
            lap.prepare()
            lap.launch()
            readings.append(self.latency_us(self.kernel.launched[-1]))
            lap.finish()
        return readings
