"""From fp8 tensors to a launch; what `wavetune.launch.gemm_launcher` is for the other dtypes.

A `ScaledLauncher` belongs to shapes, strides and devices. A call asks the runtime for a configuration and launches what
is already bound to its addresses.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from wavetune.core.problem import GemmProblem
from wavetune.errors import OperandError
from wavetune.kernels.gemm_operands import GemmOperands, workspace_size
from wavetune.launch.checks import check_device, check_output_memory, check_sizes, check_strided, check_tensors
from wavetune.launch.first_launch import launch_first
from wavetune.launch.gpu import LaunchGpu, current_stream, find_gpu
from wavetune.launch.product_launchers import (
    CopyingLauncher,
    EmptyLauncher,
    find_source,
    keep,
    launchers,
    launches,
)
from wavetune.launch.scaled_checks import (
    BLOCK_DTYPE,
    check_operands,
    check_options,
    n_rows,
    result_dtype,
    scale_modes,
)
from wavetune.launch.source import ConfigSource
from wavetune.launch.strides import row_stride
from wavetune.mapping.legality import TMA_ALIGNMENT


def multiply_scaled(
    a: Any, b: Any, scale_a: Any, scale_b: Any, bias: Any, out: Any, out_dtype: Any, use_fast_accum: bool, numerics: str
) -> Any:  # fmt: skip
    """Launch (scale_a * a) @ (scale_b * b) + bias on plain tensors.

    Takes the arguments of `wavetune.launch.scaled_matmul.scaled_matmul` and raises its errors.
    """
    try:
        key = (
            a.shape, a.stride(), b.shape, b.stride(), scale_a.shape, scale_a.stride(), scale_b.shape, scale_b.stride(),
            a.dtype, b.dtype, scale_a.dtype, scale_b.dtype, a.device, b.device, scale_a.device, scale_b.device,
            None if bias is None else (bias.shape, bias.stride(), bias.dtype, bias.device),
            None if out is None else (out.shape, out.stride(), out.dtype, out.device),
            out_dtype, use_fast_accum, numerics,
        )  # fmt: skip
        launcher = launchers.get(key)
    except TypeError:  # An unhashable option: the checks name it.
        launcher = None
    except (AttributeError, RuntimeError):
        tensors = {"a": a, "b": b, "scale_a": scale_a, "scale_b": scale_b, "bias": bias, "out": out}
        check_tensors(tensors, optional=("bias", "out"))
        check_strided(**tensors)
        raise
    if launcher is None:
        launcher = _make_launcher(a, b, scale_a, scale_b, bias, out, out_dtype, use_fast_accum, numerics)
        keep(key, launcher)
    return launcher.run(a, b, scale_a, scale_b, bias, out)


def _make_launcher(
    a: Any, b: Any, scale_a: Any, scale_b: Any, bias: Any, out: Any, out_dtype: Any, use_fast_accum: bool, numerics: str
) -> Launcher:  # fmt: skip
    check_options(out_dtype, use_fast_accum, numerics)
    check_device("a", a)
    result = result_dtype(out_dtype, out)
    check_operands(a, b, scale_a, scale_b, bias, out, result)
    m, (k, n) = n_rows(a), b.shape
    check_sizes(m, n, k)
    modes = scale_modes(a, b, scale_a, scale_b)
    out_shape = (*a.shape[:-1], n)
    dtype = BLOCK_DTYPE if modes[0] == "block" else "fp8_fast" if use_fast_accum else "fp8"
    if 0 in (m, n, k):
        return EmptyLauncher(GemmProblem(m, n, k, dtype), out_shape, result, "none")
    ldb = row_stride((n, k), tuple(reversed(b.stride())))
    if ldb is None:
        raise OperandError(
            f"b of shape {list(b.shape)} has strides {list(b.stride())}; the matrix unit takes fp8 only with adjacent "
            "k, so give the transpose view of a row-major [n, k]: weight.t(), or b.t().contiguous().t() made once"
        )
    lda = row_stride(a.shape, a.stride())
    ldc = n if out is None else row_stride(out.shape, out.stride())
    view_a = _view_a(scale_a, m, modes[0])
    bias_is_plain = bias is None or n == 1 or bias.stride(0) == 1
    options = (out_dtype, use_fast_accum, numerics)
    if lda is None or ldc is None or view_a is None or not bias_is_plain:
        launch = partial(multiply_scaled, out_dtype=result, use_fast_accum=use_fast_accum, numerics=numerics)
        copies = (lda is None, False, view_a is None, False, not bias_is_plain)
        return CopyingLauncher(launch, copies, copies_out=ldc is None)
    strides_bytes = lda | ldb | ldc * result.itemsize
    problem = GemmProblem(m, n, k, dtype, "nk", min(strides_bytes & -strides_bytes, TMA_ALIGNMENT))
    gpu = find_gpu(a.device)
    source = find_source(gpu, dtype, "nk", numerics)
    views = (view_a, _view_b(scale_b, n, modes[1]))
    return ScaledLauncher(gpu, source, problem, (lda, ldb, ldc), views, out_shape, result, options)


_View = tuple[tuple[int, int], tuple[int, int]]
"""Shape and strides of scales as `wavetune.kernels.gemm_scales` wants them."""


def _view_a(scale: Any, m: int, mode: str) -> _View | None:
    """See A's scales as a matrix of m rows; None if its leading axes are not evenly spaced."""
    if mode == "tensor":
        return (1, 1), (1, 1)
    shape, strides = tuple(scale.shape), tuple(scale.stride())
    n_blocks, block_stride = (shape[-1], strides[-1]) if mode == "block" else (1, 1)
    lead = len(shape) - 1 if mode == "block" or (len(shape) > 1 and shape[-1] == 1) else len(shape)
    # As if every row were one element, so that only the spacing of rows counts.
    axes = [(size, stride) for size, stride in zip(shape[:lead], strides[:lead], strict=True) if size > 1]
    step = axes[-1][1] if axes else 1
    expected = step
    for size, stride in reversed(axes):
        if stride != expected:
            return None
        expected *= size
    return (m, n_blocks), (step, block_stride)


def _view_b(scale: Any, n: int, mode: str) -> _View:
    if mode == "tensor":
        return (1, 1), (1, 1)
    if mode == "row":
        return (n, 1), (scale.stride(-1), 1)
    return tuple(scale.shape), tuple(scale.stride())


class ScaledLauncher:
    """Tensors that kernels read and write where they are; compared by identity.

    Parameters
    ----------
    gpu : LaunchGpu
        Where it is launched.
    source : ConfigSource
        Where its configurations come from.
    problem : GemmProblem
        Sizes, dtype, and the alignment class that the strides allow.
    strides : tuple of int
        Elements from one row to the next of A, of B as stored, and of C.
    views : tuple
        Shapes and strides of the scales.
    out_shape : tuple of int
        Shape of the result.
    out_dtype : torch.dtype
        Of the result.
    options : tuple
        ``out_dtype``, ``use_fast_accum`` and ``numerics`` as given.
    """

    __slots__ = ("_gpu", "_options", "_out_dtype", "_out_shape", "_problem", "_sizes", "_source", "_strides", "_views")

    def __init__(
        self, gpu: LaunchGpu, source: ConfigSource, problem: GemmProblem, strides: tuple[int, int, int],
        views: tuple[_View, _View], out_shape: tuple[int, ...], out_dtype: Any, options: tuple[Any, bool, str],
    ) -> None:  # fmt: skip
        self._gpu, self._source, self._problem, self._strides, self._views = gpu, source, problem, strides, views
        self._sizes, self._out_shape, self._out_dtype, self._options = problem.dims, out_shape, out_dtype, options

    def run(self, a: Any, b: Any, scale_a: Any, scale_b: Any, bias: Any, out: Any) -> Any:
        """Launch on the current stream of the tensors' device; every microsecond here is one of every call."""
        gpu = self._gpu
        if not gpu.is_current():
            with gpu.activate():
                return self.run(a, b, scale_a, scale_b, bias, out)
        result = a.new_empty(self._out_shape, dtype=self._out_dtype) if out is None else out
        # A few bytes each, copied so that a slice of a longer vector needs no kernels of its own.
        scale_a, scale_b, bias = _aligned(scale_a), _aligned(scale_b), bias if bias is None else _aligned(bias)
        a_ptr, b_ptr, out_ptr = a.data_ptr(), b.data_ptr(), result.data_ptr()
        addresses, alignment = a_ptr | b_ptr | out_ptr, self._problem.alignment
        if addresses & (TMA_ALIGNMENT - 1):
            alignment = min(alignment, addresses & -addresses)
        stream = 0 if gpu.index is None else current_stream(gpu.index)
        config = self._source.choose(*self._sizes, alignment)
        partials, partials_ptr = None, 0
        n_partials = workspace_size(self._problem, config)
        if n_partials:
            partials = a.new_empty(n_partials, dtype=torch.float32)
            partials_ptr = partials.data_ptr()
        bias_ptr = 0 if bias is None else bias.data_ptr()
        pointers = (a_ptr, b_ptr, out_ptr, scale_a.data_ptr(), scale_b.data_ptr(), bias_ptr, partials_ptr)
        key = (self, config, pointers, stream)
        launch = launches.get(key)
        if launch is not None:
            launch()
            return result
        # What follows happens once for these addresses.
        if out is not None and check_output_memory(a, b, bias, out):
            return out.copy_(multiply_scaled(a, b, scale_a, scale_b, bias, None, *self._options))
        operands = self._operands(a, b, result, scale_a, scale_b, bias, partials, alignment)
        kept = launch_first(gpu, self._source, operands, config, stream)
        if kept is not None:
            launches.add(key, kept)
        return result

    def _operands(
        self, a: Any, b: Any, out: Any, scale_a: Any, scale_b: Any, bias: Any, partials: Any, alignment: int
    ) -> GemmOperands:  # fmt: skip
        (m, n, k), (lda, ldb, ldc) = self._sizes, self._strides
        return GemmOperands(
            GemmProblem(m, n, k, self._problem.dtype, "nk", alignment),
            a.as_strided((m, k), (lda, 1)),
            b.as_strided((n, k), (ldb, 1)),
            out.as_strided((m, n), (ldc, 1)),
            bias,
            "none",
            partials,
            scale_a.as_strided(*self._views[0]),
            scale_b.as_strided(*self._views[1]),
        )


def _aligned(tensor: Any) -> Any:
    # A clone of dense memory keeps its strides, and that of a strided view would not.
    if tensor.data_ptr() & (TMA_ALIGNMENT - 1) == 0:
        return tensor
    copy = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)
    return copy.copy_(tensor)


Launcher = ScaledLauncher | EmptyLauncher | CopyingLauncher
