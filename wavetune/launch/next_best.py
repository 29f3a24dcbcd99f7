"""What takes the place of a configuration that cannot run on this GPU: the next best, of every kernel family alike.

Whether a kernel can be compiled and loaded does not depend on the sizes of a problem. So what failed once is passed
over for the life of the process, whatever is launched next, and said once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from wavetune.core.config import KernelConfig
from wavetune.core.problem import Problem
from wavetune.errors import InfeasibleConfigError
from wavetune.launch.gpu import LaunchGpu
from wavetune.launch.unusable import UNUSABLE

Result = TypeVar("Result")

Kind = tuple[object, ...]
"""All but the configuration that decides what is compiled and where: kernel, GPU, dtype, layout, options; no sizes."""

_log = logging.getLogger("wavetune")

_unusable: set[tuple[Kind, KernelConfig]] = set()


def mark_unusable(gpu: LaunchGpu, kind: Kind, config: KernelConfig, reason: Exception) -> None:
    """Remember, and say once, that a configuration cannot be compiled or loaded; it is not tried again."""
    _unusable.add((kind, config))
    _log.warning("%r cannot run on %s, the next best takes its place: %s", config, gpu.arch.name, reason)


def usable(kind: Kind, configs: Iterable[KernelConfig]) -> Iterator[KernelConfig]:
    """Yield configurations without those that are known to fail, at the time when each is asked for."""
    for config in configs:
        # Nearly always there are none, and this is on the path of every launch.
        if not _unusable or (kind, config) not in _unusable:
            yield config


def run_first(
    gpu: LaunchGpu,
    kind: Kind,
    problem: Problem,
    configs: Iterable[KernelConfig],
    run: Callable[[KernelConfig], Result],
) -> tuple[KernelConfig, Result]:
    """Run the first configuration that can run.

    Parameters
    ----------
    gpu : LaunchGpu
        Where.
    kind : tuple
        What is compiled, see `Kind`.
    problem : Problem
        What is computed; only named.
    configs : iterable of KernelConfig
        The choice, then what may stand in, best first; no further ones are asked for than are needed.
    run : callable
        Takes a configuration; raises one of `wavetune.launch.unusable.UNUSABLE` if that cannot be compiled or loaded.

    Returns
    -------
    tuple of KernelConfig and object
        The configuration that ran, and what ``run`` returned.

    Raises
    ------
    InfeasibleConfigError, triton.runtime.errors.TritonError
        If none can run: the failure of the first that was tried.
    """
    failure: Exception | None = None
    for config in usable(kind, configs):
        try:
            return config, run(config)
        except UNUSABLE as error:
            failure = failure or error
            mark_unusable(gpu, kind, config, error)
    raise failure or InfeasibleConfigError(
        f"no configuration can run {problem.kernel} of {problem.dtype} and sizes {problem.dims} on {gpu.arch.name}; "
        "the log says why each failed"
    )
