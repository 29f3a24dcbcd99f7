"""``wavetune estimate``: what tuning a workload would take."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wavetune.cli.live import whole_space
from wavetune.cli.options import (
    CANDIDATES,
    ArchOption,
    DtypeOption,
    JsonOption,
    LayoutOption,
    NumSmsOption,
    TopOption,
    require_candidates,
)
from wavetune.cli.output import data_table, emit_json, note, show
from wavetune.core.workload import Workload
from wavetune.errors import NoModelError, WorkloadError
from wavetune.runtime.device import resolve_device

if TYPE_CHECKING:
    from wavetune.pipeline.tuning_estimate import TuningEstimate


def estimate_command(
    workload: Annotated[Path, typer.Argument(metavar="WORKLOAD", help="Workload: JSON, or CSV.", show_default=False)],
    top: TopOption = CANDIDATES,
    arch: ArchOption = None,
    num_sms: NumSmsOption = None,
    dtype: DtypeOption = "bf16",
    layout: LayoutOption = "nk",
    cores: Annotated[
        int | None,
        typer.Option("--cores", metavar="N", min=1, help="Cores that compile. Default: all.", show_default=False),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Estimate what tuning a workload takes: problems times candidates times predicted latency, and compiling.

    Launches by predicted latency: 200 and 100 (untimed and timed) under 50 us, 50 and 20 up to 1000 us, 10 and 2 above.
    """
    from wavetune.pipeline.tuning_estimate import estimate_tuning

    require_candidates(top)
    read = Workload.read(workload, dtype=dtype, layout=layout)
    device = resolve_device(arch, num_sms)
    cores = cores or len(os.sched_getaffinity(0))
    space = whole_space(device, "only what the model ranks is counted")
    estimate = estimate_tuning(read, device, top=top, space=space, cores=cores)
    if not estimate.keys and not estimate.unknown:
        raise WorkloadError(f"{workload}: no plain GEMM that a configuration can be chosen for; nothing else is tuned")
    if not estimate.keys:
        kinds = sorted({f"{problem.dtype} {problem.layout}" for problem in estimate.unknown})
        raise NoModelError(f"{workload}: no model of {device.arch.name} ranks anything of it ({', '.join(kinds)})")
    if estimate.unknown:
        note(f"{len(estimate.unknown)} problems are left out: no model ranks their configurations")
    if as_json:
        emit_json(_document(estimate, cores))
    else:
        _print(estimate, cores)


def _by_class(estimate: TuningEstimate) -> list[dict[str, object]]:
    from wavetune.plan.iteration_policy import POLICY

    rows: list[dict[str, object]] = []
    for iterations in POLICY:
        keys = [key for key in estimate.keys if key.iterations == iterations.name]
        rows.append(
            {
                "class": iterations.name, "cold": iterations.cold, "timed": iterations.timed, "problems": len(keys),
                "candidates": sum(key.candidates for key in keys), "launches": sum(key.launches for key in keys),
                "seconds": sum(key.seconds for key in keys),
            }
        )  # fmt: skip
    return rows


def _print(estimate: TuningEstimate, cores: int) -> None:
    numbers = ("problems", "candidates", "launches", "seconds")
    table = data_table("class", "cold + timed", *numbers, right=numbers)
    for row in _by_class(estimate):
        cells = (f"{row['problems']:,}", f"{row['candidates']:,}", f"{row['launches']:,}", f"{row['seconds']:,.1f}")
        table.add_row(f"{row['class']}", f"{row['cold']} + {row['timed']}", *cells)
    show(table)
    total = estimate.measure_seconds + estimate.prepare_seconds
    typer.echo(
        f"launches {estimate.measure_seconds:,.1f} s, compiling {estimate.n_configs} configurations "
        f"{estimate.prepare_seconds:,.1f} s on {cores} cores: {total:,.1f} s"
    )
    assumed = sum(key.assumed for key in estimate.keys)
    if assumed:
        note(f"{assumed:,} candidates that the model does not rank are taken to be as slow as its slowest")


def _document(estimate: TuningEstimate, cores: int) -> dict[str, object]:
    return {
        "classes": _by_class(estimate),
        "candidates": sum(key.candidates for key in estimate.keys),
        "assumed": sum(key.assumed for key in estimate.keys),
        "configs": estimate.n_configs,
        "cores": cores,
        "measure_seconds": estimate.measure_seconds,
        "prepare_seconds": estimate.prepare_seconds,
        "seconds": estimate.measure_seconds + estimate.prepare_seconds,
        "left_out": len(estimate.unknown),
        "problems": [
            {
                "m": key.problem.m, "n": key.problem.n, "k": key.problem.k, "dtype": key.problem.dtype,
                "layout": key.problem.layout, "count": key.count, "latency_us": key.latency_us,
                "class": key.iterations, "candidates": key.candidates, "seconds": key.seconds,
            }
            for key in estimate.keys
        ],
    }  # fmt: skip
