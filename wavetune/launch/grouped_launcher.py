"""From tensors to a launch of grouped GEMM: choose, bind, and keep what is bound for the next call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from wavetune.core.config import KernelConfig
from wavetune.core.grouped_problem import GroupedGemmProblem
from wavetune.errors import NoModelError, OperandError
from wavetune.kernels.call import IS_INTERPRETED, find_loaded
from wavetune.kernels.grouped_gemm_dispatch import describe_call, illegal_reason, launch_operands
from wavetune.kernels.grouped_gemm_operands import GroupedGemmOperands
from wavetune.kernels.grouped_gemm_space import grouped_fallback_configs
from wavetune.launch.checks import SUPPORTED_DTYPES, check_device, check_sizes
from wavetune.launch.choices import Choices, next_best
from wavetune.launch.gpu import LaunchGpu, find_gpu
from wavetune.launch.grouped_scales import view_scales
from wavetune.mapping.grouped_gemm import widest_groups
from wavetune.mapping.legality import TMA_ALIGNMENT
from wavetune.runtime.grouped_choice import choose_grouped_gemm, choose_grouped_gemm_for_graph, rank_grouped_gemm

_choices = Choices()


@dataclass(frozen=True, slots=True)
class GroupedOptions:
    """How a grouped GEMM is computed.

    Parameters
    ----------
    activation : str
        One of `wavetune.launch.grouped_checks.GROUPED_ACTIVATIONS`.
    top_k : int
        Experts that a token goes to, 0 if unknown.
    scale_x, scale_w : Tensor or None
        Of e4m3 operands, as `wavetune.launch.grouped_scales.check_scales` accepts them.
    use_fast_accum : bool
        Whether sums of e4m3 stay in the matrix unit.
    out_dtype : torch.dtype
        Of the result.
    """

    activation: str
    top_k: int
    scale_x: Any
    scale_w: Any
    use_fast_accum: bool
    out_dtype: Any


def run_grouped(
    x: Any, w: Any, groups: Any, sizes: tuple[int, ...] | None, out: Any, options: GroupedOptions
) -> Any:  # fmt: skip
    """Launch a grouped GEMM of checked tensors.

    Parameters
    ----------
    x, w, groups, out : Tensor
        As `wavetune.launch.grouped_checks.check_grouped_operands` accepts them; ``out`` may be None.
    sizes : tuple of int or None
        The group sizes, if the host knows them.
    options : GroupedOptions
        The rest.

    Returns
    -------
    Tensor
        ``out``, or a new one.
    """
    check_device("x", x)
    (tokens, k), (experts, n, _) = x.shape, w.shape
    check_sizes(tokens, n, k)
    layout = "nk" if options.activation == "none" else "gated"
    columns = n if layout == "nk" else n // 2
    result = x.new_empty((tokens, columns), dtype=options.out_dtype) if out is None else out
    if 0 in (tokens, columns, experts):
        return result
    if k == 0:
        return result.zero_()
    x = x if _has_plain_rows(x) else x.contiguous()
    if not _has_plain_rows(w) or w.stride(0) < n * w.stride(1):
        raise OperandError(
            f"w of shape {list(w.shape)} has strides {w.stride()}; its rows of k must be adjacent and its experts one "
            "behind another: make it contiguous once, with w.contiguous()"
        )
    target = result if _has_plain_rows(result) else torch.empty_like(result, memory_format=torch.contiguous_format)
    if options.scale_x is None:
        dtype, scales = SUPPORTED_DTYPES[x.dtype], (None, None)
    else:
        dtype = "fp8_fast" if options.use_fast_accum else "fp8"
        scales = view_scales(options.scale_x, options.scale_w)
    problem = GroupedGemmProblem(
        widest_groups(experts, tokens) if sizes is None else sizes, n, k, dtype, layout, _alignment(x, w)
    )
    operands = GroupedGemmOperands(problem, x, w, target, groups, *scales)
    gpu = find_gpu(x.device)
    with gpu.activate():
        _launch(gpu, operands, sizes is not None, options.top_k)
    return result if target is result else result.copy_(target)


def _launch(gpu: LaunchGpu, operands: GroupedGemmOperands, is_known: bool, top_k: int) -> None:
    problem = operands.problem
    key = (problem, gpu, is_known, top_k)
    chosen = _choices.get(key) or _choose(key, problem, gpu, is_known, top_k)
    _choices.run(
        key,
        chosen,
        gpu,
        (problem.kernel, gpu.index, problem.dtype, problem.layout),
        problem,
        others=next_best(problem, chosen, gpu, rank_grouped_gemm, illegal_reason, grouped_fallback_configs),
        is_loaded=lambda config: is_loaded(operands, config, gpu),
        run=lambda config: launch_operands(operands, config, gpu.arch),
    )


def is_loaded(operands: GroupedGemmOperands, config: KernelConfig, gpu: LaunchGpu) -> bool:
    """Whether a launch would compile nothing on the current device."""
    return IS_INTERPRETED or find_loaded(describe_call(operands, config, gpu.arch)) is not None


def _choose(
    key: tuple[object, ...], problem: GroupedGemmProblem, gpu: LaunchGpu, is_known: bool, top_k: int
) -> KernelConfig:
    """Return the model's choice, or without a model that of the fixed rule; the latter is logged once."""

    def choose(arch: str, num_sms: int | None) -> KernelConfig:
        if is_known:
            return choose_grouped_gemm(problem, arch=arch, num_sms=num_sms).config
        return choose_grouped_gemm_for_graph(
            problem.tokens, problem.experts, problem.n, problem.k, top_k=top_k or None, dtype=problem.dtype,
            layout=problem.layout, alignment=problem.alignment, arch=arch, num_sms=num_sms,
        )  # fmt: skip

    return _choices.add(key, problem, gpu, choose, lambda reason: _first_fallback(problem, gpu, reason))


def _first_fallback(problem: GroupedGemmProblem, gpu: LaunchGpu, reason: NoModelError) -> KernelConfig:
    for config in grouped_fallback_configs(problem, gpu.arch):
        return config
    raise reason


def _has_plain_rows(tensor: Any) -> bool:
    """Whether elements of the last axis are adjacent, and rows neither overlap nor repeat."""
    *_, rows, columns = tensor.shape
    return bool((columns <= 1 or tensor.stride(-1) == 1) and (rows <= 1 or tensor.stride(-2) >= columns))


def _alignment(x: Any, w: Any) -> int:
    """Return the alignment class of the inputs: what addresses and strides are divisible by, in bytes."""
    size = x.element_size()
    bits = x.data_ptr() | w.data_ptr() | (x.stride(0) | w.stride(0) | w.stride(1)) * size | TMA_ALIGNMENT
    return int(bits & -bits)
