"""What the launchers of families have chosen: by problem, as long as the settings stay as they are."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable

from wavetune.core.config import KernelConfig
from wavetune.core.problem import Problem
from wavetune.errors import NoModelError
from wavetune.launch.gpu import LaunchGpu
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
        if len(self._known) >= MAX_CHOICES:
            self._known.clear()
        self._known[key] = config
        return config
