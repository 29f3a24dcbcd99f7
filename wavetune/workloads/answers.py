"""What the tables answer for a workload, beside the default configuration."""

from __future__ import annotations

import math
from dataclasses import dataclass

from wavetune.core.config import KernelConfig
from wavetune.core.problem import GemmProblem
from wavetune.errors import NoModelError
from wavetune.runtime.choice import RankedConfig, Source
from wavetune.runtime.choose import find_resolver
from wavetune.runtime.device import Device


@dataclass(frozen=True, slots=True)
class TableAnswer:
    """What one problem is answered, and what speaks for it.

    Parameters
    ----------
    config : KernelConfig
        The answer: the tables' choice, or the default where the choice is not better by the margin.
    latency_us : float
        Measured or predicted; NaN where nothing is known.
    default : KernelConfig
        The model's default configuration.
    default_us : float
        Its predicted latency; NaN where no model predicts it.
    source : Source
        Where the answer comes from; ``default`` if it was pinned.
    is_pinned : bool
        Whether the default took the place of a choice.
    is_measured : bool
        Whether the latency was measured.
    """

    config: KernelConfig
    latency_us: float
    default: KernelConfig
    default_us: float
    source: Source
    is_pinned: bool = False
    is_measured: bool = False


def answer_problem(problem: GemmProblem, device: Device, margin: float) -> TableAnswer:
    """Answer a problem, keeping the default where the model's choice is not better.

    Parameters
    ----------
    margin : float
        Share of the default's predicted latency that a predicted choice has to save. Measured and pinned answers
        have proved themselves already.

    Raises
    ------
    NoModelError
        If nothing answers for its dtype and layout.
    """
    resolver = find_resolver(problem, device.arch.name, device.num_sms, "any")
    choice = resolver.explain(problem, "model", is_listed=False)
    default = resolver.default(problem)
    default_us = predictions(problem, device).get(default, math.nan)
    is_proved = choice.source in (Source.EXACT, Source.FORCED, Source.DEFAULT)
    if not is_proved and choice.config != default and choice.latency_us > (1.0 - margin) * default_us:
        return TableAnswer(default, default_us, default, default_us, Source.DEFAULT, True)
    return TableAnswer(
        choice.config, choice.latency_us, default, default_us, choice.source, is_measured=choice.is_measured
    )


def predictions(problem: GemmProblem, device: Device) -> dict[KernelConfig, float]:
    """Return the predicted latency of every modelled, legal configuration, best first; empty without a model."""
    return {entry.config: entry.latency_us for entry in ranking(problem, device)}


def ranking(problem: GemmProblem, device: Device) -> list[RankedConfig]:
    """Return the model's ranking of a problem; empty where only pinned or stored answers are known."""
    resolver = find_resolver(problem, device.arch.name, device.num_sms, "any")
    try:
        return resolver.rank(problem)
    except NoModelError:
        return []
