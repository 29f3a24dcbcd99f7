"""A driver's management library with GPUs that a test makes up."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace


class NVMLError(Exception):
    """What the library raises."""


@dataclass(eq=False)
class Slice:
    """A MIG slice."""

    uuid: str
    num_sms: int
    parent: Gpu | None = None


@dataclass(eq=False)
class Gpu:
    """A GPU."""

    name: str
    uuid: str
    slices: list[Slice] = field(default_factory=list)
    has_mig: bool = True

    def __post_init__(self) -> None:
        for part in self.slices:
            part.parent = self


def make_nvml(gpus: list[Gpu], *, has_driver: bool = True) -> SimpleNamespace:
    """Return a module that answers as ``pynvml`` does."""
    by_uuid = {item.uuid: item for gpu in gpus for item in (gpu, *gpu.slices)}
    module = SimpleNamespace(NVMLError=NVMLError, n_open=0, n_calls=0)

    def init() -> None:
        module.n_calls += 1
        if not has_driver:
            raise NVMLError("Driver Not Loaded")
        module.n_open += 1

    def shut_down() -> None:
        module.n_open -= 1

    def handle_by_uuid(uuid: str) -> object:
        if uuid not in by_uuid:
            raise NVMLError("Not Found")
        return by_uuid[uuid]

    def mig_mode(gpu: Gpu) -> list[int]:
        if not gpu.has_mig:
            raise NVMLError("Not Supported")
        return [int(bool(gpu.slices)), 0]

    def slice_by_index(gpu: Gpu, index: int) -> Slice:
        # Indices have gaps where slices were destroyed.
        if index == 0 or index > len(gpu.slices):
            raise NVMLError("Not Found")
        return gpu.slices[index - 1]

    module.nvmlInit, module.nvmlShutdown = init, shut_down
    module.nvmlDeviceGetCount = lambda: len(gpus)
    module.nvmlDeviceGetHandleByIndex = lambda index: gpus[index]
    module.nvmlDeviceGetHandleByUUID = handle_by_uuid
    module.nvmlDeviceGetUUID = lambda item: item.uuid
    module.nvmlDeviceGetName = lambda item: item.name
    module.nvmlDeviceGetMigMode = mig_mode
    module.nvmlDeviceGetMaxMigDeviceCount = lambda gpu: 7
    module.nvmlDeviceGetMigDeviceHandleByIndex = slice_by_index
    module.nvmlDeviceIsMigDeviceHandle = lambda item: SimpleNamespace(value=int(isinstance(item, Slice)))
    module.nvmlDeviceGetDeviceHandleFromMigDeviceHandle = lambda part: part.parent
    module.nvmlDeviceGetAttributes_v2 = lambda part: SimpleNamespace(multiprocessorCount=part.num_sms)
    return module
