"""What a tuning leaves in its folder: one row a problem, one row a measurement, and the pinned table."""

from __future__ import annotations

import csv
import io
import math
import shlex
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import wavetune
from wavetune.core.config import GEMM, KernelConfig
from wavetune.core.problem import GemmProblem
from wavetune.core.shorthand import spell_config
from wavetune.core.whole_file import describe_os_error, write_whole
from wavetune.errors import StoreError
from wavetune.pipeline.tune import TunedGroup
from wavetune.pipeline.tune_stages import CONFIRM
from wavetune.pipeline.tune_verdict import Outcome, TunedProblem
from wavetune.runtime.device import Device
from wavetune.runtime.fingerprint import fingerprint
from wavetune.runtime.pinned import ModelKey, PinnedTable
from wavetune.store.csv_io import write_measurements
from wavetune.store.database import MeasurementStore
from wavetune.store.record import CompiledConfig, Measurement
from wavetune.store.table import MeasurementTable, sort_configs

TUNED_COLUMNS = (
    "m", "n", "k", "dtype", "layout", "alignment", "count", "status", "config", "latency_us", "spread_us",
    "default_us", "model_us", "torch_us", "speedup_over_default", "speedup_over_model", "speedup_over_torch",
    "default_config", "model_config", "measured", "failed", "skipped", "reason", "reproduce",
)  # fmt: skip
"""Of ``tuned.csv``. The file is a workload, too: readers of workloads take the columns that they know."""

CANDIDATE_COLUMNS = (
    "m", "n", "k", "dtype", "layout", "stage", "config", "status", "latency_us", "spread_us", "rounds", "method",
    "detail",
)  # fmt: skip
"""Of ``candidates.csv``."""


def tuned_rows(problems: Iterable[TunedProblem], device: Device) -> list[dict[str, Any]]:
    """Return the rows of ``tuned.csv``; latencies that are not known are empty."""
    rows = []
    for tuned in problems:
        plan, problem = tuned.plan, tuned.plan.problem
        rows.append(
            {
                "m": problem.m, "n": problem.n, "k": problem.k, "dtype": problem.dtype, "layout": problem.layout,
                "alignment": problem.alignment, "count": plan.count, "status": tuned.outcome.value,
                "config": spell_config(tuned.config), "latency_us": _cell(tuned.latency_us),
                "spread_us": _cell(tuned.spread_us), "default_us": _cell(tuned.default_us),
                "model_us": _cell(tuned.pick_us), "torch_us": _cell(tuned.library_us),
                "speedup_over_default": _cell(tuned.default_us / tuned.latency_us, 4),
                "speedup_over_model": _cell(tuned.pick_us / tuned.latency_us, 4),
                "speedup_over_torch": _cell(tuned.library_us / tuned.latency_us, 4),
                "default_config": spell_config(plan.default), "model_config": spell_config(plan.pick),
                "measured": tuned.measured, "failed": tuned.failed, "skipped": tuned.skipped, "reason": tuned.reason,
                "reproduce": reproduce_command(tuned, device),
            }
        )  # fmt: skip
    return rows


def reproduce_command(tuned: TunedProblem, device: Device) -> str:
    """Return the command that times the result of one problem again, beside pick, default and torch.mm."""
    problem = tuned.plan.problem
    words = ["wavetune", "retime", *map(str, problem.dims), "--dtype", problem.dtype, "--layout", problem.layout]
    words += ["--arch", device.arch.name]
    for config in dict.fromkeys([tuned.config, tuned.plan.pick, tuned.plan.default]):
        words += ["--config", spell_config(config)]
    return shlex.join(words)


def candidate_rows(measurements: Iterable[Measurement]) -> list[dict[str, Any]]:
    """Return the rows of ``candidates.csv``: every measurement, and every failure with its status and reason."""
    rows = []
    for entry in measurements:
        problem: Any = entry.problem
        m, n, k = problem.dims
        rows.append(
            {
                "m": m, "n": n, "k": k, "dtype": problem.dtype, "layout": problem.layout,
                "stage": entry.stratum.removeprefix("tune-"), "config": spell_config(entry.config),
                "status": entry.status.value, "latency_us": _cell(entry.latency_us),
                "spread_us": _cell(entry.spread_us), "rounds": entry.rounds, "method": entry.method,
                "detail": entry.detail,
            }
        )  # fmt: skip
    return rows


def write_rows(path: Path, columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """Write a CSV file, whole or not at all.

    Raises
    ------
    StoreError
        If it cannot be written.
    """
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    try:
        write_whole(path, text.getvalue())
    except OSError as error:
        raise StoreError(f"{describe_os_error(path, error)}; choose another place") from None


def write_confirmed(path: Path, group: TunedGroup, store: MeasurementStore) -> int:
    """Write the readings on fresh buffers as a measurement file, which `wavetune analyze` reads.

    Only those: among the readings of a screening the best is a lucky one.

    Returns
    -------
    int
        Rows written; 0, and no file, if there are none.
    """
    found = [entry for entry in store.measurements(failed=False) if entry.stratum == CONFIRM]
    wanted = {tuned.plan.problem for tuned in group.problems if tuned.outcome is not Outcome.FAILED}
    compiled = {entry.config: entry for entry in group.compiled}
    entries = [entry for entry in found if entry.problem in wanted and entry.config in compiled]
    # A measurement file does not name alignments: its operands are contiguous.
    entries = [entry for entry in entries if _is_contiguous(entry.problem)]
    if not entries:
        return 0
    table = _table(entries, compiled)
    write_measurements(path, table, extra={"spread_us": [entry.spread_us for entry in entries]})
    return len(entries)


def pinned_table(problems: Iterable[TunedProblem], device: Device, environment: Mapping[str, str]) -> PinnedTable:
    """Return the exact table of the results; problems that failed are left to the model."""
    entries: dict[GemmProblem, tuple[KernelConfig, float]] = {}
    defaults: dict[ModelKey, KernelConfig] = {}
    for tuned in problems:
        problem = tuned.plan.problem
        if tuned.outcome is Outcome.FAILED:
            continue
        entries[problem] = (tuned.config, round(tuned.latency_us, 4))
        defaults.setdefault((problem.kernel, problem.dtype, problem.layout), tuned.plan.default)
    facts = {
        name: environment[name] for name in ("gpu_name", "driver", "cuda", "triton", "torch") if name in environment
    }
    return PinnedTable(
        arch=device.arch.name,
        num_sms=device.num_sms,
        numerics="any",
        entries=entries,
        defaults=defaults,
        provenance={
            "created": time.strftime("%Y-%m-%d", time.gmtime()),
            "environment": facts,
            "fingerprint": fingerprint(device.arch.name, device.num_sms),
            "how": "tuned",
            "versions": {"wavetune": wavetune.__version__},
        },
    )


def _is_contiguous(problem: Any) -> bool:
    m, n, k = problem.dims
    return bool(problem == GemmProblem(m, n, k, problem.dtype, problem.layout))


def _table(entries: Sequence[Measurement], compiled: Mapping[KernelConfig, CompiledConfig]) -> MeasurementTable:
    configs = sort_configs({compiled[entry.config] for entry in entries})
    position = {entry.config: index for index, entry in enumerate(configs)}
    problem: Any = entries[0].problem
    return MeasurementTable(
        spec=GEMM,
        dtype=problem.dtype,
        layout=problem.layout,
        configs=configs,
        dims=np.array([entry.problem.dims for entry in entries], dtype=np.int64),
        config_index=np.array([position[entry.config] for entry in entries], dtype=np.int64),
        latency_us=np.array([entry.latency_us for entry in entries], dtype=np.float64),
        exhaustive=np.ones(len(entries), dtype=np.bool_),
    )


def _cell(value: float | None, digits: int = 3) -> str:
    return "" if value is None or not math.isfinite(value) else f"{value:.{digits}f}"
