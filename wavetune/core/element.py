"""Names of element types that logs and workloads speak of, also those that no kernel here computes."""

from __future__ import annotations

from types import MappingProxyType

from wavetune.core.dtype import DTYPES, find_dtype
from wavetune.errors import ProblemError

_OTHERS: dict[str, tuple[str, ...]] = {
    "fp64": ("float64", "double", "torch.float64"),
    "int32": ("torch.int32",),
    "int4": (),
    "uint8": ("torch.uint8",),
    "fp8_e5m2": ("float8_e5m2", "torch.float8_e5m2"),
    "fp8_e4m3fnuz": ("float8_e4m3fnuz", "torch.float8_e4m3fnuz"),
    "fp8_e5m2fnuz": ("float8_e5m2fnuz", "torch.float8_e5m2fnuz"),
    "fp6": (),
    "fp4": ("float4_e2m1fn_x2", "torch.float4_e2m1fn_x2"),
    "complex64": ("torch.complex64",),
    "complex128": ("torch.complex128",),
    # Precisions of accumulation rather than of storage.
    "tf32": ("xf32",),
    "fp32_fast_fp16": (),
    "fp32_fast_bf16": (),
    "fp32_fast_fp8": (),
}

ELEMENTS = (*DTYPES, *_OTHERS)
"""Every element type by its short name; those of `DTYPES` first."""

_BY_SPELLING = MappingProxyType(
    {spelling: name for name, spellings in _OTHERS.items() for spelling in (name, *spellings)}
)

_RESULTS = MappingProxyType({"fp8": "bf16", "int8": "int32", "fp4": "bf16", "fp6": "bf16", "int4": "bf16"})
_ACCUMULATORS = MappingProxyType(
    {"int8": "int32", "fp64": "fp64", "complex64": "complex64", "complex128": "complex128"}
)


def find_element(name: object) -> str:
    """Resolve a short name or an alias to the short name.

    Raises
    ------
    ProblemError
        If no element type has this name.
    """
    if isinstance(name, str):
        if name in _BY_SPELLING:
            return _BY_SPELLING[name]
        try:
            return find_dtype(name).name
        except ProblemError:
            pass
    raise ProblemError(f"unknown dtype {name!r}; known: {', '.join(ELEMENTS)}")


def result_element(name: str) -> str:
    """Return the type that a product of two such elements is stored as, unless something else is said."""
    if name.startswith("fp8"):
        return "bf16"
    return _RESULTS.get(name, name)


def accumulator_element(name: str) -> str:
    """Return the type that products of such elements are summed in, unless something else is said."""
    return _ACCUMULATORS.get(name, "fp32")
