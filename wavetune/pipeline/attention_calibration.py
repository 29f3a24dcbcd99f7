"""What calibrating an attention family means to the pipeline of kernels that bring their own mapping."""

from __future__ import annotations

from dataclasses import dataclass

from wavetune.core.arch import ArchSpec
from wavetune.core.config import KernelConfig, KernelSpec, find_kernel_spec
from wavetune.core.problem import Problem
from wavetune.mapping.attention_shape import (
    attention_decode_mapping,
    attention_mapping,
    attention_shaper,
    key_problem,
)
from wavetune.mapping.source_digest import mapping_digest
from wavetune.pipeline.user_kernel import KernelJob
from wavetune.plan.attention_plan import attention_keys

CALIBRATION_KEYS = {"attention": 160, "attention_decode": 120}
"""Keys that every configuration is measured on. `wavetune.plan.budget.MeasurementCost` predicts 17 s for 48 prefill
configurations of head dimension 128, and 13 s for 120 of decode; not measured yet. Where time runs out, the first keys
have been measured with all."""


@dataclass(frozen=True)
class AttentionJob(KernelJob):
    """A calibration of one attention family, element type and head dimension."""

    def problem(self, dims: tuple[int, ...]) -> Problem:  # type: ignore[override]
        """Return the problem that a key stands for."""
        return key_problem(self.kernel, dims, self.dtype, self.layout)

    @property
    def spec(self) -> KernelSpec:
        """The fields of the family."""
        return find_kernel_spec(self.kernel)


def attention_job(
    kernel: str, configs: tuple[KernelConfig, ...], arch: ArchSpec, *, dtype: str, layout: str, n_keys: int = 0
) -> AttentionJob:  # fmt: skip
    """Describe the calibration of an attention family to `wavetune.pipeline.user_kernel.calibrate_kernel`.

    Parameters
    ----------
    kernel : {"attention", "attention_decode"}
        The family.
    configs : tuple of KernelConfig
        Candidates.
    arch : ArchSpec
        GPU that is measured.
    dtype, layout : str
        Element type and head dimension, ``d128``.
    n_keys : int, default=0
        Keys to measure; `CALIBRATION_KEYS` if 0.
    """
    mapping_of = attention_mapping if kernel == "attention" else attention_decode_mapping
    mapping = mapping_of(dtype, layout)
    keys = attention_keys(kernel, n_keys or CALIBRATION_KEYS[kernel], arch, dtype=dtype, layout=layout)
    dims = [key.dims for key in keys]
    return AttentionJob(
        kernel, dtype, layout, mapping.dims, configs, attention_shaper(kernel, dtype, layout), mapping_digest(mapping),
        pool=dims, sweep=dims,
    )  # fmt: skip
