"""Captures of CUDA graphs in this process: seeing them, and not disturbing those of other threads.

While a thread captures in CUDA's default mode (which `torch.cuda.graph` uses), a call in *any* thread that could be
unsafe inside a capture, such as an allocation, an event query or loading a module, fails and spoils the capture, unless
the calling thread has said that it ignores captures of others: `cuThreadExchangeStreamCaptureMode`, THREAD_LOCAL (CUDA
driver API, stream management). torch does so around its own allocations. `sparing_captures` does it for a measurement.

What cannot be seen: a capture on a stream that is neither the current one of this thread nor one that torch hands out
at default priority, as it does to `torch.cuda.graph`. Such a capture of another thread is not disturbed either, but a
measurement may run beside it.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections.abc import Iterator
from functools import cache
from typing import Any

THREAD_LOCAL = 1
"""CU_STREAM_CAPTURE_MODE_THREAD_LOCAL of cuda.h."""

NON_BLOCKING = 1
"""CU_STREAM_NON_BLOCKING of cuda.h: no implicit order with the default stream."""

POOL_STREAMS = 32
"""Streams of one priority that torch hands out in turn (c10/cuda/CUDAStream.cpp, ``kStreamsPerPool``)."""


@cache
def cuda_driver() -> Any:
    """Return the CUDA driver library, or None where there is none (AMD, no GPU)."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    driver.cuStreamIsCapturing.argtypes = [ctypes.c_void_p, ctypes.POINTER(ctypes.c_int)]
    driver.cuThreadExchangeStreamCaptureMode.argtypes = [ctypes.POINTER(ctypes.c_int)]
    driver.cuStreamCreate.argtypes = [ctypes.POINTER(ctypes.c_void_p), ctypes.c_uint]
    return driver


def is_capturing() -> bool:
    """Whether a graph is being captured on the current device, as far as can be seen; starts no CUDA context."""
    # While another thread imports torch, it has no attributes yet.
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is None or not cuda.is_initialized():
        return False
    if cuda.is_current_stream_capturing():
        return True
    driver, status = cuda_driver(), ctypes.c_int(0)
    if driver is None:
        return False
    for stream in pool_streams(cuda.current_device()):
        if driver.cuStreamIsCapturing(stream, ctypes.byref(status)) == 0 and status.value:
            return True
    return False


@cache
def pool_streams(gpu: int) -> tuple[int, ...]:
    """Return the handles of the streams that torch hands out on a device; they live as long as the process."""
    import torch

    cuda: Any = torch.cuda
    # Taking a whole round leaves torch's turn where it was.
    return tuple(dict.fromkeys(cuda.Stream(gpu).cuda_stream for _ in range(POOL_STREAMS)))


@contextlib.contextmanager
def sparing_captures() -> Iterator[None]:
    """Let nothing that this thread does spoil a capture of another thread."""
    driver, mode = cuda_driver(), ctypes.c_int(THREAD_LOCAL)
    # The call swaps: afterwards `mode` holds what was set before.
    is_set = driver is not None and driver.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode)) == 0
    try:
        yield
    finally:
        if is_set:
            driver.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))


@cache
def private_stream(gpu: int) -> Any:
    """Return a stream of the current device that nobody else gets.

    torch's own streams come round again after `POOL_STREAMS` others: another thread could capture on the same one, and
    would capture our launches.
    """
    import torch

    cuda: Any = torch.cuda
    driver, handle = cuda_driver(), ctypes.c_void_p()
    if driver is None or driver.cuStreamCreate(ctypes.byref(handle), NON_BLOCKING) != 0:
        return cuda.Stream(gpu)
    return cuda.ExternalStream(handle.value, device=torch.device("cuda", gpu))
