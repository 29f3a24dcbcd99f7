"""What the launchers of matrix products share: where they are kept, and the two that launch no kernel themselves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from wavetune.core.problem import GemmProblem
from wavetune.kernels.gemm import fill_empty_product
from wavetune.kernels.gemm_operands import GemmOperands
from wavetune.kernels.launch_cache import MAX_LAUNCHES, LaunchCache
from wavetune.launch.gpu import LaunchGpu
from wavetune.launch.source import ConfigSource

MAX_LAUNCHERS = 16_384
"""Launchers that are kept, about 1.5 KB each; all are dropped when there are more."""

launchers: dict[tuple[object, ...], Any] = {}
"""By everything that is known of the operands but their addresses."""

launches = LaunchCache(2 * MAX_LAUNCHES)
"""What is bound to addresses, of bf16 and fp16 as of fp8."""

_sources: dict[tuple[object, ...], ConfigSource] = {}


def keep(key: tuple[object, ...], launcher: Any) -> None:
    """Keep a launcher for operands of the same description."""
    if len(launchers) >= MAX_LAUNCHERS:
        launchers.clear()
    launchers[key] = launcher


def find_source(gpu: LaunchGpu, dtype: str, layout: str, numerics: str) -> ConfigSource:
    """Return where configurations come from; the same object for the same arguments."""
    key = (gpu, dtype, layout, numerics)
    return _sources.get(key) or _sources.setdefault(key, ConfigSource(gpu, dtype, layout, numerics))


def clear_launchers() -> None:
    """Forget launchers, sources and bound launches; compiled kernels stay loaded."""
    launchers.clear()
    launches.clear()
    _sources.clear()


class EmptyLauncher:
    """A size is zero: with k = 0 the result is the activation of the bias, else there is no result.

    Parameters
    ----------
    problem : GemmProblem
        The sizes.
    out_shape : tuple of int
        Shape of the result.
    out_dtype : torch.dtype
        Of the result.
    activation : str
        Of the epilogue.
    """

    __slots__ = ("_activation", "_out_dtype", "_out_shape", "_problem")

    def __init__(self, problem: GemmProblem, out_shape: tuple[int, ...], out_dtype: Any, activation: str) -> None:
        self._problem, self._out_shape, self._out_dtype, self._activation = problem, out_shape, out_dtype, activation

    def run(self, a: Any, b: Any, *others: Any) -> Any:
        """Fill the result; of the other operands the last two are the bias and ``out``."""
        *_, bias, out = others
        result = a.new_empty(self._out_shape, dtype=self._out_dtype) if out is None else out
        if self._problem.m and self._problem.n:
            fill_empty_product(GemmOperands(self._problem, a, b, result, bias, self._activation))
        return result


class CopyingLauncher:
    """Tensors with strides that no kernel takes: they are copied first, as torch does.

    Parameters
    ----------
    launch : callable
        Takes the operands, and ``out`` by name.
    copies : tuple of bool
        Whether each operand is copied.
    copies_out : bool
        Whether the result is computed elsewhere and copied into ``out``.
    """

    __slots__ = ("_copies", "_copies_out", "_launch")

    def __init__(self, launch: Callable[..., Any], copies: tuple[bool, ...], *, copies_out: bool) -> None:
        self._launch, self._copies, self._copies_out = launch, copies, copies_out

    def run(self, *tensors: Any) -> Any:
        """Copy, launch, and copy back; the last of the tensors is ``out``."""
        *operands, out = tensors
        plain = (
            operand.contiguous() if is_copied else operand
            for operand, is_copied in zip(operands, self._copies, strict=True)
        )
        if self._copies_out:
            return out.copy_(self._launch(*plain, out=None))
        return self._launch(*plain, out=out)
