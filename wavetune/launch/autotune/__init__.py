"""The autotuner for kernels of the user's own; nothing here knows the families of `wavetune.kernels`."""

from wavetune.launch.autotune.decorator import AutotunedKernel as AutotunedKernel
from wavetune.launch.autotune.decorator import KernelChoice as KernelChoice
from wavetune.launch.autotune.decorator import autotune as autotune
