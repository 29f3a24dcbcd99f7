"""Keys that attention is calibrated on, and others that a model is judged on.

A key is one of `wavetune.core.attention_problem`: evenly spaced lengths. Every configuration that is legal and could
win is measured on every key, so a plan is a list of keys. Strata take turns, so that any prefix of the list is
balanced, and within a stratum lengths, batches and heads follow sequences of low discrepancy, so that any prefix is
spread.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import count
from typing import TypeVar

from wavetune.core.arch import ArchSpec
from wavetune.core.attention_problem import AttentionDecodeProblem, AttentionProblem, head_dim_of
from wavetune.core.config import ATTENTION, ATTENTION_DECODE, KernelConfig
from wavetune.errors import ProblemError
from wavetune.mapping.attention import ROW_TILES, attention_bytes, attention_flops, decode_bytes
from wavetune.mapping.attention_shape import AnyAttentionProblem, key_problem, map_problem
from wavetune.mapping.kernel_mapping import LaunchShape
from wavetune.plan.budget import Budget, MeasurementCost, Plan
from wavetune.runtime.attention_choice import is_legal
from wavetune.store.record import CompiledConfig, Point

LENGTHS = (128, 16384)
"""Shortest and longest prefill."""

DECODE_LENGTHS = (128, 65536)
"""Shortest and longest cache."""


@dataclass(frozen=True, slots=True)
class AttentionPool:
    """What keys are made from, beside lengths.

    Parameters
    ----------
    heads : tuple of (int, int)
        Query heads, and key and value heads, on one GPU: of public models, whole and split over GPUs.
    batches, decode_batches : tuple of int
        Sequences of a prefill, and of a decode step.
    """

    heads: tuple[tuple[int, int], ...]
    batches: tuple[int, ...]
    decode_batches: tuple[int, ...]


CALIBRATION_POOL = AttentionPool(
    heads=(
        (32, 32), (32, 8), (8, 1), (16, 16), (64, 8), (16, 2), (40, 8), (12, 12),
        (40, 10), (14, 2), (36, 4), (64, 4), (16, 8), (15, 5), (25, 25), (96, 8),
    ),
    batches=(1, 2, 4, 8, 16),
    decode_batches=(
        1, 2, 4, 5, 7, 8, 10, 14, 16, 18, 22, 28, 32, 40, 56, 64, 72, 80, 112, 128, 144, 160, 224, 256,
    ),
)  # fmt: skip

HOLDOUT_POOL = AttentionPool(
    heads=((24, 8), (32, 4), (6, 6), (28, 4), (48, 8), (8, 2), (32, 8), (20, 20)),
    batches=(1, 3, 6, 12, 16),
    decode_batches=(1, 3, 24, 48, 96, 192, 6, 12, 256),
)
"""Other heads and batches, to be judged on; the ends are the same."""

SPREADS = (20, 40, 60, 80, 95)

STRATA = ("uniform", "ragged", "group", "full", "prefix", "short")
"""Causal prefills of one length; of different ones; with many query heads on one key and value head; without a mask; on
top of a cache; many short ones."""

DECODE_STRATA = ("uniform", "ragged", "group", "long")
"""Caches of one length; of different ones; with many query heads on one key and value head; few, but very long."""

PAGE_SIZE = 16
"""Tokens of a page: the smallest that servers use, so the one with most look-ups."""

MAX_POINT_US = 3000.0
"""Keys that are expected to take longer, by half the peak rates, are left out: many configurations pay for each."""

ROUGH_SHARE = 0.67
"""`expected_us` over the latency of a configuration that is neither the best nor the worst, a guess for budgets."""

MAX_POINTS = 60_000
"""Most points of a plan."""

MAX_BYTES = 2 * 2**30
"""Most bytes of a key's operands: several sets of them are in use."""

CALIBRATION_KEYS = {ATTENTION.name: 400, ATTENTION_DECODE.name: 900}
"""Keys of a plan. Decode has regular steps, one for each size of a launch, and more of them to learn: with half of 339
keys the mean regret of held-out choices was 1.9 % instead of 1.5 % (H200, 2026-11). Where time runs out, the first
keys have been measured with all."""

SWEEP_STRATUM = "sweep"
"""Every key: it is measured with every legal configuration that could win."""

LEAST_FILL = 0.5
"""Share of the SMs that a decode step has CTAs for, at least, unless they are short or more splits are not legal."""

SHORT_CTA_KEYS = 1024
"""Keys of a CTA up to which splitting further may cost more than it gains."""

MOST_FILL = 30.0
"""CTAs for each SM that a decode step has, at most, where fewer splits are legal.

Without what these three rule out, the best of the other configurations is within 0.04 % of the best of all on average,
for each head dimension, and a calibration has 27 % fewer points and takes 45 % of the time (400 keys each, H200,
2026-11)."""

WHOLE_KEYS = 5
"""One key in so many, of each stratum, is measured with every legal configuration: forms should know their worst."""

HOLDOUT_SKIP = 820
"""Members of each stratum's sequence that lie before what is judged on. With so many, 64 prefills reach from 130 to
16128 tokens."""

HOLDOUT_MAX_US = 6000.0
"""As `MAX_POINT_US`: few keys are judged on, so the longest may be among them."""

_BASES = (2, 3, 5, 7)
_STRATUM_STEP = 1009

_Option = TypeVar("_Option")


@dataclass(frozen=True, slots=True)
class AttentionKey:
    """A problem to measure and the reason why.

    Parameters
    ----------
    problem : AttentionProblem or AttentionDecodeProblem
        It is what its own key stands for.
    stratum : str
        One of `STRATA` or `DECODE_STRATA`.
    """

    problem: AnyAttentionProblem
    stratum: str

    @property
    def dims(self) -> tuple[int, ...]:
        """The key."""
        return self.problem.dims


def attention_keys(
    kernel: str, n_keys: int, arch: ArchSpec, *, dtype: str = "bf16", layout: str = "d128", skip: int = 0,
    excluded: Collection[tuple[int, ...]] = (), pool: AttentionPool = CALIBRATION_POOL,
    max_us: float = MAX_POINT_US,
) -> list[AttentionKey]:  # fmt: skip
    """Return keys of a family, always the same; more keys extend fewer.

    Parameters
    ----------
    kernel : {"attention", "attention_decode"}
        The family.
    n_keys : int
        How many.
    arch : ArchSpec
        Its peak rates tell which keys take too long.
    dtype, layout : str
        Element type and head dimension, ``d128``.
    skip : int, default=0
        Members of each stratum's sequence to pass over: another part of it is judged on than is measured.
    excluded : collection of tuple of int
        Keys to leave out.
    pool : AttentionPool
        Heads and batches.
    max_us : float
        Keys that are expected to take longer are left out, microseconds.

    Raises
    ------
    ProblemError
        If the family or the layout is unknown.
    """
    if kernel not in (ATTENTION.name, ATTENTION_DECODE.name):
        raise ProblemError(
            f"no attention family is called {kernel!r}; known: {ATTENTION.name}, {ATTENTION_DECODE.name}"
        )
    head_dim = head_dim_of(layout)
    strata = STRATA if kernel == ATTENTION.name else DECODE_STRATA
    make: Callable[[str, int, int, str, AttentionPool], AnyAttentionProblem] = (
        _prefill if kernel == ATTENTION.name else _decode
    )  # fmt: skip
    # Strata begin at different places of the sequence, or they would pair the same lengths, batches and heads.
    sequences = [
        _affordable(make, stratum, head_dim, dtype, arch, pool, max_us, skip + turn * _STRATUM_STEP)
        for turn, stratum in enumerate(strata)
    ]
    seen = set(excluded)
    keys: list[AttentionKey] = []
    while len(keys) < n_keys:
        for stratum, sequence in zip(strata, sequences, strict=True):
            problem = next(problem for problem in sequence if problem.dims not in seen)
            seen.add(problem.dims)
            keys.append(AttentionKey(problem, stratum))
    return keys[:n_keys]


def holdout_keys(
    kernel: str, n_keys: int, arch: ArchSpec, *, dtype: str = "bf16", layout: str = "d128"
) -> list[AttentionKey]:  # fmt: skip
    """Return keys that no default plan measures, of the same strata: other lengths, heads and batches."""
    measured = {key.dims for key in attention_keys(kernel, CALIBRATION_KEYS[kernel], arch, dtype=dtype, layout=layout)}
    return attention_keys(
        kernel, n_keys, arch, dtype=dtype, layout=layout, skip=HOLDOUT_SKIP, excluded=measured, pool=HOLDOUT_POOL,
        max_us=HOLDOUT_MAX_US,
    )  # fmt: skip


def plan_attention(
    kernel: str,
    compiled: Sequence[CompiledConfig],
    arch: ArchSpec,
    *,
    dtype: str = "bf16",
    layout: str = "d128",
    n_keys: int = 0,
    max_seconds: float = math.inf,
    problems: Sequence[object] = (),
) -> Plan:
    """Plan a calibration.

    Parameters
    ----------
    kernel : {"attention", "attention_decode"}
        The family.
    compiled : sequence of CompiledConfig
        What can be measured.
    arch : ArchSpec
        The GPU.
    dtype, layout : str
        Element type and head dimension, ``d128``.
    n_keys : int, default=0
        Most built-in keys; `CALIBRATION_KEYS` if 0.
    max_seconds : float
        Most predicted seconds.
    problems : sequence of AttentionProblem or AttentionDecodeProblem
        The user's, put before the built-in ones, with every legal configuration. What is measured is the problem that
        each one's key stands for.
    """
    budget = Budget(MAX_POINTS, max_seconds, MeasurementCost())
    own = [problem for problem in problems if isinstance(problem, AttentionProblem | AttentionDecodeProblem)]
    keys = dict.fromkeys(problem.dims for problem in own)
    builtin = attention_keys(
        kernel, n_keys or CALIBRATION_KEYS[kernel], arch, dtype=dtype, layout=layout, excluded=set(keys)
    )
    for turn, dims in enumerate([*keys, *(key.dims for key in builtin)]):
        if budget.n_refused:
            break
        problem = key_problem(kernel, dims, dtype, layout)
        latency_us = expected_us(problem, arch) / ROUGH_SHARE
        configs = [entry.config for entry in compiled if is_legal(problem, entry.config)]
        if isinstance(problem, AttentionDecodeProblem) and dims not in keys and turn % WHOLE_KEYS:
            configs = that_could_win(problem, configs, arch)
        budget.add_together([(Point(problem, config, SWEEP_STRATUM), latency_us) for config in configs])
    return budget.plan()


def that_could_win(
    problem: AttentionDecodeProblem, configs: Sequence[KernelConfig], arch: ArchSpec
) -> list[KernelConfig]:  # fmt: skip
    """Return the configurations that neither leave most of the GPU idle for long nor split without need.

    Parameters
    ----------
    problem : AttentionDecodeProblem
        What is computed.
    configs : sequence of KernelConfig
        All that are legal.
    arch : ArchSpec
        The GPU.
    """
    launches = [map_problem(problem, config).launch_shape() for config in configs]
    largest = max((launch.grid_size for launch in launches), default=0)

    def could(config: KernelConfig, launch: LaunchShape) -> bool:
        fill = launch.grid_size / arch.num_sms
        is_long = launch.loop_trips * int(config["block_n"]) > SHORT_CTA_KEYS
        is_idle = fill < LEAST_FILL and is_long and launch.grid_size < largest
        return not is_idle and (fill <= MOST_FILL or config["splits"] == 1)

    return [config for config, launch in zip(configs, launches, strict=True) if could(config, launch)]


def expected_us(problem: AnyAttentionProblem, arch: ArchSpec) -> float:
    """Return a rough latency: half the peak rates, and a few microseconds to launch."""
    flops = attention_flops(problem) if isinstance(problem, AttentionProblem) else 0
    return 5.0 + max(flops / (0.5e6 * arch.bf16_tflops), _operand_bytes(problem) / (0.5e3 * arch.dram_gb_per_s))


def _affordable(
    make: Callable[[str, int, int, str, AttentionPool], AnyAttentionProblem], stratum: str, head_dim: int, dtype: str,
    arch: ArchSpec, pool: AttentionPool, max_us: float, skip: int,
) -> Iterator[AnyAttentionProblem]:  # fmt: skip
    for index in count(skip):
        problem = make(stratum, index, head_dim, dtype, pool)
        # More query heads on one key and value head are another kernel, which would be compiled while timing.
        if isinstance(problem, AttentionDecodeProblem) and problem.group > ROW_TILES[0]:
            continue
        if expected_us(problem, arch) <= max_us and _operand_bytes(problem) <= MAX_BYTES:
            yield problem


def _prefill(stratum: str, index: int, head_dim: int, dtype: str, pool: AttentionPool) -> AttentionProblem:
    at = [radical_inverse(index + 1, base) for base in _BASES]
    longest = LENGTHS[1] if stratum != "short" else 1024
    q_len = _length(at[0], LENGTHS[0], longest, is_ragged=bool(index % 2))
    batch = _pick(pool.batches, at[1]) if stratum != "short" else 8 * _pick(pool.batches, at[1])
    heads, kv_heads = _pick(pool.heads, at[2])
    kv_len, spread = q_len, 0
    if stratum == "ragged":
        batch, spread = max(batch, 2), _pick(SPREADS, at[3])
    elif stratum == "group":
        kv_heads = _divisor_near(heads, heads // _pick((4, 8, 16, 2, 32), at[3]))
    elif stratum == "prefix":
        # A chunk of queries on top of what is already in the cache.
        kv_len = min(q_len + _length(at[3], LENGTHS[0], LENGTHS[1], is_ragged=bool(index % 3)), 2 * LENGTHS[1])
    dims = (batch, q_len, kv_len, spread, heads, kv_heads, int(stratum != "full"), 0)
    problem = AttentionProblem.from_dims(dims, dtype, f"d{head_dim}")
    return AttentionProblem.from_dims(problem.dims, dtype, f"d{head_dim}")


def _decode(stratum: str, index: int, head_dim: int, dtype: str, pool: AttentionPool) -> AttentionDecodeProblem:
    at = [radical_inverse(index + 1, base) for base in _BASES]
    low, high = DECODE_LENGTHS
    longest = 16384 if stratum != "long" else high
    kv_len = _length(at[0], low if stratum != "long" else 8192, longest, is_ragged=bool(index % 2))
    batch = _pick(pool.decode_batches, at[1]) if stratum != "long" else _pick((1, 2, 4, 3), at[1])
    heads, kv_heads = _pick(pool.heads, at[2])
    spread = 0
    if stratum == "ragged":
        batch, spread = max(batch, 4), _pick(SPREADS, at[3])
    elif stratum == "group":
        kv_heads = _divisor_near(heads, heads // _pick((8, 16, 4), at[3]))
    dims = (batch, kv_len, spread, heads, kv_heads, PAGE_SIZE, 0)
    problem = AttentionDecodeProblem.from_dims(dims, dtype, f"d{head_dim}")
    return AttentionDecodeProblem.from_dims(problem.dims, dtype, f"d{head_dim}")


def radical_inverse(index: int, base: int) -> float:
    """Return the van der Corput sequence: the digits of ``index``, mirrored behind the point; in [0, 1)."""
    result, unit = Fraction(0), Fraction(1, base)
    while index:
        index, digit = divmod(index, base)
        result, unit = result + digit * unit, unit / base
    return float(result)


def _length(share: float, low: int, high: int, *, is_ragged: bool) -> int:
    """Return a length spread evenly over octaves; a multiple of 128 unless ragged."""
    length = round(low * math.exp(share * math.log(high / low)))
    return length if is_ragged else max(round(length / 128), 1) * 128


def _pick(options: Sequence[_Option], share: float) -> _Option:
    return options[int(share * len(options))]


def _divisor_near(heads: int, wanted: int) -> int:
    """Return the largest number of key and value heads that divides ``heads`` and is at most ``wanted``."""
    return next(size for size in range(max(wanted, 1), 0, -1) if heads % size == 0)


def _operand_bytes(problem: AnyAttentionProblem) -> int:
    return attention_bytes(problem) if isinstance(problem, AttentionProblem) else decode_bytes(problem)
