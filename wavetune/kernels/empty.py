# mypy: ignore-errors
"""A kernel that does nothing: what a launch costs at least."""

import triton

from wavetune.core.arch import ArchSpec
from wavetune.kernels.call import KernelCall, KernelVariant


@triton.jit
def empty_kernel():
    """Do nothing."""


def empty_call(arch: ArchSpec) -> KernelCall:
    """Return a launch of one CTA per SM that does nothing."""
    return KernelCall(KernelVariant(empty_kernel, {}, num_warps=4, num_stages=1, arch=arch), (), arch.num_sms)
