"""Which configuration a kernel of the user's gets: settings, store, model, measurement, default, in this order."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

from wavetune.core.config import KernelConfig
from wavetune.errors import ConfigError, MissError
from wavetune.launch.autotune.bench import current_bench
from wavetune.launch.autotune.candidate import Candidate
from wavetune.launch.autotune.hooks import TuningHooks
from wavetune.launch.autotune.race import by_past_wins, race
from wavetune.launch.autotune.tables import KernelTables, Place
from wavetune.launch.live import NotMeasuredError
from wavetune.launch.unusable import UNUSABLE
from wavetune.mapping.kernel_mapping import KernelMapping, KernelProblem
from wavetune.runtime.choice import Source
from wavetune.runtime.family_chooser import FamilyChooser
from wavetune.runtime.measurer import MeasuredChoice
from wavetune.runtime.settings import Settings

NAN = float("nan")

logger = logging.getLogger("wavetune")


class RunCandidate(Protocol):
    """Launches a kernel with one of its configurations."""

    def __call__(self, candidate: Candidate, *, compile_only: bool = False) -> Any:
        """Launch, or compile and return the compiled kernel."""
        ...


@dataclass(frozen=True, slots=True)
class Launch:
    """One call of a kernel.

    Parameters
    ----------
    arguments : mapping of str to object
        Arguments of the kernel by name.
    kwargs : mapping of str to object
        What was passed by keyword, arguments or not.
    key : mapping of str to object
        The arguments that decide.
    problem : KernelProblem
        The key as stores and models know it.
    dims : tuple of str
        Names of the problem's sizes.
    run : callable
        Launches a candidate with these arguments.
    """

    arguments: Mapping[str, Any]
    kwargs: Mapping[str, Any]
    key: Mapping[str, Any]
    problem: KernelProblem
    dims: tuple[str, ...]
    run: RunCandidate


@dataclass(frozen=True, slots=True)
class Answer:
    """What to launch.

    Parameters
    ----------
    candidates : tuple of Candidate
        The choice, then what to launch if it turns out not to be legal.
    source : Source
        Of the choice.
    latency_us : float
        Of the choice, measured or predicted; NaN where nothing is known.
    is_final : bool
        Whether the same key may be answered from memory from now on.
    """

    candidates: tuple[Candidate, ...]
    source: Source
    latency_us: float = NAN
    is_final: bool = True


class KernelPolicy:
    """Answers for one kernel.

    Parameters
    ----------
    candidates : mapping of KernelConfig to Candidate
        Its configurations, the default first.
    mapping : KernelMapping or None
        Its mapping functions, if it has any.
    hooks : TuningHooks
        What happens around timed launches.
    prune_configs_by : mapping
        As in ``triton.autotune``.

    Raises
    ------
    ConfigError
        If ``prune_configs_by`` holds what Triton does not know, or an impossible ``top_k``.
    """

    def __init__(
        self,
        candidates: Mapping[KernelConfig, Candidate],
        mapping: KernelMapping | None,
        hooks: TuningHooks,
        prune_configs_by: Mapping[str, Any],
    ) -> None:
        unknown = sorted(set(prune_configs_by) - {"early_config_prune", "perf_model", "top_k"})
        if unknown:
            raise ConfigError(
                f"prune_configs_by has no {unknown[0]!r}; it has early_config_prune, perf_model and top_k"
            )
        self._all = candidates
        self._mapping = mapping
        self._hooks = hooks
        self._early_prune: Callable[..., Sequence[Any]] | None = prune_configs_by.get("early_config_prune")
        self._perf_model: Callable[..., float] | None = prune_configs_by.get("perf_model")
        self._top_k = _count_kept(prune_configs_by.get("top_k", 1.0), len(candidates))
        self._wins: Counter[KernelConfig] = Counter()
        self._settings: Settings
        self._tables: KernelTables

    def use(self, settings: Settings, tables: KernelTables) -> None:
        """Answer by these settings and tables from now on."""
        self._settings, self._tables = settings, tables

    def device_index(self) -> int | None:
        """Return the device that a launch of this thread goes to."""
        return current_bench().device_index()

    def mapping_of(self, dims: Sequence[str]) -> KernelMapping:
        """Return the mapping with the names of a key's sizes."""
        assert self._mapping is not None
        return replace(self._mapping, dims=tuple(dims))

    def prune(self, launch: Launch) -> list[Candidate]:
        """Return the candidates that ``prune_configs_by`` leaves, at least one; as Triton calls it."""
        kept = list(self._all.values())
        if self._early_prune is not None:
            configs = self._early_prune([c.config for c in kept], dict(launch.arguments), **launch.kwargs)
            kept = [self._find(config) for config in configs]
            if not kept:
                raise ConfigError(f"early_config_prune of kernel {launch.problem.kernel} left no configuration")
        if self._perf_model is not None and len(kept) > self._top_k:
            everything = {**launch.arguments, **launch.kwargs}
            predicted = {c.identity: self._perf_model(**everything, **c.options) for c in kept}
            kept = sorted(kept, key=lambda candidate: predicted[candidate.identity])[: self._top_k]
        return kept

    def answer(self, launch: Launch, *, may_measure: bool) -> Answer:
        """Choose for one launch.

        Raises
        ------
        MissError
            If nothing is known about the key and the miss policy is ``error``.
        """
        kept = self.prune(launch)
        usable = {candidate.identity: candidate for candidate in kept}
        bench, current = current_bench(), self._settings
        forced = self._forced(kept)
        if forced is not None:
            return _first(forced, kept, Source.FORCED)
        if current.disable or len(kept) == 1:
            return _first(kept[0], kept, Source.DEFAULT)
        place = bench.place()
        if place is not None:
            stored = self._tables.stored(launch.problem, place)
            if stored is not None and stored.config in usable:
                return _first(usable[stored.config], kept, Source.EXACT, stored.latency_us)
        chooser = self._chooser(launch, usable, place)
        modelled = _modelled(chooser, launch, usable, kept)
        if modelled is not None and modelled.source is not Source.MODEL:
            return modelled
        return self._beyond(launch, kept, modelled, place, may_measure)

    def _beyond(
        self, launch: Launch, kept: list[Candidate], modelled: Answer | None, place: Place | None, may_measure: bool
    ) -> Answer:
        """Answer a key that neither the store nor the measured range of a model covers, by the miss policy."""
        policy = self._settings.on_miss
        default = _first(kept[0], kept, Source.DEFAULT)
        if policy == "default":
            return default
        if policy == "error":
            raise MissError(
                f"nothing is known about kernel {launch.problem.kernel} with key {dict(launch.key)}, and on_miss is "
                "'error'; calibrate it, or choose another on_miss"
            )
        if policy == "model" and modelled is not None:
            return modelled
        otherwise = modelled or default
        if not may_measure:
            return replace(otherwise, is_final=False)
        # A model's ranking says what is worth a look; without one, all that pruning left.
        ranked = list(modelled.candidates[: self._settings.measure_top_k]) if modelled is not None else kept
        candidates = list(dict.fromkeys((kept[0], *ranked)))
        if current_bench().is_capturing():
            logger.info("not measured: %s: a CUDA graph is being captured", launch.problem)
            return replace(otherwise, is_final=False)
        choice = self._measure(launch, candidates)
        if choice is None:
            return otherwise
        if place is not None and launch.problem.dims:
            self._tables.save(launch.problem, place, choice)
        self._wins[choice.config] += 1
        winner = next(candidate for candidate in kept if candidate.identity == choice.config)
        return _first(winner, kept, Source.MEASURED, choice.latency_us)

    def _measure(self, launch: Launch, candidates: list[Candidate]) -> MeasuredChoice | None:
        """Measure candidates, the default first; None, with a line in the log, if that is not possible."""
        current = self._settings
        by_identity = {candidate.identity: candidate for candidate in candidates}
        try:
            with current_bench().open(current.measure_budget_ms) as stopwatch:
                order = by_past_wins(self._compile(launch, candidates), self._wins)
                arguments = self._hooks.open({**launch.arguments, **launch.kwargs})
                try:
                    laps = {
                        identity: arguments.lap(by_identity[identity], partial(launch.run, by_identity[identity]))
                        for identity in order
                    }
                    choice = race(
                        laps, stopwatch, budget_ms=current.measure_budget_ms, top_k=current.measure_top_k,
                        margin=current.measure_margin, kernel_source=self._tables.kernel_source,
                    )  # fmt: skip
                finally:
                    arguments.close(candidates[0])
        except NotMeasuredError as error:
            logger.info("not measured: %s: %s", launch.problem, error)
            return None
        except Exception as error:
            # By name, so that torch need not be imported here; what else a launch raises is the caller's to see.
            if type(error).__name__ != "OutOfMemoryError":
                raise
            logger.warning("not measured: %s: out of memory", launch.problem)
            return None
        logger.info(
            "measured %s: %s, %.2f us, default %.2f us; %d candidates",
            launch.problem, choice.config, choice.latency_us, choice.default_us, len(order),
        )  # fmt: skip
        return choice

    def _compile(self, launch: Launch, candidates: Sequence[Candidate]) -> list[KernelConfig]:
        """Compile and load candidates; returns those that the device takes.

        Raises
        ------
        NotMeasuredError
            If fewer than two are left.
        """
        kept = []
        for candidate in candidates:
            try:
                load_compiled(launch.run(candidate, compile_only=True))
            except UNUSABLE as error:
                logger.info("%s: configuration dropped: %s: %s", launch.problem.kernel, candidate.identity, error)
            else:
                kept.append(candidate.identity)
        if len(kept) < 2:
            raise NotMeasuredError(f"{len(kept)} of {len(candidates)} configurations can be launched")
        return kept

    def _chooser(
        self, launch: Launch, usable: Mapping[KernelConfig, Candidate], place: Place | None
    ) -> FamilyChooser | None:
        if self._mapping is None or place is None or not launch.dims:
            return None
        rest = {name: value for name, value in launch.key.items() if name not in launch.dims}
        return self._tables.chooser(self.mapping_of(launch.dims), self._all, launch.problem, place, rest)

    def _forced(self, kept: Sequence[Candidate]) -> Candidate | None:
        """Return the first candidate with all fields of the setting ``force_config``, which may mean another kernel."""
        forced = self._settings.force_config
        if forced is None:
            return None
        return next((c for c in kept if forced.items() <= c.identity.items()), None)

    def _find(self, config: Any) -> Candidate:
        candidate = Candidate.of(config)
        return self._all.get(candidate.identity, candidate)


def load_compiled(kernel: Any) -> Any:
    """Load a compiled kernel on the current device, so that it is known whether it fits.

    Returns
    -------
    triton.compiler.CompiledKernel or None
        None in the interpreter, which compiles nothing.

    Raises
    ------
    OutOfResources
        If the device has not got what the kernel needs.
    """
    if hasattr(kernel, "result"):
        kernel = kernel.result()
    if kernel is not None and hasattr(kernel, "_init_handles"):
        kernel._init_handles()
    return kernel


def _modelled(
    chooser: FamilyChooser | None, launch: Launch, usable: Mapping[KernelConfig, Candidate], kept: list[Candidate]
) -> Answer | None:
    """Return what a model says, best first; configurations that it does not know come last."""
    if chooser is None:
        return None
    choice = chooser.choose(launch.problem.dims)
    if choice is None:
        return None
    ranked = [entry.config for entry in chooser.rank(launch.problem.dims)]
    order = [usable[config] for config in (choice.config, *ranked) if config in usable]
    if not order or order[0].identity != choice.config:
        # The best one was pruned away for this key; the next best decides, and was never looked up.
        return Answer(tuple(dict.fromkeys((*order, *kept))), Source.MODEL) if order else None
    return Answer(tuple(dict.fromkeys((*order, *kept))), choice.source, choice.latency_us)


def _first(choice: Candidate, kept: Sequence[Candidate], source: Source, latency_us: float = NAN) -> Answer:
    return Answer(tuple(dict.fromkeys((choice, *kept))), source, latency_us)


def _count_kept(top_k: object, n_configs: int) -> int:
    if isinstance(top_k, float) and 0.0 < top_k <= 1.0:
        return max(1, int(n_configs * top_k))
    if isinstance(top_k, int) and not isinstance(top_k, bool) and top_k >= 1:
        return top_k
    raise ConfigError(f"top_k must be a positive integer, or a share up to 1.0, got {top_k!r}")
