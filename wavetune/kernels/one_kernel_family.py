"""What a family needs not write if each of its configurations is one kernel, and its problems are their sizes.

A subclass says the kernel and its space, lays its tensors out, and computes the reference. The grid is that of its
mapping, so model and launch cannot disagree. `wavetune.kernels.nvfp4_scales` is an example.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from types import ModuleType
from typing import Any, ClassVar

from wavetune.core.arch import ArchSpec
from wavetune.core.config import KernelConfig, KernelSpec
from wavetune.errors import ConfigError
from wavetune.kernels.call import KernelCall, KernelVariant, Launch, bind
from wavetune.kernels.digests import configs_digest, sources_digest
from wavetune.kernels.gemm_operands import TORCH_DTYPES
from wavetune.kernels.placeholder import Placeholder
from wavetune.kernels.windows import DataWindows
from wavetune.mapping.kernel_mapping import KernelMapping, KernelProblem, LaunchShape

Take = Callable[..., Any]
"""``take(dtype, rows, columns, is_output=False)`` returns a contiguous matrix: random, or a stand-in for one."""


class OneKernelFamily(ABC):
    """Conforms to `wavetune.kernels.registry.KernelFamily`.

    Attributes
    ----------
    spec : KernelSpec
        Fields and dims.
    mapping : KernelMapping
        Sizes and configuration to CTAs, trips and bytes.
    kernel : triton.JITFunction
        Its sizes must not be specialized on; compile-time arguments are the macro fields in capitals, in their order.
    sources : tuple of module
        The device code, and host code that decides its constants.
    dtypes : tuple of str
        Element types that it takes.
    validation_sizes : tuple of tuple of int
        Sizes on which a configuration must be right: ragged ones, and the least.
    """

    spec: ClassVar[KernelSpec]
    mapping: ClassVar[KernelMapping]
    kernel: ClassVar[Any]
    sources: ClassVar[tuple[ModuleType, ...]]
    dtypes: ClassVar[tuple[str, ...]] = ("bf16", "fp16")
    validation_sizes: ClassVar[tuple[tuple[int, ...], ...]]
    brief_below_us: ClassVar[float] = 0.0

    def __init__(self) -> None:
        self._variants: dict[tuple[KernelConfig, ArchSpec, str], KernelVariant] = {}

    @abstractmethod
    def configs(self, arch: ArchSpec, dtype: str) -> list[KernelConfig]:
        """Return the candidate configurations, a safe one first."""

    @abstractmethod
    def lay_out(self, problem: KernelProblem, take: Take) -> Any:
        """Return operands whose tensors come from ``take``; they have ``problem`` and ``out``."""

    @abstractmethod
    def arguments(self, operands: Any) -> tuple[Any, ...]:
        """Return the run-time arguments of the kernel."""

    @abstractmethod
    def reference(self, operands: Any) -> Any:
        """Compute the result in higher precision."""

    @abstractmethod
    def max_error(self, dtype: str) -> float:
        """Return the largest relative error of a right result."""

    @abstractmethod
    def flops(self, problem: KernelProblem) -> int:
        """Return the floating-point operations of a problem."""

    def shape(self, problem: KernelProblem, config: KernelConfig) -> LaunchShape:
        """Map a problem."""
        return self.mapping.shape(dict(zip(self.spec.dims, problem.dims, strict=True)), config)

    def legal(self, problem: KernelProblem, config: KernelConfig, arch: ArchSpec) -> str | None:
        """Return why ``config`` cannot run ``problem``, or None."""
        return (
            None if problem.dtype in self.dtypes else f"the kernel takes {', '.join(self.dtypes)}, not {problem.dtype}"
        )

    def fallback_config(self, problem: KernelProblem, arch: ArchSpec) -> KernelConfig:
        """Return the first configuration.

        Raises
        ------
        ConfigError
            If the kernel does not take the element type.
        """
        config = self.configs(arch, problem.dtype)[0]
        reason = self.legal(problem, config, arch)
        if reason is not None:
            raise ConfigError(f"no configuration is legal for {problem}: {reason}")
        return config

    def validation_problems(self, dtype: str, layout: str) -> tuple[KernelProblem, ...]:
        """Return a problem for each of `validation_sizes`."""
        return tuple(KernelProblem(self.spec.name, sizes, dtype, layout) for sizes in self.validation_sizes)

    def offline_calls(self, config: KernelConfig, arch: ArchSpec, dtype: str, layout: str) -> list[KernelCall]:
        """Return the launch over placeholders."""

        def take(name: str, rows: int, columns: int, *, is_output: bool = False) -> Any:
            return Placeholder(name, (rows, columns))

        problem = self.validation_problems(dtype, layout)[0]
        return [self.call(self.lay_out(problem, take), config, arch)]

    def make_operands(self, problem: KernelProblem, device: str, seed: int, n_copies: int = 1) -> list[Any]:
        """Allocate operands with random data."""
        import torch

        generator = torch.Generator(device).manual_seed(seed)

        def take(name: str, rows: int, columns: int, *, is_output: bool = False) -> Any:
            tensor = torch.empty(rows, columns, dtype=getattr(torch, TORCH_DTYPES[name]), device=device)
            return tensor.fill_(torch.nan) if is_output else tensor.normal_(generator=generator)

        return [self.lay_out(problem, take) for _ in range(n_copies)]

    def carve_operands(self, problem: KernelProblem, config: KernelConfig, windows: DataWindows) -> Any:
        """Take operands from a pool of random data; fp32 results share one workspace."""

        def take(name: str, rows: int, columns: int, *, is_output: bool = False) -> Any:
            if is_output and name != windows.dtype:
                return windows.scratch(rows * columns)[: rows * columns].view(rows, columns)
            return windows.take(name, rows, columns, is_output=is_output)

        return self.lay_out(problem, take)

    def call(self, operands: Any, config: KernelConfig, arch: ArchSpec) -> KernelCall:
        """Describe the launch; its grid is the mapping's."""
        key = (config, arch, operands.problem.dtype)
        variant = self._variants.get(key)
        if variant is None:
            constants = {name.upper(): config[name] for name in self.spec.macro}
            stages = int(config["num_warps"]), int(config["num_stages"])
            variant = self._variants.setdefault(key, KernelVariant(self.kernel, constants, *stages, arch))
        return KernelCall(variant, self.arguments(operands), self.shape(operands.problem, config).grid_size)

    def bind(self, operands: Any, config: KernelConfig, arch: ArchSpec, stream: int) -> Launch:
        """Return a function that launches on ``stream``."""
        return bind(self.call(operands, config, arch), stream)

    def launch(self, operands: Any, config: KernelConfig, arch: ArchSpec) -> None:
        """Launch on the current stream."""
        stream = 0
        if operands.out.is_cuda:
            import torch

            stream = int(torch.cuda.current_stream(operands.out.device).cuda_stream)
        self.bind(operands, config, arch, stream)()

    def cost(self, problem: KernelProblem) -> tuple[int, int]:
        """Return (floating-point operations, bytes moved at least)."""
        moved = self.mapping.shape(
            dict(zip(self.spec.dims, problem.dims, strict=True)), dict.fromkeys(self.spec.fields, 1)
        ).moved_bytes
        return self.flops(problem), moved

    def source_hash(self, dtype: str = "bf16") -> str:
        """Return a digest of the sources."""
        return sources_digest(self.sources)

    def space_hash(self, arch: ArchSpec, dtype: str) -> str:
        """Return a digest of the candidate configurations."""
        return configs_digest(self.configs(arch, dtype))
