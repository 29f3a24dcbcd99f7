"""What an operation of torch computes, as the fields of a workload's problem.

Like `wavetune.recording.recorder`, this is loaded by file name into other people's programs: standard library only.
"""

from __future__ import annotations

from typing import Any

_SCALE_RECIPES = ("tensor", "row", "block16", "block32", "block128", "block128x128")
"""``torch.nn.functional.ScalingType``, by its number."""

_ATTENTION = (
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_fused_attention_overrideable",
)


def describe(function: Any, args: Any, kwargs: Any, result: Any) -> dict[str, Any] | None:
    """Return the problem of a call that was made; None if nothing was computed.

    Parameters
    ----------
    function : torch._ops.OpOverload
        One that `is_counted`.
    args, kwargs, result
        Of the call.

    Returns
    -------
    dict or None
        Fields of `wavetune.core.workload_entry.WorkloadKey`, with torch's names of types.
    """
    arguments = function._schema.arguments
    named = {argument.name: argument.default_value for argument in arguments if argument.has_default_value()}
    named.update(zip((argument.name for argument in arguments), args))  # noqa: B905
    named.update(kwargs)
    first = result[0] if isinstance(result, (tuple, list)) else result
    if first.device.type == "meta":
        return None
    problem: dict[str, Any] = _READERS[function._overloadpacket.__name__](named, first)
    is_work = all(problem[size] for size in ("m", "n", "k")) and problem.get("batch", 1)
    return problem if is_work else None


def is_counted(function: Any) -> bool:
    """Whether an operator is a matrix product or an attention."""
    return function.namespace == "aten" and function._overloadpacket.__name__ in _READERS


def _mm(named: dict[str, Any], result: Any) -> dict[str, Any]:
    return _product(named["self"], named["mat2"], result)


def _addmm(named: dict[str, Any], result: Any) -> dict[str, Any]:
    problem = _product(named["mat1"], named["mat2"], result)
    # A vector is a bias; a matrix is an addend, which BLAS calls C.
    addend = named["self"]
    if named["beta"] != 0 and addend.numel() == addend.shape[-1]:
        problem["bias"] = True
    if "use_gelu" in named:
        problem["activation"] = "gelu" if named["use_gelu"] else "relu"
    return problem


def _bmm(named: dict[str, Any], result: Any) -> dict[str, Any]:
    first, second = (named["self"], named["mat2"]) if "mat2" in named else (named["batch1"], named["batch2"])
    return _product(first, second, result)


def _scaled_mm(named: dict[str, Any], result: Any) -> dict[str, Any]:
    return {**_product(named["self"], named["mat2"], result), **_scales_and_bias(named)}


def _grouped_mm(named: dict[str, Any], result: Any) -> dict[str, Any]:
    first, second, offsets = named["self"], named["mat2"], named["offs"]
    problem = _product(first, second, result) if offsets is None else _grouped_product(first, second, offsets, result)
    return {**problem, **_scales_and_bias(named)}


def _scales_and_bias(named: dict[str, Any]) -> dict[str, Any]:
    said: dict[str, Any] = {"bias": True} if named["bias"] is not None else {}
    if "scale_a" in named:
        first, second = named["self"], named["mat2"]
        # Rows that may have a scale each: of A, and columns of B, in every matrix.
        rows = first.numel() // max(first.shape[-1], 1)
        columns = second.numel() // max(second.shape[-2], 1)
        said["scale"] = _both(_scale_of(named, "a", rows), _scale_of(named, "b", columns))
        if named["use_fast_accum"]:
            said["compute"] = "fp32_fast_fp8"
    return said


def _attention(named: dict[str, Any], result: Any) -> dict[str, Any]:
    query, key = named["query"], named["key"]
    batch, heads, rows, depth = query.shape
    return {
        "operation": "attention", "m": rows, "n": key.shape[2], "k": depth, "dtype": _type(query), "batch": batch,
        "heads": heads, "kv_heads": key.shape[1], "is_causal": bool(named["is_causal"]),
        "dtype_d": _type(result),
    }  # fmt: skip


_READERS = {
    "mm": _mm,
    "_int_mm": _mm,
    "addmm": _addmm,
    "_addmm_activation": _addmm,
    "bmm": _bmm,
    "baddbmm": _bmm,
    "_scaled_mm": _scaled_mm,
    "_scaled_mm_v2": _scaled_mm,
    "_grouped_mm": _grouped_mm,
    "_scaled_grouped_mm": _grouped_mm,
    "_scaled_grouped_mm_v2": _grouped_mm,
    **dict.fromkeys(_ATTENTION, _attention),
}


def _product(first: Any, second: Any, result: Any) -> dict[str, Any]:
    """Return ``first [.., m, k] @ second [.., k, n]``."""
    problem = _sizes_and_storage(first, second, result)
    alignment = _alignment(first, second, result, problem)
    if alignment:
        problem["alignment"] = alignment
    # BLAS runs a batch of one as a plain product.
    if first.dim() == 3 and first.shape[0] != 1:
        problem["operation"] = "batched_gemm"
        problem["batch"] = first.shape[0]
    return problem


def _sizes_and_storage(first: Any, second: Any, result: Any) -> dict[str, Any]:
    m, k = first.shape[-2:]
    return {
        "m": m, "n": second.shape[-1], "k": k, "dtype": _type(first), "dtype_b": _type(second),
        "dtype_d": _type(result), "layout": "nk" if _is_transposed(second) else "kn",
        "layout_a": "km" if _is_transposed(first) else "mk",
    }  # fmt: skip


def _grouped_product(first: Any, second: Any, offsets: Any, result: Any) -> dict[str, Any]:
    """Return a grouped product: offsets cut m (experts), n, or k (their gradients) into groups."""
    problem = {"operation": "grouped_gemm", **_sizes_and_storage(first, second, result)}
    m, n, k = problem["m"], problem["n"], problem["k"]
    number = offsets.numel()
    ends = _values(offsets)
    if ends is None:
        problem["batch"] = number
        if first.dim() == second.dim() == 2:
            problem["m"] = m * number
        return problem
    sizes = [end - begin for begin, end in zip([0, *ends], ends)]  # noqa: B905
    if first.dim() == 2 and second.dim() == 3:
        # Rows beyond the last offset are padding.
        groups: list[Any] = sizes
    elif first.dim() == 3:
        groups = [[m, size, k] for size in sizes if size]
    else:
        groups = [[m, n, size] for size in sizes if size]
    rows = [group if isinstance(group, int) else group[0] for group in groups]
    problem["m"] = sum(rows)
    if groups and not isinstance(groups[0], int):
        problem["n"] = max(group[1] for group in groups)
        problem["k"] = max(group[2] for group in groups)
    problem["groups"] = groups
    return problem


def _values(offsets: Any) -> Any:
    """Return the numbers of a tensor; None where reading them would break a graph capture."""
    if offsets.device.type == "cuda":
        import torch

        if torch.cuda.is_current_stream_capturing():
            return None
    return offsets.tolist()


def _is_transposed(matrix: Any) -> bool:
    """Whether the last two dimensions are stored the other way round."""
    if matrix.stride(-1) == 1 and (matrix.shape[-2] == 1 or matrix.stride(-2) >= matrix.shape[-1]):
        return False
    return bool(matrix.stride(-2) == 1)


def _alignment(first: Any, second: Any, result: Any, problem: dict[str, Any]) -> int:
    """Return the alignment class of strides and offsets in bytes; 0 if it is that of contiguous operands."""
    real, dense = [], []
    rows = (
        (first, problem["m"] if problem["layout_a"] == "km" else problem["k"]),
        (second, problem["k"] if problem["layout"] == "nk" else problem["n"]),
        (result, problem["n"]),
    )
    for matrix, length in rows:
        outer, inner = matrix.stride(-2), matrix.stride(-1)
        bytes_ = matrix.element_size()
        # An operand that is neither way round is copied before it is multiplied.
        real.append((max(outer, inner) if 1 in (outer, inner) else length) * bytes_)
        real.append(matrix.storage_offset() * bytes_)
        dense.append(length * bytes_)
    classes = [next(size for size in (16, 8, 4, 2, 1) if all(x % size == 0 for x in group)) for group in (real, dense)]
    return 0 if classes[0] == classes[1] else classes[0]


def _scale_of(named: dict[str, Any], operand: str, rows: int) -> str:
    """Name the scaling of an operand: told by the kernel's recipe, or by how many scales there are for its rows."""
    recipes = named.get(f"recipe_{operand}")
    if recipes:
        return _SCALE_RECIPES[recipes[0]] if recipes[0] < len(_SCALE_RECIPES) else f"mode{recipes[0]}"
    scales = named[f"scale_{operand}"].numel()
    depth = named["self"].shape[-1]
    if scales in (1, rows):
        return "tensor" if scales == 1 else "row"
    if scales > rows and scales % rows == 0 and depth % (scales // rows) == 0:
        return f"block{depth // (scales // rows)}"
    return "block128x128"


def _both(first: str, second: str) -> str:
    # One scale for 128 elements of a row of A, and for 128 x 128 of B: known by the name of the latter.
    if (first, second) == ("block128", "block128x128"):
        return second
    return first if first == second else f"{first}/{second}"


def _type(tensor: Any) -> str:
    return str(tensor.dtype).rpartition(".")[2]
