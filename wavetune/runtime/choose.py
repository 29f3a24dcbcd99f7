"""`choose_config`: the question a launcher asks."""

from __future__ import annotations

import os

from wavetune.core.config import KernelConfig
from wavetune.core.problem import CONTIGUOUS, GemmProblem, Problem
from wavetune.errors import ModelFileError, NoModelError
from wavetune.mapping.legality import TMA_ALIGNMENT
from wavetune.runtime.chooser import Choice, GemmChooser, RankedConfig
from wavetune.runtime.codec import read_model
from wavetune.runtime.device import ARCH_VARIABLE, resolve_arch
from wavetune.runtime.locate import all_model_files, find_model_file, model_file_name, model_folders

MEMO_LIMIT = 1 << 16
"""Answers remembered; the memo starts afresh when it is full, so memory stays bounded."""

_memo: dict[tuple[object, ...], KernelConfig] = {}
_choosers: dict[tuple[str, str, str, str], GemmChooser] = {}
# Choosers by the very arguments of a checked call, for the next shape with the same ones.
_by_arguments: dict[tuple[object, ...], GemmChooser] = {}


def choose_config(
    m: int,
    n: int,
    k: int,
    *,
    kernel: str = "gemm",
    dtype: str = "bf16",
    layout: str = "nk",
    alignment: int = CONTIGUOUS,
    arch: str | None = None,
) -> KernelConfig:
    """Choose the launch configuration for C[m, n] = A[m, k] B[k, n].

    Parameters
    ----------
    m, n, k : int
        Sizes in ``[0, 2**31)``; NumPy integers are accepted.
    kernel : str, default="gemm"
        Kernel family.
    dtype : str, default="bf16"
        Element type.
    layout : {"nk", "kn"}, default="nk"
        Storage of B.
    alignment : {0, 16, 8, 4, 2, 1}, default=0
        Bytes that all base pointers and leading strides are divisible by; 0 for contiguous operands with base
        pointers aligned to 16.
    arch : str, optional
        GPU name; ``WAVETUNE_ARCH`` if not given.

    Returns
    -------
    KernelConfig
        Legal for the problem. The default configuration if a size is zero: there is nothing to launch, and with
        k = 0 the caller still fills C with zeros.

    Raises
    ------
    ProblemTypeError, ProblemError
        If a size is not an integer in range, or an option is unknown.
    ArchError
        If no architecture is named, or it is unknown.
    NoModelError
        If no model file covers the key.
    ModelFileError
        If the model file is damaged.
    """
    # 1, True and 1.0 are equal as dictionary keys; only ints are answered from dictionaries.
    if type(m) is int and type(n) is int and type(k) is int:
        try:
            config = _memo.get((m, n, k, kernel, dtype, layout, alignment, arch))
            if config is not None:
                return config
            chooser = _by_arguments.get((kernel, dtype, layout, alignment, arch))
        except TypeError:  # An unhashable argument: the checks below name it.
            chooser = None
        if (
            chooser is not None
            and 0 < m < 2**31
            and 0 < n < 2**31
            and 0 < k < 2**31
            and not (alignment == CONTIGUOUS and (n | k) & chooser.row_mask)
        ):
            config = chooser.choose_sizes(m, n, k)
            _remember((m, n, k, kernel, dtype, layout, alignment, arch), config)
            return config
    return _choose_checked(m, n, k, kernel, dtype, layout, alignment, arch)


def explain_choice(
    m: int,
    n: int,
    k: int,
    *,
    kernel: str = "gemm",
    dtype: str = "bf16",
    layout: str = "nk",
    alignment: int = CONTIGUOUS,
    arch: str | None = None,
) -> Choice:
    """Return what `choose_config` returns, with its source, prediction, waves and runner-up.

    Takes the parameters and raises the errors of `choose_config`.
    """
    problem = _gemm_problem(m, n, k, kernel, dtype, layout, alignment)
    return _chooser(kernel, problem.dtype, layout, arch).explain(problem)


def choose(problem: Problem, *, arch: str | None = None) -> KernelConfig:
    """Choose the launch configuration for any problem; see `choose_config` for errors."""
    gemm = _as_gemm(problem)
    return _chooser(gemm.kernel, gemm.dtype, gemm.layout, arch).choose(gemm)


def rank_configs(problem: Problem, *, arch: str | None = None) -> list[RankedConfig]:
    """Order every legal configuration of the model by predicted latency, best first."""
    gemm = _as_gemm(problem)
    return _chooser(gemm.kernel, gemm.dtype, gemm.layout, arch).rank(gemm)


def clear_caches() -> None:
    """Forget loaded models and remembered answers, so that changed files and variables are read again."""
    _memo.clear()
    _by_arguments.clear()
    _choosers.clear()


def _choose_checked(
    m: int, n: int, k: int, kernel: str, dtype: str, layout: str, alignment: int, arch: str | None
) -> KernelConfig:
    """Answer any call: the first with these arguments, an unusual one, or a wrong one."""
    if arch is None:
        # The environment may change between calls, so answers are remembered under the name that it gives.
        named = os.environ.get(ARCH_VARIABLE)
        if named:
            return choose_config(m, n, k, kernel=kernel, dtype=dtype, layout=layout, alignment=alignment, arch=named)
    problem = _gemm_problem(m, n, k, kernel, dtype, layout, alignment)
    chooser = _chooser(kernel, problem.dtype, layout, arch)
    config = chooser.choose(problem)
    if problem.alignment == TMA_ALIGNMENT:
        _by_arguments[kernel, dtype, layout, alignment, arch] = chooser
    _remember((*problem.dims, kernel, dtype, layout, alignment, arch), config)
    return config


def _remember(key: tuple[object, ...], config: KernelConfig) -> None:
    if len(_memo) >= MEMO_LIMIT:
        _memo.clear()
    _memo[key] = config


def _gemm_problem(m: int, n: int, k: int, kernel: str, dtype: str, layout: str, alignment: int) -> GemmProblem:
    if kernel != "gemm":
        raise NoModelError(f"choose_config answers for kernel 'gemm', not {kernel!r}; use choose(problem)")
    return GemmProblem(m, n, k, dtype, layout, alignment)


def _as_gemm(problem: Problem) -> GemmProblem:
    if not isinstance(problem, GemmProblem):
        raise NoModelError(f"no model answers for problems of type {type(problem).__name__}")
    return problem


def _chooser(kernel: str, dtype: str, layout: str, arch: str | None) -> GemmChooser:
    spec = resolve_arch(arch)
    key = (kernel, dtype, layout, spec.name)
    chooser = _choosers.get(key)
    if chooser is None:
        path = find_model_file(spec.name, kernel, dtype, layout)
        if path is None:
            found = ", ".join(f"{p.parent.name}/{p.name}" for p in all_model_files()) or "none"
            folders = ", ".join(map(str, model_folders())) or "none"
            raise NoModelError(
                f"no model {spec.name}/{model_file_name(kernel, dtype, layout)}; found: {found}; "
                f"searched: {folders}. Make one with `wavetune calibrate` or `wavetune fit`, "
                "or add its folder to WAVETUNE_MODELS"
            )
        model = read_model(path)
        if (model.kernel, model.dtype, model.layout, model.arch) != key:
            raise ModelFileError(
                f"{path}: holds a model of {model.kernel} {model.dtype} {model.layout} on {model.arch}, but its place "
                f"says {kernel} {dtype} {layout} on {spec.name}; move it"
            )
        chooser = _choosers[key] = GemmChooser(model, spec)
    return chooser
