"""The first launch of a configuration on given operands: compile, bind, and stand in for what cannot run."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import NoReturn

from wavetune.core.config import KernelConfig
from wavetune.core.problem import GemmProblem
from wavetune.errors import CaptureError
from wavetune.kernels.call import Launch
from wavetune.kernels.gemm import bind_gemm, is_loaded
from wavetune.kernels.gemm_operands import GemmOperands, workspace_size
from wavetune.launch.gpu import LaunchGpu
from wavetune.launch.next_best import Kind, run_first
from wavetune.launch.source import ConfigSource

_log = logging.getLogger("wavetune")

_logged: set[tuple[object, ...]] = set()


def launch_first(
    gpu: LaunchGpu, source: ConfigSource, operands: GemmOperands, config: KernelConfig, stream: int
) -> Launch | None:
    """Launch operands that no bound launch is kept for.

    While a graph is captured, nothing is compiled: the best configuration that is loaded takes the place of one that is
    not. A configuration that cannot be compiled or loaded gives way to the next best, and is not tried again.

    Parameters
    ----------
    gpu : LaunchGpu
        Where the operands are; the current one of this thread.
    source : ConfigSource
        Ranks the alternatives.
    operands : GemmOperands
        Not empty, with the workspace of ``config``.
    config : KernelConfig
        The choice.
    stream : int
        CUDA stream handle.

    Returns
    -------
    Launch or None
        What to keep for these operands under this choice; None if nothing may be kept.

    Raises
    ------
    CaptureError
        If a graph is captured and no configuration is loaded.
    InfeasibleConfigError, triton.runtime.errors.TritonError
        If no configuration at all can be loaded: the failure of the first.
    """
    if gpu.is_capturing() and not is_loaded(operands, config, gpu.arch):
        _launch_loaded(gpu, source, operands, config, stream)
        return None
    problem = operands.problem
    used, launch = run_first(
        gpu,
        gemm_kind(gpu, problem, operands.bias is not None, operands.activation),
        problem,
        _candidates(gpu, source, operands, config),
        lambda candidate: bind_gemm(operands.with_workspace(candidate), candidate, gpu.arch, stream),
    )
    launch()
    # Under the key of another configuration, only a launch without a workspace of its own may be kept.
    may_keep = used == config or not workspace_size(problem, used)
    return launch if may_keep else None


def gemm_kind(gpu: LaunchGpu, problem: GemmProblem, has_bias: bool, activation: str) -> Kind:
    """Return what decides, beside the configuration, which kernels compute a GEMM."""
    return problem.kernel, gpu.index, problem.dtype, problem.layout, has_bias, activation


def _launch_loaded(
    gpu: LaunchGpu, source: ConfigSource, operands: GemmOperands, config: KernelConfig, stream: int
) -> None:
    problem = operands.problem
    for candidate in source.rank(problem):
        if is_loaded(operands, candidate, gpu.arch):
            key = (problem, gpu.index, config)
            if key not in _logged:
                _logged.add(key)
                _log.warning(
                    "a graph is being captured and the choice for %s is not loaded; captured is %r instead of %r; %s",
                    problem, candidate, config, _advice(operands),
                )  # fmt: skip
            bind_gemm(operands.with_workspace(candidate), candidate, gpu.arch, stream)()
            return
    _refuse(operands)


def _refuse(operands: GemmOperands) -> NoReturn:
    raise CaptureError(
        f"a CUDA graph is being captured and no kernel for {operands.problem} is loaded, and compiling one would break "
        f"the capture; {_advice(operands)}"
    )


def _advice(operands: GemmOperands) -> str:
    problem = operands.problem
    epilogue = ", bias=True" if operands.bias is not None else ""
    if operands.activation != "none":
        epilogue += f", activation={operands.activation!r}"
    return (
        f"call wavetune.warmup({problem.n}, {problem.k}, dtype={problem.dtype!r}, layout={problem.layout!r}{epilogue}) "
        "before, or run the same sizes once outside of the capture"
    )


def _candidates(
    gpu: LaunchGpu, source: ConfigSource, operands: GemmOperands, config: KernelConfig
) -> Iterator[KernelConfig]:
    yield config
    # Only where the choice failed. What is loaded comes first: a layer that was made ready must not compile again.
    others = [other for other in source.rank(operands.problem) if other != config]
    yield from sorted(others, key=lambda other: not is_loaded(operands, other, gpu.arch))
