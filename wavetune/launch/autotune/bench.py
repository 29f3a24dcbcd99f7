"""Where kernels of the user's are launched and timed: a CUDA device, or Triton's interpreter, which times nothing."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Protocol

from triton import knobs

from wavetune.errors import ArchError, RunnerError
from wavetune.launch import capture
from wavetune.launch.autotune.stopwatch import CudaStopwatch, Stopwatch
from wavetune.launch.autotune.tables import Place
from wavetune.launch.live import NotMeasuredError
from wavetune.measure.cuda_timing import lock_identity
from wavetune.measure.environment import collector_paused, timing_lock
from wavetune.runtime.device import cuda_device, resolve_device

LOCK_POLL_S = 0.005
"""Pause before the timing lock of a GPU is tried again."""


class Bench(Protocol):
    """What a kernel needs to know of the place where it is launched."""

    def device_index(self) -> int | None:
        """Return the current device of this thread; None if there is only one place."""
        ...

    def place(self) -> Place | None:
        """Describe the current device; None if nothing is known about it."""
        ...

    def is_capturing(self) -> bool:
        """Whether a CUDA graph is being captured."""
        ...

    def open(self, budget_ms: float) -> AbstractContextManager[Stopwatch]:
        """Get the right and the means to time launches; waits for others up to the budget.

        Raises
        ------
        NotMeasuredError
            If nothing can be timed here, or not now.
        """
        ...


def current_bench() -> Bench:
    """Return the bench of this process."""
    return _BENCH


class CudaBench:
    """The CUDA (or HIP) devices of this process."""

    def __init__(self) -> None:
        self._places: dict[int, Place] = {}
        self._measuring = threading.Lock()
        self._get_device: Callable[[], int] | None = None

    def device_index(self) -> int:
        """Return the current device."""
        if self._get_device is None:
            import torch

            # The function behind torch.cuda.current_device, which checks at every call that CUDA is up.
            self._get_device = getattr(torch._C, "_cuda_getDevice", torch.cuda.current_device)
        return self._get_device()

    def place(self) -> Place:
        """Describe the current device, by its own name if it is no known architecture."""
        import torch

        index = self.device_index()
        if index not in self._places:
            try:
                device = cuda_device(index)
                place = Place(device.arch.name, device.num_sms)
            except ArchError:
                properties = torch.cuda.get_device_properties(index)
                place = Place(str(properties.name), int(properties.multi_processor_count))
            self._places[index] = place
        return self._places[index]

    def is_capturing(self) -> bool:
        """Whether a graph is being captured, in this thread or visibly in another."""
        return capture.is_capturing()

    @contextlib.contextmanager
    def open(self, budget_ms: float) -> Iterator[Stopwatch]:
        """Hold the timing lock of the current device and give a stopwatch on its current stream; see `Bench.open`."""
        import torch

        index = self.device_index()
        deadline = time.monotonic() + budget_ms / 1e3
        l2_bytes = int(getattr(torch.cuda.get_device_properties(index), "L2_cache_size", 0))
        if not self._measuring.acquire(timeout=budget_ms / 1e3):
            raise NotMeasuredError("another thread is measuring")
        try:
            with _patient_lock(index, deadline), capture.sparing_captures(), collector_paused():
                yield CudaStopwatch(index, l2_bytes)
        finally:
            self._measuring.release()


class InterpretedBench:
    """Triton's interpreter on the CPU: what it takes there says nothing about a GPU."""

    def device_index(self) -> None:
        """Return None."""

    def place(self) -> Place | None:
        """Describe the GPU that is named by the setting ``arch``, or that this machine has."""
        try:
            device = resolve_device()
        except ArchError:
            return None
        return Place(device.arch.name, device.num_sms)

    def is_capturing(self) -> bool:
        """Return False."""
        return False

    def open(self, budget_ms: float) -> AbstractContextManager[Stopwatch]:
        """Refuse."""
        raise NotMeasuredError("kernels are interpreted in this process")


_BENCH: Bench = InterpretedBench() if knobs.runtime.interpret else CudaBench()


@contextlib.contextmanager
def _patient_lock(gpu: int, deadline: float) -> Iterator[None]:
    """Hold the timing lock of a GPU, waiting for another holder until the deadline."""
    with contextlib.ExitStack() as stack:
        while True:
            try:
                stack.enter_context(timing_lock(gpu, lock_identity(gpu)))
                break
            except RunnerError as error:
                if time.monotonic() >= deadline:
                    raise NotMeasuredError(str(error)) from None
                time.sleep(LOCK_POLL_S)
        yield
