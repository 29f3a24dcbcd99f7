"""``torch.ops.wavetune.grouped_matmul``: what the dispatcher and ``torch.compile`` know of it.

The operator chooses when it runs, not when it is traced. It computes forward only.
"""

from __future__ import annotations

from typing import Any

from wavetune.launch.grouped_checks import check_grouped_operands
from wavetune.launch.grouped_launcher import GroupedOptions, run_grouped
from wavetune.launch.library import define

_INPUTS = (
    'Tensor x, Tensor w, Tensor groups, int[]? sizes=None, str activation="none", int top_k=0, Tensor? scale_x=None, '
    "Tensor? scale_w=None, bool use_fast_accum=False, ScalarType? out_dtype=None"
)


def _grouped_matmul(
    x: Any, w: Any, groups: Any, sizes: Any = None, activation: str = "none", top_k: int = 0, scale_x: Any = None,
    scale_w: Any = None, use_fast_accum: bool = False, out_dtype: Any = None, *, out: Any = None,
) -> Any:  # fmt: skip
    dtype = check_grouped_operands(
        x, w, groups, activation, out, scale_x=scale_x, scale_w=scale_w, use_fast_accum=use_fast_accum,
        out_dtype=out_dtype,
    )  # fmt: skip
    options = GroupedOptions(activation, top_k, scale_x, scale_w, use_fast_accum, dtype)
    return run_grouped(x, w, groups, None if sizes is None else tuple(sizes), out, options)


def _grouped_matmul_out(*inputs: Any, **options: Any) -> None:
    # An operator that writes to an argument returns nothing.
    _grouped_matmul(*inputs, **options)


def _fake_grouped_matmul(
    x: Any, w: Any, groups: Any, sizes: Any = None, activation: str = "none", top_k: int = 0, scale_x: Any = None,
    scale_w: Any = None, use_fast_accum: bool = False, out_dtype: Any = None, *, out: Any = None,
) -> Any:  # fmt: skip
    dtype = check_grouped_operands(
        x, w, groups, activation, out, scale_x=scale_x, scale_w=scale_w, use_fast_accum=use_fast_accum,
        out_dtype=out_dtype,
    )  # fmt: skip
    columns = w.shape[1] if activation == "none" else w.shape[1] // 2
    return x.new_empty((x.shape[0], columns), dtype=dtype)


def _fake_grouped_matmul_out(*inputs: Any, **options: Any) -> None:
    _fake_grouped_matmul(*inputs, **options)


define(f"grouped_matmul({_INPUTS}) -> Tensor", _grouped_matmul, _fake_grouped_matmul)
define(f"grouped_matmul_out({_INPUTS}, *, Tensor(a!) out) -> ()", _grouped_matmul_out, _fake_grouped_matmul_out)
