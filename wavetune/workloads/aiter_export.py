"""Tables' answers as AITER's Triton configurations: a file for each layer, a row for each range of token counts.

AITER reads ``<gfx>-GEMM-A16W16-N=<n>-K=<k>.json`` from its folder ``configs/gemm`` for ``gemm_a16w16``. Of the rows it
takes the first ``M_LEQ_<bound>`` with M <= bound, and ``any`` beyond (ROCm/aiter, gemm_config_utils.py, 063c071).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping

from wavetune.core.config import KernelConfig
from wavetune.core.problem import GemmProblem
from wavetune.core.workload import Workload
from wavetune.errors import NoModelError, WorkloadError
from wavetune.runtime.device import Device
from wavetune.workloads.answers import answer_problem, predictions
from wavetune.workloads.export_parts import Export, Layer, LeftOut, answerable_entries, of_those
from wavetune.workloads.tuned_json_export import kernel_arguments, launch_options, replay

BOUNDS = (4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
"""Bounds that AITER looks for; it passes over rows with others."""

ANY = "any"

BEYOND = 2 * BOUNDS[-1]
"""Token count that stands for the row `ANY`, where the workload has none."""

UNKNOWN_FIELDS: Mapping[str, int | None] = {
    "waves_per_eu": 2, "matrix_instr_nonkdim": 16, "kpack": 1, "cache_modifier": None,
}  # fmt: skip
"""What no table here knows: the values that AITER's own file for gfx942 (gfx942-GEMM-A16W16.json, b3adea9) has in every
row; ``cache_modifier`` differs there between rows, and null is none."""

DTYPES = ("bf16", "fp16")

_Calls = dict[tuple[str, int], int]
"""Count by dtype and tokens: one file serves both dtypes."""


def is_aiter_kernel(config: KernelConfig) -> bool:
    """Tell whether ``gemm_a16w16`` can run a configuration: pointer loads, sizes powers of two, any split of k."""
    return (
        config["schedule"] in ("tile", "split_k")
        and config["load"] == "pointer"
        and config["epilogue_split"] == 1
        and all(int(size).bit_count() == 1 for size in kernel_arguments(config).values())
    )


def row_name(m: int) -> str:
    """Return the row that AITER takes for m tokens, of a file that has all of them."""
    return next((f"M_LEQ_{bound}" for bound in BOUNDS if m <= bound), ANY)


def row_fields(config: KernelConfig) -> dict[str, int | None]:
    """Return a configuration by AITER's names."""
    return {
        **kernel_arguments(config), "NUM_KSPLIT": int(config["split_k"]), **launch_options(config), **UNKNOWN_FIELDS,
    }  # fmt: skip


def aiter_triton(workload: Workload, device: Device, margin: float) -> Export:
    """Write the answers for a workload's layers.

    A row holds what takes the least predicted time over the workload's calls in its range, or, where there are none,
    at its bound; the default, where that is hardly slower.

    Raises
    ------
    WorkloadError
        If the device is not AMD's, or no entry is a linear layer in 16 bits.
    NoModelError
        If no table answers for anything that could be written.
    """
    target = device.arch.target
    if not target.startswith("gfx"):
        raise WorkloadError(f"aiter-triton: AITER runs on AMD's GPUs, and {device.arch.name} is {target}; name --arch")
    left_out = LeftOut()
    layers: dict[tuple[int, int], _Calls] = {}
    for entry, problem in answerable_entries(workload, device, left_out):
        if problem.dtype not in DTYPES or problem.layout != "nk":
            left_out.add(f"gemm_a16w16 takes {' and '.join(DTYPES)}, nk; here {problem.dtype} {problem.layout}")
            continue
        calls = layers.setdefault((problem.n, problem.k), {})
        calls[problem.dtype, problem.m] = calls.get((problem.dtype, problem.m), 0) + entry.count
    left_out.refuse_nothing(len(layers), "aiter-triton")
    files, written = {}, []
    for (n, k), calls in layers.items():
        rows, pinned = _rows(n, k, calls, device, margin)
        document = {name: row_fields(config) for name, config in rows.items()}
        files[f"{target}-GEMM-A16W16-N={n}-K={k}.json"] = json.dumps(document, indent=2) + "\n"
        replayed = [
            (m, count, predictions(GemmProblem(m, n, k, dtype), device)) for (dtype, m), count in calls.items()
        ]  # fmt: skip
        bucketing = replay(lambda m, rows=rows: rows[row_name(m)], replayed, is_aiter_kernel)  # type: ignore[misc]
        written.append(Layer(n, k, pinned, bucketing))
    n_rows = len(files) * (len(BOUNDS) + 1)
    return Export(files, n_rows, sum(layer.pinned for layer in written), left_out.reasons, written)


def _rows(
    n: int, k: int, calls: _Calls, device: Device, margin: float
) -> tuple[dict[str, KernelConfig], int]:  # fmt: skip
    """Return the configuration of every row, and how many hold the default."""
    by_row: dict[str, _Calls] = {}
    for (dtype, m), count in calls.items():
        by_row.setdefault(row_name(m), {})[dtype, m] = count
    # A dtype that the workload has, so that there is a model.
    some_dtype = next(iter(calls))[0]
    rows, pinned = {}, 0
    for m in (*BOUNDS, BEYOND):
        among = by_row.get(row_name(m)) or {(some_dtype, m): 1}
        problems = {GemmProblem(tokens, n, k, dtype): count for (dtype, tokens), count in among.items()}
        rows[row_name(m)], is_pinned = _best(problems, device, margin)
        pinned += is_pinned
    return rows, pinned


def _best(problems: Mapping[GemmProblem, int], device: Device, margin: float) -> tuple[KernelConfig, bool]:
    """Return what takes the least time in all, of what is legal for every problem."""
    total_us: dict[KernelConfig, float] = {}
    for problem, count in problems.items():
        latencies = predictions(problem, device)
        known = total_us or dict.fromkeys(latencies, 0.0)
        total_us = {
            config: known[config] + count * latency
            for config, latency in latencies.items()
            if config in known and is_aiter_kernel(config)
        }
        if not total_us:
            sizes = ", ".join(str(problem.dims) for problem in problems)
            raise NoModelError(
                f"aiter-triton: no modelled configuration runs on AITER's kernel for {sizes}: pointer loads, and sizes "
                "that are powers of two; calibrate with such configurations"
            )
    answers = [answer_problem(problem, device, margin) for problem in problems]
    if len(problems) == 1:
        return of_those(total_us, answers[0], margin)
    best = min(total_us, key=lambda config: total_us[config])
    defaults = {answer.default for answer in answers}
    default = defaults.pop()
    default_us = math.inf if defaults else total_us.get(default, math.inf)
    is_pinned = default != best and total_us[best] > (1.0 - margin) * default_us
    return (default, True) if is_pinned else (best, False)
