"""Element types by the short names used in file names and on the command line."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from wavetune.errors import ProblemError


@dataclass(frozen=True, slots=True)
class DType:
    """An element type.

    Parameters
    ----------
    name : str
        Short name, as in ``gemm-bf16.json``.
    input_bytes : int
        Size of one element of the inputs.
    output_bytes : int
        Size of one element of the result that a kernel of this dtype stores (bf16 for fp8 inputs).
    aliases : tuple of str
        Other spellings, such as torch's.
    is_scaled : bool, default=False
        Whether products carry scales: for the whole tensor or for each row, applied to the finished sum, unless
        ``scale_block`` says otherwise.
    scale_block : int, default=0
        Elements of k that share a scale, as do as many rows of B; 0 if scales do not change along k. Such scales are
        applied inside the main loop, so they make a format of its own, with its own kernels and models.
    """

    name: str
    input_bytes: int
    output_bytes: int
    aliases: tuple[str, ...] = ()
    is_scaled: bool = False
    scale_block: int = 0


_ALL = (
    DType("bf16", 2, 2, ("bfloat16", "torch.bfloat16")),
    DType("fp16", 2, 2, ("float16", "half", "torch.float16")),
    DType("fp32", 4, 4, ("float32", "float", "torch.float32")),
    DType("fp8", 1, 2, ("fp8_e4m3", "float8_e4m3fn", "torch.float8_e4m3fn"), is_scaled=True),
    # The same elements, summed by the matrix unit alone, at its precision.
    DType("fp8_fast", 1, 2, ("fp8_e4m3_fast",), is_scaled=True),
    # A scale for 128 elements of each row of A, and for 128 x 128 elements of B (DeepSeek-V3, arXiv:2412.19437, 3.3.2).
    DType("fp8_block128", 1, 2, ("fp8_e4m3_block128",), is_scaled=True, scale_block=128),
    DType("int8", 1, 4, ("torch.int8",)),
)

DTYPES = MappingProxyType({dtype.name: dtype for dtype in _ALL})


class _Spellings(dict[str, DType]):
    """DTypes by spelling; what is no text, such as torch's own dtypes, is looked for as it prints."""

    def __missing__(self, key: object) -> DType:
        if isinstance(key, str):
            raise KeyError(key)
        return self[str(key)]


_BY_SPELLING = _Spellings({spelling: dtype for dtype in _ALL for spelling in (dtype.name, *dtype.aliases)})


def find_dtype(name: Any) -> DType:
    """Resolve a short name or an alias, or a dtype of torch, which prints as one.

    Raises
    ------
    ProblemError
        If no dtype has this name.
    """
    try:
        return _BY_SPELLING[name]
    except (KeyError, TypeError):
        known = ", ".join(DTYPES)
        raise ProblemError(f"unknown dtype {name!r}; known: {known}") from None
