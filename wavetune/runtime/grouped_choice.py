"""Choose configurations for grouped GEMM: by the histogram where the host knows it, else by what is likely."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from wavetune.core.arch import find_arch
from wavetune.core.config import KernelConfig
from wavetune.core.grouped_problem import GroupedGemmProblem, check_experts, check_group_sizes
from wavetune.core.problem import check_dimension, check_positive
from wavetune.core.routing import LIKELY, Routing, sample_groups
from wavetune.errors import ProblemError, ProblemTypeError
from wavetune.mapping.grouped_gemm import map_grouped_gemm, widest_groups
from wavetune.mapping.grouped_shape import grouped_mapping
from wavetune.mapping.kernel_mapping import LaunchShape
from wavetune.runtime.choice import RankedConfig, Source
from wavetune.runtime.device import Device, resolve_device
from wavetune.runtime.families import nothing_legal
from wavetune.runtime.family_chooser import FamilyChoice, FamilyChooser
from wavetune.runtime.family_file import FamilyFile
from wavetune.runtime.family_source import KnownModels, find_answering_model, is_stand_in
from wavetune.runtime.grouped_forms import GroupedForms
from wavetune.runtime.settings import Settings, settings

MAX_REMEMBERED = 4096
"""Answers that are remembered; all are dropped when there are more, or when settings change."""


@dataclass(frozen=True, slots=True)
class RoutingPrior:
    """Histograms that a router is expected to give.

    Parameters
    ----------
    routings : tuple of Routing, default=LIKELY
        Laws of popularity, all equally likely; see `wavetune.core.routing`. At least one.
    samples : int, default=8
        Histograms drawn of each, positive.
    seed : int, default=0
        Equal seeds give equal histograms.

    Raises
    ------
    ProblemTypeError, ProblemError
        If there would be no histogram.
    """

    routings: tuple[Routing, ...] = LIKELY
    samples: int = 8
    seed: int = 0

    def __post_init__(self) -> None:
        check_positive("samples", self.samples)
        if not self.routings:
            raise ProblemError("routings is empty: a prior needs a law of popularity")

    def histograms(self, experts: int, tokens: int, top_k: int | None = None) -> list[tuple[int, ...]]:
        """Draw histograms; with ``top_k`` experts a token, no expert gets more than ``tokens / top_k``."""
        most = None if top_k is None else max(-(-tokens // top_k), -(-tokens // experts))
        return [
            sample_groups(routing, experts, tokens, f"{self.seed}/{index}", most)
            for routing in self.routings
            for index in range(self.samples)
        ]


DEFAULT_PRIOR = RoutingPrior()


@dataclass(slots=True)
class _Memory:
    """What was found and answered under one state of the settings."""

    settings: Settings
    models: KnownModels
    forms: dict[tuple[str, str, str, int], GroupedForms]
    answers: dict[tuple[object, ...], FamilyChoice]


_memory: list[_Memory] = []


def choose_grouped_gemm_config(
    group_sizes: Iterable[int],
    n: int,
    k: int,
    *,
    dtype: str = "bf16",
    layout: str = "nk",
    alignment: int = 0,
    arch: str | None = None,
    num_sms: int | None = None,
) -> KernelConfig:
    """Choose the launch configuration for a grouped GEMM whose group sizes are known.

    Parameters
    ----------
    group_sizes : iterable of int
        Tokens of each expert.
    n, k : int
        Rows and columns of each expert's weight.
    dtype : str, default="bf16"
        Element type.
    layout : {"nk", "gated"}, default="nk"
        One projection, or gate and up projection fused, see `wavetune.core.grouped_problem.GROUPED_LAYOUTS`.
    alignment : {0, 16, 8, 4, 2, 1}, default=0
        Bytes that base pointers and strides are divisible by; 0 for contiguous operands.
    arch : str, optional
        GPU name; the current GPU if not given.
    num_sms : int, optional
        SMs that launches may use.

    Returns
    -------
    KernelConfig
        Legal for the problem.

    Raises
    ------
    ProblemTypeError, ProblemError
        If a size is impossible; names the argument.
    NoModelError
        If no model file covers the dtype, layout and GPU.
    ArchError
        If the GPU is unknown, or none was named and none found.
    """
    problem = GroupedGemmProblem(check_group_sizes(group_sizes), n, k, dtype, layout, alignment)
    return choose_grouped_gemm(problem, arch=arch, num_sms=num_sms).config


def choose_grouped_gemm(
    problem: GroupedGemmProblem, *, arch: str | None = None, num_sms: int | None = None
) -> FamilyChoice:
    """Return the choice for a problem whose histogram is known, with its source and prediction.

    Raises
    ------
    NoModelError, ArchError
        As `choose_grouped_gemm_config` does.
    """
    forms = find_forms(problem.dtype, problem.layout, arch, num_sms)
    return _remembered(("known", problem, forms.arch.name, forms.num_sms), lambda: _choose(forms, problem))


def rank_grouped_gemm(
    problem: GroupedGemmProblem, *, arch: str | None = None, num_sms: int | None = None
) -> list[RankedConfig]:
    """Order the legal configurations by predicted latency, best first; raises as `choose_grouped_gemm` does."""
    forms = find_forms(problem.dtype, problem.layout, arch, num_sms)
    legal = forms.legal(problem)
    if problem.is_empty:
        return [RankedConfig(forms.configs[index], 0.0) for index in legal]
    latencies = forms.latencies(problem, legal)
    order = sorted(range(len(legal)), key=lambda place: (latencies[place], legal[place]))
    return [RankedConfig(forms.configs[legal[place]], latencies[place]) for place in order]


def choose_grouped_gemm_for_graph(
    tokens: int,
    experts: int,
    n: int,
    k: int,
    *,
    top_k: int | None = None,
    prior: RoutingPrior = DEFAULT_PRIOR,
    dtype: str = "bf16",
    layout: str = "nk",
    alignment: int = 0,
    arch: str | None = None,
    num_sms: int | None = None,
) -> KernelConfig:
    """Choose for a launch that does not know its histogram, such as one captured in a graph for a number of tokens.

    The configuration with the least expected regret: how much longer it takes than the best one for each histogram that
    the prior holds, on average, with the CTAs that a launch for any histogram has.

    Parameters
    ----------
    tokens : int
        Rows of x: tokens of all experts together.
    experts : int
        Experts, positive.
    n, k, dtype, layout, alignment, arch, num_sms
        As for `choose_grouped_gemm_config`.
    top_k : int, optional
        Experts that a token goes to; bounds the tokens of one expert.
    prior : RoutingPrior, optional
        What is likely.

    Returns
    -------
    KernelConfig
        Legal for every histogram of the tokens.

    Raises
    ------
    ProblemTypeError, ProblemError, NoModelError, ArchError
        As `choose_grouped_gemm_config` does.
    """
    experts, tokens = check_experts(experts), check_dimension("tokens", tokens)
    top_k = None if top_k is None else check_positive("top_k", top_k)
    if not isinstance(prior, RoutingPrior):
        raise ProblemTypeError(f"prior must be a RoutingPrior, got {prior!r}")
    problem = GroupedGemmProblem(widest_groups(experts, tokens), n, k, dtype, layout, alignment)
    forms = find_forms(problem.dtype, layout, arch, num_sms)
    key = ("any", problem, top_k, prior, forms.arch.name, forms.num_sms)
    return _remembered(key, lambda: _least_regret(forms, problem, top_k, prior)).config


def find_forms(dtype: str, layout: str, arch: str | None, num_sms: int | None) -> GroupedForms:
    """Return the forms that answer, see `wavetune.runtime.family_source.find_answering_model`.

    Raises
    ------
    NoModelError, ArchError
        As `choose_grouped_gemm_config` does.
    """
    device = resolve_device(arch, num_sms)
    memory = _current_memory()
    key = (dtype, layout, device.arch.name, device.num_sms)
    known = memory.forms.get(key)
    if known is not None:
        return known
    model = find_answering_model(
        GroupedGemmProblem.kernel, lambda kind, stored: grouped_mapping(kind, stored, device.arch), dtype, layout,
        device.arch.name, memory.models,
    )  # fmt: skip
    forms = GroupedForms(model, device.num_sms, is_stand_in=is_stand_in(model, dtype, layout))
    memory.forms[key] = forms
    return forms


def chooser_for(
    model: FamilyFile, problem: GroupedGemmProblem, num_sms: int | None = None, *, use_exact: bool = True
) -> FamilyChooser:
    """Return what chooses among the configurations of a model that are legal for a problem, mapped as it is.

    Predicts what `GroupedForms.latencies` does, for whoever asks about one problem only.

    Parameters
    ----------
    model : FamilyFile
        Of grouped GEMM and the problem's dtype.
    problem : GroupedGemmProblem
        To be asked about by its ``dims``.
    num_sms : int, optional
        SMs that launches may use; the model's own count if not given.
    use_exact : bool, default=True
        Whether a measured key is looked up.
    """
    arch = find_arch(model.arch)

    def shape(dims: tuple[int, ...], config: KernelConfig) -> LaunchShape:
        if problem.is_empty:
            return LaunchShape(0, 0, 0, 0)
        return map_grouped_gemm(problem, config, arch).launch_shape()

    legal = {model.forms[place].config for place in GroupedForms(model, num_sms).legal(problem)}
    # What was measured is the histogram that the key stands for; another of the same key is not it.
    is_measured = problem.canonical() == problem
    return FamilyChooser(
        model, shape, num_sms, usable=legal, use_exact=use_exact and is_measured,
        is_stand_in=is_stand_in(model, problem.dtype, problem.layout),
    )  # fmt: skip


def find_model(problem: GroupedGemmProblem, device: Device) -> FamilyFile:
    """Return the model that answers for a problem; raises as `find_forms` does."""
    return find_forms(problem.dtype, problem.layout, device.arch.name, device.num_sms).model


def _choose(forms: GroupedForms, problem: GroupedGemmProblem) -> FamilyChoice:
    legal = forms.legal(problem)
    if not legal:
        raise nothing_legal(forms.model, problem)
    settled = _settled(forms, problem)
    if settled is not None:
        return settled
    if problem.dims in forms.model.exact:
        choice = chooser_for(forms.model, problem, forms.num_sms).choose(problem.dims)
        if choice is not None and choice.source is Source.EXACT:
            return choice
    latencies = forms.latencies(problem, legal)
    place = min(range(len(legal)), key=latencies.__getitem__)
    source = Source.NEAREST if forms.is_near(problem.dims) else Source.MODEL
    return FamilyChoice(forms.configs[legal[place]], source, latencies[place])


def _settled(forms: GroupedForms, problem: GroupedGemmProblem) -> FamilyChoice | None:
    """Return the answer where settings give it, or there is nothing to launch."""
    now = settings()
    if not (problem.is_empty or now.disable or now.force_config):
        return None
    chooser = chooser_for(forms.model, problem, forms.num_sms)
    forced = chooser.forced(problem.dims, None if problem.is_empty else now.force_config)
    is_default = forced is None and (problem.is_empty or now.disable)
    return chooser.default(problem.dims) if is_default else forced


def _least_regret(
    forms: GroupedForms, problem: GroupedGemmProblem, top_k: int | None, prior: RoutingPrior
) -> FamilyChoice:
    legal = forms.legal(problem)
    if not legal:
        raise nothing_legal(forms.model, problem)
    settled = _settled(forms, problem)
    if settled is not None:
        return settled
    histograms = prior.histograms(problem.experts, problem.tokens, top_k)
    place, latency_us = least_expected_regret(
        [
            forms.latencies(
                GroupedGemmProblem(sizes, problem.n, problem.k, problem.dtype, problem.layout, problem.alignment),
                legal,
                is_known=False,
            )
            for sizes in histograms
        ]
    )
    return FamilyChoice(forms.configs[legal[place]], Source.MODEL, latency_us)


def least_expected_regret(latencies: Sequence[Sequence[float]]) -> tuple[int, float]:
    """Return the column with the least mean of ``latency / best latency of the row``, and its mean latency.

    Parameters
    ----------
    latencies : sequence of sequence of float
        A row for each histogram, a column for each configuration; positive.
    """
    n_rows, n_columns = len(latencies), len(latencies[0])
    best = [min(row) for row in latencies]
    regret = [
        math.fsum(row[column] / least for row, least in zip(latencies, best, strict=True))
        for column in range(n_columns)
    ]
    column = min(range(n_columns), key=regret.__getitem__)
    return column, math.fsum(row[column] for row in latencies) / n_rows


def _remembered(key: tuple[object, ...], answer: Callable[[], FamilyChoice]) -> FamilyChoice:
    answers = _current_memory().answers
    known = answers.get(key)
    if known is None:
        known = answer()
        if len(answers) >= MAX_REMEMBERED:
            answers.clear()
        answers[key] = known
    return known


def _current_memory() -> _Memory:
    now = settings()
    if not _memory or _memory[0].settings is not now:
        _memory[:] = [_Memory(now, {}, {}, {})]
    return _memory[0]
