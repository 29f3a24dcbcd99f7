"""``wavetune doctor``: what this machine can do, what is missing, and how to get it."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
from dataclasses import asdict, dataclass
from typing import Annotated

import typer

from wavetune.cli.output import data_table, emit_json, show
from wavetune.core.arch import ARCHS, find_arch
from wavetune.errors import ArchError, RunnerError, SettingsError, WavetuneError
from wavetune.runtime.any_model import read_found_model
from wavetune.runtime.device import ARCH_VARIABLE, resolve_device
from wavetune.runtime.family_file import FamilyFile
from wavetune.runtime.locate import MODELS_VARIABLE, all_model_files, model_folders, unusable_folders
from wavetune.runtime.settings import SETTINGS, settings

CUDA_PROBE_LIMIT_S = 120.0
"""A first import of torch from a cold disk takes up to a minute."""

_CUDA_PROBE = "import torch; print(torch.version.cuda, torch.cuda.device_count())"

_COLORS = {"ok": "green", "missing": "red", "note": "yellow"}

_PACKAGES = {
    "numpy": "fit, evaluate, calibrate, demo",
    "scipy": "fit, calibrate, demo",
    "scikit-learn": "fit, calibrate, demo",
    "triton": "measuring and launching on a GPU",
    "nvidia-ml-py": "reading the GPU",
    "torch": "measuring and launching on a GPU",
}


@dataclass(frozen=True, slots=True)
class Check:
    """One finding: ``status`` is ok, missing or note; ``fix`` says what to do about the last two."""

    name: str
    status: str
    detail: str
    fix: str = ""


def doctor_command(
    gpu: Annotated[int, typer.Option("--gpu", min=0, metavar="N", help="Which GPU to look at, as CUDA counts.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
) -> None:
    """Say what works on this machine, what is missing, and how to get it."""
    checks = [*_check_packages(), *_check_gpu(gpu), *_check_settings(), *_check_models()]
    able = _abilities(checks)
    if as_json:
        emit_json({"checks": [asdict(check) for check in checks], "ready": able})
        return
    from rich.text import Text

    table = data_table("check", "", "found", "what to do")
    for check in checks:
        color = _COLORS[check.status]
        table.add_row(check.name, Text(check.status, style=color), Text(check.detail), Text(check.fix))
    lines = [
        f"{verb:<12} {'[green]ready[/green]' if ready else '[red]not ready[/red]'}" for verb, ready in able.items()
    ]
    show(table, "", *lines)


def _check_packages() -> list[Check]:
    from wavetune import __version__

    python = ".".join(map(str, sys.version_info[:3]))
    checks = [Check("wavetune", "ok", f"{__version__}, Python {python}")]
    for name, purpose in _PACKAGES.items():
        try:
            checks.append(Check(name, "ok", importlib.metadata.version(name)))
        except importlib.metadata.PackageNotFoundError:
            checks.append(Check(name, "missing", f"needed for {purpose}", f"pip install {name}"))
    return checks


def _check_gpu(gpu: int) -> list[Check]:
    from wavetune.measure import environment

    try:
        name = environment.device_name(gpu)
    except (RunnerError, OSError) as error:
        fix = "everything but measuring works without; calibrate with --replay FILE..."
        return [Check("GPU", "missing", str(error), fix)]
    checks = []
    try:
        arch = find_arch(name)
        checks.append(Check("GPU", "ok", f"{name} ({arch.name})"))
        facts = environment.fingerprint(arch, gpu, source_hash="", space_hash="")
        checks.append(Check("driver", "ok", f"{facts['driver']}, CUDA up to {facts['cuda']}"))
    except ArchError:
        checks.append(Check("GPU", "note", f"{name} is not known", f"known: {', '.join(ARCHS)}"))
    try:
        state = environment.gpu_state(gpu)
        throttled = ", ".join(state.throttle_reasons)
        detail = (
            f"SM {state.sm_clock_mhz} MHz, memory {state.memory_clock_mhz} MHz, {state.temperature_c} C, "
            f"{state.power_w:.0f} W{', throttled: ' + throttled if throttled else ''}"
        )
        fix = "wait until it is cool and idle before measuring" if throttled else ""
        checks.append(Check("clocks", "note" if throttled else "ok", detail, fix))
    except WavetuneError as error:
        checks.append(Check("clocks", "note", str(error)))
    checks.append(_check_cuda())
    return checks


def _check_cuda() -> Check:
    # In a process of its own, and only where a driver answers: importing torch takes seconds, a broken build crashes.
    try:
        probe = subprocess.run(
            [sys.executable, "-c", _CUDA_PROBE], capture_output=True, text=True, timeout=CUDA_PROBE_LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return Check("torch CUDA", "missing", f"no answer in {CUDA_PROBE_LIMIT_S:.0f} s", "install torch again")
    if probe.returncode:
        reason = (probe.stderr.strip().splitlines() or ["crashed"])[-1]
        return Check("torch CUDA", "missing", reason, "pip install 'wavetune[gpu]'")
    version, devices = probe.stdout.split()
    if int(devices):
        return Check("torch CUDA", "ok", f"built for CUDA {version}, sees {devices} GPU")
    return Check("torch CUDA", "missing", "torch sees no CUDA device", "install a CUDA build of torch")


def _check_settings() -> list[Check]:
    try:
        current = settings()
    except SettingsError as error:
        return [Check("settings", "missing", str(error), "correct or unset the variable")]
    checks = []
    for setting in SETTINGS:
        value = getattr(current, setting.name)
        if setting.name == "arch" or value == setting.default():
            continue
        text = os.pathsep.join(map(str, value)) if isinstance(value, tuple) else str(value)
        checks.append(Check(setting.variable, "ok", text))
    if current.arch is None:
        try:
            device = resolve_device()
            checks.append(
                Check(ARCH_VARIABLE, "ok", f"not set; this machine: {device.arch.name}, {device.num_sms} SMs")
            )
        except ArchError:
            checks.append(Check(ARCH_VARIABLE, "note", "not set", "set it, or name --arch in each call"))
        return checks
    try:
        checks.append(Check(ARCH_VARIABLE, "ok", f"{current.arch} ({find_arch(current.arch).name})"))
    except ArchError as error:
        checks.append(Check(ARCH_VARIABLE, "missing", str(error), f"correct or unset {ARCH_VARIABLE}"))
    return checks


def _check_models() -> list[Check]:
    checks: list[Check] = []
    try:
        settings()
    except SettingsError:
        return [Check("model", "missing", "not looked for: a setting is wrong", "see above")]
    checks += [
        Check("models folder", "missing", complaint, f"correct {MODELS_VARIABLE}") for complaint in unusable_folders()
    ]
    n_models = 0
    for path in all_model_files():
        label = f"{path.parent.name}/{path.stem}"
        try:
            is_family = isinstance(read_found_model(path), FamilyFile)
            checks.append(Check("kernel model" if is_family else "model", "ok", f"{label} in {path.parent.parent}"))
            n_models += not is_family
        except WavetuneError as error:
            checks.append(Check("model", "missing", str(error), "restore the file, or fit or calibrate again"))
    if not n_models:
        folders = ", ".join(map(str, model_folders())) or "no folder"
        checks.append(Check("model", "missing", f"none in {folders}", f"calibrate, or set {MODELS_VARIABLE}"))
    return checks


def _abilities(checks: list[Check]) -> dict[str, bool]:
    status = {check.name: check.status for check in checks}
    has_model = any(check.name == "model" and check.status == "ok" for check in checks)
    fits = all(status[name] == "ok" for name in ("numpy", "scipy", "scikit-learn"))
    live = fits and all(status.get(name) == "ok" for name in ("GPU", "triton", "torch CUDA"))
    return {"choose": has_model, "fit": fits, "calibrate": live, "measure": live}
