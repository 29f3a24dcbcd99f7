"""The parts that `ablation.py` takes out of the method, one at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np
from baselines import ARCH

from wavetune.core.dtype import find_dtype
from wavetune.fit.correction import ResidualCorrection
from wavetune.fit.nearby import NearbyEvidence
from wavetune.fit.points import GemmPoints
from wavetune.plan.anchors import STRATA as ANCHOR_STRATA
from wavetune.plan.anchors import gemm_anchors
from wavetune.plan.sampling import DENSE_STRATUM, FINALIST_STRATUM, LAYER_STRATUM, PlanOptions, realistic_shapes
from wavetune.store.table import FloatArray, MeasurementTable
from wavetune.waves.terms import TERMS

TERM_NAMES = {
    "launch": "launch", "wave": "W", "wave_trip": "W L", "depth_trip": "D L", "work": "G / S", "work_trip": "G L / S",
    "compulsory": "compulsory bytes", "reread": "re-read bytes", "workspace": "split-k workspace",
    "sustained": "sustained work",
}  # fmt: skip

REALISTIC_STRATA = {
    LAYER_STRATUM: "layers, every configuration",
    DENSE_STRATUM: "layers, likely winners",
    FINALIST_STRATUM: "finalists of new shapes",
}

NEXT_TO_NOTHING = 0.05
"""Weight of a row in the forms, squared in the sum: a four-hundredth of a wave-structured one."""


@dataclass(frozen=True)
class Change:
    """One way to reduce the method.

    Parameters
    ----------
    group, part : str
        What is taken out.
    strata : tuple of str
        Rows of the plan that are left out.
    params : dict
        Parameters of the estimator.
    patches : tuple of callable
        Makers of context managers that reduce the code while the model is fitted.
    screened : bool
        Whether rows are weighed as the complete model's screening found.
    all_forms : bool
        Whether all corrected forms decide, not the candidates of the shape's cell.
    """

    group: str = ""
    part: str = "complete"
    strata: tuple[str, ...] = ()
    params: dict[str, Any] = field(default_factory=dict)
    patches: tuple[Callable[[], Any], ...] = ()
    screened: bool = True
    all_forms: bool = False


def changes() -> list[Change]:
    """List everything that is taken out."""
    set_constant = partial(partial, patch)
    return [
        *(Change("term", label, patches=(partial(without_term, name),)) for name, label in TERM_NAMES.items()),
        Change("term", "bound on bytes", patches=(without_byte_bound,)),
        *(Change("points", name, (name,)) for name in ANCHOR_STRATA),
        Change("points", "all wave-structured", ANCHOR_STRATA),
        *(Change("points", label, (name,)) for name, label in REALISTIC_STRATA.items()),
        Change("points", "all realistic", tuple(REALISTIC_STRATA)),
        Change("points", "realistic, for the forms only",
               patches=(set_constant("wavetune.fit.model.EXHAUSTIVE_FORM_WEIGHT", NEXT_TO_NOTHING),)),
        *(Change("pruning", f"{count} forms instead of 64", params={"n_configs": count}) for count in (8, 16, 32)),
        Change("pruning", "every form that wins", params={"n_configs": 10**6},
               patches=(set_constant("wavetune.fit.model.COVER_GAIN", 0.0),)),
        *(Change("pruning", f"{count} candidate{'s' * (count > 1)} a cell instead of 12",
                 patches=(set_constant("wavetune.fit.lattice.MAX_CANDIDATES", count),)) for count in (1, 4)),
        Change("pruning", "all forms asked in a cell", all_forms=True),
        Change("correction", "correction and evidence", patches=(without_correction, without_evidence)),
        Change("correction", "correction", patches=(without_correction,)),
        Change("correction", "evidence nearby", patches=(without_evidence,)),
        Change("correction", "doubt", patches=(without_doubt,)),
        Change("screening", "row screen", screened=False),
    ]  # fmt: skip


def strata_of(table: MeasurementTable) -> np.ndarray:
    """Name the stratum of each row: the plan is deterministic, so it is planned again and looked up."""
    anchors = [{a.dims: a.stratum for a in gemm_anchors(entry, ARCH, find_dtype("bf16"))} for entry in table.configs]
    shapes = {dims: index for index, dims in enumerate(realistic_shapes())}
    n_complete = PlanOptions().layer_shapes

    def name(dims: tuple[int, ...], config: int, exhaustive: bool) -> str:
        if not exhaustive:
            return anchors[config][dims]
        index = shapes.get(dims)
        return FINALIST_STRATUM if index is None else LAYER_STRATUM if index < n_complete else DENSE_STRATUM

    rows = zip(table.dims.tolist(), table.config_index.tolist(), table.exhaustive.tolist(), strict=True)
    return np.array([name(tuple(dims), config, exhaustive) for dims, config, exhaustive in rows])


def without_term(name: str) -> Any:
    """Make a column of the design matrix zero, so that its coefficient is too."""
    column, whole = TERMS.index(name), GemmPoints.terms

    def terms(points: GemmPoints) -> FloatArray:
        design = whole(points)
        design[:, column] = 0.0
        return design

    return patch.object(GemmPoints, "terms", terms)


def without_byte_bound() -> Any:
    """Let a byte cost anything."""
    return patch("wavetune.fit.model.largest_coefficients", lambda arch: np.full(len(TERMS), np.inf))


def without_correction() -> Any:
    """Leave the forms as they are; the screening of the complete model still weighs the rows."""
    return patch.multiple(
        ResidualCorrection,
        fit=lambda self, points, log_residual, weight: self,
        predict=lambda self, points: np.zeros(len(points.m)),
    )


def without_evidence() -> Any:
    """Trust the correction alike wherever it is asked."""
    return patch.object(
        NearbyEvidence, "log_factors", lambda self, dims, doubt=0.0: np.zeros((len(dims), self.n_configs))
    )


def without_doubt() -> Any:
    """Use residuals nearby, but believe what has none."""
    whole = NearbyEvidence.log_factors
    return patch.object(NearbyEvidence, "log_factors", lambda self, dims, doubt=0.0: whole(self, dims, 0.0))
