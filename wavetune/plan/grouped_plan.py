"""What a calibration of grouped GEMM measures, and what it is judged on.

Sweeps of realistic problems: expert layers of public models, from one token to 16384, under routings from balanced to a
few favoured experts. Histograms are drawn, then replaced by the ones that their keys stand for, so that what is stored
is what was measured. Every few problems are swept with the whole space, which judges choices; the others only with the
configurations that could win, which buys more problems for the same seconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from wavetune.core.arch import ArchSpec
from wavetune.core.dtype import find_dtype
from wavetune.core.grouped_problem import GroupedGemmProblem
from wavetune.core.routing import UNIFORM, Routing, sample_groups
from wavetune.mapping.grouped_gemm import map_grouped_gemm
from wavetune.plan.budget import (
    ROUGH_DRAM_EFFICIENCY,
    ROUGH_LAUNCH_US,
    ROUGH_MATRIX_EFFICIENCY,
    ROUGH_TRIP_US,
    Budget,
    MeasurementCost,
    Plan,
)
from wavetune.plan.expert_layers import CALIBRATION_BLOCKS, HOLDOUT_BLOCKS, ExpertLayer, expert_layers
from wavetune.store.record import CompiledConfig, Point
from wavetune.waves.geometry import wave_geometry
from wavetune.waves.occupancy import ctas_per_sm

TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 192, 256, 512, 1024, 1536, 2048, 4096, 8192, 16384)
"""Tokens of a batch: captured decode batches, then prefill chunks."""

HOLDOUT_TOKENS = (1, 3, 6, 12, 24, 48, 96, 160, 320, 600, 1000, 1900, 3000, 6000, 12000, 16384)
"""Other tokens, to be judged on; the ends are the same."""

ROUTINGS = (UNIFORM, Routing("zipf", 0.6), Routing("zipf", 1.2), Routing("dirichlet", 0.3))
"""Strata of skew."""

HOLDOUT_ROUTINGS = (UNIFORM, Routing("zipf", 0.8), Routing("dirichlet", 1.0), Routing("dirichlet", 0.2))

SWEEP_STRATUM, LIKELY_STRATUM = "sweep", "likely"
"""Problems measured with every configuration; with those that could win."""

EXHAUSTIVE_STRATA = (SWEEP_STRATUM,)

MAX_WASTE = 3.0
"""Rows that a configuration may compute for each token, over the fewest that any does, to be worth a measurement."""

FLAT_TILE, MAX_FLAT_ROWS = 128, 32
"""Tiles of less than `FLAT_TILE` rows are not measured where an active expert has more than so many of them on average:
a taller one then reads the weight half as often and wastes next to nothing."""


@dataclass(frozen=True, slots=True)
class GroupedPlanOptions:
    """Size of a plan.

    Parameters
    ----------
    max_seconds : float, default=95.0
        Predicted seconds of timing: with compiling, checking and fitting this leaves a calibration below 150 s.
    max_points : int, default=40000
        Most points.
    n_problems : int, default=400
        Most problems.
    sweep_every : int, default=6
        One problem in so many is measured with every configuration.
    cost : MeasurementCost
        What a point costs.
    """

    max_seconds: float = 95.0
    max_points: int = 40_000
    n_problems: int = 400
    sweep_every: int = 6
    cost: MeasurementCost = field(default_factory=MeasurementCost)


def spread_problems(
    n_problems: int,
    layers: Sequence[ExpertLayer],
    tokens: Sequence[int],
    routings: Sequence[Routing],
    *,
    dtype: str = "bf16",
    layout: str = "nk",
) -> list[GroupedGemmProblem]:
    """Pick distinct problems evenly over layers, tokens and routings; more problems extend fewer.

    Follows the three-dimensional golden-ratio sequence (M. Roberts, "The unreasonable effectiveness of quasirandom
    sequences", 2018), so any prefix covers decode to prefill, few to many experts, and all skews.

    Returns
    -------
    list of GroupedGemmProblem
        Their groups are those of their keys. At most ``n_problems``; fewer if there are not as many.
    """
    found: dict[GroupedGemmProblem, None] = {}
    for index in range(1, 8 * n_problems + 1):
        if len(found) >= n_problems:
            break
        places = [(0.5 + index / _GOLDEN**axis) % 1.0 for axis in (1, 2, 3)]
        layer, count = layers[int(places[0] * len(layers))], tokens[int(places[1] * len(tokens))]
        routing = routings[int(places[2] * len(routings))]
        rows = layer.rows(count)
        sizes = sample_groups(routing, layer.experts, rows, index, most=max(count, -(-rows // layer.experts)))
        found[GroupedGemmProblem(sizes, layer.n, layer.k, dtype, layout).canonical()] = None
    return list(found)


_GOLDEN = 1.22074408460575947536
"""The positive root of ``x**4 = x + 1``: the golden ratio of three dimensions."""


def calibration_problems(n_problems: int, *, dtype: str = "bf16", layout: str = "nk") -> list[GroupedGemmProblem]:
    """Return what the default plan measures."""
    layers = expert_layers(CALIBRATION_BLOCKS)
    return spread_problems(n_problems, layers, TOKENS, ROUTINGS, dtype=dtype, layout=layout)


def holdout_problems(n_problems: int = 64, *, dtype: str = "bf16", layout: str = "nk") -> list[GroupedGemmProblem]:
    """Return problems that choices are judged on: other weights, tokens and skews than `calibration_problems`."""
    layers = expert_layers(HOLDOUT_BLOCKS)
    return spread_problems(n_problems, layers, HOLDOUT_TOKENS, HOLDOUT_ROUTINGS, dtype=dtype, layout=layout)


def plan_grouped(
    compiled: Sequence[CompiledConfig],
    arch: ArchSpec,
    *,
    dtype: str = "bf16",
    layout: str = "nk",
    options: GroupedPlanOptions | None = None,
    problems: Sequence[GroupedGemmProblem] = (),
) -> Plan:
    """Plan a calibration.

    Parameters
    ----------
    compiled : sequence of CompiledConfig
        What can be measured.
    arch : ArchSpec
        The GPU.
    dtype, layout : str
        Of the operands.
    options : GroupedPlanOptions, optional
        Size of the plan.
    problems : sequence of GroupedGemmProblem
        The user's, put before the built-in ones and swept with every configuration.
    """
    options = options or GroupedPlanOptions()
    budget = Budget(options.max_points, options.max_seconds, options.cost)
    own = list(dict.fromkeys(problem.canonical() for problem in problems))
    for problem in own:
        _add(budget, problem, compiled, SWEEP_STRATUM, arch)
    for index, problem in enumerate(calibration_problems(options.n_problems, dtype=dtype, layout=layout)):
        if budget.n_refused:
            break
        is_swept = index % options.sweep_every == 0
        chosen = compiled if is_swept else list(could_win(problem, compiled, arch))
        _add(budget, problem, chosen, SWEEP_STRATUM if is_swept else LIKELY_STRATUM, arch)
    return budget.plan()


def could_win(
    problem: GroupedGemmProblem, compiled: Sequence[CompiledConfig], arch: ArchSpec
) -> Iterator[CompiledConfig]:
    """Yield the configurations whose tiles are neither far too tall nor far too flat for the groups."""
    mappings = [map_grouped_gemm(problem, entry.config, arch) for entry in compiled]
    fewest = min((mapping.padded_rows for mapping in mappings), default=0)
    for entry, mapping in zip(compiled, mappings, strict=True):
        is_flat = int(entry.config["block_m"]) < FLAT_TILE and mapping.tile_rows > MAX_FLAT_ROWS * problem.active
        if mapping.padded_rows <= MAX_WASTE * fewest and not is_flat:
            yield entry


def rough_grouped_us(problem: GroupedGemmProblem, entry: CompiledConfig, arch: ArchSpec) -> float:
    """Guess a latency before anything was measured, as `wavetune.plan.budget.rough_latency_us` does for GEMM."""
    config = entry.config
    mapping = map_grouped_gemm(problem, config, arch)
    resident = ctas_per_sm(
        arch, num_warps=int(config["num_warps"]), num_regs=entry.num_regs, smem_bytes=entry.smem_bytes
    )
    waves = wave_geometry(mapping.grid_size, resident, arch.num_sms)
    peak = arch.bf16_tflops * 1e6 / arch.num_sms * 2 / find_dtype(problem.dtype).input_bytes
    products = int(config["block_m"]) * int(config["block_n"]) * int(config["block_k"])
    trip_us = 2.0 * products / (peak * ROUGH_MATRIX_EFFICIENCY)
    memory_us = mapping.compulsory_bytes / (arch.dram_gb_per_s * 1e3)
    busy_us = max(
        waves.waves * mapping.loop_trips * ROUGH_TRIP_US,
        waves.depth * mapping.loop_trips * trip_us,
        memory_us / ROUGH_DRAM_EFFICIENCY,
    )
    return ROUGH_LAUNCH_US + busy_us


def _add(
    budget: Budget, problem: GroupedGemmProblem, compiled: Sequence[CompiledConfig], stratum: str, arch: ArchSpec
) -> None:
    budget.add_together(
        [(Point(problem, entry.config, stratum), rough_grouped_us(problem, entry, arch)) for entry in compiled]
    )
