"""`wavetune.autotune`: choose the configuration of your own kernel, from a store, a model, or a bounded measurement.

The words are those of ``triton.autotune``. What is different: a launch never measures while a CUDA graph is captured,
on a GPU that another process is timing, or beyond a budget; what was measured is there for the next process; with two
functions that give grid size and loop trips a model can be fitted (``wavetune calibrate --kernel package.module:name``)
and answers keys that were never measured; and any number of threads may launch one kernel.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from triton import Config
from triton.runtime.jit import KernelInterface

from wavetune.core.config import KERNEL_SPECS, KernelConfig
from wavetune.errors import ConfigError, InfeasibleConfigError
from wavetune.launch.autotune.candidate import Candidate, describe_problem
from wavetune.launch.autotune.hooks import TuningHooks
from wavetune.launch.autotune.policy import Answer, KernelPolicy, Launch
from wavetune.launch.autotune.tables import KernelTables
from wavetune.launch.unusable import UNUSABLE
from wavetune.mapping.kernel_mapping import KernelMapping, KernelProblem, Key, MappingFunction
from wavetune.mapping.source_digest import check_functions, function_digest
from wavetune.runtime.choice import Source
from wavetune.runtime.settings import Settings, settings

MAX_KNOWN = 1 << 16
"""Keys whose configuration is remembered; all are forgotten when there are more, so memory stays bounded."""

CalibrationKeys = Sequence[Key] | Mapping[str, tuple[int, int]]
"""Keys themselves, or the range of each of their entries."""

logger = logging.getLogger("wavetune")


def autotune(
    configs: Sequence[Config],
    key: Sequence[str],
    *,
    grid_size: MappingFunction | None = None,
    loop_trips: MappingFunction | None = None,
    bytes_moved: MappingFunction | None = None,
    prune_configs_by: Mapping[str, Any] | None = None,
    reset_to_zero: Sequence[str] | None = None,
    restore_value: Sequence[str] | None = None,
    pre_hook: Callable[..., object] | None = None,
    post_hook: Callable[..., object] | None = None,
    make_args: Callable[[Key], Mapping[str, Any]] | None = None,
    calibration_keys: CalibrationKeys | None = None,
    name: str | None = None,
) -> Callable[[Any], AutotunedKernel]:
    """Choose among configurations of a ``triton.jit`` kernel at every launch.

    Parameters
    ----------
    configs : sequence of triton.Config
        The candidates; the first one is the default. Of equal ones the first counts.
    key : sequence of str
        Arguments that decide which configuration is best. The element types of tensors count as well.
    grid_size, loop_trips : callable, optional
        Functions of (key, config), both mappings by name, that return integers: units of work (CTAs; for a persistent
        kernel its tiles), and trips of the main loop in each. With them the kernel can be calibrated. They may depend
        on nothing but their arguments: a model that was fitted with other functions is refused.
    bytes_moved : callable, optional
        Of the same arguments: bytes that move to and from DRAM at least.
    prune_configs_by : mapping, optional
        As in Triton: ``early_config_prune(configs, named_args, **kwargs)``, ``perf_model(**everything)``, ``top_k``.
    reset_to_zero, restore_value : sequence of str, optional
        Arguments that the kernel adds to, or overwrites: zeroed, or given back their values, around every timed launch.
    pre_hook, post_hook : callable, optional
        As in Triton: called around every timed launch, ``pre_hook`` instead of resetting and restoring.
    make_args : callable, optional
        Returns the arguments of a launch for a key, by name, for `wavetune calibrate`. An entry ``grid`` is the grid;
        without one, it is ``(grid_size,)``.
    calibration_keys : sequence of mapping, or mapping of str to (int, int), optional
        Keys to calibrate on, or the smallest and largest value of each entry.
    name : str, optional
        Under which choices are stored and models are found; ``module:function`` if not given.

    Returns
    -------
    callable
        Decorator that returns an `AutotunedKernel`, which is launched like the kernel: ``kernel[grid](...)``.

    Raises
    ------
    ConfigError
        If there is no configuration, a name is no argument of the kernel, or ``name`` is a family of wavetune.
    MappingError
        If a mapping function is not written in Python.
    """

    def decorate(fn: Any) -> AutotunedKernel:
        return AutotunedKernel(
            fn, configs, key, mapping_functions=(grid_size, loop_trips, bytes_moved),
            prune_configs_by=prune_configs_by or {},
            hooks=TuningHooks(tuple(reset_to_zero or ()), tuple(restore_value or ()), pre_hook, post_hook),
            make_args=make_args, calibration_keys=calibration_keys, name=name,
        )  # fmt: skip

    return decorate


@dataclass(frozen=True, slots=True)
class KernelChoice:
    """The configuration of a key, and where it comes from.

    Parameters
    ----------
    config : triton.Config
        What is launched.
    source : Source
        As in `wavetune.runtime.choice.Choice`.
    latency_us : float
        Measured or predicted; NaN where nothing is known.
    """

    config: Config
    source: Source
    latency_us: float


class AutotunedKernel(KernelInterface):  # type: ignore[misc]  # triton has no types
    """A kernel that chooses its configuration at every launch; made by `autotune`. Safe with threads.

    Parameters
    ----------
    fn : triton.JITFunction
        The kernel, possibly under ``triton.heuristics``.
    configs, key, hooks, prune_configs_by, make_args, calibration_keys, name
        As in `autotune`.
    mapping_functions : tuple
        ``grid_size``, ``loop_trips`` and ``bytes_moved``, or None.

    Attributes
    ----------
    configs : list of triton.Config
        The candidates, without repeats.
    best_config : triton.Config or None
        Configuration of the last launch of any thread.
    """

    def __init__(
        self,
        fn: Any,
        configs: Sequence[Config],
        key: Sequence[str],
        *,
        mapping_functions: tuple[MappingFunction | None, MappingFunction | None, MappingFunction | None] = (None,) * 3,
        prune_configs_by: Mapping[str, Any] | None = None,
        hooks: TuningHooks | None = None,
        make_args: Callable[[Key], Mapping[str, Any]] | None = None,
        calibration_keys: CalibrationKeys | None = None,
        name: str | None = None,
    ) -> None:
        self.fn = fn
        self.arg_names = list(fn.arg_names)
        self.base_fn = _python_function(fn)
        self.__name__ = self.base_fn.__name__
        self.__module__ = self.base_fn.__module__
        self.__doc__ = self.base_fn.__doc__
        self.name = name or _default_name(self.base_fn)
        if self.name in KERNEL_SPECS:
            raise ConfigError(f"{self.name!r} is a kernel family of wavetune; give your kernel another name")
        self.keys = list(key)
        self.hooks = hooks or TuningHooks()
        self._check_names(key=self.keys, reset_to_zero=self.hooks.reset_to_zero, restore_value=self.hooks.restore_value)
        self._key_positions = [(name, self.arg_names.index(name)) for name in self.keys]
        self.candidates: dict[KernelConfig, Candidate] = {}
        for config in configs:
            candidate = Candidate.of(config)
            self.candidates.setdefault(candidate.identity, candidate)
        if not self.candidates:
            raise ConfigError(f"kernel {self.name} needs at least one configuration")
        self.configs = [candidate.config for candidate in self.candidates.values()]
        self.make_args = make_args
        self.calibration_keys = calibration_keys
        grid_size, loop_trips, bytes_moved = mapping_functions
        self.mapping: KernelMapping | None = None
        if grid_size is not None and loop_trips is not None:
            self.mapping = KernelMapping(self.name, tuple(self.keys), grid_size, loop_trips, bytes_moved)
            check_functions(self.mapping)
        elif grid_size is not None or loop_trips is not None or bytes_moved is not None:
            raise ConfigError(f"kernel {self.name}: give grid_size and loop_trips together; a model needs both")
        self.best_config: Config | None = None
        self._policy = KernelPolicy(self.candidates, self.mapping, self.hooks, prune_configs_by or {})
        # A configuration's hook may launch this very kernel.
        self._lock = threading.RLock()
        self._known: dict[tuple[object, ...], _Known] = {}
        self._settings: Settings | None = None

    @cached_property
    def kernel_source(self) -> str:
        """Digest of the kernel's source: what was measured with another one is not used."""
        return function_digest(self.fn)

    def run(self, *args: Any, grid: Any, warmup: bool = False, **kwargs: Any) -> Any:
        """Launch, as ``kernel[grid](...)`` does; returns what Triton's launch returns.

        Raises
        ------
        InfeasibleConfigError
            If no configuration can be compiled and loaded for this key; says why of each.
        MissError
            If nothing is known about the key and the miss policy is ``error``.
        ConfigError
            If a meta-parameter of the configurations is passed as well.
        """
        if self._settings is not settings():
            self._start_afresh()
        memo_key = self._memo_key(args, kwargs)
        known = self._known.get(memo_key)
        if known is None:
            return self._first_run(memo_key, args, grid, warmup, kwargs)
        return self._launch(known.candidate, args, grid, warmup, kwargs)

    def warmup(self, *args: Any, grid: Any, **kwargs: Any) -> list[Any]:
        """Compile every configuration that pruning leaves, without launching; returns the compiled kernels."""
        launch = self._describe(args, kwargs, grid)
        return [
            self.fn.warmup(*args, grid=grid, **kwargs, **candidate.options) for candidate in self._policy.prune(launch)
        ]

    def explain(self, *args: Any, grid: Any = None, **kwargs: Any) -> KernelChoice:
        """Return what a launch with these arguments would use, and why; measures and launches nothing.

        Where a launch would measure, the answer is the default, with source ``default``.
        """
        if self._settings is not settings():
            self._start_afresh()
        known = self._known.get(self._memo_key(args, kwargs))
        if known is not None:
            return KernelChoice(known.candidate.config, known.source, known.latency_us)
        with self._lock:
            answer = self._policy.answer(self._describe(args, kwargs, grid), may_measure=False)
        return KernelChoice(answer.candidates[0].config, answer.source, answer.latency_us)

    def describe_key(self, key: Mapping[str, Any], arguments: Mapping[str, Any]) -> tuple[KernelProblem, KernelMapping]:
        """Return a key as a problem, and the mapping with the names of its sizes; for calibration.

        Raises
        ------
        ConfigError
            If the kernel has no mapping functions.
        """
        if self.mapping is None:
            raise ConfigError(f"kernel {self.name} has no grid_size and loop_trips; a model needs both")
        named = [arguments[name] for name in self.arg_names if name in arguments]
        problem, dims = describe_problem(self.name, key, named)
        return problem, self._policy.mapping_of(dims)

    def _first_run(
        self, memo_key: tuple[object, ...], args: tuple[Any, ...], grid: Any, warmup: bool, kwargs: dict[str, Any]
    ) -> Any:
        with self._lock:
            known = self._known.get(memo_key)
            if known is None:
                launch = self._describe(args, kwargs, grid)
                answer = self._policy.answer(launch, may_measure=not warmup)
                return self._launch_first_legal(answer, memo_key, args, grid, warmup, kwargs)
        return self._launch(known.candidate, args, grid, warmup, kwargs)

    def _launch_first_legal(
        self, answer: Answer, memo_key: tuple[object, ...], args: tuple[Any, ...], grid: Any, warmup: bool,
        kwargs: dict[str, Any],
    ) -> Any:  # fmt: skip
        reasons: list[str] = []
        for position, candidate in enumerate(answer.candidates):
            try:
                result = self._launch(candidate, args, grid, warmup, kwargs)
            except UNUSABLE as error:
                reasons.append(_first_line(error))
                logger.info("%s: configuration dropped: %s: %s", self.name, candidate.identity, reasons[-1])
                continue
            if answer.is_final and not warmup:
                if len(self._known) >= MAX_KNOWN:
                    self._known.clear()
                source, latency_us = (answer.source, answer.latency_us) if position == 0 else (Source.DEFAULT, _NAN)
                self._known[memo_key] = _Known(candidate, source, latency_us)
                if source in _NOT_EXACT:
                    logger.info("not exact: kernel %s, key %s: %s", self.name, memo_key[1:], source.value)
            return result
        raise InfeasibleConfigError(
            f"none of the {len(reasons)} configurations of kernel {self.name} can be launched; the first: {reasons[0]}"
        )

    def _launch(
        self, candidate: Candidate, args: tuple[Any, ...], grid: Any, warmup: bool, kwargs: dict[str, Any]
    ) -> Any:
        if candidate.config.pre_hook is not None and not warmup:
            candidate.config.pre_hook({**dict(zip(self.arg_names, args, strict=False)), **kwargs, **candidate.options})
        self.best_config = candidate.config
        return self.fn.run(*args, grid=grid, warmup=warmup, **kwargs, **candidate.options)

    def _describe(self, args: tuple[Any, ...], kwargs: dict[str, Any], grid: Any) -> Launch:
        arguments = {**dict(zip(self.arg_names, args, strict=False)), **kwargs}
        clash = sorted(arguments.keys() & next(iter(self.candidates.values())).options.keys())
        if clash:
            raise ConfigError(
                f"{', '.join(clash)} of kernel {self.name} is chosen by autotune and must not be passed to a launch"
            )
        key = {name: arguments[name] for name in self.keys if name in arguments}
        named = {name: arguments[name] for name in self.arg_names if name in arguments}
        problem, dims = describe_problem(self.name, key, list(named.values()))

        def run(candidate: Candidate, *, compile_only: bool = False) -> Any:
            return self.fn.run(*args, grid=grid, warmup=compile_only, **kwargs, **candidate.options)

        return Launch(named, kwargs, key, problem, tuple(dims), run)

    def _memo_key(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[object, ...]:
        n_positional = len(args)
        key: list[object] = [self._policy.device_index()]
        for name, position in self._key_positions:
            key.append(args[position] if position < n_positional else kwargs.get(name))
        key.extend(argument.dtype for argument in args if hasattr(argument, "dtype"))
        key.extend((name, value.dtype) for name, value in kwargs.items() if hasattr(value, "dtype"))
        return tuple(key)

    def _start_afresh(self) -> None:
        """Forget what was answered under other settings."""
        with self._lock:
            current = settings()
            # Another thread may have been here meanwhile.
            if self._settings is not current:
                self._known = {}
                self._policy.use(current, KernelTables(current, self.kernel_source))
                self._settings = current

    def _check_names(self, **names: Sequence[str]) -> None:
        for parameter, wanted in names.items():
            unknown = [name for name in wanted if name not in self.arg_names]
            if unknown:
                raise ConfigError(
                    f"{parameter} names {unknown[0]!r}, which is no argument of the kernel; it has "
                    f"{', '.join(self.arg_names)}"
                )


@dataclass(frozen=True, slots=True)
class _Known:
    candidate: Candidate
    source: Source
    latency_us: float


_NAN = float("nan")
_NOT_EXACT = (Source.NEAREST, Source.MODEL, Source.DEFAULT)


def _python_function(fn: Any) -> Any:
    while hasattr(fn, "fn"):
        fn = fn.fn
    return fn


def _default_name(function: Any) -> str:
    module = str(function.__module__)
    if module == "__main__":
        # The name under which others import the same file.
        path = getattr(sys.modules.get("__main__"), "__file__", None)
        module = Path(path).stem if path else module
    return f"{module}:{function.__qualname__}"


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"[:300]
