"""`warmup`: compile everything a layer can ever be given, before it serves."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from wavetune.core.config import KernelConfig
from wavetune.core.dtype import DTYPES, find_dtype
from wavetune.core.problem import GemmProblem
from wavetune.errors import OperandError, ProblemError
from wavetune.kernels.call import IS_INTERPRETED, find_loaded, load_call
from wavetune.launch.checks import SUPPORTED_DTYPES, check_names
from wavetune.launch.compile_pool import compile_in_parallel
from wavetune.launch.compile_worker import CompileJob
from wavetune.launch.first_launch import gemm_kind
from wavetune.launch.gpu import LaunchGpu, find_gpu
from wavetune.launch.linear import TunedLinear
from wavetune.launch.next_best import mark_unusable
from wavetune.launch.source import ConfigSource
from wavetune.launch.unusable import UNUSABLE
from wavetune.runtime.reachable import check_m_range

MAX_M = 8192
"""Rows up to which layers are made ready by default: a prefill of that many tokens."""

SLOW_LOAD_S = 0.2
"""A load that takes longer had to compile (10 ms from Triton's cache, 0.1 to 1 s without, Triton 3.6): then processes
are worth their start of about 3 s."""

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Warmup:
    """What `warmup` made ready.

    Parameters
    ----------
    configs : tuple of KernelConfig
        Configurations that are loaded, in the order of `wavetune.reachable_configs`.
    failed : tuple of KernelConfig
        Those that cannot run on this GPU; the next best of the loaded ones takes their place.
    n_new : int
        Configurations that were not loaded before.
    seconds : float
        Time it took.
    """

    configs: tuple[KernelConfig, ...]
    failed: tuple[KernelConfig, ...]
    n_new: int
    seconds: float


def warmup(
    n: int,
    k: int,
    m_range: tuple[int, int] = (1, MAX_M),
    *,
    dtype: Any = "bf16",
    layout: str = "nk",
    bias: bool = False,
    activation: str | None = None,
    device: Any = None,
    numerics: str = "any",
    n_workers: int | None = None,
    progress: Progress | None = None,
) -> Warmup:
    """Compile and load every kernel that `wavetune.matmul` (for fp8, `scaled_matmul`) can choose for one layer.

    Afterwards no call with contiguous operands, or with views whose rows and base are aligned alike, compiles anything,
    whatever its m in the range; CUDA graphs can be captured right away.

    Parameters
    ----------
    n, k : int
        Columns and inner size of the product; for a linear layer output and input features.
    m_range : (int, int), default=(1, 8192)
        Smallest and largest m, both included.
    dtype : str or torch.dtype, default="bf16"
        bf16 or fp16; or fp8, fp8_fast (``use_fast_accum``) or fp8_block128, with results in bf16.
    layout : {"nk", "kn"}, default="nk"
        Storage of b: ``"nk"`` for ``weight.t()`` of a linear layer, ``"kn"`` for row-major [k, n].
    bias : bool, default=False
        Whether a bias will be given.
    activation : str, optional
        The activation that will be given.
    device : torch.device or str or int, optional
        The GPU; the current one if not given.
    numerics : {"any", "deterministic", "batch_invariant"}, default="any"
        As in `wavetune.matmul`.
    n_workers : int, optional
        Processes that compile; as many as this process may use cores if not given. None are started if Triton's cache
        on disk has everything.
    progress : callable, optional
        Called with (done, total); compiling and loading count one each.

    Returns
    -------
    Warmup
        What is ready.

    Raises
    ------
    ProblemError, ProblemTypeError
        If a size or an option is impossible.
    OperandError, OperandTypeError
        If there is no GPU, or the dtype or a name is unknown to the kernels.
    """
    check_names("none" if activation is None else activation, numerics)
    low, high = check_m_range(m_range, smallest=1)
    short_dtype = find_dtype(str(dtype)).name
    supported = (*SUPPORTED_DTYPES.values(), *(name for name, known in DTYPES.items() if known.is_scaled))
    if short_dtype not in supported:
        raise OperandError(f"dtype must be one of {', '.join(supported)}, got {dtype}")
    if DTYPES[short_dtype].is_scaled and layout != "nk":
        raise ProblemError(f"the matrix unit takes {short_dtype} only with b as weight.t() (layout nk), got {layout!r}")
    problem = GemmProblem(high, n, k, short_dtype, layout)
    gpu = _find_gpu(device)
    source = ConfigSource(gpu, short_dtype, layout, numerics)
    started = time.perf_counter()
    if problem.is_empty:
        return Warmup((), (), 0, 0.0)
    configs = source.reachable(problem.n, problem.k, (low, high), problem.alignment)
    jobs = [CompileJob(problem, config, bias, activation or "none") for config in configs]
    if IS_INTERPRETED:
        return Warmup(configs, (), 0, time.perf_counter() - started)
    with gpu.activate():
        new = [job for job in jobs if not _is_loaded(job, gpu)]
        failed = _load(new, gpu, n_workers or len(os.sched_getaffinity(0)), progress or _no_progress)
    ready = tuple(config for config in configs if config not in failed)
    return Warmup(ready, failed, len(new), time.perf_counter() - started)


def warmup_model(
    model: Any, m_range: tuple[int, int] = (1, MAX_M), *, numerics: str = "any", progress: Progress | None = None
) -> dict[str, Warmup]:
    """Call `warmup` for every distinct linear layer of a model, on the GPU where its weight is.

    Parameters
    ----------
    model : torch.nn.Module
        Layers that `wavetune.patch_linear` takes or has taken count; a patched one keeps its own numerics.
    m_range : (int, int), default=(1, 8192)
        Smallest and largest number of tokens in one call.
    numerics : str, default="any"
        For layers that are not patched.
    progress : callable, optional
        Called with (done, total) for each layer.

    Returns
    -------
    dict of str to Warmup
        By the name of the first layer of its kind.
    """
    reports: dict[str, Warmup] = {}
    seen: set[tuple[object, ...]] = set()
    for name, layer in model.named_modules():
        if type(layer) not in (torch.nn.Linear, TunedLinear) or layer.weight.dtype not in SUPPORTED_DTYPES:
            continue
        weight, has_bias = layer.weight, layer.bias is not None
        kind = layer.numerics if type(layer) is TunedLinear else numerics
        key = (weight.shape, weight.dtype, weight.device, has_bias, kind)
        if key in seen:
            continue
        seen.add(key)
        reports[name] = warmup(
            weight.shape[0], weight.shape[1], m_range, dtype=weight.dtype, bias=has_bias, device=weight.device,
            numerics=kind, progress=progress,
        )  # fmt: skip
    return reports


def _find_gpu(device: Any) -> LaunchGpu:
    if IS_INTERPRETED:
        return find_gpu(torch.device("cpu"))
    where = torch.device("cuda") if device is None else torch.device(device)
    if where.type != "cuda" or not torch.cuda.is_available():
        raise OperandError(
            f"kernels are loaded on a GPU, but device is {where} and torch sees {torch.cuda.device_count()} GPUs"
        )
    return find_gpu(where)


def _load(jobs: list[CompileJob], gpu: LaunchGpu, n_workers: int, progress: Progress) -> tuple[KernelConfig, ...]:
    """Load kernels, compiling in parallel as soon as one turns out not to be in Triton's cache; return the failures."""
    failed = []
    n_compiled, is_ahead = 0, False
    for n_loaded, job in enumerate(jobs, start=1):
        started = time.perf_counter()
        try:
            for call in job.calls(gpu.arch):
                load_call(call)
        except UNUSABLE as error:
            mark_unusable(gpu, gemm_kind(gpu, job.problem, job.has_bias, job.activation), job.config, error)
            failed.append(job.config)
        rest = jobs[n_loaded:]
        if len(rest) > 1 and not is_ahead and time.perf_counter() - started > SLOW_LOAD_S:
            is_ahead = True
            for n_done in compile_in_parallel(rest, gpu.arch, n_workers):
                n_compiled = n_loaded + n_done
                progress(n_loaded + n_compiled, 2 * len(jobs))
        n_compiled = max(n_compiled, n_loaded)
        progress(n_loaded + n_compiled, 2 * len(jobs))
    return tuple(failed)


def _is_loaded(job: CompileJob, gpu: LaunchGpu) -> bool:
    return all(find_loaded(call) is not None for call in job.calls(gpu.arch))


def _no_progress(done: int, total: int) -> None:
    pass
