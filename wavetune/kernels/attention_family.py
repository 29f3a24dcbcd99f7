"""The two attention families, as measuring and launching see them; see `wavetune.kernels.registry.KernelFamily`."""

from __future__ import annotations

from typing import Any

from wavetune.core.arch import ArchSpec
from wavetune.core.attention_problem import AttentionDecodeProblem, AttentionProblem, head_dim_of
from wavetune.core.config import ATTENTION, ATTENTION_DECODE, KernelConfig
from wavetune.kernels import attention, attention_decode, attention_decode_device, attention_device, attention_space
from wavetune.kernels import call as call_module
from wavetune.kernels.attention_operands import (
    AttentionDecodeOperands,
    AttentionOperands,
    carve_attention_operands,
    carve_decode_operands,
    make_attention_operands,
    make_decode_operands,
)
from wavetune.kernels.attention_placeholder import attention_placeholders, decode_placeholders
from wavetune.kernels.attention_reference import MAX_RELATIVE_ERROR, attention_reference, decode_reference
from wavetune.kernels.call import KernelCall, Launch
from wavetune.kernels.digests import configs_digest, sources_digest
from wavetune.kernels.windows import DataWindows
from wavetune.mapping.attention import attention_bytes, attention_flops, decode_bytes


class AttentionFamily:
    """Attention over whole sequences, see `wavetune.kernels.attention`. Layouts are head dimensions: ``d128``."""

    spec = ATTENTION
    brief_below_us = 0.0

    def configs(self, arch: ArchSpec, dtype: str) -> list[KernelConfig]:
        """Return the candidate configurations."""
        return attention_space.attention_space(arch, dtype)

    def legal(self, problem: AttentionProblem, config: KernelConfig, arch: ArchSpec) -> str | None:
        """Return why ``config`` cannot run ``problem``, or None."""
        return attention.illegal_reason(problem, config, arch)

    def fallback_config(self, problem: AttentionProblem, arch: ArchSpec) -> KernelConfig:
        """Return a legal configuration for a GPU or dtype that no model covers.

        Raises
        ------
        ConfigError
            If the kernel cannot run the problem at all, such as one of fp8.
        """
        return attention_space.first_legal(attention_space.fallback_configs(problem, arch), problem, arch)

    def offline_calls(self, config: KernelConfig, arch: ArchSpec, dtype: str, layout: str) -> list[KernelCall]:
        """Return a launch of each variant that calibration times, over placeholders."""
        problems = (_variant(dtype, layout, *kind) for kind in ((True, False), (False, False), (True, True)))
        return [attention.attention_calls(attention_placeholders(problem), config, arch)[0] for problem in problems]

    def validation_problems(self, dtype: str, layout: str) -> tuple[AttentionProblem, ...]:
        """Return ragged problems of each variant that calibration times: causal, full, and packed."""
        head_dim = head_dim_of(layout)
        return (
            AttentionProblem((1000,) * 2, (1000,) * 2, 6, 2, head_dim, True, dtype=dtype),
            AttentionProblem((333,), (1111,), 4, 4, head_dim, False, dtype=dtype),
            AttentionProblem((700, 1, 0, 129, 256), (), 4, 1, head_dim, True, dtype=dtype),
        )

    def make_operands(
        self, problem: AttentionProblem, device: str, seed: int, n_copies: int = 1
    ) -> list[AttentionOperands]:  # fmt: skip
        """Allocate operands with random data."""
        return make_attention_operands(problem, device, seed, n_copies)

    def carve_operands(
        self, problem: AttentionProblem, config: KernelConfig, windows: DataWindows
    ) -> AttentionOperands:  # fmt: skip
        """Take operands from a pool of random data."""
        return carve_attention_operands(problem, windows)

    def bind(self, operands: AttentionOperands, config: KernelConfig, arch: ArchSpec, stream: int) -> Launch:
        """Return a function that launches on ``stream``."""
        return attention.bind_attention(operands, config, arch, stream)

    def launch(self, operands: AttentionOperands, config: KernelConfig, arch: ArchSpec) -> None:
        """Launch on the current stream."""
        attention.bind_attention(operands, config, arch, _current_stream(operands.q))()

    def reference(self, operands: AttentionOperands) -> Any:
        """Compute the result in float64."""
        return attention_reference(operands)

    def max_error(self, dtype: str) -> float:
        """Return the largest relative error of a right result."""
        return MAX_RELATIVE_ERROR[dtype]

    def cost(self, problem: AttentionProblem) -> tuple[int, int]:
        """Return (floating-point operations on visible pairs, bytes moved at least)."""
        return attention_flops(problem), attention_bytes(problem)

    def source_hash(self, dtype: str = "bf16") -> str:
        """Return a digest of the device code and of the host code that decides its constants."""
        return sources_digest((attention_device, attention, call_module))

    def space_hash(self, arch: ArchSpec, dtype: str) -> str:
        """Return a digest of the candidate configurations."""
        return configs_digest(self.configs(arch, dtype))


class AttentionDecodeFamily:
    """Attention against a paged cache, see `wavetune.kernels.attention_decode`. Layouts as for `AttentionFamily`."""

    spec = ATTENTION_DECODE
    # With splits a call has two kernels; graphs take up to 22 % less than streams here, and little beyond (H200,
    # 2026-11).
    brief_below_us = 15.0

    def configs(self, arch: ArchSpec, dtype: str) -> list[KernelConfig]:
        """Return the candidate configurations."""
        return attention_space.attention_decode_space(arch, dtype)

    def legal(self, problem: AttentionDecodeProblem, config: KernelConfig, arch: ArchSpec) -> str | None:
        """Return why ``config`` cannot run ``problem``, or None."""
        return attention_decode.decode_illegal_reason(problem, config, arch)

    def fallback_config(self, problem: AttentionDecodeProblem, arch: ArchSpec) -> KernelConfig:
        """Return a legal configuration for a GPU or dtype that no model covers.

        Raises
        ------
        ConfigError
            If the kernels cannot run the problem at all, such as one of fp8.
        """
        return attention_space.first_legal(attention_space.decode_fallback_configs(problem, arch), problem, arch)

    def offline_calls(self, config: KernelConfig, arch: ArchSpec, dtype: str, layout: str) -> list[KernelCall]:
        """Return the launches of ``config`` over placeholders; the main one first."""
        problem = AttentionDecodeProblem((2**17,), 8, 2, head_dim_of(layout), dtype=dtype)
        return attention_decode.decode_calls(decode_placeholders(problem), config, arch)

    def validation_problems(self, dtype: str, layout: str) -> tuple[AttentionDecodeProblem, ...]:
        """Return ragged sequences, an empty one among them, long enough for every split to have work."""
        lengths = (8203, 0, 1, 4097, 16000)
        return (AttentionDecodeProblem(lengths, 8, 2, head_dim_of(layout), dtype=dtype),)

    def make_operands(
        self, problem: AttentionDecodeProblem, device: str, seed: int, n_copies: int = 1
    ) -> list[AttentionDecodeOperands]:  # fmt: skip
        """Allocate operands with random data."""
        return make_decode_operands(problem, device, seed, n_copies)

    def carve_operands(
        self, problem: AttentionDecodeProblem, config: KernelConfig, windows: DataWindows
    ) -> AttentionDecodeOperands:  # fmt: skip
        """Take operands from a pool of random data."""
        return carve_decode_operands(problem, config, windows)

    def bind(self, operands: AttentionDecodeOperands, config: KernelConfig, arch: ArchSpec, stream: int) -> Launch:
        """Return a function that launches on ``stream``."""
        return attention_decode.bind_decode(operands, config, arch, stream)

    def launch(self, operands: AttentionDecodeOperands, config: KernelConfig, arch: ArchSpec) -> None:
        """Launch on the current stream."""
        attention_decode.bind_decode(operands, config, arch, _current_stream(operands.q))()

    def reference(self, operands: AttentionDecodeOperands) -> Any:
        """Compute the result in float64."""
        return decode_reference(operands)

    def max_error(self, dtype: str) -> float:
        """Return the largest relative error of a right result."""
        return MAX_RELATIVE_ERROR[dtype]

    def cost(self, problem: AttentionDecodeProblem) -> tuple[int, int]:
        """Return (floating-point operations, bytes moved at least)."""
        keys = sum(min(length, problem.window or length) for length in problem.kv_lengths)
        return 4 * problem.head_dim * problem.heads * keys, decode_bytes(problem)

    def source_hash(self, dtype: str = "bf16") -> str:
        """Return a digest of the device code and of the host code that decides its constants."""
        return sources_digest((attention_decode_device, attention_device, attention_decode, attention, call_module))

    def space_hash(self, arch: ArchSpec, dtype: str) -> str:
        """Return a digest of the candidate configurations."""
        return configs_digest(self.configs(arch, dtype))


def _variant(dtype: str, layout: str, is_causal: bool, is_packed: bool) -> AttentionProblem:
    lengths = (2**12,) * 2
    return AttentionProblem(
        lengths, lengths, 8, 2, head_dim_of(layout), is_causal, dtype=dtype, is_packed=is_packed
    )  # fmt: skip


def _current_stream(tensor: Any) -> int:
    if tensor.device.type == "cpu":
        return 0
    import torch

    return int(torch.cuda.current_stream(tensor.device).cuda_stream)
