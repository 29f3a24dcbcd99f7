"""A tuning in a few numbers: time of all calls with what was tuned, and with what it is compared with."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from wavetune.core.workload_entry import SIZE_CLASSES, size_class
from wavetune.pipeline.tune_verdict import Outcome, TunedProblem

RIVALS = ("default", "model", "torch")
"""Whom the tuned configurations are compared with: the fixed default, the model's one-shot pick, torch.mm."""


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over the problems of one class, weighted by calls.

    Parameters
    ----------
    problems, calls : int
        Those with a result.
    tuned_us : float
        Time of all calls with the tuned configurations.
    speedup : dict of str to float
        By name of a rival: its time over the tuned time, over the problems where the rival was measured; NaN without
        any.
    rival_us : dict of str to float
        Time of all calls with the rival, over those problems.
    """

    problems: int
    calls: int
    tuned_us: float
    speedup: dict[str, float]
    rival_us: dict[str, float]


def totals_by_class(problems: Sequence[TunedProblem]) -> dict[str, Totals]:
    """Return the totals of decode, small and prefill, of those that there are, and ``all``."""
    found = [tuned for tuned in problems if tuned.outcome is not Outcome.FAILED]
    parts = {name: [t for t in found if size_class(t.plan.problem.m) == name] for name in SIZE_CLASSES}
    return {name: _totals(part) for name, part in {**parts, "all": found}.items() if part}


def outcomes(problems: Sequence[TunedProblem]) -> dict[str, int]:
    """Count problems by how they ended."""
    counts = Counter(tuned.outcome for tuned in problems)
    return {outcome.value: counts[outcome] for outcome in Outcome}


def _totals(problems: Sequence[TunedProblem]) -> Totals:
    speedup, rival_us = {}, {}
    for rival in RIVALS:
        pairs = [(t.plan.count * _rival(t, rival), t.plan.count * t.latency_us) for t in problems]
        pairs = [pair for pair in pairs if math.isfinite(pair[0])]
        rival_us[rival] = math.fsum(theirs for theirs, _ in pairs)
        ours_us = math.fsum(ours for _, ours in pairs)
        speedup[rival] = rival_us[rival] / ours_us if pairs else math.nan
    return Totals(
        len(problems), sum(t.plan.count for t in problems),
        math.fsum(t.plan.count * t.latency_us for t in problems), speedup, rival_us,
    )  # fmt: skip


def _rival(tuned: TunedProblem, rival: str) -> float:
    return {"default": tuned.default_us, "model": tuned.pick_us, "torch": tuned.library_us}[rival]
