"""A pool of random data that operands are cut from, so that each launch finds its inputs outside the cache.

Allocating and filling operands for every problem would cost more than timing it; moving a window over one large
pool costs a few microseconds, and what a window covers was last touched a whole pool ago.
"""

from __future__ import annotations

from typing import Any

from wavetune.core.dtype import find_dtype
from wavetune.errors import RunnerError
from wavetune.kernels.gemm_operands import TORCH_DTYPES, result_dtype
from wavetune.kernels.gemm_scales import SPREAD, fill_random

_ALIGNMENT_BYTES = 1024

_LEAST_SCALE_BYTES = 1 << 22
_SCALE_SHARE = 32
"""The pool of scales is this fraction of that of inputs: one fp32 for 128 elements is the most that there are."""


class _Pool:
    """One tensor, and where the next window of it starts."""

    def __init__(self, tensor: Any, row_alignment: int) -> None:
        self.tensor = tensor
        self._step = _ALIGNMENT_BYTES // tensor.itemsize
        self._row_step = max(row_alignment // tensor.itemsize, 1)
        self._next = 0

    def take(self, rows: int, columns: int) -> Any:
        stride = -(-columns // self._row_step) * self._row_step
        size = rows * stride
        n_elements = len(self.tensor)
        if size > n_elements:
            raise RunnerError(
                f"an operand of {rows} x {columns} {self.tensor.dtype} exceeds the data pool of {n_elements} elements"
            )
        start = self._next if self._next + size <= n_elements else 0
        self._next = start + -(-size // self._step) * self._step
        return self.tensor.as_strided((rows, columns), (stride, 1), start)


class DataWindows:
    """Windows over pools of one dtype on one device.

    Parameters
    ----------
    dtype : str
        Element type of the pools; that of outputs and of fp32 scales follows from it.
    device : str
        Torch device.
    pool_bytes : int
        Bytes of the input pool and of the output pool. At least several times the last-level cache.
    seed : int, default=0
        Seeds the data.
    output_bytes : int, optional
        Bytes of the output pool, if it is another size.
    row_alignment : int, default=1
        Bytes that leading strides are multiples of; rows are padded up to it.

    Raises
    ------
    RunnerError
        From `take`, if one operand exceeds the pool.
    """

    def __init__(
        self,
        dtype: str,
        device: str,
        pool_bytes: int,
        seed: int = 0,
        *,
        output_bytes: int | None = None,
        row_alignment: int = 1,
    ) -> None:
        import torch

        self.dtype = dtype
        self._torch = torch
        self._device = device
        generator = torch.Generator(device=device).manual_seed(seed)

        def pool(name: str, n_bytes: int) -> Any:
            torch_dtype = getattr(torch, TORCH_DTYPES[name])
            return torch.empty(n_bytes // torch_dtype.itemsize, dtype=torch_dtype, device=device)

        inputs = pool(dtype, pool_bytes // 2 * 2)
        outputs = pool(result_dtype(dtype), pool_bytes if output_bytes is None else output_bytes)
        self._pools = [_Pool(inputs, row_alignment), _Pool(outputs, row_alignment)]
        self._scales: _Pool | None = None
        if find_dtype(dtype).is_scaled:
            fill_random(inputs, generator)
            scales = pool("fp32", max(pool_bytes // _SCALE_SHARE, _LEAST_SCALE_BYTES))
            # Results near 1, as of inputs that are not scaled, for a k of about 4096.
            scales.uniform_(0.5 / (8 * SPREAD), 1.5 / (8 * SPREAD), generator=generator)
            self._scales = _Pool(scales, 1)
        else:
            inputs.normal_(generator=generator)
        self._scratch: Any = None

    @property
    def inputs(self) -> Any:
        """The whole input pool, fp8 in pairs of bytes: reading a part of it replaces what the cache holds."""
        pool = self._pools[0].tensor
        return pool if self._scales is None else pool.view(self._torch.bfloat16)

    def take(self, dtype: str, rows: int, columns: int, *, is_output: bool = False) -> Any:
        """Return the next window as a matrix with unit stride along its rows; contiguous unless rows are padded.

        Parameters
        ----------
        dtype : str
            That of the windows, also for an output; ``"fp32"`` for the scales of a scaled dtype.
        rows, columns : int
            Shape.
        is_output : bool, default=False
            Whether the kernel writes it.
        """
        if dtype == "fp32" and self._scales is not None:
            return self._scales.take(rows, columns)
        if dtype != self.dtype:
            raise RunnerError(f"the pool holds {self.dtype}, not {dtype}")
        return self._pools[is_output].take(rows, columns)

    def scratch(self, n_elements: int) -> Any:
        """Return fp32 workspace, the same for every launch, as a server's would be."""
        if self._scratch is None or len(self._scratch) < n_elements:
            self._scratch = self._torch.empty(n_elements, dtype=self._torch.float32, device=self._device)
        return self._scratch
