"""One tuning from workload to folder, for ``wavetune tune`` and ``wavetune quicktune``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from wavetune.cli.live import (
    CalibrationKey,
    conditions_of,
    make_folder,
    note_conditions,
    stop_interrupted,
    whole_space,
)
from wavetune.cli.output import note
from wavetune.cli.progress import watch
from wavetune.core.workload import Workload
from wavetune.errors import NoModelError, RunnerError, WorkloadError
from wavetune.runtime.device import Device

if TYPE_CHECKING:
    from wavetune.measure.contest import ContestRunner
    from wavetune.pipeline.tune import TuneOptions
    from wavetune.pipeline.tune_plan import TuningPlan
    from wavetune.pipeline.tune_verdict import TunedProblem

NO_GPU = "tuning needs the GPU itself; `wavetune estimate` says without one what it would take"

TIMED_OTHERWISE = "only what the model ranks is timed"
"""Where the kernels are missing."""

TUNED_NAME, CANDIDATES_NAME, PINNED_NAME = "tuned.csv", "candidates.csv", "pinned.json"


@dataclass
class TuneRun:
    """What a tuning did.

    Parameters
    ----------
    plan : TuningPlan
        What was to be measured, and what was not.
    problems : list of TunedProblem
        The results, in the order of the plans of each element type and layout.
    files : dict of str to Path
        What was written, by role.
    confirmed : dict of (dtype, layout) to Path
        Measurement files of the readings on fresh buffers.
    measured, resumed : int
        Points that were timed, and that journals already held.
    failures : int
        Configurations and points without a latency.
    seconds : dict of str to float
        Wall time of each stage, over all groups.
    environment, conditions : dict of str to str
        The machine, and what was seen of it while timing.
    patterns : int
        Patterns that the cache holds now; 0 without one.
    """

    plan: TuningPlan
    problems: list[TunedProblem] = field(default_factory=list)
    files: dict[str, Path] = field(default_factory=dict)
    confirmed: dict[tuple[str, str], Path] = field(default_factory=dict)
    measured: int = 0
    resumed: int = 0
    failures: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    conditions: dict[str, str] = field(default_factory=dict)
    patterns: int = 0


def open_runner(key: CalibrationKey, gpu: int) -> ContestRunner:
    """Return the runner of a GPU.

    Raises
    ------
    RunnerError
        If there is no usable GPU.
    """
    try:
        from wavetune.measure.contest_runner import TritonContestRunner

        return TritonContestRunner(key.arch, key.kernel, key.dtype, key.layout, gpu)
    except ImportError as error:
        raise RunnerError(f"the kernels need {error.name}: pip install {error.name}\n{NO_GPU}") from None
    except RunnerError as error:
        raise RunnerError(f"{error}\n{NO_GPU}") from None


def run_tuning(
    read: Workload,
    device: Device,
    out: Path,
    *,
    top: int,
    options: TuneOptions,
    gpu: int = 0,
    pattern_cache: Path | None = None,
    remember: bool = False,
    opener: Callable[[CalibrationKey, int], ContestRunner] | None = None,
) -> TuneRun:
    """Tune a workload and write everything into a folder; ends the command where it is interrupted.

    Parameters
    ----------
    opener : callable, optional
        Opens the runner of an element type and layout; `open_runner` if not given.

    Raises
    ------
    NoModelError
        If no model ranks anything of the workload.
    WorkloadError
        If nothing of it is a plain GEMM.
    RunnerError, StoreError
        If there is no GPU, or the folder cannot be used.
    ModelFileError
        If the pattern cache is damaged.
    """
    from wavetune.pipeline.tune import tune_problems
    from wavetune.pipeline.tune_files import CANDIDATE_COLUMNS, candidate_rows, write_confirmed, write_rows
    from wavetune.pipeline.tune_patterns import PatternSeeds
    from wavetune.pipeline.tune_plan import plan_tuning
    from wavetune.store.database import MeasurementStore

    seeds = PatternSeeds.open(pattern_cache, device)
    plan = plan_tuning(read, device, top=top, space=whole_space(device, TIMED_OTHERWISE), seeds=seeds)
    if not plan.plans:
        reasons = "; ".join(dict.fromkeys(entry.reason for entry in plan.not_tuned))
        kind = NoModelError if any("no model" in entry.reason for entry in plan.not_tuned) else WorkloadError
        raise kind(f"nothing of the workload can be tuned: {reasons}")
    run = TuneRun(plan)
    rows = []
    try:
        for (dtype, layout), plans in plan.groups.items():
            runner = (opener or open_runner)(CalibrationKey("gemm", device.arch, dtype, layout), gpu)
            # Only now: without a GPU there is nothing to put into it.
            make_folder(out)
            journal = out / f"journal-{dtype}-{layout}.sqlite"
            with MeasurementStore(journal, runner.environment()) as store, watch() as observer:
                group = tune_problems(runner, plans, store, options=options, observer=observer)
                rows += candidate_rows(store.measurements())
                confirmed = out / f"confirmed-{dtype}-{layout}.csv.gz"
                if write_confirmed(confirmed, group, store):
                    run.confirmed[dtype, layout] = confirmed
            run.problems += group.problems
            run.measured += group.measured
            run.resumed += group.resumed
            run.failures += len(group.failures)
            for stage, seconds in group.seconds.items():
                run.seconds[stage] = run.seconds.get(stage, 0.0) + seconds
            run.environment = run.environment or runner.environment()
            note_conditions(runner)
            run.conditions |= conditions_of(runner)
    except KeyboardInterrupt:
        stop_interrupted(f"every problem that was measured whole is in {out}/journal-*.sqlite")
    write_rows(out / CANDIDATES_NAME, CANDIDATE_COLUMNS, rows)
    run.files["candidates"] = out / CANDIDATES_NAME
    _write_results(run, device, out)
    if pattern_cache is not None:
        run.patterns = seeds.learn(run.problems)
        run.files["patterns"] = pattern_cache
    if remember:
        _remember(run, device)
    return run


def _write_results(run: TuneRun, device: Device, out: Path) -> None:
    from wavetune.pipeline.tune_files import TUNED_COLUMNS, pinned_table, tuned_rows, write_rows
    from wavetune.runtime.pinned import write_pinned

    write_rows(out / TUNED_NAME, TUNED_COLUMNS, tuned_rows(run.problems, device))
    run.files["tuned"] = out / TUNED_NAME
    table = pinned_table(run.problems, device, run.environment)
    if table.entries:
        write_pinned(table, out / PINNED_NAME)
        run.files["pinned"] = out / PINNED_NAME


def _remember(run: TuneRun, device: Device) -> None:
    """Put the results into the user's store, as a live measurement does."""
    import math

    from wavetune.runtime.measurer import MeasuredChoice
    from wavetune.runtime.settings import settings
    from wavetune.runtime.tables import open_store

    store = open_store(settings())
    source = run.environment.get("kernel_source", "")
    kept = 0
    for tuned in run.problems:
        if math.isfinite(tuned.latency_us) and math.isfinite(tuned.default_us):
            choice = MeasuredChoice(tuned.config, tuned.latency_us, tuned.default_us, source)
            store.save(tuned.plan.problem, choice, arch=device.arch.name, num_sms=device.num_sms)
            kept += 1
    note(f"{kept} results are in {store.path or 'the memory of this process'}")
