"""Measure on a GPU: compile and check configurations, then time points in blocks of interleaved candidates."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from wavetune.core.arch import ArchSpec, find_arch
from wavetune.core.config import KernelConfig
from wavetune.errors import RunnerError
from wavetune.measure import environment
from wavetune.measure.compile import Rejected, compile_configs
from wavetune.measure.runner import Point, PreparedConfigs, Progress, no_progress
from wavetune.measure.timing import CALIBRATION_RULE, StoppingRule
from wavetune.measure.validate import validate_configs
from wavetune.store.record import CompiledConfig, Measurement, Status

if TYPE_CHECKING:
    from wavetune.measure.gpu_session import GpuSession

BLOCK_POINTS = 256
"""Points timed together: their rounds are spread over enough time for stalls and drifts to hit single rounds."""

BLOCK_US = 100_000.0
"""Expected GPU time of one round of a block, at most: bounds what a kill can lose."""


class TritonRunner:
    """Turn points into measurements on one GPU; conforms to `wavetune.measure.runner.Runner`.

    Parameters
    ----------
    arch : str or ArchSpec
        The GPU model; must be the one that the driver reports.
    kernel : str, default="gemm"
        Kernel family.
    dtype : str, default="bf16"
        Of the operands.
    layout : str, default="nk"
        Of the operands.
    gpu : int, default=0
        Ordinal, as CUDA counts.

    Raises
    ------
    RunnerError
        If torch, a CUDA device or the driver is missing, or the GPU is not ``arch``.
    ArchError, ConfigError
        If ``arch`` or ``kernel`` is unknown.
    """

    def __init__(
        self, arch: str | ArchSpec, kernel: str = "gemm", dtype: str = "bf16", layout: str = "nk", gpu: int = 0
    ) -> None:
        self._arch = arch if isinstance(arch, ArchSpec) else find_arch(arch)
        _require_gpu(self._arch, gpu)
        from wavetune.kernels.registry import find_family

        self._family = find_family(kernel)
        self.kernel, self.dtype, self.layout, self.gpu = kernel, dtype, layout, gpu
        self._session: GpuSession | None = None

    @property
    def arch(self) -> ArchSpec:
        """The GPU that is measured."""
        return self._arch

    def environment(self) -> dict[str, str]:
        """Return the fingerprint of device, driver, compiler and kernels."""
        return environment.fingerprint(
            self._arch,
            self.gpu,
            source_hash=self._family.source_hash(self.dtype),
            space_hash=self._family.space_hash(self._arch, self.dtype),
        )

    def prepare(self, configs: Iterable[KernelConfig], progress: Progress = no_progress) -> PreparedConfigs:
        """Compile in parallel, drop what does not fit, and check the rest against a reference.

        Progress counts every configuration twice: once compiled, once checked.
        """
        wanted = list(configs)
        problem = self._family.validation_problems(self.dtype, self.layout)[0]
        rejected: dict[KernelConfig, Rejected] = {}
        for config in wanted:
            reason = self._family.legal(problem, config, self._arch)
            if reason is not None:
                rejected[config] = Rejected(config, Status.ILLEGAL, reason)
        total = 2 * len(wanted)
        compiled: dict[KernelConfig, CompiledConfig] = {}
        for result in compile_configs(
            self.kernel, [config for config in wanted if config not in rejected], self._arch,
            dtype=self.dtype, layout=self.layout, progress=lambda done, _: progress(done, total),
        ):  # fmt: skip
            if isinstance(result, Rejected):
                rejected[result.config] = result
            else:
                compiled[result.config] = result
        n_before = total - len(compiled)
        for checked in validate_configs(
            self.kernel, list(compiled), self._arch, dtype=self.dtype, layout=self.layout, gpu=self.gpu,
            progress=lambda done, _: progress(n_before + done, total),
        ):  # fmt: skip
            if isinstance(checked, Rejected):
                rejected[checked.config] = checked
                del compiled[checked.config]
        failures = tuple(
            Measurement(problem, config, rejected[config].status, stratum="prepare", detail=rejected[config].reason)
            for config in wanted
            if config in rejected
        )
        return PreparedConfigs(tuple(compiled[config] for config in wanted if config in compiled), failures)

    def measure(
        self,
        points: Sequence[Point],
        progress: Progress = no_progress,
        *,
        method: str | None = None,
        rule: StoppingRule = CALIBRATION_RULE,
    ) -> Iterator[Measurement]:
        """Time points; candidates of one problem are always in the same block.

        Parameters
        ----------
        points : sequence of Point
            What to measure.
        progress : Progress
            Called after each block.
        method : str, optional
            One of the methods named in `wavetune.measure.timing`; without one, that by which calibration times each
            problem.
        rule : StoppingRule
            When a point has been measured enough.

        Yields
        ------
        Measurement
            One for each point, block by block.

        Raises
        ------
        RunnerError
            If another process is timing on this GPU, or the CUDA context is lost.
        """
        from wavetune.measure.cuda_timing import lock_identity
        from wavetune.measure.gpu_session import GpuSession

        n_done = 0
        with environment.timing_lock(self.gpu, lock_identity(self.gpu)):
            if self._session is None:
                self._session = GpuSession(self._arch, self._family, self.dtype, self.gpu)
            session = self._session
            session.watch()
            for how, part in _by_method(points, session.calibration_method, method):
                for block in split_blocks(part, lambda point: session.expected_us(point.problem)):
                    results = session.measure_block(block, how, rule)
                    n_done += len(block)
                    progress(n_done, len(points))
                    yield from results
            session.watch()

    def conditions(self) -> dict[str, str]:
        """Return the state of the GPU at the start and the end of timing, the launch floor, and signs of trouble.

        Evidence to store, never an input of a model. Empty before the first measurement.
        """
        return self._session.conditions() if self._session is not None else {}


def _by_method(
    points: Sequence[Point], method_of: Callable[[Any], str], method: str | None
) -> Iterator[tuple[str, Sequence[Point]]]:
    """Yield the points of each method; all have ``method`` if there is one."""
    if method is not None:
        yield method, points
        return
    parts: dict[str, list[Point]] = {}
    for point in points:
        parts.setdefault(method_of(point.problem), []).append(point)
    yield from parts.items()


def split_blocks(points: Sequence[Point], expected_us: Callable[[Point], float]) -> Iterator[list[Point]]:
    """Group points by problem and cut the groups into blocks of about `BLOCK_POINTS` points.

    A problem is never divided between blocks, so its candidates are interleaved with each other.
    """
    groups: dict[Any, list[Point]] = {}
    for point in points:
        groups.setdefault(point.problem, []).append(point)
    block: list[Point] = []
    block_us = 0.0
    for group in groups.values():
        group_us = sum(map(expected_us, group))
        if block and (len(block) + len(group) > BLOCK_POINTS or block_us + group_us > BLOCK_US):
            yield block
            block, block_us = [], 0.0
        block.extend(group)
        block_us += group_us
    if block:
        yield block


def _require_gpu(arch: ArchSpec, gpu: int) -> None:
    name = environment.device_name(gpu)
    try:
        import torch
    except ImportError:
        raise RunnerError("measuring needs torch with CUDA: pip install torch") from None
    if not torch.cuda.is_available():
        raise RunnerError("torch sees no CUDA device; install a CUDA build of torch, or use a replay")
    if find_arch(name).name != arch.name:
        raise RunnerError(f"GPU {gpu} is {name!r}, not {arch.name}; name its own architecture")
