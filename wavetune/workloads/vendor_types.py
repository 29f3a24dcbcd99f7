"""How libraries spell element types, accumulation, scaling and activations."""

from __future__ import annotations

from types import MappingProxyType

from wavetune.errors import WorkloadError

HIPBLASLT_TYPES = MappingProxyType(
    {
        "f32_r": "fp32", "f16_r": "fp16", "bf16_r": "bf16", "f64_r": "fp64", "i8_r": "int8", "i32_r": "int32",
        "f8_r": "fp8", "bf8_r": "fp8_e5m2", "f8_fnuz_r": "fp8_e4m3fnuz", "bf8_fnuz_r": "fp8_e5m2fnuz",
        "f6_r": "fp6", "f4_r": "fp4",
    }
)  # fmt: skip

HIPBLASLT_COMPUTE = MappingProxyType(
    {
        "f32_r": "fp32", "s": "fp32", "xf32_r": "tf32", "x": "tf32", "f64_r": "fp64", "d": "fp64", "i32_r": "int32",
        "i": "int32", "f32_f16_r": "fp32_fast_fp16", "f32_bf16_r": "fp32_fast_bf16",
        "f32_fast_f16_r": "fp32_fast_fp16", "f32_fast_bf16_r": "fp32_fast_bf16", "f32_fast_xf32_r": "tf32",
    }
)  # fmt: skip

CUDA_TYPES = MappingProxyType(
    {
        "R_16BF": "bf16", "R_16F": "fp16", "R_32F": "fp32", "R_64F": "fp64", "R_8I": "int8", "R_8U": "uint8",
        "R_32I": "int32", "R_4I": "int4", "R_8F_E4M3": "fp8", "R_8F_E5M2": "fp8_e5m2", "R_4F_E2M1": "fp4",
        "R_8F_E4M3_FNUZ": "fp8_e4m3fnuz", "R_8F_E5M2_FNUZ": "fp8_e5m2fnuz", "C_32F": "complex64", "C_64F": "complex128",
    }
)  # fmt: skip

CUDA_COMPUTE = MappingProxyType(
    {
        "16F": "fp16", "32F": "fp32", "32F_FAST_TF32": "tf32", "32F_FAST_16F": "fp32_fast_fp16", "32XF": "tf32",
        "32F_FAST_16BF": "fp32_fast_bf16", "64F": "fp64", "32I": "int32",
    }
)  # fmt: skip

TUNABLEOP_TYPES = MappingProxyType(
    {
        "BFloat16": "bf16", "Half": "fp16", "float": "fp32", "tf32": "fp32", "double": "fp64", "signed char": "int8",
        "Float8_e4m3fn": "fp8", "Float8_e5m2": "fp8_e5m2", "Float8_e4m3fnuz": "fp8_e4m3fnuz",
        "Float8_e5m2fnuz": "fp8_e5m2fnuz",
    }
)  # fmt: skip

_SCALES = MappingProxyType(
    {
        "0": "none", "1": "tensor", "s": "tensor", "2": "row", "v": "row", "3": "block32", "4": "block16",
        "5": "block32_fp8", "6": "block16_fp8", "7": "block32_e5m3", "8": "block16_e5m3",
    }
)  # fmt: skip
"""Of hipblaslt-bench (``benchScaleFormat`` of hipBLASLt); older builds print letters."""

_CUDA_SCALES = MappingProxyType(
    {
        "SCALAR_32F": "tensor", "OUTER_VEC_32F": "row", "VEC16_UE4M3": "block16", "VEC32_UE8M0": "block32",
        "VEC128_32F": "block128", "BLK128x128_32F": "block128x128",
    }
)  # fmt: skip


def hipblaslt_type(option: str, spelling: str) -> str:
    """Return the element type of ``--a_type`` and its kin.

    Raises
    ------
    WorkloadError
        If the spelling is unknown.
    """
    return _look_up(option, spelling, HIPBLASLT_TYPES)


def hipblaslt_compute(spelling: str) -> str:
    """Return the accumulator of ``--compute_type``; profile logs put ``c_`` before it.

    Raises
    ------
    WorkloadError
        If the spelling is unknown.
    """
    return _look_up("compute_type", spelling.removeprefix("c_"), HIPBLASLT_COMPUTE)


def cuda_type(where: str, spelling: str) -> str:
    """Return the element type of a cuBLASLt descriptor.

    Raises
    ------
    WorkloadError
        If the spelling is unknown.
    """
    return _look_up(where, spelling, CUDA_TYPES)


def cuda_compute(spelling: str) -> str:
    """Return the accumulator of ``COMPUTE_32F`` and its kin.

    Raises
    ------
    WorkloadError
        If the spelling is unknown.
    """
    return _look_up("computeType", spelling.removeprefix("COMPUTE_").removesuffix("_PEDANTIC"), CUDA_COMPUTE)


def hipblaslt_scale(value: str) -> str:
    """Return the mode of ``--scaleA``; modes without a name keep their number."""
    return _SCALES.get(value, f"mode{value}")


def cuda_scale(mode: str) -> str:
    """Return the mode of cuBLASLt's ``aScaleMode``; modes without a name keep their spelling."""
    return _CUDA_SCALES.get(mode, mode.lower())


def both_scales(scale_a: str, scale_b: str) -> str:
    """Name the modes of both operands, A first."""
    # One scale for 128 elements of a row of A, and for 128 x 128 of B: known by the name of the latter.
    if (scale_a, scale_b) == ("block128", "block128x128"):
        return scale_b
    return scale_a if scale_a == scale_b else f"{scale_a}/{scale_b}"


def _look_up(where: str, spelling: str, table: MappingProxyType[str, str]) -> str:
    try:
        return table[spelling]
    except KeyError:
        raise WorkloadError(f"unknown {where} {spelling!r}; known: {', '.join(table)}") from None
