"""Kernel families by name: one object each with what measuring and launching need."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from wavetune.core.arch import ArchSpec
from wavetune.core.config import GEMM, KernelConfig, KernelSpec
from wavetune.core.dtype import find_dtype
from wavetune.core.problem import GemmProblem
from wavetune.errors import ConfigError
from wavetune.kernels import call as call_module
from wavetune.kernels import (
    gemm,
    gemm_device,
    gemm_pair_device,
    gemm_reduction,
    gemm_scaled,
    gemm_scaled_device,
    gemm_scaled_pair_device,
    gemm_space,
    gemm_specialized,
    reference,
)
from wavetune.kernels.attention_family import AttentionDecodeFamily, AttentionFamily
from wavetune.kernels.call import KernelCall, Launch
from wavetune.kernels.gemm_operands import GemmOperands, make_gemm_operands, workspace_size
from wavetune.kernels.gemm_scaled_space import scaled_space
from wavetune.kernels.gemm_scales import scale_shapes
from wavetune.kernels.grouped_gemm_family import GroupedGemmFamily
from wavetune.kernels.nvfp4_scales import Nvfp4ScalesFamily
from wavetune.kernels.placeholder import placeholder_operands
from wavetune.kernels.windows import DataWindows


class KernelFamily(Protocol):
    """What a kernel family offers."""

    @property
    def spec(self) -> KernelSpec:
        """Fields and dims."""
        ...

    @property
    def brief_below_us(self) -> float:
        """Expected latency under which calibration times a problem in brief graphs, microseconds; 0 for never.

        Where configurations differ in how many kernels a call has, what lies between kernels decides among short
        calls, and graphs, as servers replay them, have less of it than streams.
        """
        ...

    def configs(self, arch: ArchSpec, dtype: str) -> list[KernelConfig]:
        """Return the candidate configurations."""
        ...

    def legal(self, problem: Any, config: KernelConfig, arch: ArchSpec) -> str | None:
        """Return why ``config`` cannot run ``problem``, or None."""
        ...

    def fallback_config(self, problem: Any, arch: ArchSpec) -> KernelConfig:
        """Return a legal configuration for a GPU or dtype that no model covers: safe, not tuned."""
        ...

    def offline_calls(self, config: KernelConfig, arch: ArchSpec, dtype: str, layout: str) -> list[KernelCall]:
        """Return the launches of ``config`` over placeholders, to compile them without a GPU; the main one first."""
        ...

    def validation_problems(self, dtype: str, layout: str) -> Sequence[Any]:
        """Return ragged problems on which a configuration must give the right result."""
        ...

    def make_operands(self, problem: Any, device: str, seed: int, n_copies: int = 1) -> Sequence[Any]:
        """Allocate operands with random data."""
        ...

    def carve_operands(self, problem: Any, config: KernelConfig, windows: DataWindows) -> Any:
        """Take operands from a pool of random data, elsewhere than the last ones."""
        ...

    def bind(self, operands: Any, config: KernelConfig, arch: ArchSpec, stream: int) -> Launch:
        """Return a function that launches on ``stream``."""
        ...

    def launch(self, operands: Any, config: KernelConfig, arch: ArchSpec) -> None:
        """Launch on the current stream."""
        ...

    def reference(self, operands: Any) -> Any:
        """Compute the result in higher precision."""
        ...

    def max_error(self, dtype: str) -> float:
        """Return the largest relative error of a right result."""
        ...

    def cost(self, problem: Any) -> tuple[int, int]:
        """Return (floating-point operations, bytes moved at least)."""
        ...

    def source_hash(self, dtype: str = "bf16") -> str:
        """Return a digest of everything that decides the compiled code of a dtype, except the compiler."""
        ...

    def space_hash(self, arch: ArchSpec, dtype: str) -> str:
        """Return a digest of the candidate configurations."""
        ...


class GemmFamily:
    """The GEMM family, see `wavetune.kernels.gemm`."""

    spec = GEMM
    brief_below_us = 0.0

    def configs(self, arch: ArchSpec, dtype: str) -> list[KernelConfig]:
        """Return the candidate configurations."""
        return scaled_space(arch, dtype) if find_dtype(dtype).is_scaled else gemm_space.gemm_space(arch, dtype)

    def legal(self, problem: GemmProblem, config: KernelConfig, arch: ArchSpec) -> str | None:
        """Return why ``config`` cannot run ``problem``, or None."""
        return gemm.illegal_reason(problem, config, arch)

    def fallback_config(self, problem: GemmProblem, arch: ArchSpec) -> KernelConfig:
        """Return a legal configuration for a GPU or dtype that no model covers; see `gemm_space.fallback_configs`.

        Raises
        ------
        ConfigError
            If the kernels cannot run the problem at all, such as one of int8.
        """
        for config in gemm_space.fallback_configs(problem, arch):
            return config
        raise ConfigError(f"no configuration is legal for {problem} on {arch.name}")

    def offline_calls(self, config: KernelConfig, arch: ArchSpec, dtype: str, layout: str) -> list[KernelCall]:
        """Return the launches of ``config`` over placeholders; the main one first."""
        size = 2**14
        problem = GemmProblem(size, size, size, dtype=dtype, layout=layout)
        return gemm.gemm_calls(placeholder_operands(problem), config, arch)

    def validation_problems(self, dtype: str, layout: str) -> tuple[GemmProblem, ...]:
        """Return one problem whose tiles outnumber the resident CTAs, ragged in every size, and one row."""
        # 2101 x 2056 is 153 tiles of 128 x 256: the loop of a persistent kernel runs more than once. 4104 is at
        # least 16 trips of 256, so that every split has work; all but m are multiples of 8, as TMA wants. fp8 wants
        # k to be one of 16.
        k = 4112 if find_dtype(dtype).input_bytes == 1 else 4104
        return (
            GemmProblem(2101, 2056, k, dtype=dtype, layout=layout),
            GemmProblem(1, 2056, k, dtype=dtype, layout=layout),
        )

    def make_operands(self, problem: GemmProblem, device: str, seed: int, n_copies: int = 1) -> list[GemmOperands]:
        """Allocate operands with random data."""
        return make_gemm_operands(problem, device, seed, n_copies)

    def carve_operands(self, problem: GemmProblem, config: KernelConfig, windows: DataWindows) -> GemmOperands:
        """Take contiguous operands from a pool of random data."""
        m, n, k = problem.dims
        b_shape = (n, k) if problem.layout == "nk" else (k, n)
        n_partials = workspace_size(problem, config)
        scales: tuple[Any, Any] = (None, None)
        if find_dtype(problem.dtype).is_scaled:
            of_a, of_b = scale_shapes(problem)
            scales = windows.take("fp32", *of_a), windows.take("fp32", *of_b)
        return GemmOperands(
            problem,
            windows.take(problem.dtype, m, k),
            windows.take(problem.dtype, *b_shape),
            windows.take(problem.dtype, m, n, is_output=True),
            partials=windows.scratch(n_partials) if n_partials else None,
            scale_a=scales[0],
            scale_b=scales[1],
        )

    def bind(self, operands: GemmOperands, config: KernelConfig, arch: ArchSpec, stream: int) -> Launch:
        """Return a function that launches on ``stream``."""
        return gemm.bind_gemm(operands, config, arch, stream)

    def launch(self, operands: GemmOperands, config: KernelConfig, arch: ArchSpec) -> None:
        """Launch on the current stream."""
        gemm.launch_gemm(operands, config, arch)

    def reference(self, operands: GemmOperands) -> Any:
        """Compute the result in float64."""
        return reference.gemm_reference(operands)

    def max_error(self, dtype: str) -> float:
        """Return the largest relative error of a right result."""
        return reference.MAX_RELATIVE_ERROR[dtype]

    def cost(self, problem: GemmProblem) -> tuple[int, int]:
        """Return (floating-point operations, bytes moved at least)."""
        m, n, k = problem.dims
        dtype = find_dtype(problem.dtype)
        return 2 * m * n * k, (m * k + n * k) * dtype.input_bytes + m * n * dtype.output_bytes

    def source_hash(self, dtype: str = "bf16") -> str:
        """Return a digest of the device code and of the host code that decides its constants."""
        # Read and not imported: Gluon takes time, and Triton's interpreter does not know it.
        device_code = Path(str(gemm_specialized.__file__)).with_name("gemm_specialized_device.py")
        return _hash_files(*(module.__file__ for module in _SOURCES), str(device_code))

    def space_hash(self, arch: ArchSpec, dtype: str) -> str:
        """Return a digest of the candidate configurations."""
        lines = "\n".join(repr(config) for config in self.configs(arch, dtype))
        return hashlib.sha256(lines.encode()).hexdigest()[:16]


_SOURCES = (
    gemm_device, gemm_pair_device, gemm, call_module, gemm_reduction, gemm_scaled_device, gemm_scaled_pair_device,
    gemm_scaled, gemm_specialized,
)  # fmt: skip

_FAMILIES: dict[str, KernelFamily] = {
    "gemm": GemmFamily(),
    "attention": AttentionFamily(),
    "attention_decode": AttentionDecodeFamily(),
    "grouped_gemm": GroupedGemmFamily(),
    "nvfp4_scales": Nvfp4ScalesFamily(),
}


def find_family(kernel: str) -> KernelFamily:
    """Resolve a kernel family by name.

    Raises
    ------
    ConfigError
        If no kernels are written for the family.
    """
    try:
        return _FAMILIES[kernel]
    except (KeyError, TypeError):
        raise ConfigError(f"no kernels for {kernel!r}; known: {', '.join(_FAMILIES)}") from None


def _hash_files(*paths: str | None) -> str:
    digest = hashlib.sha256()
    for path in paths:
        digest.update(Path(str(path)).read_bytes())
    return digest.hexdigest()[:16]
