"""The GPU that CUDA would use, asked of the driver: no CUDA context is made, so a process may still fork.

NVML counts GPUs in the order of the PCI bus, and knows nothing of CUDA_VISIBLE_DEVICES. Both are put right here, by the
rules of the CUDA programming guide (environment variables): ordinals or abbreviated UUIDs, up to the first entry that
names nothing; of a GPU that is cut up by MIG, the first slice unless one is named.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wavetune.errors import RunnerError

VISIBLE_VARIABLE = "CUDA_VISIBLE_DEVICES"
ORDER_VARIABLE = "CUDA_DEVICE_ORDER"


@dataclass(frozen=True, slots=True)
class VisibleGpu:
    """A GPU as CUDA shows it to this process.

    Parameters
    ----------
    name : str
        Name of the whole GPU, as the driver reports it.
    num_sms : int or None
        SMs of the MIG slice; None for a whole GPU, of which NVML does not tell.
    """

    name: str
    num_sms: int | None


@contextmanager
def open_nvml() -> Iterator[Any]:
    """Open the driver's management library.

    Raises
    ------
    RunnerError
        If nvidia-ml-py or the driver is missing; says which.
    """
    try:
        import pynvml
    except ImportError:
        raise RunnerError("reading the GPU needs nvidia-ml-py: pip install nvidia-ml-py") from None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise RunnerError(
            f"no NVIDIA driver answers ({error}); measure on a GPU machine, or use a replay of recorded measurements"
        ) from None
    try:
        yield pynvml
    finally:
        pynvml.nvmlShutdown()


def visible_handle(nvml: Any, gpu: int) -> Any:
    """Return the NVML handle of a CUDA ordinal: of a GPU, or of a MIG slice.

    Parameters
    ----------
    nvml : module
        From `open_nvml`.
    gpu : int
        Ordinal, as CUDA counts.

    Raises
    ------
    RunnerError
        If CUDA would not see such a GPU, or which one it is cannot be known without asking CUDA.
    """
    visible = os.environ.get(VISIBLE_VARIABLE)
    if visible is None:
        return _by_ordinal(nvml, gpu)
    handles = []
    for entry in visible.split(","):
        handle = _by_name(nvml, entry.strip())
        if handle is None:
            break
        handles.append(handle)
    if gpu >= len(handles):
        raise RunnerError(f"GPU {gpu} is not among the {len(handles)} of {VISIBLE_VARIABLE}={visible}")
    return handles[gpu]


def physical_handle(nvml: Any, handle: Any) -> Any:
    """Return the handle of the whole GPU that a MIG slice is part of; a whole GPU's own."""
    return nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle) if _is_slice(nvml, handle) else handle


def describe_visible(gpu: int = 0) -> VisibleGpu:
    """Describe a CUDA ordinal.

    Raises
    ------
    RunnerError
        If nvidia-ml-py, the driver or the GPU is missing, or the GPU cannot be told; says which.
    """
    with open_nvml() as nvml:
        handle = visible_handle(nvml, gpu)
        try:
            num_sms = None
            if _is_slice(nvml, handle):
                num_sms = int(nvml.nvmlDeviceGetAttributes_v2(handle).multiprocessorCount)
            return VisibleGpu(gpu_name(nvml, handle), num_sms)
        except nvml.NVMLError as error:
            raise RunnerError(f"the driver does not describe GPU {gpu} ({error})") from None


def gpu_name(nvml: Any, handle: Any) -> str:
    """Return the name of the whole GPU behind a handle."""
    name = nvml.nvmlDeviceGetName(physical_handle(nvml, handle))
    return name.decode() if isinstance(name, bytes) else str(name)


def shared_sms(num_sms: int) -> int:
    """Return the SMs that the multi-process service leaves to this process, of those of its GPU.

    CUDA_MPS_ACTIVE_THREAD_PERCENTAGE counts only where the service runs, and is rounded up to whole SMs.
    """
    pipes = Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY") or "/tmp/nvidia-mps")
    try:
        percentage = float(os.environ.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", ""))
    except ValueError:
        return num_sms
    if not 0.0 < percentage < 100.0 or not (pipes / "control").exists():
        return num_sms
    return max(1, math.ceil(num_sms * percentage / 100.0))


def _by_name(nvml: Any, entry: str) -> Any:
    """Resolve an entry of CUDA_VISIBLE_DEVICES; None if it names nothing, which ends the list."""
    if entry.isdecimal():
        return _by_ordinal(nvml, int(entry)) if int(entry) < nvml.nvmlDeviceGetCount() else None
    if not entry.startswith(("GPU-", "MIG-")):
        return None
    try:
        handle = nvml.nvmlDeviceGetHandleByUUID(entry)
    except nvml.NVMLError:
        handles = (nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount()))
        matching = [other for other in handles if str(nvml.nvmlDeviceGetUUID(other)).startswith(entry)]
        if len(matching) != 1:
            return None
        handle = matching[0]
    return _first_slice(nvml, handle)


def _by_ordinal(nvml: Any, ordinal: int) -> Any:
    count = nvml.nvmlDeviceGetCount()
    if not 0 <= ordinal < count:
        raise RunnerError(f"there is no GPU {ordinal}; the driver reports {count}")
    if count > 1 and os.environ.get(ORDER_VARIABLE) != "PCI_BUS_ID":
        # CUDA counts from the fastest GPU on, by a rule of its own. Among equal ones it does not matter.
        names = {gpu_name(nvml, nvml.nvmlDeviceGetHandleByIndex(index)) for index in range(count)}
        if len(names) > 1:
            raise RunnerError(
                f"this machine has different GPUs ({', '.join(sorted(names))}), and which of them is {ordinal} is "
                f"known to CUDA only; set {ORDER_VARIABLE}=PCI_BUS_ID, or name a UUID in {VISIBLE_VARIABLE}"
            )
    return _first_slice(nvml, nvml.nvmlDeviceGetHandleByIndex(ordinal))


def _first_slice(nvml: Any, handle: Any) -> Any:
    """Return the first MIG slice of a GPU that is cut up; the handle itself of one that is not, or of a slice."""
    try:
        if _is_slice(nvml, handle) or not nvml.nvmlDeviceGetMigMode(handle)[0]:
            return handle
        count = nvml.nvmlDeviceGetMaxMigDeviceCount(handle)
    except (nvml.NVMLError, AttributeError):  # GPUs and drivers without MIG.
        return handle
    for index in range(count):
        try:
            return nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
        except nvml.NVMLError:
            continue
    return handle


def _is_slice(nvml: Any, handle: Any) -> bool:
    try:
        answer = nvml.nvmlDeviceIsMigDeviceHandle(handle)
    except (nvml.NVMLError, AttributeError):
        return False
    return bool(getattr(answer, "value", answer))
