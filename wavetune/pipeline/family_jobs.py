"""The calibrations of the families that choose by their own problems: grouped GEMM and attention."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import ClassVar

from wavetune.core.arch import ArchSpec
from wavetune.core.config import ATTENTION, ATTENTION_DECODE, GROUPED_GEMM, KernelConfig, KernelSpec, find_kernel_spec
from wavetune.core.grouped_problem import GroupedGemmProblem
from wavetune.core.problem import Problem
from wavetune.errors import ConfigError
from wavetune.mapping.attention_shape import (
    MAX_REMEMBERED,
    AnyAttentionProblem,
    attention_decode_mapping,
    attention_mapping,
    attention_shaper,
    key_problem,
)
from wavetune.mapping.grouped_shape import GroupedShaper, grouped_mapping
from wavetune.mapping.source_digest import mapping_digest
from wavetune.pipeline.family_job import N_SURVIVORS, FamilyJob
from wavetune.plan.attention_plan import SWEEP_STRATUM as ATTENTION_STRATUM
from wavetune.plan.attention_plan import plan_attention
from wavetune.plan.budget import Plan
from wavetune.plan.grouped_plan import EXHAUSTIVE_STRATA, GroupedPlanOptions, plan_grouped
from wavetune.runtime.attention_choice import is_legal
from wavetune.runtime.families import chooser_for
from wavetune.runtime.family_chooser import FamilyChooser
from wavetune.runtime.family_file import FamilyFile
from wavetune.store.record import CompiledConfig

PLAN_FACTOR = 2.0
"""A plan holds points for so many times the budget: their predicted cost is right within a factor of two, and the clock
decides."""


@dataclass(frozen=True)
class _ProblemJob(FamilyJob):
    """A family whose keys stand for problems that the runtime knows.

    Parameters
    ----------
    problems : tuple of Problem
        The user's, measured before the built-in ones with every configuration.
    max_seconds : float
        Predicted seconds of the plan.
    n_problems : int
        Most problems; as many as there are seconds for if 0.
    """

    problems: tuple[Problem, ...] = ()
    max_seconds: float = float("inf")
    n_problems: int = 0

    @property
    def spec(self) -> KernelSpec:
        """The fields of the family."""
        return find_kernel_spec(self.kernel)

    def chooser(self, model: FamilyFile, dims: tuple[int, ...]) -> FamilyChooser:
        """Return what answers the problem that a key stands for, as if it had not been measured."""
        return chooser_for(model, self.problem(dims), use_exact=False)


class GroupedJob(_ProblemJob):
    """A calibration of grouped GEMM."""

    exhaustive_strata: ClassVar[tuple[str, ...]] = EXHAUSTIVE_STRATA
    # One layer at other token counts is nearly the same problem.
    holdout_dims: ClassVar[tuple[str, ...]] = ("experts", "n", "k")
    # Nothing else takes unaligned operands.
    n_reserved: ClassVar[int] = 3

    def is_reserved(self, config: KernelConfig) -> bool:
        """Whether a configuration loads through pointers."""
        return config["load"] == "pointer"

    def plan(self, compiled: Sequence[CompiledConfig], arch: ArchSpec) -> Plan:
        """Return sweeps of some expert layers, and of others with what could win."""
        options = GroupedPlanOptions(max_seconds=self.max_seconds)
        if self.n_problems:
            options = GroupedPlanOptions(max_seconds=self.max_seconds, n_problems=self.n_problems)
        own = [problem for problem in self.problems if isinstance(problem, GroupedGemmProblem)]
        return plan_grouped(compiled, arch, dtype=self.dtype, layout=self.layout, options=options, problems=own)


class AttentionJob(_ProblemJob):
    """A calibration of one attention family and head dimension."""

    exhaustive_strata: ClassVar[tuple[str, ...]] = (ATTENTION_STRATUM,)
    # A cache of one tile cannot be split.
    n_reserved: ClassVar[int] = 2

    def is_reserved(self, config: KernelConfig) -> bool:
        """Whether a configuration is one of decode that does not split."""
        return config.get("splits") == 1

    def is_legal(self, dims: tuple[int, ...], config: KernelConfig) -> bool:
        """Whether a cache has trips for the splits."""
        return is_legal(_remembered_problem(self.kernel, dims, self.dtype, self.layout), config)

    def plan(self, compiled: Sequence[CompiledConfig], arch: ArchSpec) -> Plan:
        """Return every legal configuration on every key."""
        return plan_attention(
            self.kernel, compiled, arch, dtype=self.dtype, layout=self.layout, n_keys=self.n_problems,
            max_seconds=self.max_seconds, problems=self.problems,
        )  # fmt: skip


@lru_cache(maxsize=MAX_REMEMBERED)
def _remembered_problem(kernel: str, dims: tuple[int, ...], dtype: str, layout: str) -> AnyAttentionProblem:
    """Return `key_problem`; every configuration asks about every key."""
    return key_problem(kernel, dims, dtype, layout)


def grouped_job(
    configs: Sequence[KernelConfig], arch: ArchSpec, *, dtype: str, layout: str = "nk",
    problems: Sequence[Problem] = (), max_seconds: float = float("inf"), n_problems: int = 0,
    n_survivors: int = N_SURVIVORS,
) -> GroupedJob:  # fmt: skip
    """Describe a calibration of grouped GEMM; see `find_job`."""
    mapping = grouped_mapping(dtype, layout, arch)
    return GroupedJob(
        GROUPED_GEMM.name, dtype, layout, mapping.dims, tuple(configs), GroupedShaper(dtype, layout, arch),
        mapping_digest(mapping), tuple(problems), max_seconds, n_problems, n_survivors=n_survivors,
    )  # fmt: skip


def attention_job(
    kernel: str, configs: Sequence[KernelConfig], *, dtype: str, layout: str = "d128",
    problems: Sequence[Problem] = (), max_seconds: float = float("inf"), n_problems: int = 0,
    n_survivors: int = N_SURVIVORS,
) -> AttentionJob:  # fmt: skip
    """Describe a calibration of an attention family; see `find_job`."""
    mapping_of = attention_mapping if kernel == ATTENTION.name else attention_decode_mapping
    mapping = mapping_of(dtype, layout)
    return AttentionJob(
        kernel, dtype, layout, mapping.dims, tuple(configs), attention_shaper(kernel, dtype, layout),
        mapping_digest(mapping), tuple(problems), max_seconds, n_problems, n_survivors=n_survivors,
    )  # fmt: skip


def find_job(
    kernel: str,
    arch: ArchSpec,
    *,
    dtype: str,
    layout: str,
    configs: Sequence[KernelConfig] = (),
    problems: Sequence[Problem] = (),
    budget_s: float = float("inf"),
    n_problems: int = 0,
    n_survivors: int = N_SURVIVORS,
) -> FamilyJob:
    """Describe the calibration of a family by name.

    Parameters
    ----------
    kernel : str
        One of `JOBS`.
    arch : ArchSpec
        GPU that is measured.
    dtype, layout : str
        Of the operands.
    configs : sequence of KernelConfig, optional
        Candidates; none are needed to fit what was measured before.
    problems : sequence of Problem
        The user's, measured before the built-in ones with every configuration.
    budget_s : float
        Seconds that may be spent on measuring.
    n_problems : int, default=0
        Most problems; the family's own number if 0.
    n_survivors : int
        Most configurations of the model.

    Raises
    ------
    ConfigError
        If no plan is written for the family.
    """
    if kernel not in JOBS:
        raise ConfigError(f"no calibration plan for kernel {kernel!r}; known: gemm, {', '.join(JOBS)}")
    return JOBS[kernel](
        configs, arch, dtype=dtype, layout=layout, problems=problems, max_seconds=PLAN_FACTOR * budget_s,
        n_problems=n_problems, n_survivors=n_survivors,
    )  # fmt: skip


def _attention_of(kernel: str) -> Callable[..., FamilyJob]:
    def make(configs: Sequence[KernelConfig], arch: ArchSpec, **options: object) -> FamilyJob:
        return attention_job(kernel, configs, **options)  # type: ignore[arg-type]

    return make


JOBS: MappingProxyType[str, Callable[..., FamilyJob]] = MappingProxyType(
    {
        GROUPED_GEMM.name: grouped_job,
        ATTENTION.name: _attention_of(ATTENTION.name),
        ATTENTION_DECODE.name: _attention_of(ATTENTION_DECODE.name),
    }
)
"""Families that calibrate as `wavetune.pipeline.family_calibration.calibrate_family` does."""
