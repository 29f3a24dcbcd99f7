"""Where a launcher's configurations come from: the runtime, and a safe rule where no model answers."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from wavetune.core.arch import ARCHS
from wavetune.core.config import KernelConfig
from wavetune.core.problem import GemmProblem
from wavetune.errors import NoModelError
from wavetune.kernels.gemm import illegal_reason
from wavetune.kernels.gemm_space import fallback_configs, fallback_rows
from wavetune.launch.gpu import LaunchGpu
from wavetune.runtime.choose import choose_config, rank_configs
from wavetune.runtime.reachable import reachable_configs
from wavetune.runtime.settings import settings

_log = logging.getLogger("wavetune")

BATCH_INVARIANT = "batch_invariant"
"""The numerics class in which m may not decide how a row is summed."""

MAX_REMEMBERED = 4096
"""Answers without a model that one source remembers; it starts afresh when it has more."""


class ConfigSource:
    """Answers for the GEMMs of one GPU, dtype, layout and numerics class; always with something legal.

    The runtime answers where it can. B as [k, n] is answered by the model of [n, k], if there is no model of its own:
    tiles, waves and bytes are the same, only the order of loads differs. What takes no [k, n], as warp-specialised
    kernels, gives way to the next best. Without either, a fixed rule answers. Both are logged once.

    Parameters
    ----------
    gpu : LaunchGpu
        Where the launches go.
    dtype, layout : str
        Of the operands, as `wavetune.core.problem.GemmProblem` takes them.
    numerics : str
        Numerics class, see `wavetune.choose_config`.
    """

    def __init__(self, gpu: LaunchGpu, dtype: str, layout: str, numerics: str) -> None:
        self.gpu = gpu
        self.numerics = numerics
        self._dtype, self._layout = dtype, layout
        self._arch = "" if gpu.device is None else gpu.device.arch.name
        self._num_sms = None if gpu.device is None or not gpu.device.is_scaled else gpu.device.num_sms
        # Answers that did not come from the layout's own model, so that a missing file is looked for once.
        self._others: dict[tuple[int, int, int, int], KernelConfig] = {}
        self._settings = settings()

    def choose(self, m: int, n: int, k: int, alignment: int) -> KernelConfig:
        """Return a legal configuration for positive sizes and an alignment class in bytes; the hot path."""
        if self._others:
            if self._settings is not settings():
                self._others.clear()
            other = self._others.get((m, n, k, alignment))
            if other is not None:
                return other
        if self.gpu.device is None:
            reason = NoModelError(f"{self.gpu.arch.name} is not a known GPU; known: {', '.join(ARCHS)}")
            return self._without_own_model(m, n, k, alignment, reason)
        try:
            return choose_config(
                m, n, k, dtype=self._dtype, layout=self._layout, alignment=alignment, arch=self._arch,
                num_sms=self._num_sms, numerics=self.numerics,
            )  # fmt: skip
        except NoModelError as error:
            return self._without_own_model(m, n, k, alignment, error)

    def rank(self, problem: GemmProblem) -> Iterator[KernelConfig]:
        """Yield legal configurations of the numerics class, best predicted first, the safe rule's last.

        What sums in another order than the model's choice for the layer never stands in for it under
        ``batch_invariant``.
        """
        for layout in self._layouts():
            try:
                ranked = self._ranked(problem, layout)
            except NoModelError:
                continue
            legal = [config for config in ranked if self._is_legal(problem, config)]
            yield from legal
            if legal and self.numerics == BATCH_INVARIANT:
                return
            break
        yield from self._fallbacks(problem)

    def reachable(self, n: int, k: int, m_range: tuple[int, int], alignment: int) -> tuple[KernelConfig, ...]:
        """Return every configuration that `choose` can answer for some m of a range, ends included."""
        for layout in self._layouts():
            try:
                found = self._reachable(n, k, m_range, alignment, layout)
            except NoModelError:
                continue
            if layout == self._layout or all(self._is_legal(self._problem(1, n, k, alignment), each) for each in found):
                return found
            return self._reachable_elsewhere(n, k, m_range, alignment, layout)
        problems = (self._problem(m, n, k, alignment) for m in fallback_rows(m_range))
        return tuple(dict.fromkeys(next(self._fallbacks(problem)) for problem in problems))

    def _reachable(
        self, n: int, k: int, m_range: tuple[int, int], alignment: int, layout: str
    ) -> tuple[KernelConfig, ...]:
        return reachable_configs(
            n, k, m_range, dtype=self._dtype, layout=layout, alignment=alignment, arch=self._arch,
            num_sms=self._num_sms, numerics=self.numerics,
        )  # fmt: skip

    def _reachable_elsewhere(
        self, n: int, k: int, m_range: tuple[int, int], alignment: int, layout: str
    ) -> tuple[KernelConfig, ...]:
        """Return what the model of another layout can answer, and what stands in where that is not legal in this."""
        found: dict[KernelConfig, None] = {}
        for m in range(m_range[0], m_range[1] + 1):
            problem = self._problem(m, n, k, alignment)
            for config in self._reachable(n, k, (m, m), alignment, layout):
                stand_in = config if self._is_legal(problem, config) else self._next_best(problem, layout)
                found[stand_in or next(self._fallbacks(problem))] = None
        return tuple(found)

    def _without_own_model(self, m: int, n: int, k: int, alignment: int, reason: NoModelError) -> KernelConfig:
        problem = self._problem(m, n, k, alignment)
        config = self._from_other_layout(problem, reason) or self._fallback(problem, reason)
        current = settings()
        if len(self._others) >= MAX_REMEMBERED or self._settings is not current:
            self._others.clear()
        self._settings = current
        self._others[m, n, k, alignment] = config
        return config

    def _from_other_layout(self, problem: GemmProblem, reason: NoModelError) -> KernelConfig | None:
        for layout in self._layouts()[1:]:
            try:
                preferred = choose_config(
                    *problem.dims, dtype=self._dtype, layout=layout, alignment=problem.alignment, arch=self._arch,
                    num_sms=self._num_sms, numerics=self.numerics,
                )  # fmt: skip
            except NoModelError:
                continue
            config = preferred if self._is_legal(problem, preferred) else self._next_best(problem, layout)
            if config is not None:
                self._log_once(logging.INFO, f"answered by the model for B as [{', '.join(layout)}]: {reason}")
                return config
        return None

    def _next_best(self, problem: GemmProblem, layout: str) -> KernelConfig | None:
        """Return the best configuration of a layout's model that is legal for a problem, if any."""
        try:
            return next((config for config in self._ranked(problem, layout) if self._is_legal(problem, config)), None)
        except NoModelError:
            # A table without forms, such as a pinned one, ranks nothing.
            return None

    def _ranked(self, problem: GemmProblem, layout: str) -> list[KernelConfig]:
        ranked = rank_configs(
            _stored_as(problem, layout), arch=self._arch, num_sms=self._num_sms, numerics=self.numerics
        )
        return [entry.config for entry in ranked]

    def _fallback(self, problem: GemmProblem, reason: NoModelError) -> KernelConfig:
        for config in self._fallbacks(problem):
            self._log_once(logging.WARNING, f"launching configurations that nobody tuned: {reason}")
            return config
        raise reason

    def _fallbacks(self, problem: GemmProblem) -> Iterator[KernelConfig]:
        return fallback_configs(problem, self.gpu.arch, one_for_all_m=self.numerics == BATCH_INVARIANT)

    def _layouts(self) -> tuple[str, ...]:
        """Layouts whose models may answer, the own one first."""
        if self.gpu.device is None:
            return ()
        return (self._layout,) if self._layout == "nk" else (self._layout, "nk")

    def _is_legal(self, problem: GemmProblem, config: KernelConfig) -> bool:
        return illegal_reason(problem, config, self.gpu.arch) is None

    def _problem(self, m: int, n: int, k: int, alignment: int) -> GemmProblem:
        return GemmProblem(m, n, k, self._dtype, self._layout, alignment)

    def _log_once(self, level: int, what: str) -> None:
        key = (self.gpu.arch.name, self._dtype, self._layout, level)
        if key not in _logged:
            _logged.add(key)
            _log.log(level, "matmul of %s, layout %s, on %s: %s", self._dtype, self._layout, self.gpu.arch.name, what)


_logged: set[tuple[str, str, str, int]] = set()


def _stored_as(problem: GemmProblem, layout: str) -> GemmProblem:
    return GemmProblem(*problem.dims, dtype=problem.dtype, layout=layout, alignment=problem.alignment)
