"""A pool of random data that operands are cut from, so that each launch finds its inputs outside the cache.

Allocating and filling operands for every problem would cost more than timing it; moving a window over one large
pool costs a few microseconds, and what a window covers was last touched a whole pool ago.
"""

from __future__ import annotations

from typing import Any

from wavetune.errors import RunnerError
from wavetune.kernels.gemm_operands import TORCH_DTYPES

_ALIGNMENT_BYTES = 1024


class DataWindows:
    """Windows over pools of one dtype on one device.

    Parameters
    ----------
    dtype : str
        Element type of the pools.
    device : str
        Torch device.
    pool_bytes : int
        Bytes of the input pool and of the output pool. At least several times the last-level cache.
    seed : int, default=0
        Seeds the data.

    Raises
    ------
    RunnerError
        From `take`, if one operand exceeds the pool.
    """

    def __init__(self, dtype: str, device: str, pool_bytes: int, seed: int = 0) -> None:
        import torch

        self.dtype = dtype
        self._torch = torch
        self._device = device
        torch_dtype = getattr(torch, TORCH_DTYPES[dtype])
        n_elements = pool_bytes // torch_dtype.itemsize
        generator = torch.Generator(device=device).manual_seed(seed)
        self._pools = (
            torch.empty(n_elements, dtype=torch_dtype, device=device).normal_(generator=generator),
            torch.empty(n_elements, dtype=torch_dtype, device=device),
        )
        self._next = [0, 0]
        self._step = _ALIGNMENT_BYTES // torch_dtype.itemsize
        self._scratch: Any = None

    @property
    def inputs(self) -> Any:
        """The whole input pool: reading a part of it replaces what the cache holds."""
        return self._pools[0]

    def take(self, dtype: str, rows: int, columns: int, *, is_output: bool = False) -> Any:
        """Return the next window as a contiguous matrix."""
        if dtype != self.dtype:
            raise RunnerError(f"the pool holds {self.dtype}, not {dtype}")
        pool, size = self._pools[is_output], rows * columns
        if size > len(pool):
            raise RunnerError(f"an operand of {rows} x {columns} {dtype} exceeds the data pool of {len(pool)} elements")
        start = self._next[is_output]
        if start + size > len(pool):
            start = 0
        self._next[is_output] = start + -(-size // self._step) * self._step
        return pool.as_strided((rows, columns), (columns, 1), start)

    def scratch(self, n_elements: int) -> Any:
        """Return fp32 workspace, the same for every launch, as a server's would be."""
        if self._scratch is None or len(self._scratch) < n_elements:
            self._scratch = self._torch.empty(n_elements, dtype=self._torch.float32, device=self._device)
        return self._scratch
