"""Which GPU an answer is for, found without importing torch and without making a CUDA context."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

from wavetune.core.arch import ARCHS, ArchSpec, find_arch
from wavetune.core.problem import check_dimension
from wavetune.errors import ArchError, ProblemError, ProblemTypeError, RunnerError
from wavetune.runtime.settings import settings

ARCH_VARIABLE = "WAVETUNE_ARCH"
"""Environment variable: the architecture to answer for when a call names none."""

_SLICE_MARK = " MIG "
"""What CUDA puts between the name of a GPU and the name of a slice of it."""


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU, or the part of one, that launches go to.

    Parameters
    ----------
    arch : ArchSpec
        The known GPU model.
    num_sms : int
        SMs that a launch may use; fewer than ``arch.num_sms`` on a MIG slice or under another limit.
    name : str
        As the driver reports it; the architecture's name if it was named.
    index : int or None
        CUDA ordinal; None if the device was named.
    """

    arch: ArchSpec
    num_sms: int
    name: str
    index: int | None = None

    @property
    def is_scaled(self) -> bool:
        """Whether launches may use part of the GPU only."""
        return self.num_sms != self.arch.num_sms


_named: dict[tuple[str, int | None], Device] = {}
_by_index: dict[int, Device] = {}
_by_driver: list[Device] = []


def resolve_device(arch: str | None = None, num_sms: int | None = None) -> Device:
    """Find the device that answers are for.

    In this order: the explicit name, the setting ``arch``, torch's current device if torch is loaded and has started
    CUDA, the first GPU that CUDA would see according to the driver.

    Parameters
    ----------
    arch : str, optional
        GPU name.
    num_sms : int, optional
        SMs that launches may use; those of the whole GPU, or of the slice that was found, if not given.

    Raises
    ------
    ArchError
        If the name is unknown, ``num_sms`` is impossible, or no GPU was named and none found.
    """
    name = settings().arch if arch is None else arch
    device = current_device() if name is None else named_device(name)
    return device if num_sms is None else _with_sms(device, num_sms)


def named_device(name: str) -> Device:
    """Return the whole GPU of this name; raises `ArchError` if it is unknown."""
    arch = find_arch(name)
    key = (arch.name, None)
    return _named.get(key) or _named.setdefault(key, Device(arch, arch.num_sms, arch.name))


def current_device() -> Device:
    """Return torch's current device if it has started CUDA, else what the driver says; see `resolve_device`."""
    torch = sys.modules.get("torch")
    # While another thread imports torch, it has no attributes yet.
    cuda = getattr(torch, "cuda", None)
    if cuda is not None and cuda.is_initialized():
        return cuda_device(cuda.current_device())
    if not _by_driver:
        _by_driver.append(_ask_driver())
    return _by_driver[0]


def cuda_device(index: int) -> Device:
    """Describe a CUDA ordinal by what torch says of it, for whoever holds a tensor; cached.

    Raises
    ------
    ArchError
        If torch is not loaded, or its device is not a known GPU.
    """
    device = _by_index.get(index)
    if device is None:
        torch: Any = sys.modules.get("torch")
        if torch is None:
            raise ArchError(f"CUDA device {index} is described by torch, and torch is not loaded; pass arch=...")
        properties = torch.cuda.get_device_properties(index)
        device = _by_index[index] = _describe(properties.name, int(properties.multi_processor_count), index)
    return device


def resolve_arch(arch: str | None) -> ArchSpec:
    """Resolve an explicit name, or else the setting; never looks at the machine.

    Raises
    ------
    ArchError
        If the name is unknown, or none was given.
    """
    name = settings().arch if arch is None else arch
    if not name:
        known = ", ".join(ARCHS)
        raise ArchError(f"no GPU architecture given: pass arch=... (--arch) or set {ARCH_VARIABLE}; known: {known}")
    return find_arch(name)


def forget_devices() -> None:
    """Look at devices and variables afresh next time."""
    _by_index.clear()
    _by_driver.clear()


def _ask_driver() -> Device:
    from wavetune.runtime import nvml  # Only where no GPU is named.

    try:
        found = nvml.describe_visible(0)
    except RunnerError as error:
        raise ArchError(
            f"no GPU architecture given, and none found ({error}): pass arch=... (--arch) or set {ARCH_VARIABLE}; "
            f"known: {', '.join(ARCHS)}"
        ) from None
    arch = _find_by_name(found.name)
    return Device(arch, nvml.shared_sms(found.num_sms or arch.num_sms), found.name, 0)


def _describe(name: str, num_sms: int, index: int) -> Device:
    return Device(_find_by_name(name), num_sms, name, index)


def _find_by_name(name: str) -> ArchSpec:
    try:
        return find_arch(name.partition(_SLICE_MARK)[0])
    except ArchError as error:
        raise ArchError(f"{error}; pass arch=... to be answered for one of them") from None


def _with_sms(device: Device, num_sms: int) -> Device:
    try:
        count = check_dimension("num_sms", num_sms)
    except (ProblemError, ProblemTypeError):
        count = 0
    if not 1 <= count <= device.arch.num_sms:
        raise ArchError(
            f"num_sms must be an integer in [1, {device.arch.num_sms}], the SMs of {device.arch.name}, got {num_sms!r}"
        )
    num_sms = count
    if num_sms == device.num_sms:
        return device
    if device.index is not None:
        return Device(device.arch, num_sms, device.name, device.index)
    key = (device.arch.name, num_sms)
    return _named.get(key) or _named.setdefault(key, Device(device.arch, num_sms, device.name))
