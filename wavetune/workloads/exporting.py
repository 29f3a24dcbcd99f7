"""Tables' answers for a workload, as files for other programs."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from wavetune.core.config import KernelConfig
from wavetune.core.problem import GemmProblem
from wavetune.core.shorthand import describe_config
from wavetune.core.workload import Workload
from wavetune.errors import NoModelError, WorkloadError
from wavetune.runtime.device import Device
from wavetune.workloads import tuned_json_export as tuned_json
from wavetune.workloads.aiter_export import aiter_triton
from wavetune.workloads.answers import answer_problem, predictions
from wavetune.workloads.export_formats import CAPTURE_SIZES, EXPORT_FORMATS, NOT_EXPORTED, OVERRIDE
from wavetune.workloads.export_parts import Export, Layer, LeftOut, answerable_entries, of_kernel, of_those
from wavetune.workloads.quicktune_export import RESULT_COLUMNS, key_cells, ratio_cell
from wavetune.workloads.tunableop_export import untuned_row
from wavetune.workloads.tuned_json_export import nearest_row

_BLOCK_FP8 = "fp8_block128"

_STATUS = {
    (False, False): "SUCCESS", (True, False): "BASELINE_FAILED", (False, True): "TUNING_FAILED",
    (True, True): "BOTH_FAILED",
}  # fmt: skip
"""QuickTune's word by whether the latencies of default and answer are unknown."""


def export_workload(
    workload: Workload,
    format: str,
    device: Device,
    *,
    margin: float,
    capture_sizes: Sequence[int] = CAPTURE_SIZES,
    device_name: str = "",
) -> Export:
    """Answer a workload, and write the answers down as another program reads them.

    Parameters
    ----------
    format : str
        One of `EXPORT_FORMATS`.
    margin : float
        Share of the default's predicted latency that a choice must save, or the default is written.
    capture_sizes : sequence of int
        Rows of vLLM's and SGLang's files; empty for the token counts of the workload.
    device_name : str, default=""
        The GPU in names of files; what the driver calls the device's model if not given.

    Raises
    ------
    WorkloadError
        If the format is unknown, or nothing of the workload can be said in it; tells why.
    NoModelError
        If no table answers for anything that could be written.
    """
    check_format(format)
    if format == "tunableop-untuned":
        return export_untuned(workload)
    if format == "quicktune-csv":
        return _quicktune(workload, device, margin)
    if format == "triton-configs":
        return _triton_configs(workload, device, margin)
    if format == "json":
        return _json(workload, device, margin)
    if format == "aiter-triton":
        return aiter_triton(workload, device, margin)
    if format == OVERRIDE:
        raise WorkloadError(
            "hipblaslt-override is made of what hipblaslt-bench printed: its solution indices hold for one build of "
            "hipBLASLt, and tables hold Triton configurations; name such an output in place of the workload"
        )
    name = tuned_json.sanitised(device_name) or tuned_json.device_file_name(device.arch)
    return _tuned_json(workload, format, device, margin, capture_sizes, name)


def check_format(format: str) -> None:
    """Refuse what cannot be exported.

    Raises
    ------
    WorkloadError
        If the format is unknown, or answers do not fit it; tells why.
    """
    known = ", ".join(EXPORT_FORMATS)
    if format in NOT_EXPORTED:
        raise WorkloadError(f"cannot export as {format}: {NOT_EXPORTED[format]}; known: {known}")
    if format not in EXPORT_FORMATS:
        raise WorkloadError(f"unknown format {format!r}; known: {known}")


def export_untuned(workload: Workload) -> Export:
    """Write the operations of a workload for TunableOp to tune. They hold no answers, and need no tables.

    Raises
    ------
    WorkloadError
        If nothing of the workload can be said in the format; tells why.
    """
    left_out, lines = LeftOut(), []
    for entry in workload.entries:
        try:
            lines.append(untuned_row(entry.key))
        except WorkloadError as error:
            left_out.add(str(error))
    left_out.refuse_nothing(len(lines), "tunableop-untuned")
    return Export({"": "".join(f"{line}\n" for line in lines)}, len(lines), 0, left_out.reasons)


def _quicktune(workload: Workload, device: Device, margin: float) -> Export:
    left_out, pinned = LeftOut(), 0
    rows = []
    for entry, problem in answerable_entries(workload, device, left_out):
        try:
            cells: dict[str, Any] = {**key_cells(entry.key)}
        except WorkloadError as error:
            left_out.add(str(error))
            continue
        answer = answer_problem(problem, device, margin)
        pinned += answer.is_pinned
        failed = (math.isnan(answer.default_us), math.isnan(answer.latency_us))
        cells |= {
            "count": entry.count,
            "baseline_latency(us)": _cell(answer.default_us),
            "baseline_solution_idx": describe_config(answer.default),
            "tuned_latency(us)": _cell(answer.latency_us),
            "tuned_solution_idx": describe_config(answer.config),
            "baseline/tuned": ratio_cell(answer.default_us, answer.latency_us) if not any(failed) else "",
            "status": _STATUS[failed],
            "latency_source": "measured" if answer.is_measured else "predicted",
        }
        rows.append(cells)
    left_out.refuse_nothing(len(rows), "quicktune-csv")
    text = io.StringIO()
    writer = csv.DictWriter(text, [*RESULT_COLUMNS, "latency_source"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return Export({"": text.getvalue()}, len(rows), pinned, left_out.reasons)


def _triton_configs(workload: Workload, device: Device, margin: float) -> Export:
    """List the configurations that win something, the one that carries most of the time first."""
    left_out, pinned = LeftOut(), 0
    weight_us: dict[KernelConfig, float] = {}
    free_us = lost_us = 0.0
    for entry, problem in answerable_entries(workload, device, left_out):
        every = predictions(problem, device)
        latencies = of_kernel(every, tuned_json.is_plain_kernel)
        if not latencies:
            left_out.add("no modelled configuration is of the plain kernel: one tile a CTA, pointer loads, no split")
            continue
        config, is_pinned = of_those(latencies, answer_problem(problem, device, margin), margin)
        pinned += is_pinned
        weight_us[config] = weight_us.get(config, 0.0) + entry.count * latencies[config]
        best_us = min(every.values())
        free_us += entry.count * best_us
        lost_us += entry.count * (latencies[config] - best_us)
    left_out.refuse_nothing(len(weight_us), "triton-configs")
    ordered = sorted(weight_us, key=lambda config: -weight_us[config])
    document = [
        {"kwargs": tuned_json.kernel_arguments(config), **tuned_json.launch_options(config)} for config in ordered
    ]
    lines = ",\n".join(f"  {json.dumps(config)}" for config in document)
    return Export({"": f"[\n{lines}\n]\n"}, len(document), pinned, left_out.reasons, kernel_cost=lost_us / free_us)


def _json(workload: Workload, device: Device, margin: float) -> Export:
    """Write the workload itself, the answers in the extra part of its entries."""
    left_out, pinned = LeftOut(), 0
    entries = []
    for entry, problem in answerable_entries(workload, device, left_out):
        answer = answer_problem(problem, device, margin)
        pinned += answer.is_pinned
        extra = {
            **entry.extra, "arch": device.arch.name, "config": dict(answer.config), "source": answer.source.value,
            "latency_us": _finite(answer.latency_us), "default_config": dict(answer.default),
            "default_us": _finite(answer.default_us),
        }  # fmt: skip
        entries.append(replace(entry, extra=extra))
    left_out.refuse_nothing(len(entries), "json")
    lines = ",\n".join(f"    {json.dumps(entry.document(), allow_nan=False)}" for entry in entries)
    text = f'{{\n  "schema_version": 1,\n  "problems": [\n{lines}\n  ]\n}}\n'
    return Export({"": text}, len(entries), pinned, left_out.reasons)


def _tuned_json(
    workload: Workload, format: str, device: Device, margin: float, capture_sizes: Sequence[int], device_name: str
) -> Export:
    left_out = LeftOut()
    calls: dict[tuple[int, int], dict[int, int]] = {}
    for entry, problem in answerable_entries(workload, device, left_out):
        if (problem.dtype, problem.layout) != (_BLOCK_FP8, "nk"):
            left_out.add(
                f"{format}'s dense files are of fp8 with scales of 128 x 128 (here {problem.dtype} {problem.layout}); "
                "other dense layers run on cuBLAS there"
            )
            continue
        of_layer = calls.setdefault((problem.n, problem.k), {})
        of_layer[problem.m] = of_layer.get(problem.m, 0) + entry.count
    left_out.refuse_nothing(len(calls), format)
    files, layers, n_rows = {}, [], 0
    for (n, k), counts in calls.items():
        sizes = capture_sizes or sorted(counts)
        problems = {m: GemmProblem(m, n, k, _BLOCK_FP8) for m in {*sizes, *counts}}
        predicted = {m: predictions(problem, device) for m, problem in problems.items()}
        possible = {m: of_kernel(each, tuned_json.is_block_fp8_kernel) for m, each in predicted.items()}
        if not all(possible.values()):
            raise NoModelError(
                f"{format}: no modelled configuration for n={n} k={k} runs on their kernel: one tile a CTA, "
                f"pointer loads, block_k that divides 128; calibrate {_BLOCK_FP8} with such configurations"
            )
        rows: dict[int, KernelConfig] = {}
        pinned = 0
        for m in sizes:
            rows[m], is_pinned = of_those(possible[m], answer_problem(problems[m], device, margin), margin)
            pinned += is_pinned
        files[tuned_json.dense_file_name(n, k, device_name, format)] = tuned_json.body(rows)
        replayed = [(m, count, predicted[m]) for m, count in counts.items()]
        bucketing = tuned_json.replay(lambda m, rows=rows: rows[nearest_row(rows, m)], replayed)  # type: ignore[misc]
        layers.append(Layer(n, k, pinned, bucketing))
        n_rows += len(rows)
    return Export(files, n_rows, sum(layer.pinned for layer in layers), left_out.reasons, layers)


def _cell(latency_us: float) -> str:
    # As QuickTune has it where there is no latency.
    return "-1" if math.isnan(latency_us) else f"{latency_us:.3f}"


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
