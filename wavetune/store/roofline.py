"""The least time that a GPU needs for a problem: what a recorded latency is held against.

Two bounds, because two questions are asked of a file:

- `roofline_us`, the usual roofline with every byte from DRAM. A file's *median* latency over it tells a wrong unit.
- `floor_us`, which no single row can beat even when its operands were warm in the last-level cache. A row below it
  is not a measurement of this problem on this GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from wavetune.core.arch import ArchSpec
from wavetune.core.dtype import DType
from wavetune.mapping.gemm import compulsory_bytes

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
WorkFunction = Callable[[FloatArray, DType], tuple[FloatArray, FloatArray]]

LAUNCH_FLOOR_US = 0.5
"""Shorter than any launch: an empty kernel reads 2.9 us between events on an H200 (data README), about 1 us in a
CUDA graph."""

ROOFLINE_LAUNCH_US = 1.0
"""Lower end of the roofline, so that a file of tiny problems is not taken for one in nanoseconds."""

MATRIX_RATE_MARGIN = 0.9
"""Peak rates are quoted at the boost clock of the datasheet; a chip that boosts higher may beat them a little."""

SM_PORT_BYTES_PER_CLOCK = 64
"""Bytes that an SM takes from the last-level cache per clock (CUDA tuning guides, compute capability 7.0 to 10.0)."""

MAX_CLOCK_GHZ = 3.0
"""Above every known boost clock (2.6 GHz on Ada)."""


def _gemm_work(dims: FloatArray, dtype: DType) -> tuple[FloatArray, FloatArray]:
    m, n, k = dims.T
    return 2.0 * m * n * k, np.asarray(compulsory_bytes(m, n, k, dtype.input_bytes, dtype.output_bytes))


def _grouped_work(dims: FloatArray, dtype: DType) -> tuple[FloatArray, FloatArray]:
    _, tokens, active, _, n, k = dims.T
    # Gated weights give half as many columns: the least that is written.
    moved_bytes = (tokens + active * n) * k * dtype.input_bytes + tokens * n / 2 * dtype.output_bytes
    return 2.0 * tokens * n * k, moved_bytes


WORK: Mapping[str, WorkFunction] = MappingProxyType({"gemm": _gemm_work, "grouped_gemm": _grouped_work})
"""Kernel family to (flops, compulsory bytes) of its problems. A family that is not listed is not checked."""


def _matrix_us(flops: FloatArray, dtype: DType, arch: ArchSpec) -> FloatArray:
    # Tensor cores double their rate with each halving of the input type; tf32 (4 bytes) runs at half of bf16.
    return flops * dtype.input_bytes / (2.0 * arch.bf16_tflops * 1e6)


def roofline_us(kernel: str, dims: IntArray, dtype: DType, arch: ArchSpec) -> FloatArray | None:
    """Time at peak rates, all bytes from DRAM.

    Parameters
    ----------
    kernel : str
        Kernel family.
    dims : ndarray of shape (n_rows, n_dims)
        Problem sizes.

    Returns
    -------
    ndarray of shape (n_rows,) or None
        Microseconds, at least `ROOFLINE_LAUNCH_US`; None for a family without an entry in `WORK`.
    """
    if kernel not in WORK:
        return None
    flops, moved_bytes = WORK[kernel](dims.astype(np.float64), dtype)
    memory_us = moved_bytes / (arch.dram_gb_per_s * 1e3)
    return np.maximum(np.maximum(_matrix_us(flops, dtype, arch), memory_us), ROOFLINE_LAUNCH_US)


def floor_us(kernel: str, dims: IntArray, dtype: DType, arch: ArchSpec) -> FloatArray | None:
    """Time that no launch can beat, warm caches included.

    The largest of: a launch; the matrix rate with `MATRIX_RATE_MARGIN`; what exceeds the last-level cache, from DRAM;
    every byte through the ports between that cache and the SMs.

    Returns
    -------
    ndarray of shape (n_rows,) or None
        Microseconds; None for a family without an entry in `WORK`.
    """
    if kernel not in WORK:
        return None
    flops, moved_bytes = WORK[kernel](dims.astype(np.float64), dtype)
    port_gb_per_s = arch.num_sms * SM_PORT_BYTES_PER_CLOCK * MAX_CLOCK_GHZ
    bounds = (
        MATRIX_RATE_MARGIN * _matrix_us(flops, dtype, arch),
        np.maximum(moved_bytes - arch.l2_bytes, 0.0) / (arch.dram_gb_per_s * 1e3),
        moved_bytes / (port_gb_per_s * 1e3),
    )
    bounds_us: FloatArray = np.max(bounds, axis=0)
    return np.maximum(bounds_us, LAUNCH_FLOOR_US)
