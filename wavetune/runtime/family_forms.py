"""Predict the launches of a kernel by the forms of its model, corrected. Standard library only."""

from __future__ import annotations

from collections.abc import Sequence

from wavetune.mapping.kernel_mapping import LaunchShape
from wavetune.runtime.family_correction import CorrectionTrees
from wavetune.runtime.family_file import FamilyFile, FamilyForm
from wavetune.waves.family_terms import CROWDS, family_terms
from wavetune.waves.geometry import wave_geometry
from wavetune.waves.terms import BYTES_PER_MB

MAX_MODELS = 64
"""Models whose forms are kept ready; all are dropped when there are more."""

# By identity, and with the model, so that no other takes its place: hashing a model would read all of it.
_ready: dict[tuple[int, int], tuple[FamilyFile, FamilyForms]] = {}


def form_latency_us(form: FamilyForm, shape: LaunchShape, num_sms: int) -> float:
    """Predict one form on one launch, microseconds, without a correction; 0 for an empty one."""
    if shape.grid_size == 0:
        return 0.0
    terms = form_terms(form, shape, num_sms)
    return float(sum(coefficient * term for coefficient, term in zip(form.coefficients, terms, strict=True)))


def form_terms(form: FamilyForm, shape: LaunchShape, num_sms: int) -> tuple[float, ...]:
    """Return the value of each term of `wavetune.waves.family_terms.FAMILY_TERMS` on a launch that is not empty."""
    waves = wave_geometry(shape.grid_size, form.ctas_per_sm, num_sms)
    return family_terms(
        grid_size=float(shape.grid_size),
        loop_trips=float(shape.loop_trips),
        total_trips=float(shape.total_trips),
        waves=float(waves.waves),
        depth=float(waves.depth),
        ctas_per_sm=float(form.ctas_per_sm),
        num_sms=num_sms,
        moved_mb=shape.moved_bytes / BYTES_PER_MB,
    )


class FamilyForms:
    """The forms of one model on a number of SMs.

    Parameters
    ----------
    model : FamilyFile
        A checked model.
    num_sms : int
        SMs that launches may use.
    """

    def __init__(self, model: FamilyFile, num_sms: int) -> None:
        self.num_sms = num_sms
        self._forms = [_ready_form(form) for form in model.forms]
        self._trees = None
        if model.correction is not None:
            resident = [form.ctas_per_sm for form in model.forms]
            self._trees = CorrectionTrees(model.correction, [form.config for form in model.forms], resident)

    def latencies(self, dims: tuple[int, ...], places: Sequence[int], shapes: Sequence[LaunchShape]) -> list[float]:
        """Predict some forms, microseconds; 0 for an empty launch.

        Parameters
        ----------
        dims : tuple of int
            The key.
        places : sequence of int
            The forms' places in the model.
        shapes : sequence of LaunchShape
            Their launches.
        """
        num_sms = self.num_sms
        latencies = []
        for place, (grid, longest, total, moved) in zip(places, shapes, strict=True):
            if not grid:
                latencies.append(0.0)
                continue
            # `form_latency_us` written out, which takes a quarter of the time; a test holds them equal.
            (
                launch, wave, wave_trip, depth_trip, work, work_trip, per_trip, makespan, per_mb, wave_longest,
                depth_longest,
            ), resident, crowds = self._forms[place]  # fmt: skip
            depth, share, mean = -(-grid // num_sms), total / num_sms, total / grid
            latency_us = (
                launch
                + (wave + wave_trip * mean + wave_longest * longest) * -(-grid // (resident * num_sms))
                + (depth_trip * mean + depth_longest * longest) * depth
                + work * grid / num_sms
                + work_trip * share
                + per_trip * longest
                + makespan * (longest if longest > share else share)
                + per_mb * moved / BYTES_PER_MB
            )
            if crowds:
                latency_us += (depth // resident * crowds[resident] + crowds[depth % resident]) * mean
            latencies.append(latency_us)
        if self._trees is None:
            return latencies
        return self._trees.correct(latencies, places, dims, shapes, num_sms)


def _ready_form(form: FamilyForm) -> tuple[tuple[float, ...], int, tuple[float, ...]]:
    """Return the coefficients without those of crowds, the residency, and what each number of CTAs on an SM adds."""
    n_crowds = len(CROWDS)
    crowds = form.coefficients[-n_crowds:]
    of_count = tuple(
        sum(coefficient * max(count - start, 0) for coefficient, start in zip(crowds, CROWDS, strict=True))
        for count in range(form.ctas_per_sm + 1)
    )
    return form.coefficients[:-n_crowds], form.ctas_per_sm, of_count if any(of_count) else ()


def forms_of(model: FamilyFile, num_sms: int) -> FamilyForms:
    """Return the forms of a model, made ready once."""
    known = _ready.get((id(model), num_sms))
    if known is None or known[0] is not model:
        if len(_ready) >= MAX_MODELS:
            _ready.clear()
        known = _ready[id(model), num_sms] = (model, FamilyForms(model, num_sms))
    return known[1]
