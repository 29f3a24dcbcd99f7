"""What the calibration of a kernel has to know about it: candidates, keys to measure, and what a model of it keeps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from wavetune.core.arch import ArchSpec
from wavetune.core.config import KernelConfig, KernelSpec
from wavetune.core.problem import Problem
from wavetune.plan.budget import Plan
from wavetune.runtime.family_chooser import FamilyChooser, Shaper
from wavetune.runtime.family_file import FamilyFile
from wavetune.store.record import CompiledConfig, make_problem

N_SURVIVORS = 48
"""Most configurations of a model that selects them: an answer evaluates each, 1 us or so. The best of 32, 48 and 64 of
the 120 of decode are within 0.6, 0.1 and 0.02 % of the best of all on held-out steps (H200, 2026-11)."""


@dataclass(frozen=True)
class FamilyJob:
    """A kernel, for one element type and layout.

    Parameters
    ----------
    kernel, dtype, layout : str
        As in `wavetune.mapping.kernel_mapping.KernelProblem`.
    dims : tuple of str
        Names of a key's sizes.
    configs : tuple of KernelConfig
        Candidates; none are needed to fit what was measured before.
    shape : callable
        The kernel's mapping.
    mapping_digest : str
        Of its functions.
    n_survivors : int
        Most configurations of a model; 0 keeps every one.
    """

    kernel: str
    dtype: str
    layout: str
    dims: tuple[str, ...]
    configs: tuple[KernelConfig, ...]
    shape: Shaper
    mapping_digest: str
    n_survivors: int = field(default=N_SURVIVORS, kw_only=True)

    exhaustive_strata: ClassVar[tuple[str, ...]] = ()
    """Strata whose keys are measured with every configuration."""

    holdout_dims: ClassVar[tuple[str, ...]] = ()
    """Sizes that make keys alike: they are held out together. All sizes if there are none, so each key alone."""

    n_reserved: ClassVar[int] = 0
    """Survivors that must be `is_reserved`."""

    is_corrected: ClassVar[bool] = True
    """Whether a model may correct its forms, see `wavetune.fit.family_correction`."""

    slice_points: ClassVar[int] = 512
    """Points that are measured, at least, between two looks at the clock."""

    @property
    def spec(self) -> KernelSpec:
        """The fields of a table."""
        raise NotImplementedError

    def plan(self, compiled: Sequence[CompiledConfig], arch: ArchSpec) -> Plan:
        """Return what to measure, most important first; points of one problem are neighbours.

        Raises
        ------
        FitError
            If there is nothing to measure.
        """
        raise NotImplementedError

    def problem(self, dims: tuple[int, ...]) -> Problem:
        """Return the problem that a key stands for."""
        return make_problem(self.kernel, dims, self.dtype, self.layout)

    def is_legal(self, dims: tuple[int, ...], config: KernelConfig) -> bool:
        """Whether a configuration may be launched on a key."""
        return True

    def is_reserved(self, config: KernelConfig) -> bool:
        """Whether a configuration is one of those of which `n_reserved` survive: they run where others cannot."""
        return False

    def chooser(self, model: FamilyFile, dims: tuple[int, ...]) -> FamilyChooser:
        """Return what answers a key from a model as if it had not been measured."""
        return FamilyChooser(model, self.shape, use_exact=False)
