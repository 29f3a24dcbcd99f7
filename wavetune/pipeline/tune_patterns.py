"""Patterns of earlier tunings as seeds of this one, and what this one teaches them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from wavetune.core.arch import ArchSpec
from wavetune.core.config import KernelConfig
from wavetune.core.problem import GemmProblem
from wavetune.mapping.legality import refusal
from wavetune.pipeline.tune_verdict import Outcome, TunedProblem
from wavetune.runtime.device import Device
from wavetune.workloads.pattern_cache import MAX_SEEDS, Pattern, PatternCache, read_patterns, updating_patterns

CompileFilter = Callable[[Sequence[KernelConfig], ArchSpec, str, str], set[KernelConfig]]
"""From configurations, GPU, element type and layout to those that compile for it, whether or not it is there."""

logger = logging.getLogger("wavetune")


def compilable(configs: Sequence[KernelConfig], arch: ArchSpec, dtype: str, layout: str) -> set[KernelConfig]:
    """Compile configurations without running them; return those that compile and fit on an SM."""
    from wavetune.measure.compile import compile_configs
    from wavetune.store.record import CompiledConfig

    results = compile_configs("gemm", configs, arch, dtype=dtype, layout=layout)
    return {result.config for result in results if isinstance(result, CompiledConfig)}


class PatternSeeds:
    """The seeds of one tuning; a callable from problem to configurations.

    Parameters
    ----------
    cache : PatternCache
        What is known: the file's content, if there is one.
    device : Device
        Where is tuned.
    path : Path, optional
        Where `learn` writes to; nowhere if not given.
    compile_filter : callable, optional
        Tells which patterns of other GPUs compile for this one.
    """

    def __init__(
        self,
        cache: PatternCache,
        device: Device,
        path: Path | None = None,
        compile_filter: CompileFilter = compilable,
    ) -> None:
        self.cache = cache
        self._device, self._path = device, path
        self._compile_filter = compile_filter
        self._compiled: dict[tuple[str, str], set[KernelConfig]] = {}

    @classmethod
    def open(cls, path: Path | None, device: Device) -> PatternSeeds:
        """Read a file, or begin with nothing where there is none.

        Raises
        ------
        ModelFileError
            If the file is damaged.
        """
        cache = read_patterns(path) if path is not None and path.exists() else PatternCache()
        return cls(cache, device, path)

    def __call__(self, problem: GemmProblem) -> list[KernelConfig]:
        """Return what won on problems like this one, most promising first, at most `MAX_SEEDS`."""
        if not len(self.cache):
            return []
        arch = self._device.arch
        seeds: dict[KernelConfig, None] = {}
        for pattern in self.cache.matching(problem, arch):
            if pattern.arch == arch.name or pattern.config in self._foreign(problem.dtype, problem.layout):
                seeds[pattern.config] = None
        return list(seeds)[:MAX_SEEDS]

    def learn(self, problems: Iterable[TunedProblem]) -> int:
        """Count who was measured as a seed and who won, let the useless go, and write the file.

        It is read again for that: other tunings may have taught it something meanwhile.

        Returns
        -------
        int
            Patterns that there are now.

        Raises
        ------
        ModelFileError
            If the file cannot be written, or was damaged meanwhile.
        """
        if self._path is None:
            self._teach(self.cache, problems)
        else:
            with updating_patterns(self._path, create=True) as self.cache:
                self._teach(self.cache, problems)
        return len(self.cache)

    def _teach(self, cache: PatternCache, problems: Iterable[TunedProblem]) -> None:
        arch = self._device.arch
        for tuned in problems:
            if tuned.outcome is Outcome.FAILED:
                continue
            winner = tuned.config if tuned.outcome is Outcome.TUNED else None
            problem = tuned.plan.problem
            for config in dict.fromkeys([*tuned.plan.seeds, *([winner] if winner is not None else [])]):
                cache.record_use(problem, config, arch, won=config == tuned.config)
        cache.prune()

    def _foreign(self, dtype: str, layout: str) -> set[KernelConfig]:
        """Return the configurations of other GPUs' patterns that compile for this one; each is compiled once."""
        key = (dtype, layout)
        if key not in self._compiled:
            arch = self._device.arch
            others = [pattern for pattern in self.cache if _is_of(pattern, dtype, layout) and pattern.arch != arch.name]
            configs = [config for config in dict.fromkeys(p.config for p in others) if _may_run(config, arch, *key)]
            self._compiled[key] = self._compile_filter(configs, arch, dtype, layout) if configs else set()
            n_configs = len({pattern.config for pattern in others})
            logger.info(
                "%d of %d configurations of other GPUs' patterns compile for %s",
                len(self._compiled[key]), n_configs, arch.name,
            )  # fmt: skip
        return self._compiled[key]


def _is_of(pattern: Pattern, dtype: str, layout: str) -> bool:
    return (pattern.dtype, pattern.layout) == (dtype, layout)


def _may_run(config: KernelConfig, arch: ArchSpec, dtype: str, layout: str) -> bool:
    """Whether the rules allow a configuration on a large aligned problem; compiling the others is a waste."""
    problem = GemmProblem(2**14, 2**14, 2**14, dtype, layout)
    return refusal(problem, config, arch) is None
