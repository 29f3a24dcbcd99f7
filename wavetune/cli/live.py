"""What live verbs need: the runner of a GPU, its configurations, and where results go."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import typer

from wavetune.cli.output import note, warn
from wavetune.cli.parsing import EXIT_INTERRUPTED
from wavetune.core.arch import ArchSpec
from wavetune.core.dtype import DTYPES
from wavetune.errors import ProblemError, RunnerError, StoreError
from wavetune.runtime.device import Device, resolve_device
from wavetune.runtime.settings import settings

if TYPE_CHECKING:
    from wavetune.core.config import KernelConfig
    from wavetune.measure.runner import Runner
    from wavetune.measure.triton_runner import TritonRunner
    from wavetune.pipeline.tuning_estimate import Space

LOCAL_MODELS = "wavetune-models"
"""Folder for new models below the working directory, where `WAVETUNE_MODELS` names no other."""


@dataclass(frozen=True, slots=True)
class CalibrationKey:
    """What is measured: a kernel family with one dtype and layout, on one GPU model."""

    kernel: str
    arch: ArchSpec
    dtype: str
    layout: str


def output_folder() -> Path:
    """Return where models of the user's own go: the first folder that the runtime would search for them."""
    return next(iter(settings().models), Path(LOCAL_MODELS))


def make_folder(folder: Path) -> None:
    """Create a folder for results.

    Raises
    ------
    StoreError
        If it cannot be created.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"{folder}: cannot create the folder ({error.strerror}); choose another place") from None


def candidate_configs(key: CalibrationKey) -> list[KernelConfig]:
    """Return the configurations that calibration considers: those that the layout allows.

    Raises
    ------
    RunnerError
        If the kernels cannot be imported.
    ProblemError
        If there are none: no kernel of the family computes this element type and layout on this GPU.
    """
    try:
        from wavetune.kernels.registry import find_family
    except ImportError as error:
        raise RunnerError(f"the kernels need {error.name}: pip install {error.name}") from None
    family = find_family(key.kernel)

    def possible(dtype: str) -> list[KernelConfig]:
        configs = family.configs(key.arch, dtype)
        probes = family.validation_problems(dtype, key.layout) if configs else []
        return [each for each in configs if any(family.legal(probe, each, key.arch) is None for probe in probes)]

    configs = possible(key.dtype)
    if not configs:
        known = ", ".join(dtype for dtype in DTYPES if possible(dtype))
        raise ProblemError(
            f"no {key.kernel} kernel computes {key.dtype} {key.layout} on {key.arch.name}; those that there are "
            f"compute {known or 'nothing'}"
        )
    return configs


def whole_space(device: Device, otherwise: str) -> Space:
    """Return where candidates come from that the model does not rank; nothing where there are no kernels.

    Parameters
    ----------
    device : Device
        The GPU, which need not be there.
    otherwise : str
        What is done where there are no kernels; printed with the reason.
    """

    @cache
    def configs(dtype: str) -> Sequence[KernelConfig]:
        try:
            return candidate_configs(CalibrationKey("gemm", device.arch, dtype, "nk"))
        except (RunnerError, ProblemError) as error:
            note(f"{error}; {otherwise}")
            return ()

    return configs


def live_runner(key: CalibrationKey, gpu: int, *, instead: str) -> TritonRunner:
    """Return the runner of a GPU.

    Parameters
    ----------
    instead : str
        What to do on a machine without one; added to the error.

    Raises
    ------
    RunnerError
        If there is no usable GPU.
    """
    from wavetune.measure.triton_runner import TritonRunner

    try:
        return TritonRunner(key.arch, key.kernel, key.dtype, key.layout, gpu)
    except RunnerError as error:
        raise RunnerError(f"{error}\n{instead}") from None


def live_arch(arch: str | None, gpu: int, *, instead: str) -> ArchSpec:
    """Return the GPU model to measure: the one that is named, else the one that is there.

    Raises
    ------
    RunnerError
        If none is named and none is there; ``instead`` says what to do then.
    ArchError
        If its name is unknown.
    """
    if arch is None and settings().arch is None:
        from wavetune.runtime.nvml import describe_visible

        try:
            describe_visible(gpu)
        except RunnerError as error:
            raise RunnerError(f"{error}\n{instead}") from None
    return resolve_device(arch).arch


def conditions_of(runner: Runner) -> dict[str, str]:
    """Return what a runner saw of the GPU while timing; empty for one that does not watch."""
    return dict(runner.conditions()) if hasattr(runner, "conditions") else {}


def note_conditions(runner: Runner) -> None:
    """Print on stderr what the runner saw of the GPU while timing, if it watched; warn of what spoils rankings."""
    conditions = conditions_of(runner)
    if conditions:
        note("GPU while timing: " + ", ".join(f"{name} {value or 'none'}" for name, value in conditions.items()))
    if conditions.get("drifted") == "true":
        warn("the GPU's speed drifted while timing; run again on a quiet machine")


def stop_interrupted(kept: str) -> NoReturn:
    """End an interrupted command: say what was kept and how to go on."""
    note(f"\ninterrupted; {kept}\ngo on with: {shlex.join(['wavetune', *sys.argv[1:]])}")
    raise typer.Exit(EXIT_INTERRUPTED)
