"""`choose_config`: the question a launcher asks."""

from __future__ import annotations

import threading
from typing import Any

from wavetune.core.config import KernelConfig
from wavetune.core.problem import CONTIGUOUS, MAX_DIMENSION, GemmProblem, Problem
from wavetune.errors import NoModelError, SettingsError
from wavetune.runtime.choice import Choice, RankedConfig
from wavetune.runtime.device import Device, forget_devices, resolve_device
from wavetune.runtime.families import choose_of_family, rank_of_family
from wavetune.runtime.hot_path import HotPath
from wavetune.runtime.learning import Learner
from wavetune.runtime.misses import ResolverKey, before_reading, forget_misses
from wavetune.runtime.numerics import check_numerics
from wavetune.runtime.resolver import Resolver
from wavetune.runtime.settings import ON_MISS, reread, settings, when_changed
from wavetune.runtime.sources import forget_warnings
from wavetune.runtime.tables import Tables, forget_stores

_Key = tuple[int, int, int, str, str, int, str | None]

MEMO_LIMIT = 1 << 16
"""Answers remembered; the memo starts afresh when it is full, so memory stays bounded."""

# Answers to calls without rare options, and to all others.
_memo: dict[_Key, KernelConfig] = {}
_memo_of_rare: dict[tuple[object, ...], KernelConfig] = {}
# By the very arguments of a checked call, for the next shape with the same ones.
_hot_paths: dict[tuple[object, ...], HotPath] = {}
_resolvers: dict[ResolverKey, Resolver] = {}
_tables: dict[tuple[object, ...], Tables] = {}
_loading = threading.RLock()
_learner = Learner()
# Counts how often answers were forgotten.
_generation = 0


def choose_config(
    m: int,
    n: int,
    k: int,
    # Meant as keywords. There is no bare * because Python looks every default of a keyword-only argument up in a
    # dictionary: a fifth of the time of a repeated call.
    kernel: str = "gemm",
    dtype: Any = "bf16",
    layout: str = "nk",
    alignment: int = CONTIGUOUS,
    arch: str | None = None,
    num_sms: int | None = None,
    numerics: str = "any",
    on_miss: str | None = None,
) -> KernelConfig:
    """Choose the launch configuration for C[m, n] = A[m, k] B[k, n].

    Parameters
    ----------
    m, n, k : int
        Sizes in ``[0, 2**31)``; NumPy integers are accepted.
    kernel : str, default="gemm"
        Kernel family.
    dtype : str or torch.dtype, default="bf16"
        Element type.
    layout : {"nk", "kn"}, default="nk"
        Storage of B.
    alignment : {0, 16, 8, 4, 2, 1}, default=0
        Bytes that all base pointers and leading strides are divisible by; 0 for contiguous operands with base
        pointers aligned to 16.
    arch : str, optional
        GPU name; the setting ``arch`` or the current GPU if not given, see `wavetune.runtime.device.resolve_device`.
    num_sms : int, optional
        SMs that the launch may use; those of the GPU, or of the MIG slice that is found, if not given.
    numerics : {"any", "deterministic", "batch_invariant"}, default="any"
        What results must not depend on, see `wavetune.runtime.numerics`.
    on_miss : {"model", "measure", "default", "error"}, optional
        What to do beyond the measured range; the setting ``on_miss`` if not given.

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
        If no architecture is named and none found, or it is unknown.
    NoModelError
        If nothing covers the key; lists the files that were refused.
    MissError
        If the problem is beyond the tables, and ``on_miss`` is ``error``.
    NoMeasurerError
        If it is, ``on_miss`` is ``measure``, and nothing that can measure is registered.
    SettingsError
        If a setting or ``on_miss`` has an impossible value.
    """
    # 1, True and 1.0 are equal as dictionary keys; only ints are answered from dictionaries.
    if (
        m.__class__ is int
        and n.__class__ is int
        and k.__class__ is int
        and num_sms is None
        and on_miss is None
        and numerics == "any"
        and kernel == "gemm"
    ):
        key = (m, n, k, dtype, layout, alignment, arch)
        try:
            config = _memo.get(key)
            if config is not None:
                return config
            generation = _generation
            path = _hot_paths.get((dtype, layout, alignment, arch))
        except TypeError:  # An unhashable argument: the checks below name it.
            path = None
        if (
            path is not None
            and 0 < m <= path.safe_side >= n > 0
            and 0 < k <= MAX_DIMENSION
            and not (alignment == CONTIGUOUS and (n | k) & path.row_mask)
        ):
            config = path.choose(m, n, k)
            if len(_memo) >= MEMO_LIMIT:
                _empty_memo()
            _memo[key] = config
            if generation != _generation:
                _memo.pop(key, None)
            return config
    return _choose_checked(m, n, k, kernel, dtype, layout, alignment, arch, num_sms, numerics, on_miss)


def explain_choice(
    m: int,
    n: int,
    k: int,
    *,
    kernel: str = "gemm",
    dtype: Any = "bf16",
    layout: str = "nk",
    alignment: int = CONTIGUOUS,
    arch: str | None = None,
    num_sms: int | None = None,
    numerics: str = "any",
    on_miss: str | None = None,
) -> Choice:
    """Return what `choose_config` returns, with its source, prediction, waves and runner-up.

    Takes the parameters and raises the errors of `choose_config`.
    """
    problem = _gemm_problem(m, n, k, kernel, dtype, layout, alignment)
    return find_resolver(problem, arch, num_sms, numerics).explain(problem, policy(on_miss))


def choose(
    problem: Problem,
    *,
    arch: str | None = None,
    num_sms: int | None = None,
    numerics: str = "any",
    on_miss: str | None = None,
) -> KernelConfig:
    """Choose the launch configuration for any problem; see `choose_config` for parameters and errors."""
    if not isinstance(problem, GemmProblem):
        return choose_of_family(problem, arch, num_sms, numerics, policy(on_miss))
    return choose_config(
        *problem.dims, dtype=problem.dtype, layout=problem.layout, alignment=problem.alignment, arch=arch,
        num_sms=num_sms, numerics=numerics, on_miss=on_miss,
    )  # fmt: skip


def rank_configs(
    problem: Problem, *, arch: str | None = None, num_sms: int | None = None, numerics: str = "any"
) -> list[RankedConfig]:
    """Order every legal configuration of the model and the numerics class by predicted latency, best first."""
    if not isinstance(problem, GemmProblem):
        return rank_of_family(problem, arch, num_sms, numerics)
    return find_resolver(problem, arch, num_sms, numerics).rank(problem)


def clear_caches() -> None:
    """Forget loaded files, remembered answers, misses and devices; files and environment variables are read again.

    What `wavetune.configure` said stays.
    """
    reread()
    _forget_tables()
    forget_misses()
    forget_devices()
    forget_warnings()
    forget_stores()


def find_resolver(problem: GemmProblem, arch: str | None, num_sms: int | None, numerics: str) -> Resolver:
    """Return the resolver for a problem's tables; see `choose_config` for parameters and errors."""
    return _resolver(problem, resolve_device(arch, num_sms), check_numerics(numerics))


def policy(on_miss: str | None) -> str:
    """Return the miss policy of a call.

    Raises
    ------
    SettingsError
        If it is unknown.
    """
    if on_miss is None:
        return settings().on_miss
    if on_miss not in ON_MISS:
        raise SettingsError(f"on_miss must be one of {', '.join(ON_MISS)}, got {on_miss!r}")
    return on_miss


def _choose_checked(
    m: int,
    n: int,
    k: int,
    kernel: str,
    dtype: str,
    layout: str,
    alignment: int,
    arch: str | None,
    num_sms: int | None,
    numerics: str,
    on_miss: str | None,
) -> KernelConfig:
    """Answer any call: the first with these arguments, an unusual one, or a wrong one."""
    generation = _generation
    device: Device | None = None
    rare: tuple[object, ...] | None = None
    if type(m) is int and type(n) is int and type(k) is int:
        device = resolve_device(arch, num_sms)
        rare = (m, n, k, kernel, dtype, layout, alignment, numerics, on_miss, device.arch.name, device.num_sms)
        try:
            config = _memo_of_rare.get(rare)
        except TypeError:  # An unhashable argument: the checks below name it.
            config = rare = None
        if config is not None:
            return config
    problem = _gemm_problem(m, n, k, kernel, dtype, layout, alignment)
    resolver = _resolver(problem, device or resolve_device(arch, num_sms), check_numerics(numerics))
    answer = resolver.answer(problem, policy(on_miss))
    if rare is None or not answer.is_final or settings().record:
        return answer.config
    is_usual = kernel == "gemm" and num_sms is None and numerics == "any" and on_miss is None
    if is_usual and (arch is not None or settings().arch is not None):
        # The device is the same at every such call.
        _remember((m, n, k, dtype, layout, alignment, arch), answer.config, resolver.hot_path, generation)
        return answer.config
    if len(_memo_of_rare) >= MEMO_LIMIT:
        _memo_of_rare.clear()
    _memo_of_rare[rare] = answer.config
    if generation != _generation:
        _memo_of_rare.pop(rare, None)
    return answer.config


def _remember(key: _Key, config: KernelConfig, path: HotPath | None, generation: int) -> None:
    if len(_memo) >= MEMO_LIMIT:
        _empty_memo()
    _memo[key] = config
    m, n, k, _, _, alignment, _ = key
    if path is not None and path.covers(m, n, k, alignment):
        _hot_paths[key[3:]] = path
    if generation != _generation:
        _memo.pop(key, None)
        _hot_paths.pop(key[3:], None)


def _gemm_problem(m: int, n: int, k: int, kernel: str, dtype: str, layout: str, alignment: int) -> GemmProblem:
    if kernel != "gemm":
        raise NoModelError(f"choose_config answers for kernel 'gemm', not {kernel!r}; use choose(problem)")
    return GemmProblem(m, n, k, dtype, layout, alignment)


def _resolver(problem: GemmProblem, device: Device, numerics: str) -> Resolver:
    key = ResolverKey(problem.kernel, problem.dtype, problem.layout, device.arch.name, device.num_sms, numerics)
    resolver = _resolvers.get(key)
    if resolver is not None:
        return resolver
    with _loading:
        current = settings()
        place = (key.kernel, key.dtype, key.layout, key.arch, key.num_sms)
        tables = _tables.get(place)
        if tables is None:
            tables = Tables(key.kernel, key.dtype, key.layout, device, current, _learner, _forget_answers)
            if tables.is_empty:
                raise NoModelError(tables.missing)
            _tables[place] = tables
        return _resolvers.setdefault(key, Resolver(key, device, tables, current))


def _list_answered() -> None:
    """List the misses among the answers in memory: what was new to a hot path is listed here, not in its call."""
    for m, n, k, dtype, layout, alignment, arch in list(_memo):
        path = _hot_paths.get((dtype, layout, alignment, arch))
        if path is not None and path.covers(m, n, k, alignment):
            path.list_answered(m, n, k)


def _empty_memo() -> None:
    _list_answered()
    _memo.clear()


def _forget_answers() -> None:
    global _generation
    # A call that began before takes its answer out again when it sees another generation; see `choose_config`.
    _generation += 1
    _empty_memo()
    _memo_of_rare.clear()


def _forget_tables() -> None:
    global _learner
    _list_answered()
    with _loading:
        _resolvers.clear()
        _tables.clear()
        _hot_paths.clear()
        _learner = Learner()
        _forget_answers()


when_changed(_forget_tables)
before_reading(_list_answered)
