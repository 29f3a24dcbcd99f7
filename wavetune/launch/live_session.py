"""The GPU side of a live measurement: some random data, a stream of its own and a timer, for one problem.

Calibration keeps gigabytes of data for hours. This lives for milliseconds inside somebody's program: it takes what its
candidates need and three caches of data to rotate over, refuses to take more than a share of the memory that is free,
and leaves device, stream, random numbers and tensors of the program as they were. What it allocates comes from torch's
allocator on the current stream and goes back there, so that the program can use it afterwards.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from wavetune.core.arch import ArchSpec, find_arch
from wavetune.core.config import KernelConfig
from wavetune.core.dtype import find_dtype
from wavetune.errors import ArchError
from wavetune.kernels.call import Launch
from wavetune.kernels.placeholder import Placeholder
from wavetune.kernels.registry import KernelFamily, find_family
from wavetune.kernels.windows import DataWindows
from wavetune.launch.capture import private_stream, sparing_captures
from wavetune.launch.live import NotMeasuredError
from wavetune.measure.cuda_timing import BATCH_US, MAX_BATCH, Candidate, StreamTimer, cache_flush, lock_identity
from wavetune.measure.gpu_session import expected_us
from wavetune.measure.timing import launches_per_reading
from wavetune.runtime.device import Device
from wavetune.runtime.measurer import MeasureRequest

MEMORY_SHARE = 0.25
"""Share of the free memory that a measurement may take."""

ROTATION_CACHES = 3
"""Last-level caches of data beyond the operands: what one launch reads is gone from the cache when it comes round."""


class SizingWindows(DataWindows):
    """Adds up what operands need, instead of allocating it.

    Parameters
    ----------
    dtype : str
        Element type.
    row_alignment : int
        Bytes that leading strides are multiples of.
    """

    def __init__(self, dtype: str, row_alignment: int) -> None:
        self.dtype = dtype
        self._row_bytes = row_alignment
        self.input_bytes = self.output_bytes = self.scratch_bytes = 0

    def take(self, dtype: str, rows: int, columns: int, *, is_output: bool = False) -> Any:
        """Count a matrix."""
        element = find_dtype(dtype)
        item_bytes = element.output_bytes if is_output else element.input_bytes
        row_bytes = -(-columns * item_bytes // self._row_bytes) * self._row_bytes
        if is_output:
            self.output_bytes += rows * row_bytes
        else:
            self.input_bytes += rows * row_bytes
        return Placeholder(dtype, (rows, columns))

    def scratch(self, n_elements: int) -> Any:
        """Count fp32 workspace, which all launches share."""
        self.scratch_bytes = max(self.scratch_bytes, 4 * n_elements)
        return Placeholder("fp32", (n_elements,))


def memory_needs(
    family: KernelFamily, problem: Any, configs: Sequence[KernelConfig], l2_bytes: int
) -> tuple[int, int, int]:
    """Return bytes of inputs, outputs and workspace that timing ``configs`` takes."""
    inputs = outputs = scratch = 0
    for config in configs:
        sizes = SizingWindows(problem.dtype, row_alignment(problem))
        family.carve_operands(problem, config, sizes)
        inputs, outputs = max(inputs, sizes.input_bytes), max(outputs, sizes.output_bytes)
        scratch = max(scratch, sizes.scratch_bytes)
    return inputs + ROTATION_CACHES * l2_bytes, outputs + l2_bytes, scratch


def row_alignment(problem: Any) -> int:
    """Return the bytes that leading strides of a problem's operands are multiples of."""
    return max(int(getattr(problem, "alignment", 1)), 1)


@cache
def load_kernels(gpu: int, dtype: str) -> None:
    """Let torch load the kernels that a session uses, once in a process; a session counts it as compiling.

    Parameters
    ----------
    gpu : int
        The current CUDA device.
    dtype : str
        Of the data.
    """
    pool = DataWindows(dtype, f"cuda:{gpu}", 2**16).inputs
    StreamTimer(private_stream(gpu), cache_flush(pool)).read([Candidate([lambda: None])], [1])


class LiveSession:
    """What one measurement on a GPU needs.

    Parameters
    ----------
    family : KernelFamily
        Kernels to time.
    request : MeasureRequest
        What is measured.
    configs : sequence of KernelConfig
        Every configuration that may be bound.
    gpu : int
        The current CUDA device.

    Raises
    ------
    NotMeasuredError
        If there is not enough free memory.
    """

    def __init__(
        self, family: KernelFamily, request: MeasureRequest, configs: Sequence[KernelConfig], gpu: int
    ) -> None:
        import torch

        self.gpu, self.lock_identity = gpu, lock_identity(gpu)
        self.began, self.compile_s = time.perf_counter(), 0.0
        self.kernel_source = family.source_hash()
        self._family, self._problem = family, request.problem
        self._arch = launch_arch(request.device)
        self.expected_us = expected_us(family.cost(request.problem), self._arch)
        inputs, outputs, scratch = memory_needs(family, request.problem, configs, self._arch.l2_bytes)
        free_bytes, _ = torch.cuda.mem_get_info(gpu)
        if inputs + outputs + scratch > MEMORY_SHARE * free_bytes:
            raise NotMeasuredError(
                f"it needs {(inputs + outputs + scratch) >> 20} MiB of memory, more than {MEMORY_SHARE:.0%} of the "
                f"{free_bytes >> 20} MiB that are free"
            )
        with self._compiling():
            load_kernels(gpu, request.problem.dtype)
        self._windows = DataWindows(
            request.problem.dtype, f"cuda:{gpu}", inputs, output_bytes=outputs,
            row_alignment=row_alignment(request.problem),
        )  # fmt: skip
        self._stream = private_stream(gpu)
        pool = self._windows.inputs
        flush = pool[: ROTATION_CACHES * self._arch.l2_bytes // pool.element_size()]
        # The data comes from the current stream, and so may memory that work there has only just let go of.
        self._stream.wait_stream(torch.cuda.current_stream(gpu))
        self.timer = StreamTimer(self._stream, cache_flush(flush))

    def bind(self, config: KernelConfig) -> Candidate:
        """Compile a configuration if need be, and bind its launches; `compile_s` grows by what compiling took.

        Raises
        ------
        NotMeasuredError
            If it is not legal for the problem.
        Exception
            Whatever the compiler or the driver says.
        """
        reason = self._family.legal(self._problem, config, self._arch)
        if reason is not None:
            raise NotMeasuredError(reason)
        n_windows = launches_per_reading(self.expected_us, batch_us=BATCH_US, max_launches=MAX_BATCH)
        with self._compiling():
            launches = [self._bind_window(config)]
        launches.extend(self._bind_window(config) for _ in range(n_windows - 1))
        return Candidate(launches)

    @contextlib.contextmanager
    def _compiling(self) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self.compile_s += time.perf_counter() - began

    def _bind_window(self, config: KernelConfig) -> Launch:
        operands = self._family.carve_operands(self._problem, config, self._windows)
        return self._family.bind(operands, config, self._arch, self._stream.cuda_stream)

    def close(self) -> None:
        """Wait for the launches, so that their memory may go back to its stream, and let go of events and data."""
        self._stream.synchronize()
        del self.timer, self._windows


@contextlib.contextmanager
def open_session(request: MeasureRequest, configs: Sequence[KernelConfig]) -> Iterator[LiveSession]:
    """Prepare to measure on the GPU of a request; the program's queued work is waited for first.

    Raises
    ------
    NotMeasuredError
        If this process has not started CUDA, the GPU is another one, or memory is short.
    """
    import torch

    cuda: Any = torch.cuda
    family = find_family(request.problem.kernel)
    if not cuda.is_initialized() or cuda._is_in_bad_fork():
        raise NotMeasuredError("CUDA is not in use in this process, and measuring does not start it")
    gpu = cuda_ordinal(request.device)
    with cuda.device(gpu), sparing_captures():
        cuda.current_stream(gpu).synchronize()
        session = LiveSession(family, request, configs, gpu)
        try:
            yield session
        finally:
            session.close()


def cuda_ordinal(device: Device) -> int:
    """Return the CUDA device to measure on: the one that is named, or the current one if it is of that model.

    Raises
    ------
    NotMeasuredError
        If it is another GPU, or launches would get other SMs than the answer is for.
    """
    import torch

    gpu = torch.cuda.current_device() if device.index is None else device.index
    properties = torch.cuda.get_device_properties(gpu)
    try:
        name = find_arch(properties.name).name
    except ArchError:
        name = properties.name
    if name != device.arch.name:
        raise NotMeasuredError(f"the answer is for {device.arch.name}, CUDA device {gpu} is {name}")
    # Under MPS the share of the SMs is rounded by the driver; launches get what they get.
    is_shared = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE" in os.environ
    if device.num_sms != properties.multi_processor_count and not is_shared:
        raise NotMeasuredError(
            f"the answer is for {device.num_sms} SMs, launches on device {gpu} get {properties.multi_processor_count}"
        )
    return int(gpu)


def launch_arch(device: Device) -> ArchSpec:
    """Return the architecture with the SMs that launches get: they size the grid of a persistent kernel."""
    return replace(device.arch, num_sms=device.num_sms) if device.is_scaled else device.arch
