"""What the launchers of families have chosen: by problem, as long as the settings stay as they are.

A choice that cannot run on this GPU is replaced by the next best, which is the choice from then on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterable, Iterator
from itertools import chain

from wavetune.core.config import KernelConfig
from wavetune.core.problem import Problem
from wavetune.errors import CaptureError, NoModelError
from wavetune.launch.gpu import LaunchGpu
from wavetune.launch.next_best import Kind, Result, run_first, usable
from wavetune.runtime.choice import RankedConfig
from wavetune.runtime.settings import Settings, settings

MAX_CHOICES = 8192
"""Choices that are remembered; all are dropped when there are more, or when settings change."""

_log = logging.getLogger("wavetune")


class Choices:
    """The choices of one family's launchers."""

    def __init__(self) -> None:
        self._known: dict[Hashable, KernelConfig] = {}
        self._settings: Settings | None = None
        self._logged: set[tuple[str, ...]] = set()

    def get(self, key: Hashable) -> KernelConfig | None:
        """Return what was chosen, if anything."""
        now = settings()
        if self._settings is not now:
            self._settings = now
            self._known.clear()
        return self._known.get(key)

    def add(
        self,
        key: Hashable,
        problem: Problem,
        gpu: LaunchGpu,
        choose: Callable[[str, int | None], KernelConfig],
        fallback: Callable[[NoModelError], KernelConfig],
    ) -> KernelConfig:
        """Choose by the model, or without one by the fixed rule, which is logged once.

        Parameters
        ----------
        key : hashable
            All that decides.
        problem : Problem
            What is launched.
        gpu : LaunchGpu
            Where.
        choose : callable
            Takes the name of the GPU, and its SMs if they are not all there; raises `NoModelError`.
        fallback : callable
            Takes that error.
        """
        try:
            if gpu.device is None:
                raise NoModelError(f"{gpu.arch.name} is not a known GPU")
            config = choose(gpu.device.arch.name, gpu.device.num_sms if gpu.device.is_scaled else None)
        except NoModelError as error:
            config = fallback(error)
            about = (problem.kernel, problem.dtype, problem.layout, gpu.arch.name)
            if about not in self._logged:
                self._logged.add(about)
                _log.warning("launching configurations that nobody tuned: %s", error)
        self._keep(key, config)
        return config

    def run(
        self,
        key: Hashable,
        chosen: KernelConfig,
        gpu: LaunchGpu,
        kind: Kind,
        problem: Problem,
        *,
        others: Iterable[KernelConfig],
        is_loaded: Callable[[KernelConfig], bool],
        run: Callable[[KernelConfig], Result],
    ) -> tuple[KernelConfig, Result]:
        """Run a choice, or the next best where that cannot run on this GPU; the latter is the choice from then on.

        Parameters
        ----------
        key : hashable
            That of `add`; it decides ``kind``.
        chosen : KernelConfig
            The choice.
        gpu, kind, problem, run
            As for `wavetune.launch.next_best.run_first`.
        others : iterable of KernelConfig
            What may stand in, best first; only asked for where the choice fails.
        is_loaded : callable
            Whether a configuration would compile nothing; only asked while a graph is captured.

        Returns
        -------
        tuple of KernelConfig and object
            The configuration that ran, and what ``run`` returned.

        Raises
        ------
        CaptureError
            If a graph is captured, and the first configuration that is not known to fail is not loaded.
        InfeasibleConfigError, triton.runtime.errors.TritonError
            If none can run: the failure of the first that was tried.
        """
        configs: Iterable[KernelConfig] = chain((chosen,), others)
        if gpu.is_capturing():
            first = next(usable(kind, configs), None)
            if first is None or not is_loaded(first):
                raise CaptureError(
                    f"a CUDA graph is being captured and the kernel of {problem.kernel} for {problem.dtype} and sizes "
                    f"{problem.dims} is not loaded; compiling it would break the capture, so run the same sizes once "
                    "before"
                )
            configs = (first,)
        config, result = run_first(gpu, kind, problem, configs, run)
        if config != chosen:
            self._keep(key, config)
        return config, result

    def _keep(self, key: Hashable, config: KernelConfig) -> None:
        if len(self._known) >= MAX_CHOICES:
            self._known.clear()
        self._known[key] = config


def next_best(
    problem: Problem,
    chosen: KernelConfig,
    gpu: LaunchGpu,
    rank: Callable[..., list[RankedConfig]],
    refusal: Callable[..., str | None],
    fixed_rule: Callable[..., Iterator[KernelConfig]],
) -> Iterator[KernelConfig]:
    """Yield what may stand in for a choice: the model's others that are legal, best first, then the fixed rule's.

    Parameters
    ----------
    problem : Problem
        What is launched.
    chosen : KernelConfig
        The choice, which is left out.
    gpu : LaunchGpu
        Where.
    rank : callable
        The runtime's ranking of the family: takes a problem, ``arch`` and ``num_sms``; may raise `NoModelError`.
    refusal : callable
        The kernel's reason against a problem, a configuration and an `ArchSpec`, or None.
    fixed_rule : callable
        Takes a problem and an `ArchSpec`.
    """
    ranked: list[RankedConfig] = []
    if gpu.device is not None:
        try:
            ranked = rank(problem, arch=gpu.device.arch.name, num_sms=gpu.device.num_sms)
        except NoModelError:
            ranked = []
    for config in chain((entry.config for entry in ranked), fixed_rule(problem, gpu.arch)):
        if config != chosen and refusal(problem, config, gpu.arch) is None:
            yield config
