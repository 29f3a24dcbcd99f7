"""What a tuning decides for one problem, and by which readings.

Of many readings the smallest is in part a lucky one. So whoever wins is named by one set of readings, and believed, or
not, by another: those on fresh buffers, where only winner, model's pick and default compete. The others of the
screening are never reported as a latency of anything.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from wavetune.core.config import KernelConfig
from wavetune.measure.contest import TORCH_MM
from wavetune.pipeline.tune_plan import ProblemPlan
from wavetune.pipeline.tune_stages import Readings
from wavetune.store.record import Measurement, Status


class Outcome(StrEnum):
    """How a problem ended.

    ``tuned``: another configuration is better than the model's pick. ``pick``: none is, by the least improvement.
    ``default``: none is, and the pick is slower than the default. ``failed``: nothing could be measured.
    """

    TUNED = "tuned"
    PICK = "pick"
    DEFAULT = "default"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class TunedProblem:
    """The result for one problem.

    Parameters
    ----------
    plan : ProblemPlan
        Who competed.
    outcome : Outcome
        How it ended.
    config : KernelConfig
        What to launch; the model's pick if it failed.
    latency_us, spread_us : float
        Of ``config`` on fresh buffers, and the half-width of its 95 % confidence interval; NaN if it failed.
    default_us, pick_us, library_us : float
        Of the default, the model's pick and torch.mm, in the same rounds; NaN where that was not measured.
    winner : KernelConfig or None
        Who was fastest before the fresh buffers.
    winner_us : float
        Its latency on them.
    measured, failed, skipped : int
        Candidates by fate: with a latency, without one, left out as slow. Those that do not compile have failed.
    reason : str
        Why it failed, or why the winner was not taken.
    """

    plan: ProblemPlan
    outcome: Outcome
    config: KernelConfig
    latency_us: float = math.nan
    spread_us: float = math.nan
    default_us: float = math.nan
    pick_us: float = math.nan
    library_us: float = math.nan
    winner: KernelConfig | None = None
    winner_us: float = math.nan
    measured: int = 0
    failed: int = 0
    skipped: int = 0
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Fates:
    """Candidates by fate, for the record."""

    measured: int
    failed: int
    skipped: int
    reasons: Sequence[str] = ()


def judge(
    plan: ProblemPlan, winner: KernelConfig | None, confirmed: Readings, fates: Fates, min_improvement: float
) -> TunedProblem:
    """Decide for one problem.

    Parameters
    ----------
    winner : KernelConfig or None
        Who was fastest before; None if nothing was measured.
    confirmed : dict
        Readings on fresh buffers.
    min_improvement : float
        Share of the latency that a configuration must save to take the place of another. It must also be more than
        the 95 % interval of the difference.

    Returns
    -------
    TunedProblem
        Never slower than the default by more than the least improvement, as far as was measured.
    """
    counts = (fates.measured, fates.failed, fates.skipped)

    def reading(config: KernelConfig | None) -> Measurement | None:
        entry = None if config is None else confirmed.get(config)
        return entry if entry is not None and entry.status is Status.OK else None

    # The incumbent first: who comes later has to be better.
    contenders = [(Outcome.PICK, plan.pick), (Outcome.DEFAULT, plan.default), (Outcome.TUNED, winner)]
    outcome, chosen = Outcome.FAILED, None
    for name, config in contenders:
        entry = reading(config)
        if entry is not None and (chosen is None or is_better(entry, chosen, min_improvement)):
            outcome, chosen = name, entry
    if chosen is None:
        reason = "; ".join(dict.fromkeys(fates.reasons)) or "nothing could be measured"
        return TunedProblem(
            plan, Outcome.FAILED, plan.pick, winner=winner, measured=counts[0], failed=counts[1], skipped=counts[2],
            reason=reason,
        )  # fmt: skip
    if chosen.config == plan.pick:
        outcome = Outcome.PICK
    elif chosen.config == plan.default:
        outcome = Outcome.DEFAULT
    best = reading(winner)
    reason = ""
    if best is not None and best.config != chosen.config:
        saved = 1.0 - _us(best) / _us(chosen)
        reason = f"the winner saves {saved:.1%} on fresh buffers, too little to be believed"
    return TunedProblem(
        plan, outcome, chosen.config, _us(chosen), _finite_spread(chosen), _us(reading(plan.default)),
        _us(reading(plan.pick)), _us(reading(TORCH_MM)), winner, _us(best), *counts, reason,
    )  # fmt: skip


def is_better(entry: Measurement, than: Measurement, min_improvement: float) -> bool:
    """Whether a measurement beats another by the least improvement, and by more than the noise of both."""
    saved_us = _us(than) - _us(entry)
    noise_us = math.hypot(_finite_spread(entry), _finite_spread(than))
    return saved_us > max(min_improvement * _us(than), noise_us)


def _us(entry: Measurement | None) -> float:
    return math.nan if entry is None or entry.latency_us is None else entry.latency_us


def _finite_spread(entry: Measurement) -> float:
    # A replay has one reading, which says nothing about its noise.
    spread_us = entry.spread_us
    return spread_us if spread_us is not None and math.isfinite(spread_us) else 0.0
