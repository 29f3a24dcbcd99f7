"""Stand-ins for tensors, so that kernels compile without torch and without a GPU."""

from __future__ import annotations

from wavetune.core.dtype import find_dtype
from wavetune.kernels.gemm_operands import TORCH_DTYPES


class PlaceholderDType:
    """Looks like a torch dtype to Triton, which reads its printed name.

    Parameters
    ----------
    name : str
        Short dtype name.
    """

    is_floating_point = True

    def __init__(self, name: str) -> None:
        self._name = TORCH_DTYPES[name]
        self.itemsize = find_dtype(name).input_bytes

    def __str__(self) -> str:
        return f"torch.{self._name}"

    __repr__ = __str__


class Placeholder:
    """Looks like a contiguous, 16-byte aligned tensor.

    Parameters
    ----------
    dtype : str
        Short dtype name.
    shape : tuple of int
        Sizes.
    """

    def __init__(self, dtype: str, shape: tuple[int, ...]) -> None:
        self.dtype = PlaceholderDType(dtype)
        self.shape = shape

    def data_ptr(self) -> int:
        """Return an aligned address that is never read."""
        return 1 << 20

    def stride(self, axis: int) -> int:
        """Return the elements from one index of ``axis`` to the next."""
        stride = 1
        for size in self.shape[axis + 1 :]:
            stride *= size
        return stride

    def numel(self) -> int:
        """Return the number of elements."""
        count = 1
        for size in self.shape:
            count *= size
        return count
