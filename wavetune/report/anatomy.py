"""One launch taken apart: tiles, waves, trips, bytes, and what each term of the model adds.

Standard library only, so that a single question on the command line is answered without numpy.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from wavetune.core.arch import ArchSpec
from wavetune.core.config import KernelConfig
from wavetune.core.dtype import find_dtype
from wavetune.core.problem import GemmProblem
from wavetune.errors import ConfigError
from wavetune.mapping.gemm import map_gemm, positive_part
from wavetune.mapping.tile_mapping import TileMapping
from wavetune.runtime.family_file import FamilyForm
from wavetune.runtime.model_file import LaunchForm, ModelFile
from wavetune.waves.geometry import WaveGeometry, wave_geometry
from wavetune.waves.terms import BYTES_PER_MB, FLOPS_PER_GFLOP, TERMS, latency_terms, sustained_onset_gflop


class Dissected:
    """What the anatomies of a GEMM's launch and of another family's have in common."""

    __slots__ = ()

    form: LaunchForm | FamilyForm
    waves: WaveGeometry
    terms_us: Mapping[str, float]

    @property
    def config(self) -> KernelConfig:
        """The launch configuration."""
        return self.form.config

    @property
    def latency_us(self) -> float:
        """Predicted latency, the sum of the terms; NaN for a configuration without a form."""
        return math.fsum(self.terms_us.values()) if self.terms_us else math.nan

    @property
    def tail_fill(self) -> float:
        """Share of the last wave's slots that have a CTA, in (0, 1]."""
        return self.waves.tail_ctas / self.waves.width


@dataclass(frozen=True, slots=True)
class LaunchAnatomy(Dissected):
    """What the model sees in one launch.

    Parameters
    ----------
    problem : GemmProblem
        Not empty.
    form : LaunchForm
        The configuration, its residency and its coefficients.
    mapping : TileMapping
        Grid, trips and bytes.
    waves : WaveGeometry
        How the grid is spread over the SMs in time.
    num_sms : int
        SMs that the launch may use.
    factor : float
        Correction of the problem's cell; 1 beyond the cells.
    terms_us : mapping of str to float
        Microseconds of each term of `wavetune.waves.terms.TERMS`, corrected; empty for a configuration without a form.
    compute_us, memory_us : float
        The same work at the GPU's peak matrix rate, and its compulsory bytes at peak bandwidth: no kernel is faster.
    """

    problem: GemmProblem
    form: LaunchForm
    mapping: TileMapping
    waves: WaveGeometry
    num_sms: int
    factor: float
    terms_us: Mapping[str, float]
    compute_us: float
    memory_us: float

    @property
    def padding(self) -> float:
        """Share of the tiles' area that lies outside the problem, in [0, 1)."""
        covered = (
            self.mapping.tiles_m * int(self.config["block_m"]) * self.mapping.tiles_n * int(self.config["block_n"])
        )
        return 1.0 - self.problem.m * self.problem.n / covered

    @property
    def occupied(self) -> float:
        """Share of all waves' slots that have a CTA, in (0, 1]."""
        return self.mapping.grid_size / (self.waves.waves * self.waves.width)


def find_form(model: ModelFile, config: KernelConfig) -> LaunchForm:
    """Return the form of a configuration.

    Raises
    ------
    ConfigError
        If the model does not hold it.
    """
    for form in model.forms:
        if form.config == config:
            return form
    raise ConfigError(
        f"{model.path or 'the model'} does not hold {config!r}; `wavetune models show` lists what it holds"
    )


def cell_factor(model: ModelFile, problem: GemmProblem, config: KernelConfig) -> float:
    """Return the correction of a modelled configuration in the problem's cell; 1 where there is no cell."""
    cell = model.cells.get(tuple((size - 1).bit_length() for size in problem.dims))
    if cell is None:
        return 1.0
    index = next(i for i, form in enumerate(model.forms) if form.config == config)
    return math.exp(cell.correction_permille[index] / 1000) if index < model.n_modelled else 1.0


def dissect(
    model: ModelFile,
    arch: ArchSpec,
    problem: GemmProblem,
    config: KernelConfig,
    num_sms: int | None = None,
    form: LaunchForm | None = None,
) -> LaunchAnatomy:
    """Take one launch apart.

    Parameters
    ----------
    model : ModelFile
        A GEMM model that holds ``config``.
    arch : ArchSpec
        The GPU.
    problem : GemmProblem
        Not empty.
    config : KernelConfig
        Legal or not: the numbers are those of a launch.
    num_sms : int, optional
        SMs that the launch may use; the model's own count if not given.
    form : LaunchForm, optional
        Of a configuration that the model does not hold; without coefficients, nothing is predicted.

    Returns
    -------
    LaunchAnatomy
        Its latency equals what the runtime predicts, to rounding.

    Raises
    ------
    ConfigError
        If the model does not hold the configuration, and no form was given.
    ProblemError
        If a size is zero.
    """
    form, sms = form or find_form(model, config), num_sms or model.num_sms
    mapping = map_gemm(problem, config, arch)
    waves = wave_geometry(mapping.grid_size, form.ctas_per_sm, sms)
    factor, terms_us = 1.0, {}
    if form.coefficients is not None:
        factor = cell_factor(model, problem, config)
        values = latency_terms(
            grid_size=mapping.grid_size,
            loop_trips=mapping.loop_trips,
            waves=waves.waves,
            depth=waves.depth,
            num_sms=sms,
            compulsory_mb=mapping.compulsory_bytes / BYTES_PER_MB,
            reread_mb=mapping.reread_bytes / BYTES_PER_MB,
            workspace_mb=mapping.workspace_bytes / BYTES_PER_MB,
            sustained_gflop=positive_part(mapping.flops / FLOPS_PER_GFLOP - sustained_onset_gflop(arch)),
        )
        terms_us = {
            name: factor * coefficient * value
            for name, coefficient, value in zip(TERMS, form.coefficients, values, strict=True)
        }
    # Matrix rates double with each halving of the input type; `bf16_tflops` is that of two bytes.
    rate = arch.bf16_tflops * 2.0 / find_dtype(problem.dtype).input_bytes
    return LaunchAnatomy(
        problem=problem,
        form=form,
        mapping=mapping,
        waves=waves,
        num_sms=sms,
        factor=factor,
        terms_us=terms_us,
        compute_us=mapping.flops / (rate * 1e6),
        memory_us=mapping.compulsory_bytes / (arch.dram_gb_per_s * 1e3),
    )
