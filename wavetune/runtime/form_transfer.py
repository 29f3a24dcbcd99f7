"""Predict GEMM configurations that a model has no form for. Standard library only.

The forms of a model belong to the configurations that survived its calibration; other people's lists hold others. The
time of one trip of the main loop is bounded by three things that are easy to count for any tile:

- bytes that the CTAs of an SM load from the last-level cache,
- multiply-adds that its matrix unit does,
- the latency of a load, divided by the stages that are in flight at once.

The best rates that any form of the model reaches give the three constants. An unknown configuration then takes the
form of its nearest known ones, each with its trip scaled by the ratio of the two bounds, and evaluated with its own
grid, trips and waves.

On H200 sweeps (2026-10 and 2026-11), the best of the three that are predicted fastest of lists of twenty, over the best
of the list (geometric mean / 5th percentile):

- 164 recorded shapes, a list like that of Triton's tutorial, pointer kernels: 0.998 / 0.990 with a model fitted to
  wave-structured points only, 0.997 / 0.974 with the shipped model of another kernel. Nearest forms without the ratio:
  0.904 / 0.693.
- 112 held-out shapes, random lists of configurations that have no form in the shipped model: 0.982 / 0.884.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from wavetune.core.arch import ArchSpec
from wavetune.core.config import WALKING_SCHEDULES, KernelConfig
from wavetune.core.dtype import find_dtype
from wavetune.errors import InfeasibleConfigError
from wavetune.runtime.model_file import LaunchForm, ModelFile
from wavetune.waves.geometry import wave_geometry
from wavetune.waves.occupancy import ctas_per_sm
from wavetune.waves.terms import BYTES_PER_MB, FLOPS_PER_GFLOP, TERMS, latency_terms, sustained_onset_gflop

N_NEIGHBOURS = 5
"""Forms that an unknown configuration is blended from. One alone picks 0.003 worse, ten no better (recorded sweeps)."""

MISTRUST = 0.05
"""An unknown configuration is predicted slower by this share for each octave to the nearest form: the forms of a model
are of winners, and what is far from all of them seldom is one."""

BEST_RATE_QUANTILE = 0.1
"""Which form's rate counts as the best one: not the very first, which may be a lucky fit."""

SPILL_FACTOR = 6.0
"""How much longer a trip takes whose accumulators alone fill the registers of a thread: 6 to 10 times on recorded
sweeps."""

MAX_REGISTERS = 255
"""Registers of a thread, at most (CUDA C++ Programming Guide, table of technical specifications)."""

# Distance between configurations, in octaves of a size: of what does not have octaves, how many it counts for.
_STAGE, _LOAD, _PERSISTENT, _GROUP = 0.5, 3.0, 0.5, 0.05
_SPECIALIZED = 1.0
"""Warps with roles of their own: with 0 the best of three is 0.002 to 0.005 worse, with 0.5 up to 0.004 worse, with 3
from 0.003 worse to 0.001 better (lists of twenty of the H200's bf16 sweep and fp8 calibration, 2026-11)."""
_SOFTENING = 0.1
_TILE = ("block_m", "block_n", "block_k", "split_k", "num_warps")


@dataclass(frozen=True, slots=True)
class TileLaunch:
    """What a launch asks of the GPU, as far as a GEMM form can say; see `wavetune.mapping.tile_mapping.TileMapping`."""

    grid_size: int
    loop_trips: int
    compulsory_bytes: int = 0
    reread_bytes: int = 0
    workspace_bytes: int = 0
    flops: int = 0


@dataclass(frozen=True, slots=True)
class _Anchor:
    """A form, with the time of a trip of a lone CTA and of a full SM."""

    index: int
    form: LaunchForm
    coefficients: Mapping[str, float]
    lone_us: float
    full_us: float


class FormTransfer:
    """The forms of one GEMM model, for any configuration.

    Parameters
    ----------
    model : ModelFile
        A GEMM model.
    arch : ArchSpec
        The GPU.
    num_sms : int, optional
        SMs that launches may use; the model's own count if not given.
    """

    def __init__(self, model: ModelFile, arch: ArchSpec, num_sms: int | None = None) -> None:
        self.model = model
        self.arch = arch
        self.num_sms = num_sms or model.num_sms
        self._element_bytes = find_dtype(model.dtype).input_bytes
        self._anchors = [_anchor(index, form) for index, form in enumerate(model.forms[: model.n_modelled])]
        per_cta = [(a.full_us / a.form.ctas_per_sm, a.form.config) for a in self._anchors]
        self._us_per_byte = _low_quantile([us / self._loaded_bytes(config) for us, config in per_cta])
        self._us_per_product = _low_quantile([us / _products(config) for us, config in per_cta])
        self._latency_us = max(
            _low_quantile(
                [a.lone_us * _in_flight(a.form.config) - self._busy_us(a.form.config) for a in self._anchors]
            ),
            0.0,
        )

    def predict(self, config: KernelConfig, launch: TileLaunch, cell: tuple[int, ...] | None = None) -> float:
        """Predict a latency.

        Parameters
        ----------
        config : KernelConfig
            A complete GEMM configuration.
        launch : TileLaunch
            What it asks of the GPU.
        cell : tuple of int, optional
            Cell of the problem, whose corrections then apply.

        Returns
        -------
        float
            Microseconds; infinity if the configuration needs more shared memory than a CTA can have, 0 for an empty
            launch.
        """
        if launch.grid_size == 0:
            return 0.0
        if self._smem_bytes(config) > self.arch.smem_per_cta_bytes:
            return math.inf
        # Of forms that differ only in what the distance does not see, the configuration's own comes first.
        nearest = sorted(
            (self._distance(config, anchor.form.config), anchor.form.config != config, anchor.index)
            for anchor in self._anchors
        )
        correction = self.model.cells.get(cell) if cell is not None else None
        total = weights = 0.0
        for distance, _, index in nearest[:N_NEIGHBOURS]:
            latency_us = self._carried_over(self._anchors[index], config, launch)
            if correction is not None:
                latency_us *= math.exp(correction.correction_permille[index] / 1000)
            if distance == 0.0:
                return latency_us
            weight = (distance + _SOFTENING) ** -2
            total += weight * math.log(latency_us)
            weights += weight
        return math.exp(total / weights) * (1.0 + MISTRUST * nearest[0][0])

    def _carried_over(self, anchor: _Anchor, config: KernelConfig, launch: TileLaunch) -> float:
        known, coefficients = anchor.form.config, dict(anchor.coefficients)
        resident = self._resident(anchor, config)
        slower = self._trip_us(config, 1) / self._trip_us(known, 1)
        if resident == 1:
            for name in ("wave_trip", "depth_trip", "work_trip"):
                coefficients[name] *= slower
        else:
            # What each further CTA on an SM adds to a trip; the rest passes once, however many there are.
            full_us = anchor.full_us * self._trip_us(config, resident) / self._trip_us(known, anchor.form.ctas_per_sm)
            step_us = max(full_us - anchor.lone_us * slower, 0.0) / (resident - 1)
            shared = coefficients["depth_trip"] + coefficients["work_trip"]
            depth_share = coefficients["depth_trip"] / shared if shared else 0.5
            coefficients["wave_trip"] = max(anchor.lone_us * slower - step_us, 0.0)
            coefficients["depth_trip"] = step_us * depth_share
            coefficients["work_trip"] = step_us * (1.0 - depth_share)
        # Storing the result takes as long as the tile is large, roughly.
        area = _area(config) / _area(known)
        for name in ("wave", "work"):
            coefficients[name] *= math.sqrt(area)
        waves = wave_geometry(launch.grid_size, resident, self.num_sms)
        terms = latency_terms(
            grid_size=launch.grid_size,
            loop_trips=launch.loop_trips,
            waves=waves.waves,
            depth=waves.depth,
            num_sms=self.num_sms,
            compulsory_mb=launch.compulsory_bytes / BYTES_PER_MB,
            reread_mb=launch.reread_bytes / BYTES_PER_MB,
            workspace_mb=launch.workspace_bytes / BYTES_PER_MB,
            sustained_gflop=max(launch.flops / FLOPS_PER_GFLOP - sustained_onset_gflop(self.arch), 0.0),
        )
        return float(sum(coefficients[name] * term for name, term in zip(TERMS, terms, strict=True)))

    def _resident(self, anchor: _Anchor, config: KernelConfig) -> int:
        """Estimate the CTAs per SM from those of a compiled neighbour and the difference of the two tiles."""
        known, num_warps = anchor.form.config, int(config["num_warps"])
        if known == config:
            return anchor.form.ctas_per_sm
        num_regs = anchor.form.num_regs + _accumulators(config) - _accumulators(known)
        smem_bytes = anchor.form.smem_bytes + self._smem_bytes(config) - self._smem_bytes(known)
        most = self.arch.registers_per_sm // (num_warps * self.arch.warp_size)
        try:
            return ctas_per_sm(
                self.arch,
                num_warps=num_warps,
                num_regs=max(32, min(num_regs, MAX_REGISTERS, most)),
                smem_bytes=max(smem_bytes, 0),
            )
        except InfeasibleConfigError:
            return 1

    def _trip_us(self, config: KernelConfig, resident: int) -> float:
        """Return the bound on one trip of ``resident`` CTAs on an SM."""
        busy_us = self._busy_us(config)
        return max(resident * busy_us, (self._latency_us + busy_us) / _in_flight(config))

    def _busy_us(self, config: KernelConfig) -> float:
        busy_us = max(self._us_per_byte * self._loaded_bytes(config), self._us_per_product * _products(config))
        return busy_us * (SPILL_FACTOR if _accumulators(config) > MAX_REGISTERS else 1.0)

    def _loaded_bytes(self, config: KernelConfig) -> int:
        block_m, block_n, block_k = (int(config[name]) for name in ("block_m", "block_n", "block_k"))
        return (block_m + block_n) * block_k * self._element_bytes

    def _smem_bytes(self, config: KernelConfig) -> int:
        """Estimate the shared memory of a CTA; right for all 330 recorded pointer configurations on sm_90."""
        # The warpgroup matrix unit reads operands from shared memory, so every stage is a buffer; below 64 rows, and
        # before it existed, the last stage is in registers.
        reads_shared = self.arch.has_tma and (int(config["block_m"]) >= 64 or config["load"] == "tma")
        buffers = int(config["num_stages"]) - (0 if reads_shared else 1)
        return max(buffers, 1) * self._loaded_bytes(config)

    @staticmethod
    def _distance(one: KernelConfig, other: KernelConfig) -> float:
        octaves = sum(abs(math.log2(int(one[name]) / int(other[name]))) for name in _TILE)
        octaves += _GROUP * abs(math.log2(int(one["group_m"]) / int(other["group_m"])))
        octaves += _STAGE * abs(int(one["num_stages"]) - int(other["num_stages"]))
        octaves += _LOAD * (one["load"] != other["load"])
        walks = [config["schedule"] in WALKING_SCHEDULES for config in (one, other)]
        octaves += _PERSISTENT * (walks[0] != walks[1])
        specialized = [config["schedule"] == "warp_specialized" for config in (one, other)]
        return octaves + _SPECIALIZED * (specialized[0] != specialized[1])


def _anchor(index: int, form: LaunchForm) -> _Anchor:
    assert form.coefficients is not None
    named = dict(zip(TERMS, form.coefficients, strict=True))
    shared = named["depth_trip"] + named["work_trip"]
    # A form without any time in its loop (a fit to short loops only) would make every ratio infinite.
    lone_us = max(named["wave_trip"] + shared, 1e-4)
    return _Anchor(index, form, named, lone_us, max(named["wave_trip"] + form.ctas_per_sm * shared, 1e-4))


def _products(config: KernelConfig) -> int:
    return _area(config) * int(config["block_k"])


def _area(config: KernelConfig) -> int:
    return int(config["block_m"]) * int(config["block_n"])


def _accumulators(config: KernelConfig) -> int:
    """Return the fp32 accumulators of a thread."""
    return _area(config) // (32 * int(config["num_warps"]))


def _in_flight(config: KernelConfig) -> float:
    """Return the loads that are under way while one is used; without a pipeline, less than one."""
    return max(int(config["num_stages"]) - 1, 0.5)


def _low_quantile(values: list[float]) -> float:
    return sorted(values)[int(BEST_RATE_QUANTILE * len(values))]
