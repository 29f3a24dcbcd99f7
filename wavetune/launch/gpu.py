"""The GPU that a tensor is on, as launchers see it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from wavetune.core.arch import ArchSpec, find_arch
from wavetune.errors import ArchError
from wavetune.kernels.call import IS_INTERPRETED
from wavetune.runtime.device import Device, cuda_device, resolve_device

INTERPRETED_ARCH = "nvidia-h200"
"""What Triton's interpreter plays where no architecture is named: the GPU whose kernels have every feature."""


@dataclass(frozen=True, slots=True, eq=False)
class LaunchGpu:
    """Where launches go; one object for each device of the process.

    Parameters
    ----------
    index : int or None
        CUDA ordinal; None in Triton's interpreter.
    arch : ArchSpec
        The GPU, with the SMs that launches may use. One that wavetune does not know is described by its driver.
    device : Device or None
        What the runtime answers for; None if it does not know the GPU.
    """

    index: int | None
    arch: ArchSpec
    device: Device | None

    def activate(self) -> AbstractContextManager[object]:
        """Make the GPU the current one of this thread, for as long as the context lasts."""
        return nullcontext() if self.index is None else torch.cuda.device(self.index)

    def is_current(self) -> bool:
        """Whether launches of this thread go to this GPU."""
        return self.index is None or current_device() == self.index

    def is_capturing(self) -> bool:
        """Whether the current stream is being captured into a graph."""
        return self.index is not None and torch.cuda.is_current_stream_capturing()


# The functions behind torch.cuda.current_device and current_stream. The stream costs 0.1 us this way instead of 1.5:
# no stream object is made. They are missing in builds without CUDA, which never call them.
current_device: Callable[[], int] = getattr(torch._C, "_cuda_getDevice", torch.cuda.current_device)
current_stream: Callable[[int], int] = getattr(
    torch._C, "_cuda_getCurrentRawStream", lambda index: int(torch.cuda.current_stream(index).cuda_stream)
)

_gpus: dict[int, LaunchGpu] = {}
_interpreted: dict[Device, LaunchGpu] = {}


def find_gpu(device: torch.device) -> LaunchGpu:
    """Return the GPU of a device; any CPU in Triton's interpreter."""
    if device.type == "cpu" and IS_INTERPRETED:
        return _interpreted_gpu()
    index = torch.cuda.current_device() if device.index is None else device.index
    gpu = _gpus.get(index)
    if gpu is None:
        # Two threads may both make one; they agree on the first.
        gpu = _gpus.setdefault(index, _describe_gpu(index))
    return gpu


def _interpreted_gpu() -> LaunchGpu:
    try:
        device = resolve_device()
    except ArchError:
        device = resolve_device(INTERPRETED_ARCH)
    return _interpreted.setdefault(device, LaunchGpu(None, device.arch, device))


def _describe_gpu(index: int) -> LaunchGpu:
    try:
        device = cuda_device(index)
    except ArchError:
        return LaunchGpu(index, _described_by_driver(torch.cuda.get_device_properties(index)), None)
    # Persistent kernels launch what is resident at once, on the SMs that are really there.
    arch = dataclasses.replace(device.arch, num_sms=device.num_sms) if device.is_scaled else device.arch
    return LaunchGpu(index, arch, device)


def _described_by_driver(properties: Any) -> ArchSpec:
    """Describe a GPU that is not in `wavetune.core.arch`; limits of a CTA as on the nearest known kind."""
    is_amd = bool(torch.version.hip)
    nearest = find_arch("amd-mi300x" if is_amd else "nvidia-a100")
    # Builds of torch for AMD do not have the larger limit, nor do some have the registers.
    smem = getattr(properties, "shared_memory_per_block_optin", properties.shared_memory_per_block)
    return dataclasses.replace(
        nearest,
        name=str(properties.name),
        aliases=(),
        target=str(properties.gcnArchName).split(":")[0] if is_amd else f"sm_{properties.major}{properties.minor}",
        num_sms=int(properties.multi_processor_count),
        warp_size=int(properties.warp_size),
        max_warps_per_sm=int(properties.max_threads_per_multi_processor) // int(properties.warp_size),
        registers_per_sm=int(getattr(properties, "regs_per_multiprocessor", nearest.registers_per_sm)),
        smem_per_sm_bytes=int(properties.shared_memory_per_multiprocessor),
        smem_per_cta_bytes=int(smem),
        l2_bytes=int(properties.L2_cache_size),
        source="torch.cuda.get_device_properties; bandwidth and matrix rates are not known",
    )
