"""Kernels that bring their own mapping, as the calibration sees them: keys from ranges or a list, few candidates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from wavetune.core.arch import ArchSpec
from wavetune.core.config import KernelSpec
from wavetune.errors import FitError
from wavetune.mapping.kernel_mapping import KernelProblem
from wavetune.pipeline.family_job import FamilyJob
from wavetune.plan.budget import Plan
from wavetune.plan.kernel_points import POINTS_PER_CONFIG, SWEEP_KEYS, Dims, plan_points, sweep_keys
from wavetune.store.record import CompiledConfig, Point

STRATUM_SWEEP = "kernel-sweep"
STRATUM_POINTS = "kernel-points"


@dataclass(frozen=True)
class KernelJob(FamilyJob):
    """A calibration of a kernel of the user's.

    Parameters
    ----------
    configs : tuple of KernelConfig
        Candidates, the default first.
    pool : sequence of tuple of int
        Keys to choose wave-structured points from.
    sweep : sequence of tuple of int
        Keys that every configuration is measured on; chosen from the pool if empty.
    n_points : int
        Wave-structured points of each configuration.
    """

    pool: Sequence[Dims]
    sweep: Sequence[Dims] = ()
    n_points: int = POINTS_PER_CONFIG
    # The owner lists the few configurations that are worth trying, and the few keys that matter.
    n_survivors: int = field(default=0, kw_only=True)

    exhaustive_strata: ClassVar[tuple[str, ...]] = (STRATUM_SWEEP,)
    is_corrected: ClassVar[bool] = False
    slice_points: ClassVar[int] = 128

    def problem(self, dims: Dims) -> KernelProblem:
        """Return a key as a problem."""
        return KernelProblem(self.kernel, dims, self.dtype, self.layout)

    @property
    def spec(self) -> KernelSpec:
        """The fields of a table of this kernel; every field may change the mapping."""
        return KernelSpec(self.kernel, self.dims, tuple(dict.fromkeys(name for c in self.configs for name in c)), ())

    def plan(self, compiled: Sequence[CompiledConfig], arch: ArchSpec) -> Plan:
        """Return the points of a calibration, sweeps first; nobody knows what they cost.

        Raises
        ------
        FitError
            If no key gives a launch.
        """
        default = next((c for config in self.configs for c in compiled if c.config == config), compiled[0])
        sweep = list(self.sweep) or sweep_keys(self.pool, default, self.shape, arch, SWEEP_KEYS)
        swept = [Point(self.problem(dims), entry.config, STRATUM_SWEEP) for dims in sweep for entry in compiled]
        known = {(point.problem.dims, point.config) for point in swept}
        rest = [
            Point(self.problem(dims), entry.config, STRATUM_POINTS)
            for dims, entry in plan_points(compiled, self.pool, self.shape, arch, self.n_points)
            if (dims, entry.config) not in known
        ]
        if not swept and not rest:
            raise FitError(f"no key of {self.kernel} gives a launch: grid_size is 0 for all {len(self.pool)} keys")
        # One problem's points are neighbours, so that its tensors are made once and its configurations interleaved.
        order = {problem: place for place, problem in enumerate(dict.fromkeys(point.problem for point in rest))}
        return Plan((*swept, *sorted(rest, key=lambda point: order[point.problem])), float("nan"), 0)
