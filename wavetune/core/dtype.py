"""Element types by the short names used in file names and on the command line."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

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
    """

    name: str
    input_bytes: int
    output_bytes: int
    aliases: tuple[str, ...] = ()


_ALL = (
    DType("bf16", 2, 2, ("bfloat16", "torch.bfloat16")),
    DType("fp16", 2, 2, ("float16", "half", "torch.float16")),
    DType("fp32", 4, 4, ("float32", "float", "torch.float32")),
    DType("fp8", 1, 2, ("fp8_e4m3", "float8_e4m3fn", "torch.float8_e4m3fn")),
    DType("int8", 1, 4, ("torch.int8",)),
)

DTYPES = MappingProxyType({dtype.name: dtype for dtype in _ALL})
_BY_SPELLING = {spelling: dtype for dtype in _ALL for spelling in (dtype.name, *dtype.aliases)}


def find_dtype(name: str) -> DType:
    """Resolve a short name or an alias.

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
