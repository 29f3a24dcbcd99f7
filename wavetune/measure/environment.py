"""What a measurement depends on besides the kernel: the fingerprint of the machine, and its state while timing.

Only read, never set. The fingerprint must not change within one store; the state (clocks, temperature, power,
throttling) is stored as evidence and never reaches a model.
"""

from __future__ import annotations

import fcntl
import gc
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from wavetune.core.arch import ArchSpec
from wavetune.errors import RunnerError
from wavetune.runtime import nvml
from wavetune.runtime.settings import settings

# nvml.h, nvmlClocksEventReasons (NVML 12 and 13); idle and application-clock settings are not throttling.
_THROTTLE_REASONS = {
    0x4: "sw-power-cap",
    0x8: "hw-slowdown",
    0x20: "sw-thermal",
    0x40: "hw-thermal",
    0x80: "hw-power-brake",
}


@dataclass(frozen=True, slots=True)
class GpuState:
    """A glance at a GPU.

    Parameters
    ----------
    sm_clock_mhz, memory_clock_mhz : int
        Current clocks.
    temperature_c : int
        Of the GPU.
    power_w : float
        Drawn by the board.
    throttle_reasons : tuple of str
        Why the clock is below its maximum; empty if it is not.
    """

    sm_clock_mhz: int
    memory_clock_mhz: int
    temperature_c: int
    power_w: float
    throttle_reasons: tuple[str, ...]


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "missing"


def device_name(gpu: int = 0) -> str:
    """Return the name that the driver reports.

    Raises
    ------
    RunnerError
        If nvidia-ml-py, the driver or the GPU is missing; says which.
    """
    with nvml.open_nvml() as pynvml:
        return str(pynvml.nvmlDeviceGetName(nvml.visible_handle(pynvml, gpu)))


def fingerprint(arch: ArchSpec, gpu: int, *, source_hash: str, space_hash: str) -> dict[str, str]:
    """Return what must stay the same for measurements to be comparable.

    Parameters
    ----------
    arch : ArchSpec
        The GPU model.
    gpu : int
        Ordinal, as CUDA counts.
    source_hash, space_hash : str
        Of the kernels and of the configurations.

    Raises
    ------
    RunnerError
        If nvidia-ml-py, the driver or the GPU is missing; says which.
    """
    with nvml.open_nvml() as pynvml:
        handle = nvml.visible_handle(pynvml, gpu)
        cuda = pynvml.nvmlSystemGetCudaDriverVersion_v2()
        return {
            "arch": arch.name,
            "gpu_name": str(pynvml.nvmlDeviceGetName(handle)),
            "driver": str(pynvml.nvmlSystemGetDriverVersion()),
            "cuda": f"{cuda // 1000}.{cuda % 1000 // 10}",
            "triton": _version("triton"),
            "torch": _version("torch"),
            "kernel_source": source_hash,
            "config_space": space_hash,
        }


def gpu_state(gpu: int = 0) -> GpuState:
    """Read clocks, temperature, power and throttle reasons.

    Raises
    ------
    RunnerError
        If nvidia-ml-py, the driver or the GPU is missing; says which.
    """
    with nvml.open_nvml() as pynvml:
        # Clocks, power and temperature belong to the whole GPU.
        handle = nvml.physical_handle(pynvml, nvml.visible_handle(pynvml, gpu))
        reasons = 0
        with suppress(pynvml.NVMLError, AttributeError):
            reasons = pynvml.nvmlDeviceGetCurrentClocksEventReasons(handle)
        power_mw = 0
        with suppress(pynvml.NVMLError):
            power_mw = pynvml.nvmlDeviceGetPowerUsage(handle)
        return GpuState(
            sm_clock_mhz=int(pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM)),
            memory_clock_mhz=int(pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_MEM)),
            temperature_c=int(pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU)),
            power_w=power_mw / 1000.0,
            throttle_reasons=tuple(name for bit, name in _THROTTLE_REASONS.items() if reasons & bit),
        )


@contextmanager
def collector_paused() -> Iterator[None]:
    """Keep the garbage collector from running between two launches."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextmanager
def timing_lock(gpu: int = 0, identity: str | None = None) -> Iterator[None]:
    """Hold the right to time on a GPU; two timing jobs would measure each other.

    Parameters
    ----------
    gpu : int, default=0
        Ordinal, as CUDA counts.
    identity : str, optional
        Name of the device in the lock's file name, its UUID by preference; the ordinal by default.

    Raises
    ------
    RunnerError
        If another process holds it; names the process.
    """
    path = (settings().lock_dir or Path(tempfile.gettempdir())) / f"wavetune-timing-{identity or f'gpu{gpu}'}.lock"
    try:
        # World-writable, so that users who share a GPU share its lock.
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise RunnerError(f"cannot open the timing lock {path}: {error}; set WAVETUNE_LOCK_DIR") from None
    try:
        with suppress(OSError):
            os.fchmod(descriptor, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.read(descriptor, 100).decode(errors="replace").strip() or "another process"
            raise RunnerError(f"GPU {gpu} is already being timed by {holder} (lock {path}); wait for it") from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"process {os.getpid()}\n".encode(), 0)
        yield
        os.ftruncate(descriptor, 0)
    finally:
        # Closing releases the lock, as the end of the process does; the file stays, since removing it would race.
        os.close(descriptor)
