"""Answer problems by policy, from everything that is known about one kernel on one device.

In this order: the forced configuration, the default if wavetune is disabled, the pinned table, the user's store, the
model's exact table, its cells; and beyond them, by the miss policy, its forms, a live measurement, the default, or an
error. Every answer is legal for the problem; what is not legal is passed over.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from wavetune.core.config import KERNEL_SPECS, FieldValue, KernelConfig, KernelSpec, find_kernel_spec
from wavetune.core.problem import GemmProblem
from wavetune.errors import ConfigError, MissError, NoModelError
from wavetune.mapping.gemm import map_gemm
from wavetune.mapping.legality import TMA_ALIGNMENT, refusal
from wavetune.mapping.numerics import ReductionOrder, is_deterministic, reduction_order
from wavetune.runtime.choice import Choice, RankedConfig, Source
from wavetune.runtime.chooser import GemmChooser
from wavetune.runtime.device import Device
from wavetune.runtime.hot_path import HotPath
from wavetune.runtime.learning import require_measurer
from wavetune.runtime.misses import ResolverKey, misses_of
from wavetune.runtime.settings import Settings
from wavetune.runtime.sources import warn_once
from wavetune.runtime.tables import KnownChoice, Tables

if TYPE_CHECKING:
    from wavetune.runtime.measurer import MeasuredChoice

logger = logging.getLogger("wavetune")

_LISTED = (Source.NEAREST, Source.MODEL, Source.MEASURED, Source.DEFAULT)


class Answer(NamedTuple):
    """A configuration and where it comes from.

    Parameters
    ----------
    config : KernelConfig
        Legal for the problem.
    source : Source
        See `wavetune.runtime.choice.Choice`.
    known : KnownChoice or None
        The measurement or the pinned row behind it.
    is_final : bool
        Whether the same question may be answered from memory; not if it could not be measured just now.
    """

    config: KernelConfig
    source: Source
    known: KnownChoice | None = None
    is_final: bool = True


class Resolver:
    """Answers for one kernel, dtype and layout on one device, under one numerics class.

    Parameters
    ----------
    key : ResolverKey
        What it answers for.
    device : Device
        Where the answers are launched.
    tables : Tables
        Everything that is known, shared between numerics classes.
    settings : Settings
        The policy.

    Attributes
    ----------
    misses : MissList
        What was not exact.
    hot_path : HotPath or None
        Answers aligned problems faster, where no policy and no numerics class has a say.
    """

    def __init__(self, key: ResolverKey, device: Device, tables: Tables, settings: Settings) -> None:
        self.key = key
        self._device = device
        self._tables = tables
        self._settings = settings
        self._spec = find_kernel_spec(key.kernel)
        self._forced = _forced_config(settings, self._spec)
        model = tables.model
        self._chooser = (
            None if model is None else GemmChooser(model, device.arch, device.num_sms, numerics=key.numerics)
        )
        self.misses = misses_of(key)
        self._is_invariant = key.numerics == "batch_invariant"
        self._known_here: dict[GemmProblem, KnownChoice] = {}
        chooser = self._chooser
        has_no_policy = (
            self._forced is None and not settings.disable and not settings.record and settings.on_miss == "model"
        )
        is_unfiltered = chooser is not None and not chooser.is_filtered and key.numerics == "any"
        self.hot_path: HotPath | None = None
        if chooser is not None and is_unfiltered and has_no_policy:
            self.hot_path = HotPath(chooser, tables.aligned, self.misses)

    def answer(self, problem: GemmProblem, on_miss: str, *, is_listed: bool = True) -> Answer:
        """Answer a problem, and measure it if it is beyond the tables and the policy says so.

        Parameters
        ----------
        problem : GemmProblem
            The question.
        on_miss : str
            The miss policy.
        is_listed : bool, default=True
            Whether it is listed if it is a miss.

        Raises
        ------
        MissError
            If it is beyond the tables and the policy is ``error``.
        NoMeasurerError
            If it would have to be measured, and nothing can.
        NoModelError
            If nothing knows a legal configuration.
        """
        answer = self.lookup(problem)
        if answer.source in (Source.MODEL, Source.DEFAULT) and not self._settings.disable:
            answer = self._beyond(problem, answer, on_miss)
        if is_listed and answer.source in _LISTED and not self._settings.disable:
            self.misses.add(problem.dims, problem.alignment, answer.source)
            if self._settings.record:
                self.misses.count(problem)
        return answer

    def lookup(self, problem: GemmProblem) -> Answer:
        """Answer a problem as the policy ``model`` does, without a trace."""
        if problem.is_empty:
            return Answer(self.default(problem), Source.EMPTY)
        order = self._pinned_order(problem)
        if self._forced is not None:
            reason = self._refusal(problem, self._forced, order)
            if reason is None:
                return Answer(self._forced, Source.FORCED)
            warn_once(f"the forced configuration does not answer {problem}: {reason}")
        if self._settings.disable:
            return Answer(self.default(problem), Source.DEFAULT)
        here = self._known_here.get(problem) if self._known_here else None
        for known in (here, self._tables.known.get((problem.dims, problem.alignment))):
            if known is not None and self._refusal(problem, known.config, order, is_checked=True) is None:
                return Answer(known.config, Source.EXACT, known)
        if self._chooser is None:
            default = self._tables.default
            if default is None or self._refusal(problem, default, order) is not None:
                self._fail(problem)
            return Answer(default, Source.DEFAULT)
        return Answer(*self._chooser.choose_modelled(problem, order))

    def default(self, problem: GemmProblem) -> KernelConfig:
        """Return the default configuration, or a legal one in its place; never by m where numerics forbid it.

        Raises
        ------
        NoModelError
            If nothing knows a legal configuration.
        """
        order = self._pinned_order(problem)
        if self._chooser is not None:
            return self._chooser.default_for(problem, order)
        default = self._tables.default
        if default is None or (not problem.is_empty and self._refusal(problem, default, order) is not None):
            self._fail(problem)
        return default

    def rank(self, problem: GemmProblem) -> list[RankedConfig]:
        """Order every modelled, legal configuration of the numerics class by predicted latency, best first."""
        if self._chooser is None:
            self._fail(problem)
        return self._chooser.rank(problem, self._pinned_order(problem))

    def possible(self, problem: GemmProblem, on_miss: str) -> tuple[KernelConfig, ...]:
        """Return every configuration that `answer` may give for a problem, now or after a live measurement."""
        answer = self.lookup(problem)
        is_beyond = answer.source in (Source.MODEL, Source.DEFAULT) and not self._settings.disable
        if is_beyond and on_miss == "error":
            return ()
        if answer.source is not Source.MODEL or on_miss == "model":
            return (answer.config,)
        default = self.default(problem)
        if on_miss == "measure":
            candidates = (entry.config for entry in self.rank(problem)[: self._settings.measure_top_k])
            return (answer.config, default, *candidates)
        return (default,)

    def explain(self, problem: GemmProblem, on_miss: str, *, is_listed: bool = True) -> Choice:
        """Answer a problem and say why; see `answer`."""
        answer = self.answer(problem, on_miss, is_listed=is_listed)
        known = answer.known
        latency_us = None if known is None else known.latency_us
        table = None if known is None else known.table
        is_measured = known is not None and known.is_measured
        if self._chooser is not None:
            return self._chooser.describe(
                problem, answer.config, answer.source, latency_us, table, is_measured=is_measured
            )
        table = table or self._tables.pinned_path
        if problem.is_empty:
            return Choice(answer.config, answer.source, 0.0, 0, 0, 0, 0, None, 0.0, table, self.key.num_sms)
        mapping = map_gemm(problem, answer.config, self._device.arch)
        latency_us = math.nan if latency_us is None else latency_us
        return Choice(
            answer.config, answer.source, latency_us, mapping.grid_size, mapping.loop_trips, 0, 0, None, math.inf,
            table, self.key.num_sms, is_measured=is_measured,
        )  # fmt: skip

    def _beyond(self, problem: GemmProblem, answer: Answer, on_miss: str) -> Answer:
        if on_miss == "error":
            raise MissError(
                f"{problem} is beyond what the tables of {self.key.arch} cover, and on_miss is 'error'; calibrate with "
                "it as a layer, pin it with `wavetune freeze`, or choose another on_miss"
            )
        if answer.source is Source.DEFAULT or on_miss == "model":
            return answer
        return Answer(self.default(problem), Source.DEFAULT) if on_miss == "default" else self._measure(problem, answer)

    def _measure(self, problem: GemmProblem, answer: Answer) -> Answer:
        measurer = require_measurer(self.key.kernel)
        from wavetune.runtime.measurer import MeasureRequest

        if measurer.is_capturing():
            return Answer(answer.config, answer.source, is_final=False)
        settings = self._settings
        request = MeasureRequest(
            problem=problem,
            configs=tuple(entry.config for entry in self.rank(problem)[: settings.measure_top_k]),
            default=self.default(problem),
            device=self._device,
            budget_ms=settings.measure_budget_ms,
            margin=settings.measure_margin,
        )
        key = (self.key, problem)

        def learned(choice: MeasuredChoice) -> None:
            reason = self._refusal(problem, choice.config, self._pinned_order(problem))
            if reason is not None:
                logger.warning("the measured configuration of %s is not kept: %s", problem, reason)
                return
            self._learn(problem, choice)

        if settings.measure_in == "background":
            is_taken = self._tables.learner.later(key, measurer, request, learned)
            return Answer(answer.config, answer.source, is_final=is_taken)
        is_new = self._tables.learner.now(key, measurer, request, learned)
        again = self.lookup(problem)
        if again.source is not Source.EXACT:
            # Tried and given up, or interrupted by a capture.
            return Answer(again.config, again.source, is_final=not measurer.is_capturing())
        return Answer(again.config, Source.MEASURED if is_new else Source.EXACT, again.known)

    def _learn(self, problem: GemmProblem, choice: MeasuredChoice) -> None:
        if self._is_invariant:
            # The best of one order of summing is not the best of all, which is what tables and store hold.
            self._known_here[problem] = KnownChoice(choice.config, choice.latency_us, "")
            self._tables.changed()
        else:
            self._tables.learn(problem, choice)

    def _refusal(
        self, problem: GemmProblem, config: KernelConfig, order: ReductionOrder | None, *, is_checked: bool = False
    ) -> str | None:
        """Say why a configuration may not answer, or None; ``is_checked`` if it was found legal for the problem."""
        arch = self._device.arch
        if not is_checked:
            reason = refusal(problem, config, arch)
            if reason is not None:
                return reason
        if self.key.numerics != "any" and not is_deterministic(config, self._spec):
            return "its results differ from run to run"
        if self._is_invariant:
            if order is None and self._chooser is not None:
                layer = self._chooser.layer(problem)
                order = layer.order if layer is not None else None
            found = reduction_order(config, arch)
            if found is None or order not in (None, found):
                return f"it sums in the order {found}, this layer in {order}"
        return None

    def _pinned_order(self, problem: GemmProblem) -> ReductionOrder | None:
        """Return the order of summing that a pinned table chose for the layer."""
        if not self._is_invariant:
            return None
        return self._tables.pinned_orders.get((problem.n, problem.k, problem.alignment >= TMA_ALIGNMENT))

    def _fail(self, problem: GemmProblem) -> NoReturn:
        raise NoModelError(f"nothing knows a legal configuration for {problem}: {self._tables.missing}")


def _forced_config(settings: Settings, spec: KernelSpec) -> KernelConfig | None:
    if settings.force_config is None or _means_another(settings.force_config, spec):
        return None
    try:
        return spec.config(settings.force_config)
    except ConfigError as error:
        raise ConfigError(f"setting force_config (WAVETUNE_FORCE_CONFIG): {error}") from None


def _means_another(fields: Mapping[str, FieldValue], spec: KernelSpec) -> bool:
    """Whether fields are none of this kernel's, but those of another one."""
    names = set(fields)
    return not names <= set(spec.fields) and any(names <= set(other.fields) for other in KERNEL_SPECS.values())
