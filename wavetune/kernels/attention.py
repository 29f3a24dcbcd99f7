"""Attention over whole sequences on the host: legality, and the launch of one problem under one configuration."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from triton.tools.tensor_descriptor import TensorDescriptor

from wavetune.core.arch import ArchSpec
from wavetune.core.attention_problem import AttentionProblem
from wavetune.core.config import KernelConfig
from wavetune.core.dtype import find_dtype
from wavetune.core.problem import MAX_DIMENSION
from wavetune.errors import ProblemError
from wavetune.kernels import attention_device
from wavetune.kernels.attention_operands import AttentionOperands, default_scale
from wavetune.kernels.call import KernelCall, KernelVariant, Launch, bind
from wavetune.mapping.attention import launched_blocks, streams_per_group
from wavetune.mapping.legality import TMA_ALIGNMENT

DTYPES = ("bf16", "fp16", "fp32")
"""Element types that the kernels take; fp32 serves the tests."""

LOG2_E = math.log2(math.e)

MAX_REGISTERS = 255
"""Registers that a thread can address (CUDA C++ Programming Guide, technical specifications per compute capability)."""

ROWS_PER_WARP = 16
"""Rows of a tile that one warp holds (PTX ISA, wgmma.mma_async and mma.m16n8k16)."""


@dataclass(frozen=True, eq=False)
class CappedVariant(KernelVariant):
    """A kernel that is compiled for at most so many registers a thread, so that more CTAs fit on an SM.

    Parameters
    ----------
    max_registers : int, default=255
        Registers; `MAX_REGISTERS` does not cap.
    """

    max_registers: int = MAX_REGISTERS

    def options(self) -> dict[str, object]:
        """Return compile-time arguments and options as keywords of the kernel."""
        options = KernelVariant.options(self)
        if self.max_registers < MAX_REGISTERS:
            options["maxnreg"] = self.max_registers
        return options


def illegal_reason(problem: AttentionProblem, config: KernelConfig, arch: ArchSpec) -> str | None:
    """Say why a configuration cannot run a problem, or None if it can.

    Decides from the rules of the kernel alone; registers and exact shared memory come from the compiled kernel.
    """
    if problem.dtype not in DTYPES:
        return f"the kernels take {', '.join(DTYPES)}, not {problem.dtype}"
    block_m, block_n, num_warps = (int(config[name]) for name in ("block_m", "block_n", "num_warps"))
    for name in ("block_m", "block_n", "num_warps"):
        size = int(config[name])
        if size & (size - 1):
            return f"{name} must be a power of two, got {size}"
    if min(block_m, block_n) < 16:
        return "a matrix instruction needs tiles of at least 16 x 16"
    if num_warps * ROWS_PER_WARP > block_m:
        return f"{num_warps} warps need {num_warps * ROWS_PER_WARP} rows, block_m is {block_m}"
    if int(config["max_registers"]) > MAX_REGISTERS:
        return f"max_registers must be at most {MAX_REGISTERS}, got {config['max_registers']}"
    dim = padded_dim(problem.head_dim)
    held = block_m * (dim + block_n) // (num_warps * arch.warp_size)
    if held > int(config["max_registers"]):
        return f"{held} registers a thread hold the result and the scores, max_registers is {config['max_registers']}"
    # Q stays; the pipeline keeps num_stages tiles of K and of V.
    rows = block_m + 2 * block_n * int(config["num_stages"])
    smem_bytes = rows * dim * find_dtype(problem.dtype).input_bytes
    if smem_bytes > arch.smem_per_cta_bytes:
        return f"tiles of {smem_bytes} B exceed the shared memory of {arch.name}"
    if not problem.is_empty and launched_blocks(problem, block_m) * problem.heads > MAX_DIMENSION:
        return "the grid exceeds 2**31 - 1 CTAs"
    return None


def padded_dim(head_dim: int) -> int:
    """Return the power of two that a head is padded to; loads fill the rest with zeros."""
    return 1 << (head_dim - 1).bit_length()


@lru_cache(maxsize=8192)
def attention_variant(
    config: KernelConfig, arch: ArchSpec, dtype: str, head_dim: int, is_causal: bool, has_window: bool, is_packed: bool,
    has_lse: bool,
) -> KernelVariant:  # fmt: skip
    """Return what a configuration compiles. Independent of sizes; the dtype only keeps variants apart."""
    constants = {
        "HEAD_DIM": head_dim, "DIM": padded_dim(head_dim), "CAUSAL": is_causal, "WINDOW": has_window,
        "PACKED": is_packed, "BLOCK_M": config["block_m"], "BLOCK_N": config["block_n"], "ORDER": config["order"],
        "MASKING": config["masking"], "HAS_LSE": has_lse, "UNIT": store_unit(dtype),
    }  # fmt: skip
    return CappedVariant(
        attention_device.attention_kernel, constants, int(config["num_warps"]), int(config["num_stages"]), arch,
        max_registers=int(config["max_registers"]),
    )  # fmt: skip


def store_unit(dtype: str) -> int:
    """Return the elements of 16 bytes, which strides are multiples of."""
    return TMA_ALIGNMENT // find_dtype(dtype).input_bytes


def attention_calls(operands: AttentionOperands, config: KernelConfig, arch: ArchSpec) -> list[KernelCall]:
    """Describe the one launch of a prefill; its grid is that of `wavetune.mapping.attention.map_attention`.

    Parameters
    ----------
    operands : AttentionOperands
        With queries and keys.
    config : KernelConfig
        A complete configuration that `illegal_reason` accepts.
    arch : ArchSpec
        The GPU.

    Raises
    ------
    ProblemError
        If there are no queries, or no keys.
    """
    problem = operands.problem
    if problem.is_empty or not any(problem.kv_lengths):
        raise ProblemError(f"there is nothing to launch for {problem}; without keys the result is zero")
    variant = attention_variant(
        config, arch, problem.dtype, problem.head_dim, problem.is_causal, problem.window > 0, problem.is_packed,
        operands.lse is not None,
    )  # fmt: skip
    block_m, block_n = int(config["block_m"]), int(config["block_n"])
    unit, lse, scale = store_unit(problem.dtype), operands.lse, operands.scale or default_scale(problem.head_dim)
    blocks = launched_blocks(problem, block_m)
    args = (
        descriptor(operands.q, block_m), descriptor(operands.k, block_n), descriptor(operands.v, block_n),
        operands.out, lse, operands.q_starts, operands.kv_starts, max(problem.q_lengths), max(problem.kv_lengths),
        problem.heads, problem.group, len(problem.q_lengths) * problem.heads, streams_per_group(problem, arch),
        problem.window, *(operands.out.stride(axis) // unit for axis in range(3)),
        *((0, 0) if lse is None else (lse.stride(0), lse.stride(1))), scale * LOG2_E,
    )  # fmt: skip
    return [KernelCall(variant, args, blocks * problem.heads)]


def bind_attention(operands: AttentionOperands, config: KernelConfig, arch: ArchSpec, stream: int) -> Launch:
    """Return a function that runs the prefill on ``stream``; descriptors and grid are prepared once, here.

    Without keys it fills the result with zeros, without queries it does nothing.
    """
    problem = operands.problem
    if problem.is_empty:
        return _nothing
    if not any(problem.kv_lengths):
        return lambda: fill_without_keys(operands.out, operands.lse)
    (call,) = attention_calls(operands, config, arch)
    return bind(call, stream)


def fill_without_keys(out: Any, lse: Any) -> None:
    """Write what queries that see no key get: 0, and -inf as the logsumexp."""
    out.zero_()
    if lse is not None:
        lse.fill_(-math.inf)


def descriptor(tensor: Any, rows: int) -> TensorDescriptor:
    """Return a descriptor of tiles of ``rows`` tokens of one head; columns beyond the head are zeros."""
    shape = list(tensor.shape)
    # The stride of an axis of one is never used, and may be anything; TMA wants it to be a multiple of 16 bytes.
    strides = [tensor.stride(axis) if size > 1 else shape[-1] for axis, size in enumerate(shape[:-1])]
    return TensorDescriptor(tensor, shape, [*strides, 1], [1, 1, rows, padded_dim(shape[-1])])


def _nothing() -> None:
    pass
