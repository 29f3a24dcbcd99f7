"""From tensors to a launch: everything about a call that does not depend on addresses is decided once.

A `GemmLauncher` belongs to shapes, strides, dtypes, devices and the epilogue. A call looks its launcher up, asks the
runtime for a configuration (which may change from one call to the next: a miss is measured, a user configures), and
launches what is already bound to these addresses.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch

from wavetune.core.problem import GemmProblem
from wavetune.kernels.gemm_operands import GemmOperands, workspace_size
from wavetune.launch.checks import (
    SUPPORTED_DTYPES,
    check_device,
    check_names,
    check_operands,
    check_output_memory,
    check_sizes,
    check_strided,
    check_tensors,
)
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
from wavetune.launch.source import ConfigSource
from wavetune.launch.strides import row_stride, weight_storage
from wavetune.mapping.legality import TMA_ALIGNMENT


def multiply(a: Any, b: Any, bias: Any, activation: str, out: Any, numerics: str) -> Any:
    """Launch activation(a @ b + bias) on plain tensors; nothing is recorded for autograd.

    Takes the arguments of `wavetune.launch.matmul.matmul` and raises its errors.
    """
    try:
        key = (
            a.shape, a.stride(), b.shape, b.stride(), a.dtype, b.dtype, a.device, b.device, activation, numerics,
            None if bias is None else (bias.shape, bias.stride(), bias.dtype, bias.device),
            None if out is None else (out.shape, out.stride(), out.dtype, out.device),
        )  # fmt: skip
        launcher = launchers.get(key)
    except TypeError:  # An unhashable activation or numerics: the checks name it.
        launcher = None
    except (AttributeError, RuntimeError):
        tensors = {"a": a, "b": b, "bias": bias, "out": out}
        check_tensors(tensors, optional=("bias", "out"))
        check_strided(**tensors)
        raise
    if launcher is None:
        launcher = _make_launcher(a, b, bias, activation, out, numerics)
        keep(key, launcher)
    return launcher.run(a, b, bias, out)


def _make_launcher(a: Any, b: Any, bias: Any, activation: str, out: Any, numerics: str) -> Launcher:
    check_names(activation, numerics)
    check_device("a", a)
    if b.dim() == 1:
        return VectorLauncher(activation, numerics)
    check_operands(a, b, bias, out)
    m, (k, n) = math.prod(a.shape[:-1]), b.shape
    check_sizes(m, n, k)
    dtype, out_shape = SUPPORTED_DTYPES[a.dtype], (*a.shape[:-1], n)
    if 0 in (m, n, k):
        return EmptyLauncher(GemmProblem(m, n, k, dtype), out_shape, a.dtype, activation)
    lda, b_storage = row_stride(a.shape, a.stride()), weight_storage(b.shape, b.stride())
    ldc = n if out is None else row_stride(out.shape, out.stride())
    bias_is_plain = bias is None or n == 1 or bias.stride(0) == 1
    if lda is None or b_storage is None or ldc is None or not bias_is_plain:
        copies = (lda is None, b_storage is None, not bias_is_plain)
        launch = partial(multiply, activation=activation, numerics=numerics)
        return CopyingLauncher(launch, copies, copies_out=ldc is None)
    layout, ldb = b_storage
    strides_bytes = (lda | ldb | ldc) * a.element_size()
    problem = GemmProblem(m, n, k, dtype, layout, min(strides_bytes & -strides_bytes, TMA_ALIGNMENT))
    gpu = find_gpu(a.device)
    source = find_source(gpu, dtype, layout, numerics)
    return GemmLauncher(gpu, source, problem, (lda, ldb, ldc), out_shape, activation)


class GemmLauncher:
    """Tensors that kernels read and write where they are; compared by identity.

    Parameters
    ----------
    gpu : LaunchGpu
        Where it is launched.
    source : ConfigSource
        Where its configurations come from.
    problem : GemmProblem
        Sizes, dtype, layout, and the alignment class that the strides allow.
    strides : tuple of int
        Elements from one row to the next of A, of B as stored, and of C.
    out_shape : tuple of int
        Shape of the result.
    activation : str
        Of the epilogue.
    """

    __slots__ = ("_activation", "_gpu", "_out_shape", "_problem", "_sizes", "_source", "_strides")

    def __init__(
        self, gpu: LaunchGpu, source: ConfigSource, problem: GemmProblem, strides: tuple[int, int, int],
        out_shape: tuple[int, ...], activation: str,
    ) -> None:  # fmt: skip
        self._gpu, self._source, self._problem, self._strides = gpu, source, problem, strides
        self._sizes, self._out_shape, self._activation = problem.dims, out_shape, activation

    def run(self, a: Any, b: Any, bias: Any, out: Any) -> Any:
        """Launch on the current stream of the tensors' device; every microsecond here is one of every call."""
        gpu = self._gpu
        if not gpu.is_current():
            with gpu.activate():
                return self.run(a, b, bias, out)
        result = a.new_empty(self._out_shape) if out is None else out
        a_ptr, b_ptr, out_ptr, bias_ptr = a.data_ptr(), b.data_ptr(), result.data_ptr(), 0
        addresses, alignment = a_ptr | b_ptr | out_ptr, self._problem.alignment
        if addresses & (TMA_ALIGNMENT - 1):
            alignment = min(alignment, addresses & -addresses)
        if bias is not None:
            bias_ptr = bias.data_ptr()
            if bias_ptr & (TMA_ALIGNMENT - 1):
                # A few bytes, copied so that a slice of a longer bias needs no kernels of its own.
                bias = bias.clone()
                bias_ptr = bias.data_ptr()
        stream = 0 if gpu.index is None else current_stream(gpu.index)
        config = self._source.choose(*self._sizes, alignment)
        partials, partials_ptr = None, 0
        n_partials = workspace_size(self._problem, config)
        if n_partials:
            partials = a.new_empty(n_partials, dtype=torch.float32)
            partials_ptr = partials.data_ptr()
        key = (self, config, a_ptr, b_ptr, out_ptr, bias_ptr, partials_ptr, stream)
        launch = launches.get(key)
        if launch is not None:
            launch()
            return result
        # What follows happens once for these addresses.
        if out is not None and check_output_memory(a, b, bias, out):
            return out.copy_(multiply(a, b, bias, self._activation, None, self._source.numerics))
        operands = self._operands(a, b, bias, result, partials, alignment)
        kept = launch_first(gpu, self._source, operands, config, stream)
        if kept is not None:
            launches.add(key, kept)
        return result

    def _operands(self, a: Any, b: Any, bias: Any, out: Any, partials: Any, alignment: int) -> GemmOperands:
        (m, n, k), (lda, ldb, ldc), layout = self._sizes, self._strides, self._problem.layout
        return GemmOperands(
            GemmProblem(m, n, k, self._problem.dtype, layout, alignment),
            a.as_strided((m, k), (lda, 1)),
            b.as_strided((n, k) if layout == "nk" else (k, n), (ldb, 1)),
            out.as_strided((m, n), (ldc, 1)),
            bias,
            self._activation,
            partials,
        )


class VectorLauncher:
    """B is a vector: a matrix of one column, whose axis the result does not have.

    Parameters
    ----------
    activation, numerics : str
        As in `multiply`.
    """

    __slots__ = ("_activation", "_numerics")

    def __init__(self, activation: str, numerics: str) -> None:
        self._activation, self._numerics = activation, numerics

    def run(self, a: Any, b: Any, bias: Any, out: Any) -> Any:
        """Add the axis and take it away."""
        column = None if out is None else out.unsqueeze(-1)
        result = multiply(a, b.unsqueeze(-1), bias, self._activation, column, self._numerics)
        return result.squeeze(-1) if out is None else out


Launcher = GemmLauncher | EmptyLauncher | CopyingLauncher | VectorLauncher
