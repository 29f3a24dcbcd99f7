"""The attention configurations that calibration considers, and the rule that answers without a model.

A prefill CTA lives from two warpgroups or CTAs that take turns: while one computes exponentials, the other keeps the
matrix unit busy. So tiles come as two warpgroups of 64 rows, and as single ones of which two or three fit on an SM,
if need be with fewer registers. A decode CTA lives from bytes in flight. What cannot run for a head dimension or an
architecture is dropped by the kernels' own legality rules.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from wavetune.core.arch import ArchSpec
from wavetune.core.attention_problem import AttentionDecodeProblem, AttentionProblem
from wavetune.core.config import ATTENTION, ATTENTION_DECODE, KernelConfig
from wavetune.errors import ConfigError
from wavetune.kernels.attention import MAX_REGISTERS, illegal_reason
from wavetune.kernels.attention_decode import MAX_SPLITS, decode_illegal_reason
from wavetune.mapping.attention import IN_ORDER, LONGEST_FIRST, most_decode_trips, row_tiles

_TILES: tuple[tuple[int, int, int, tuple[int, ...], int], ...] = (
    (128, 128, 8, (2, 3), MAX_REGISTERS),
    (128, 64, 8, (2, 3, 4), MAX_REGISTERS),
    (128, 64, 8, (2,), 128),
    (128, 32, 8, (3,), MAX_REGISTERS),
    (128, 64, 4, (2,), MAX_REGISTERS),
    (64, 128, 4, (2,), MAX_REGISTERS),
    (64, 64, 4, (2, 3), MAX_REGISTERS),
    (64, 32, 4, (3,), MAX_REGISTERS),
)
"""``(block_m, block_n, num_warps, num_stages, max_registers)``. With at most 128 registers two CTAs of eight warps fit
on an SM of compute capability 9.0; for head dimension 128, 64 keys then need 125 instead of 144, without spilling."""

_DECODE_TILES: tuple[tuple[int, int, tuple[int, ...]], ...] = (
    (32, 2, (3, 5)),
    (32, 4, (3, 7)),
    (64, 4, (3, 5)),
    (128, 4, (3,)),
    (128, 8, (5,)),
)
"""``(block_n, num_warps, num_stages)``. Pages are looked up in a stage of their own: 3 stages keep one tile of keys in
flight, 5 two, 7 three. Without (64, 4, 7) and (128, 8, 3) the best of the others is within 0.02 % of the best of all on
average, for head dimensions 64, 128 and 256, and within 0.05 % for 96 (400 keys each, H200, 2026-11)."""

_SPLITS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)

_ROOMY = AttentionProblem((2**14,), head_dim=64, is_causal=True)
_ROOMY_CACHE = AttentionDecodeProblem((2**17,), head_dim=64)


def attention_space(arch: ArchSpec, dtype: str = "bf16") -> list[KernelConfig]:
    """Return the candidate configurations of a prefill, without repeats, in a stable order, for all head dimensions."""
    probe = AttentionProblem(_ROOMY.q_lengths, head_dim=64, is_causal=True, dtype=dtype)
    configs: dict[KernelConfig, None] = {}
    for block_m, block_n, num_warps, stages, max_registers in _TILES:
        for num_stages, order, masking in product(stages, (LONGEST_FIRST, IN_ORDER), ("edges", "separate")):
            config = _prefill(block_m, block_n, num_warps, num_stages, max_registers, order, masking)
            if illegal_reason(probe, config, arch) is None:
                configs[config] = None
    return list(configs)


def attention_decode_space(arch: ArchSpec, dtype: str = "bf16") -> list[KernelConfig]:
    """Return the candidate configurations of a decode step, without repeats, in a stable order."""
    probe = AttentionDecodeProblem(_ROOMY_CACHE.kv_lengths, head_dim=64, dtype=dtype)
    configs = [
        _decode(block_n, splits, num_warps, num_stages)
        for block_n, num_warps, stages in _DECODE_TILES
        for num_stages in stages
        for splits in _SPLITS
    ]
    return [config for config in configs if decode_illegal_reason(probe, config, arch) is None]


_FALLBACK_TILES = ((128, 128, 8, 2), (128, 64, 8, 2), (64, 64, 4, 2), (64, 32, 4, 1), (16, 16, 1, 1))
"""``(block_m, block_n, num_warps, num_stages)``, preferred ones first; the last ones for little shared memory."""

_SHORT_QUERIES = 64
"""Up to this many queries a tile of 64 rows is not emptier than one of 128."""


def fallback_configs(problem: AttentionProblem, arch: ArchSpec) -> Iterator[KernelConfig]:
    """Yield legal configurations for a prefill that no model covers, preferred ones first. Not tuned for any GPU."""
    is_short = max(problem.q_lengths) <= _SHORT_QUERIES
    order = LONGEST_FIRST if problem.is_causal else IN_ORDER
    for block_m, block_n, num_warps, num_stages in _FALLBACK_TILES:
        if is_short and block_m > _SHORT_QUERIES:
            continue
        config = _prefill(block_m, block_n, num_warps, num_stages, MAX_REGISTERS, order, "edges")
        if illegal_reason(problem, config, arch) is None:
            yield config


def decode_fallback_configs(problem: AttentionDecodeProblem, arch: ArchSpec) -> Iterator[KernelConfig]:
    """Yield legal configurations for a decode step that no model covers, preferred ones first."""
    for block_n, num_warps, num_stages in ((64, 4, 3), (32, 4, 3), (16, 4, 1)):
        ctas = len(problem.kv_lengths) * problem.kv_heads * row_tiles(problem.group)
        splits = occupancy_splits(ctas, most_decode_trips(problem, block_n), arch.num_sms)
        config = _decode(block_n, splits, num_warps, num_stages)
        if decode_illegal_reason(problem, config, arch) is None:
            yield config


def occupancy_splits(ctas: int, trips: int, num_sms: int) -> int:
    """Return the splits that FlashAttention's rule gives: the fewest that fill waves nearly as well as any number does.

    One, where the CTAs fill four fifths of the SMs without a split. Else the smallest number whose share of busy slots,
    with two CTAs on an SM, is within 85 % of the best, among those that shorten the longest part.

    Parameters
    ----------
    ctas : int
        CTAs of a launch without splits.
    trips : int
        Loop trips of the longest of them.
    num_sms : int
        SMs of the GPU.
    """
    slots = 2 * num_sms
    if ctas >= 0.8 * slots:
        return 1
    shares: dict[int, float] = {}
    longest = 0
    for splits in range(1, max(min(trips, slots, MAX_SPLITS), 1) + 1):
        part = -(-trips // splits)
        if part != longest:
            waves = ctas * splits / slots
            shares[splits] = waves / -(-ctas * splits // slots)
        longest = part
    best = max(shares.values())
    return next(splits for splits, share in shares.items() if share >= 0.85 * best)


def first_legal(configs: Iterator[KernelConfig], problem: object, arch: ArchSpec) -> KernelConfig:
    """Return the first configuration.

    Raises
    ------
    ConfigError
        If there is none.
    """
    for config in configs:
        return config
    raise ConfigError(f"no configuration is legal for {problem} on {arch.name}")


def _prefill(
    block_m: int, block_n: int, num_warps: int, num_stages: int, max_registers: int, order: str, masking: str
) -> KernelConfig:  # fmt: skip
    return ATTENTION.config(
        {
            "block_m": block_m, "block_n": block_n, "order": order, "masking": masking, "num_warps": num_warps,
            "num_stages": num_stages, "max_registers": max_registers,
        }
    )  # fmt: skip


def _decode(block_n: int, splits: int, num_warps: int, num_stages: int) -> KernelConfig:
    return ATTENTION_DECODE.config(
        {"block_n": block_n, "splits": splits, "num_warps": num_warps, "num_stages": num_stages}
    )  # fmt: skip
