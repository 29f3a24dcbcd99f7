"""Problems of other families than GEMM: from a line of a workload, or from sizes by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from wavetune.core.attention_problem import HEAD_DIMS, AttentionDecodeProblem, AttentionProblem, check_sequences
from wavetune.core.config import ATTENTION, ATTENTION_DECODE, GROUPED_GEMM, find_kernel_spec
from wavetune.core.grouped_problem import GroupedGemmProblem, check_experts, spread_groups
from wavetune.core.problem import Problem
from wavetune.core.workload_entry import WorkloadKey
from wavetune.errors import ProblemError

FAMILY_DEFAULTS: Mapping[str, Mapping[str, int | str]] = MappingProxyType(
    {
        ATTENTION.name: {
            "batch": 1, "kv_len": "q_len", "spread": 0, "kv_heads": "heads", "is_causal": 1, "window": 0,
        },
        ATTENTION_DECODE.name: {"batch": 1, "spread": 0, "kv_heads": "heads", "page_size": 16, "window": 0},
        GROUPED_GEMM.name: {},
    }
)  # fmt: skip
"""Sizes of a family's keys that may be left out: a number, or the name of the size that they then equal."""


def problem_of_sizes(kernel: str, sizes: Mapping[str, int], *, dtype: str, layout: str) -> Problem:
    """Return the problem of a family from the sizes of its key by name; see `FAMILY_DEFAULTS`.

    Raises
    ------
    ProblemError, ProblemTypeError
        If a size is missing, unknown or impossible, or the family has no problems of its own.
    """
    make = _maker(kernel)
    dims = find_kernel_spec(kernel).dims
    unknown = sorted(set(sizes) - set(dims))
    if unknown:
        raise ProblemError(f"{kernel} has no size {unknown[0]!r}; known: {', '.join(dims)}")
    values: list[int] = []
    for name in dims:
        value = sizes.get(name, FAMILY_DEFAULTS[kernel].get(name))
        if isinstance(value, str):
            value = sizes.get(value)
        if value is None:
            raise ProblemError(f"{kernel} needs the size {name}")
        values.append(value)
    return make(tuple(values), dtype, layout)


def problem_of_key(key: WorkloadKey) -> Problem | None:
    """Return the grouped GEMM, prefill or decode step that a line of a workload is, or None if no family computes it.

    One query row of each sequence against a longer cache is a decode step. Groups of unknown sizes are taken to be as
    even as possible. Groups of different weights are none, nor are batched products, operands that are not plain, and
    heads of other dimensions than kernels are written for.

    Raises
    ------
    ProblemError
        If there are more sequences or experts than a problem can hold.
    """
    if key.operation == "grouped_gemm" and key.layout == "nk" and key.has_plain_operands:
        if not key.groups:
            experts = check_experts(key.batch)
            active = min(experts, key.m)
            sizes = spread_groups(experts, key.m, active, -(-key.m // active))
        elif all(group[1:] == (key.n, key.k) for group in key.groups):
            sizes = tuple(group[0] for group in key.groups)
        else:
            return None
        return GroupedGemmProblem(sizes, key.n, key.k, key.kernel_dtype, "nk", key.alignment)
    if key.operation == "attention" and key.heads and key.k in HEAD_DIMS:
        kv_heads, batch = key.kv_heads or key.heads, check_sequences("batch", key.batch)
        if key.m == 1 and key.n > 1:
            return AttentionDecodeProblem((key.n,) * batch, key.heads, kv_heads, key.k, dtype=key.dtype)
        return AttentionProblem(
            (key.m,) * batch, (key.n,) * batch, key.heads, kv_heads, key.k, key.is_causal, dtype=key.dtype
        )
    return None


def _maker(kernel: str) -> Callable[[tuple[int, ...], str, str], Problem]:
    if kernel == GROUPED_GEMM.name:
        return GroupedGemmProblem.from_dims
    if kernel in (ATTENTION.name, ATTENTION_DECODE.name):
        return AttentionProblem.from_dims if kernel == ATTENTION.name else AttentionDecodeProblem.from_dims
    raise ProblemError(f"kernel {kernel!r} has no problems of its own; known: {', '.join(FAMILY_DEFAULTS)}")
