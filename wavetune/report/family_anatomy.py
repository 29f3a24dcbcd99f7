"""One launch of any kernel family taken apart: waves, trips, bytes, and what each term adds. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from wavetune.core.arch import find_arch
from wavetune.core.attention_problem import AttentionDecodeProblem, AttentionProblem
from wavetune.core.config import KernelConfig
from wavetune.core.dtype import find_dtype
from wavetune.core.grouped_problem import GroupedGemmProblem
from wavetune.core.problem import Problem
from wavetune.errors import ConfigError
from wavetune.mapping.attention import attention_flops, decode_flops
from wavetune.mapping.kernel_mapping import LaunchShape
from wavetune.report.anatomy import Dissected
from wavetune.runtime.families import chooser_for
from wavetune.runtime.family_file import FamilyFile, FamilyForm
from wavetune.runtime.family_forms import form_terms
from wavetune.waves.family_terms import FAMILY_TERMS
from wavetune.waves.geometry import WaveGeometry, wave_geometry


@dataclass(frozen=True, slots=True)
class FamilyAnatomy(Dissected):
    """What the model sees in one launch.

    Parameters
    ----------
    problem : Problem
        Not empty.
    form : FamilyForm
        The configuration, its residency and its coefficients.
    mapping : LaunchShape
        Grid, trips and bytes.
    waves : WaveGeometry
        How the grid is spread over the SMs in time.
    num_sms : int
        SMs that the launch may use.
    factor : float
        Correction of the form for the problem's sizes; 1 without one.
    terms_us : mapping of str to float
        Microseconds of each term of `wavetune.waves.family_terms.FAMILY_TERMS`, corrected.
    compute_us, memory_us : float
        The same work at the GPU's peak matrix rate, and its bytes at peak bandwidth.
    """

    problem: Problem
    form: FamilyForm
    mapping: LaunchShape
    waves: WaveGeometry
    num_sms: int
    factor: float
    terms_us: Mapping[str, float]
    compute_us: float
    memory_us: float


def dissect_family(
    model: FamilyFile, problem: Problem, config: KernelConfig, num_sms: int | None = None
) -> FamilyAnatomy:
    """Take one launch apart.

    Parameters
    ----------
    model : FamilyFile
        A model of the problem's family that holds ``config``.
    problem : Problem
        Not empty.
    config : KernelConfig
        Legal for the problem.
    num_sms : int, optional
        SMs that the launch may use; the model's own count if not given.

    Raises
    ------
    ConfigError
        If the model does not hold the configuration.
    """
    index = next((place for place, form in enumerate(model.forms) if form.config == config), -1)
    if index < 0:
        raise ConfigError(
            f"{model.path or 'the model'} does not hold {config!r}; `wavetune models show` lists what it holds"
        )
    form, num_sms = model.forms[index], num_sms or model.num_sms
    chooser = chooser_for(model, problem, num_sms)
    shape, factor = chooser.launch(problem.dims, config), chooser.factor(problem.dims, index)
    terms = form_terms(form, shape, num_sms)
    arch = find_arch(model.arch)
    peak = arch.bf16_tflops * 1e6 * 2 / find_dtype(problem.dtype).input_bytes
    return FamilyAnatomy(
        problem=problem,
        form=form,
        mapping=shape,
        waves=wave_geometry(shape.grid_size, form.ctas_per_sm, num_sms),
        num_sms=num_sms,
        factor=factor,
        terms_us={
            name: factor * coefficient * term
            for name, coefficient, term in zip(FAMILY_TERMS, form.coefficients, terms, strict=True)
        },
        compute_us=flops_of(problem) / peak,
        memory_us=shape.moved_bytes / (arch.dram_gb_per_s * 1e3),
    )


def flops_of(problem: Problem) -> int:
    """Return the floating-point operations that a problem needs; 0 if unknown."""
    if isinstance(problem, GroupedGemmProblem):
        return 2 * problem.tokens * problem.n * problem.k
    if isinstance(problem, AttentionProblem):
        return attention_flops(problem)
    if isinstance(problem, AttentionDecodeProblem):
        return decode_flops(problem)
    return 0
