"""``wavetune tune --backend cublaslt``: the best of cuBLASLt's list beside torch.mm and this project's choice."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from wavetune.cli.live import CalibrationKey, live_runner, make_folder, stop_interrupted
from wavetune.cli.output import (
    data_table,
    describe_config,
    emit_json,
    format_sizes,
    format_us,
    note,
    show,
    warn,
)
from wavetune.cli.progress import watch
from wavetune.core.config import GEMM, KernelConfig
from wavetune.core.problem import GemmProblem
from wavetune.core.whole_file import describe_os_error, write_whole
from wavetune.core.workload import Workload
from wavetune.errors import NoModelError, RunnerError, WorkloadError
from wavetune.runtime.device import Device

if TYPE_CHECKING:
    from wavetune.report.vendor import VendorRow

LISTED = 20
"""Problems that are listed, those with the most time first."""

ALL = 1024
"""More than the heuristic lists; a long list costs a buffer."""

NO_GPU = "cuBLASLt's algorithms run on the GPU itself; `wavetune doctor` says what is missing"


def tune_cublaslt(workload: Workload, device: Device, *, gpu: int, top: int, out: Path, as_json: bool) -> None:
    """Time cuBLASLt's list for every plain GEMM of a workload; write ``cublaslt.csv`` and ``cublaslt.json``.

    Parameters
    ----------
    workload : Workload
        Problems of other dtypes than bf16 and fp16, or with padded rows, are left out and counted.
    device : Device
        The GPU that is there.
    gpu : int
        Ordinal, as CUDA counts.
    top : int
        Algorithms to ask for; -1 for all that the heuristic knows.
    out : Path
        Folder of the two files; they hold what was timed even if this ends early.
    as_json : bool
        Whether the document goes to stdout.

    Raises
    ------
    RunnerError
        If there is no GPU, no nvmath-python, another process is timing, or the GPU fails.
    WorkloadError
        If nothing is left to time, or a file cannot be written.
    """
    from wavetune.report.vendor import vendor_csv, vendor_document

    limit = ALL if top == -1 else top
    if limit < 1:
        raise typer.BadParameter(f"--top must be positive, or -1 for all algorithms, got {top}")
    problems, left_out = timeable_problems(workload)
    if not problems:
        raise WorkloadError(f"cuBLASLt's list is asked for no problem of the workload: {'; '.join(left_out)}")
    # Refuses a GPU that is not there, or is another, before anything of torch is loaded or a folder is made.
    live_runner(CalibrationKey(GEMM.name, device.arch, problems[0][0].dtype, "nk"), gpu, instead=NO_GPU)
    make_folder(out)
    rows: list[VendorRow] = []
    conditions: dict[str, Any] = {}
    try:
        _time(problems, device, gpu, limit, rows, conditions)
    except KeyboardInterrupt:
        stop_interrupted(f"{len(rows)} of {len(problems)} problems are in {out}")
    finally:
        document = vendor_document(rows, left_out, conditions, top)
        if rows:
            _write(out / "cublaslt.csv", vendor_csv(rows, top))
            _write(out / "cublaslt.json", json.dumps(document, indent=1) + "\n")
    for reason, count in left_out.items():
        note(f"left out: {count} of {len(problems) + sum(left_out.values())} problems: {reason}")
    if any(entry.get("drifted") == "true" for entry in conditions.values()):
        warn("the GPU's speed drifted while timing; run again on a quiet machine")
    if as_json:
        emit_json(document)
    else:
        _print(rows, document["summary"])
        note(f"wrote {out / 'cublaslt.csv'} and {out / 'cublaslt.json'}")


def timeable_problems(workload: Workload) -> tuple[list[tuple[GemmProblem, int]], dict[str, int]]:
    """Return the problems that cuBLASLt's list is asked for, with call counts, and how many are not, by reason."""
    from wavetune.measure.cublaslt import CUBLASLT_DTYPES

    left_out: Counter[str] = Counter()
    problems = []
    for problem, count in workload.gemm_problems():
        if problem.dtype not in CUBLASLT_DTYPES:
            left_out[f"{problem.dtype}, not {' or '.join(CUBLASLT_DTYPES)}"] += 1
        elif problem != GemmProblem(*problem.dims, problem.dtype, problem.layout):
            left_out["rows are padded"] += 1
        else:
            problems.append((problem, count))
    others = sum(entry.key.gemm_problem() is None for entry in workload.entries)
    if others:
        left_out["no plain GEMM"] += others
    return problems, dict(left_out)


def _time(
    problems: list[tuple[GemmProblem, int]], device: Device, gpu: int, limit: int, rows: list[VendorRow],
    conditions: dict[str, Any],
) -> None:  # fmt: skip
    dtypes = dict.fromkeys(problem.dtype for problem, _ in problems)
    from wavetune.measure.cublaslt_contest import VendorContest
    from wavetune.report.vendor import VendorRow

    with watch() as observer:
        observer.begin("measuring", len(problems))
        for dtype in dtypes:
            with VendorContest(device.arch, dtype, gpu) as contest:
                for problem, count in problems:
                    if problem.dtype != dtype:
                        continue
                    config = _own_choice(problem, device)
                    try:
                        rows.append(VendorRow(problem, count, contest.run(problem, config, top=limit), config))
                    except RunnerError as error:
                        rows.append(VendorRow(problem, count, None, config, str(error)))
                        if contest.is_lost:
                            raise
                    observer.update(len(rows))
                contest.session.watch()
                conditions[dtype] = contest.session.conditions()
                if contest.library is not None:
                    conditions[dtype]["cublaslt"] = str(contest.library.version)


def _own_choice(problem: GemmProblem, device: Device) -> KernelConfig | None:
    from wavetune.runtime.choose import find_resolver

    try:
        resolver = find_resolver(problem, device.arch.name, device.num_sms, "any")
        return resolver.answer(problem, "model", is_listed=False).config
    except NoModelError:
        return None


def _print(rows: list[VendorRow], summary: dict[str, Any]) -> None:
    table = data_table(
        "calls", "m x n x k", "dtype", "B", "torch.mm us", "best us", "speed-up", "rank", "algorithm", "ours us",
        "our configuration", right=("calls", "torch.mm us", "best us", "speed-up", "rank", "ours us"),
    )  # fmt: skip
    ordered = sorted(rows, key=lambda row: -row.count * row.default_us if math.isfinite(row.default_us) else 0.0)
    for row in ordered[:LISTED]:
        problem, best = row.problem, row.result.algorithm if row.result else None
        table.add_row(
            f"{row.count:,}", format_sizes(problem.dims), problem.dtype, problem.layout, _latency(row.default_us),
            _latency(row.best_us), _ratio(row.speedup), str(best.rank) if best else "-",
            best.describe().partition(" ")[2] if best else row.status, _latency(row.own_us),
            describe_config(row.config) if row.config else "-",
        )  # fmt: skip
    show(table)
    if len(ordered) > LISTED:
        typer.echo(f"and {len(ordered) - LISTED:,} more")
    typer.echo(
        f"weighted by calls, against torch.mm: best of the list {_ratio(summary['best_speedup'])} over "
        f"{summary['best_problems']} problems, ours {_ratio(summary['own_speedup'])} over {summary['own_problems']}"
    )


def _latency(value: float) -> str:
    return format_us(value) if math.isfinite(value) else "-"


def _ratio(value: float | None) -> str:
    return "-" if value is None or not math.isfinite(value) else f"{value:.3f}x"


def _write(path: Path, text: str) -> None:
    try:
        write_whole(path, text)
    except OSError as error:
        raise WorkloadError(describe_os_error(path, error)) from None
