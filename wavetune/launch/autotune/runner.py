"""Measure a kernel of the user's for calibration: compile and compare its configurations, then time keys."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from wavetune.core.arch import ArchSpec, find_arch
from wavetune.core.config import KernelConfig
from wavetune.errors import ConfigError, RunnerError, WavetuneError
from wavetune.launch.autotune.bench import current_bench
from wavetune.launch.autotune.candidate import Candidate
from wavetune.launch.autotune.decorator import AutotunedKernel
from wavetune.launch.autotune.policy import load_compiled
from wavetune.launch.autotune.stopwatch import LAUNCH_METHOD, Lap, Stopwatch
from wavetune.launch.live import NotMeasuredError
from wavetune.launch.unusable import UNUSABLE
from wavetune.mapping.kernel_mapping import KernelProblem
from wavetune.measure import environment
from wavetune.measure.compile import read_resources
from wavetune.measure.cuda_timing import LONG_KERNEL_US, Timing, unsatisfied
from wavetune.measure.cuda_timing import Candidate as Readings
from wavetune.measure.runner import PreparedConfigs, Progress, no_progress
from wavetune.measure.timing import CALIBRATION_RULE, round_order
from wavetune.store.record import CompiledConfig, Measurement, Point, Status

LOCK_PATIENCE_MS = 10_000.0
"""How long a calibration waits for another process that is timing on the GPU."""

MAX_DIFFERENCE = 0.02
"""Largest relative difference (Frobenius norms) between the results of two configurations: sums in another order
differ by a few units of bf16's 2**-9; a tile that is wrong or missing is far above it."""

KeyOf = Callable[[tuple[int, ...]], Mapping[str, Any]]
"""Turns the sizes of a problem back into a key."""


class KernelRunner:
    """Turns points of one kernel into measurements; conforms to `wavetune.measure.runner.Runner`.

    Parameters
    ----------
    kernel : AutotunedKernel
        Must have ``make_args`` and mapping functions.
    arch : ArchSpec
        The GPU model; must be the one that the driver reports.
    key_of : callable
        The key of a problem's sizes.
    probe : KernelProblem
        The key that configurations are compiled and compared on.
    gpu : int, default=0
        Ordinal, as CUDA counts.

    Raises
    ------
    ConfigError
        If the kernel cannot be calibrated; says what is missing.
    RunnerError
        If torch, a CUDA device or the driver is missing, or the GPU is not ``arch``, or only a part of it.
    """

    def __init__(
        self, kernel: AutotunedKernel, arch: ArchSpec, key_of: KeyOf, probe: KernelProblem, gpu: int = 0
    ) -> None:
        if kernel.make_args is None or kernel.mapping is None:
            missing = "make_args" if kernel.make_args is None else "grid_size and loop_trips"
            raise ConfigError(f"kernel {kernel.name} cannot be calibrated: its autotune has no {missing}")
        self._kernel, self._arch, self._key_of, self._probe, self.gpu = kernel, arch, key_of, probe, gpu
        require_whole_gpu(arch, gpu)

    @property
    def arch(self) -> ArchSpec:
        """The GPU that is measured."""
        return self._arch

    def environment(self) -> dict[str, str]:
        """Return the fingerprint of device, driver, compiler, kernel and configurations."""
        space = hashlib.sha256("\n".join(map(str, self._kernel.candidates)).encode()).hexdigest()
        return environment.fingerprint(
            self._arch, self.gpu, source_hash=self._kernel.kernel_source, space_hash=f"sha256:{space}"
        )

    def prepare(self, configs: Iterable[KernelConfig], progress: Progress = no_progress) -> PreparedConfigs:
        """Compile every configuration for the probe key, and compare its results with those of the first.

        Raises
        ------
        RunnerError
            If ``make_args`` or a launch fails in a way that is no configuration's fault.
        """
        wanted = list(configs)
        compiled: list[CompiledConfig] = []
        failures: list[Measurement] = []
        expected: dict[str, Any] | None = None
        try:
            with self._launches(self._probe.dims) as launches:
                for n_done, config in enumerate(wanted, start=1):
                    launch = launches(self._kernel.candidates[config])
                    try:
                        entry = _compiled_config(config, load_compiled(launch.compile()))
                        results = launch.results()
                    except UNUSABLE as error:
                        failures.append(self._failure(config, _status_of(error), str(error)))
                    else:
                        expected = results if expected is None else expected
                        difference = _difference(results, expected)
                        if difference > MAX_DIFFERENCE:
                            detail = f"differs from the first by {difference:.2g}, limit {MAX_DIFFERENCE:g}"
                            failures.append(self._failure(config, Status.WRONG_RESULT, detail))
                        else:
                            compiled.append(entry)
                    progress(n_done, len(wanted))
        except _OutOfMemoryError as error:
            raise RunnerError(f"no memory for key {self._probe.dims} of kernel {self._kernel.name}: {error}") from None
        return PreparedConfigs(tuple(compiled), tuple(failures))

    def measure(self, points: Sequence[Point], progress: Progress = no_progress) -> Iterator[Measurement]:
        """Time points, key by key; the configurations of a key are interleaved with each other.

        Raises
        ------
        RunnerError
            If another process keeps timing on this GPU, or a launch fails in a way that is no configuration's fault.
        """
        keys: dict[tuple[int, ...], list[Point]] = {}
        for point in points:
            keys.setdefault(point.problem.dims, []).append(point)
        n_done = 0
        try:
            with current_bench().open(LOCK_PATIENCE_MS) as stopwatch:
                for dims, block in keys.items():
                    results = self._measure_key(dims, block, stopwatch)
                    n_done += len(block)
                    progress(n_done, len(points))
                    yield from results
        except NotMeasuredError as error:
            raise RunnerError(f"{error}; wait for it, or measure another GPU with --gpu") from None

    def _measure_key(self, dims: tuple[int, ...], block: Sequence[Point], stopwatch: Stopwatch) -> list[Measurement]:
        outcome: dict[KernelConfig, Measurement] = {}
        try:
            with self._launches(dims) as launches:
                laps: dict[KernelConfig, Lap] = {}
                for point in block:
                    launch = launches(self._kernel.candidates[point.config])
                    try:
                        load_compiled(launch.compile())
                    except UNUSABLE as error:
                        outcome[point.config] = _failed(point, _status_of(error), str(error))
                    else:
                        laps[point.config] = launch.lap()
                timings = _time(list(laps.values()), stopwatch)
        except _OutOfMemoryError as error:
            return [_failed(point, Status.OUT_OF_MEMORY, str(error)) for point in block]
        for config, timing in zip(laps, timings, strict=True):
            point = next(point for point in block if point.config == config)
            if timing is None:
                outcome[config] = _failed(point, Status.LAUNCH_ERROR, "the host never kept ahead of the GPU")
            else:
                outcome[config] = Measurement(
                    point.problem, config, Status.OK, timing.latency_us, timing.spread_us, timing.rounds, LAUNCH_METHOD,
                    point.stratum,
                )  # fmt: skip
        return [outcome[point.config] for point in block]

    def _launches(self, dims: tuple[int, ...]) -> _KeyLaunches:
        return _KeyLaunches(self._kernel, self._key_of(dims))

    def _failure(self, config: KernelConfig, status: Status, detail: str) -> Measurement:
        return Measurement(self._probe, config, status, stratum="prepare", detail=detail[:500])


class _OutOfMemoryError(Exception):
    pass


class _KeyLaunches:
    """The launches of one key, as long as its arguments live."""

    def __init__(self, kernel: AutotunedKernel, key: Mapping[str, Any]) -> None:
        self._kernel, self._key = kernel, key

    def __enter__(self) -> Callable[[Candidate], _KeyLaunch]:
        kernel = self._kernel
        assert kernel.make_args is not None
        try:
            arguments = dict(kernel.make_args(self._key))
            # Every timed launch then starts from the same arguments, whatever the kernel does to them.
            self._grid = arguments.pop("grid", None)
            self._open = kernel.hooks.open(arguments)
        except Exception as error:
            raise self._explain(error, "make_args") from error
        self._arguments = arguments
        return lambda candidate: _KeyLaunch(self, candidate)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        del self._arguments, self._open
        if isinstance(error, Exception) and not isinstance(error, WavetuneError):
            raise self._explain(error, "a launch") from error

    def _explain(self, error: Exception, what: str) -> Exception:
        if type(error).__name__ == "OutOfMemoryError":
            return _OutOfMemoryError(str(error)[:300])
        where = f"kernel {self._kernel.name} with key {dict(self._key)}"
        return RunnerError(f"{what} of {where} fails: {type(error).__name__}: {error}")


class _KeyLaunch:
    """One candidate on one key."""

    def __init__(self, launches: _KeyLaunches, candidate: Candidate) -> None:
        kernel, self._launches, self._candidate = launches._kernel, launches, candidate
        grid = launches._grid
        if grid is None:
            assert kernel.mapping is not None
            grid = (kernel.mapping.shape(launches._key, candidate.options).grid_size,)
        self._run = partial(kernel.fn.run, **launches._arguments, **candidate.options, grid=grid)

    def compile(self) -> Any:
        """Return the compiled kernel."""
        return self._run(warmup=True)

    def lap(self) -> Lap:
        """Return the launch to be timed."""
        return self._launches._open.lap(self._candidate, partial(self._run, warmup=False))

    def results(self) -> dict[str, Any]:
        """Launch once and return copies of all tensors; they are put back."""
        arguments = self._launches._arguments
        before = {name: value.clone() for name, value in arguments.items() if hasattr(value, "clone")}
        lap = self.lap()
        lap.prepare()
        lap.launch()
        lap.finish()
        after = {name: arguments[name].clone() for name in before}
        for name, value in before.items():
            arguments[name].copy_(value)
        return after


def _time(laps: Sequence[Lap], stopwatch: Stopwatch) -> list[Timing | None]:
    """Time launches against each other until each is known well enough."""
    readings = [Readings(()) for _ in laps]
    active = list(range(len(laps)))
    for round_index in range(3 * CALIBRATION_RULE.max_rounds):
        order = [active[index] for index in round_order(len(active), round_index)]
        for index, reading in zip(order, stopwatch.read([laps[index] for index in order]), strict=True):
            # The first launch of a short kernel pays for loading its instructions.
            if reading is not None and (round_index > 0 or reading >= LONG_KERNEL_US):
                readings[index].readings.append(reading)
                readings[index].spent_us += reading
        active = unsatisfied(readings, active, CALIBRATION_RULE)
        if not active:
            break
    return [entry.timing() for entry in readings]


def _compiled_config(config: KernelConfig, kernel: Any) -> CompiledConfig:
    num_spills = getattr(kernel, "n_spills", None)
    num_regs = getattr(kernel, "n_regs", None)
    if num_regs is None or num_spills is None:
        num_regs, num_spills = read_resources(kernel)
    return CompiledConfig(config, int(num_regs), int(num_spills), int(kernel.metadata.shared))


def _difference(results: Mapping[str, Any], expected: Mapping[str, Any]) -> float:
    """Return the largest relative difference of two sets of tensors; infinite where only one has numbers."""
    worst = 0.0
    for name, value in results.items():
        first, second = value.double(), expected[name].double()
        if bool((first.isnan() != second.isnan()).any()):
            return float("inf")
        difference, scale = float((first - second).nan_to_num().norm()), float(second.nan_to_num().norm())
        worst = max(worst, difference / scale if scale else difference)
    return worst


def _status_of(error: Exception) -> Status:
    return Status.COMPILE_ERROR if "Compilation" in type(error).__name__ else Status.OUT_OF_RESOURCES


def _failed(point: Point, status: Status, detail: str) -> Measurement:
    return Measurement(
        point.problem, point.config, status, method=LAUNCH_METHOD, stratum=point.stratum, detail=detail[:500]
    )


def require_whole_gpu(arch: ArchSpec, gpu: int) -> None:
    """Make a CUDA device the current one.

    Raises
    ------
    RunnerError
        If torch, a CUDA device or the driver is missing, or the GPU is not ``arch``, or only a part of it.
    """
    name = environment.device_name(gpu)
    try:
        import torch
    except ImportError:
        raise RunnerError("measuring needs torch with CUDA: pip install torch") from None
    cuda: Any = torch.cuda
    if not cuda.is_available():
        raise RunnerError("torch sees no CUDA device; install a CUDA build of torch")
    if find_arch(name).name != arch.name:
        raise RunnerError(f"GPU {gpu} is {name!r}, not {arch.name}; name its own architecture")
    cuda.set_device(gpu)
    num_sms = int(cuda.get_device_properties(gpu).multi_processor_count)
    if num_sms != arch.num_sms:
        raise RunnerError(f"GPU {gpu} gives {num_sms} of the {arch.num_sms} SMs of {arch.name}; calibrate a whole one")
