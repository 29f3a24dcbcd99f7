"""The grouped GEMM family, as measuring and launching see it; see `wavetune.kernels.registry.KernelFamily`."""

from __future__ import annotations

from typing import Any

from wavetune.core.arch import ArchSpec
from wavetune.core.config import GROUPED_GEMM, KernelConfig
from wavetune.core.dtype import find_dtype
from wavetune.core.grouped_problem import GroupedGemmProblem
from wavetune.errors import ConfigError
from wavetune.kernels import call as call_module
from wavetune.kernels import (
    gemm_device,
    gemm_scaled,
    gemm_scaled_device,
    grouped_gemm,
    grouped_gemm_device,
    grouped_gemm_dispatch,
    grouped_gemm_scaled,
    grouped_gemm_scaled_device,
    grouped_gemm_scales,
    grouped_gemm_space,
)
from wavetune.kernels.attention_placeholder import IndexPlaceholder
from wavetune.kernels.call import KernelCall, Launch
from wavetune.kernels.digests import configs_digest, sources_digest
from wavetune.kernels.gemm_operands import result_dtype
from wavetune.kernels.grouped_gemm_operands import (
    GroupedGemmOperands,
    device_groups,
    grouped_reference,
    make_grouped_operands,
)
from wavetune.kernels.grouped_gemm_scales import grouped_scale_shapes
from wavetune.kernels.placeholder import Placeholder
from wavetune.kernels.reference import MAX_RELATIVE_ERROR
from wavetune.kernels.windows import DataWindows
from wavetune.mapping.grouped_gemm import grouped_bytes


class GroupedGemmFamily:
    """Grouped GEMM, see `wavetune.kernels.grouped_gemm`. Layouts are those of the weights: ``nk`` and ``gated``."""

    spec = GROUPED_GEMM
    brief_below_us = 0.0

    def configs(self, arch: ArchSpec, dtype: str) -> list[KernelConfig]:
        """Return the candidate configurations."""
        return grouped_gemm_space.grouped_space(arch, dtype)

    def legal(self, problem: GroupedGemmProblem, config: KernelConfig, arch: ArchSpec) -> str | None:
        """Return why ``config`` cannot run ``problem``, or None."""
        return grouped_gemm_dispatch.illegal_reason(problem, config, arch)

    def fallback_config(self, problem: GroupedGemmProblem, arch: ArchSpec) -> KernelConfig:
        """Return a legal configuration for a GPU or dtype that no model covers.

        Raises
        ------
        ConfigError
            If the kernels cannot run the problem at all, such as one of int8.
        """
        for config in grouped_gemm_space.grouped_fallback_configs(problem, arch):
            return config
        raise ConfigError(f"no configuration is legal for {problem} on {arch.name}")

    def offline_calls(self, config: KernelConfig, arch: ArchSpec, dtype: str, layout: str) -> list[KernelCall]:
        """Return the launch of ``config`` over placeholders."""
        problem = GroupedGemmProblem((2**10,) * 8, 2**12, 2**12, dtype, layout)
        return [grouped_gemm_dispatch.describe_call(_placeholders(problem), config, arch)]

    def validation_problems(self, dtype: str, layout: str) -> tuple[GroupedGemmProblem, ...]:
        """Return ragged groups whose tiles outnumber the resident CTAs, empty experts among them, and one token."""
        # Multiples of 16 bytes in every size, also of half of n: what is timed is what was checked. fp8 has half as
        # many, and promotes its sums several times.
        sizes = (0, 1, 300, 0, 0, 129, 700, 17, 64, 0)
        k = 2128 if find_dtype(dtype).input_bytes == 1 else 1064
        return (
            GroupedGemmProblem(sizes, 5136, k, dtype, layout),
            GroupedGemmProblem((0, 0, 1), 528, k, dtype, layout),
        )

    def make_operands(
        self, problem: GroupedGemmProblem, device: str, seed: int, n_copies: int = 1
    ) -> list[GroupedGemmOperands]:
        """Allocate operands with random data."""
        return make_grouped_operands(problem, device, seed, n_copies)

    def carve_operands(
        self, problem: GroupedGemmProblem, config: KernelConfig, windows: DataWindows
    ) -> GroupedGemmOperands:
        """Take operands from a pool of random data; the group sizes are the same tensor for every launch."""
        experts, n, k = problem.experts, problem.n, problem.k
        scales: tuple[Any, ...] = ()
        if find_dtype(problem.dtype).is_scaled:
            of_x, of_w = grouped_scale_shapes(problem)
            scales = windows.take("fp32", 1, *of_x).view(of_x), windows.take("fp32", *of_w)
        return GroupedGemmOperands(
            problem,
            windows.take(problem.dtype, problem.tokens, k),
            windows.take(problem.dtype, experts * n, k).view(experts, n, k),
            windows.take(problem.dtype, problem.tokens, problem.out_columns, is_output=True),
            device_groups(problem.group_sizes, str(windows.inputs.device)),
            *scales,
        )

    def bind(self, operands: GroupedGemmOperands, config: KernelConfig, arch: ArchSpec, stream: int) -> Launch:
        """Return a function that launches on ``stream``."""
        return grouped_gemm_dispatch.bind_operands(operands, config, arch, stream)

    def launch(self, operands: GroupedGemmOperands, config: KernelConfig, arch: ArchSpec) -> None:
        """Launch on the current stream."""
        grouped_gemm_dispatch.launch_operands(operands, config, arch)

    def reference(self, operands: GroupedGemmOperands) -> Any:
        """Compute the result in float64."""
        return grouped_reference(operands)

    def max_error(self, dtype: str) -> float:
        """Return the largest relative error of a right result."""
        return MAX_RELATIVE_ERROR[dtype]

    def cost(self, problem: GroupedGemmProblem) -> tuple[int, int]:
        """Return (floating-point operations of tokens, bytes moved at least)."""
        return 2 * problem.tokens * problem.n * problem.k, grouped_bytes(problem)

    def source_hash(self, dtype: str = "bf16") -> str:
        """Return a digest of the device code of a dtype and of the host code that decides its constants."""
        sources = (grouped_gemm_device, gemm_device, grouped_gemm, call_module)
        return sources_digest((*sources, *_SCALED_SOURCES) if find_dtype(dtype).is_scaled else sources)

    def space_hash(self, arch: ArchSpec, dtype: str) -> str:
        """Return a digest of the candidate configurations."""
        return configs_digest(self.configs(arch, dtype))


_SCALED_SOURCES = (
    grouped_gemm_scaled_device, grouped_gemm_scaled, grouped_gemm_scales, gemm_scaled_device, gemm_scaled,
)  # fmt: skip


def _placeholders(problem: GroupedGemmProblem) -> GroupedGemmOperands:
    """Return contiguous, aligned stand-ins for the tensors."""
    scales: tuple[Any, ...] = ()
    if find_dtype(problem.dtype).is_scaled:
        scales = tuple(Placeholder("fp32", shape) for shape in grouped_scale_shapes(problem))
    return GroupedGemmOperands(
        problem,
        Placeholder(problem.dtype, (problem.tokens, problem.k)),
        Placeholder(problem.dtype, (problem.experts, problem.n, problem.k)),
        Placeholder(result_dtype(problem.dtype), (problem.tokens, problem.out_columns)),
        IndexPlaceholder((problem.experts,)),
        *scales,
    )
