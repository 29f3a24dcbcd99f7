"""Which problems of a sweep a model has seen: accuracy on those is not accuracy on new ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from wavetune.runtime.any_model import AnyModel
from wavetune.runtime.model_file import ModelFile
from wavetune.store.table import MeasurementTable

EXHAUSTIVE_SHARE = 0.5
"""TMA configurations cannot run on every shape; the exhaustive sweeps recorded so far have all or nearly all."""


class Seen(StrEnum):
    """What a model's fit knew of a problem."""

    NEW_LAYER = "new layer"
    KNOWN_LAYER = "known layer, new m"
    FITTED = "part of the fit"
    UNKNOWN = "not known"


def classify(
    model: ModelFile,
    problems: Sequence[Sequence[int]],
    digests: Collection[str] = (),
    fitted: Collection[tuple[int, ...]] | None = None,
) -> list[Seen]:
    """Say of each problem whether the model was fitted to it.

    Parameters
    ----------
    model : ModelFile
        Its provenance names the files it was fitted to.
    problems : sequence of sequence of int
        Sizes, the number of rows m first.
    digests : collection of str
        SHA-256 of the files that the sweep came from.
    fitted : collection of tuple of int, optional
        Sizes that the model was fitted to, where its files were found. Without them the exact table is asked, which
        leaves problems out that were measured with few configurations.
    """
    files = {entry.get("sha256") for entry in model.provenance.get("files", ())}
    if files & set(digests):
        return [Seen.FITTED] * len(problems)
    known = set(model.exact) if fitted is None else set(fitted)
    if not known:
        return [Seen.UNKNOWN] * len(problems)
    layers = {dims[1:] for dims in known}
    return [_classify_one(tuple(dims), known, layers) for dims in problems]


@dataclass(frozen=True, slots=True)
class Coverage:
    """How much of what there is to choose from a sweep has measured.

    Parameters
    ----------
    per_shape : int
        Median number of configurations that a shape was measured with.
    n_configs : int
        Different configurations of the sweep and the model together.
    """

    per_shape: int
    n_configs: int

    @property
    def is_exhaustive(self) -> bool:
        """Whether the median shape has at least `EXHAUSTIVE_SHARE` of them."""
        return self.per_shape >= EXHAUSTIVE_SHARE * self.n_configs

    def describe(self) -> str:
        """Say that the sweep is not exhaustive; empty if it is."""
        if self.is_exhaustive:
            return ""
        return (
            f"Half of the shapes were measured with {self.per_shape} or fewer of {self.n_configs} configurations: the "
            "best of those need not be the best, and losses are larger than they look here."
        )


def coverage_of(sweep: MeasurementTable, model: AnyModel) -> Coverage:
    """Return how much of what a model chooses from, and of what a sweep has anywhere, its shapes were measured with."""
    _, latency_us = sweep.latency_matrix()
    per_shape = np.count_nonzero(~np.isnan(latency_us), axis=1)
    configs = {entry.config for entry in sweep.configs} | {form.config for form in model.forms}
    return Coverage(int(np.median(per_shape)), len(configs))


def _classify_one(
    dims: tuple[int, ...], known: Collection[tuple[int, ...]], layers: Collection[tuple[int, ...]]
) -> Seen:
    if dims in known:
        return Seen.FITTED
    return Seen.KNOWN_LAYER if dims[1:] in layers else Seen.NEW_LAYER


def describe_evidence(seen: Sequence[Seen]) -> tuple[bool, str]:
    """Say how far the accuracy can be trusted.

    Returns
    -------
    held_out : bool
        Whether no problem was part of the fit.
    text : str
        One or two sentences.
    """
    count = Counter(seen)
    total = len(seen)
    if count[Seen.UNKNOWN]:
        return False, "The model file does not say which problems it was fitted to: these may be among them."
    if count[Seen.FITTED] == total:
        return False, (
            f"All {total} shapes were part of the fit: this says how well the model describes its own data, "
            "not how well it answers new shapes."
        )
    if count[Seen.FITTED]:
        return False, (
            f"{count[Seen.FITTED]} of {total} shapes were part of the fit; the table by stratum shows them apart."
        )
    known = f", {count[Seen.KNOWN_LAYER]} of them new m of a known (n, k)" if count[Seen.KNOWN_LAYER] else ""
    return True, f"Held out: none of the {total} shapes was part of the fit{known}. The exact table was off."
