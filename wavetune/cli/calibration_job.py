"""The two kinds of calibration: a GPU that is measured, or a recording that is replayed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from wavetune.cli.live import CalibrationKey, candidate_configs, live_runner
from wavetune.cli.output import note
from wavetune.cli.workload_problems import read_problems
from wavetune.core.config import find_kernel_spec
from wavetune.measure.replay_runner import ReplayRunner
from wavetune.measure.runner import Runner
from wavetune.pipeline.recording import read_recording
from wavetune.pipeline.strategy import LiveStrategy, ReplayStrategy, Strategy
from wavetune.plan.sampling import PlanOptions
from wavetune.store.read_report import FileReport

NO_GPU = (
    "without a GPU, calibrate from recorded measurements: `wavetune calibrate --replay FILE...`; "
    "`wavetune doctor` says what is missing here"
)


@dataclass(frozen=True)
class CalibrationJob:
    """What a calibration runs on.

    Parameters
    ----------
    key : CalibrationKey
        What is measured.
    strategy : Strategy
        Decides the points.
    options : PlanOptions or None
        Budget of a live plan; None for a replay.
    sources : tuple of FileReport
        Files of a replay.
    connect : callable
        Given the ordinal of the GPU, returns the runner.
    """

    key: CalibrationKey
    strategy: Strategy
    options: PlanOptions | None
    sources: tuple[FileReport, ...]
    connect: Callable[[int], Runner]


def replay_job(key: CalibrationKey, files: Sequence[Path], skip_bad_rows: bool) -> CalibrationJob:
    """Read recorded measurements; their account goes to stderr."""
    spec = find_kernel_spec(key.kernel)
    recording = read_recording(
        files, [], spec, key.arch, dtype=key.dtype, layout=key.layout, skip_bad_rows=skip_bad_rows, detect=True
    )
    for report in recording.files:
        first, *more = report.lines()
        note(f"{first} ({'exhaustive sweep' if report.path in recording.sweeps else 'wave-structured points'})")
        for line in more:
            note(line)
    runner = ReplayRunner(recording.table, key.arch)
    return CalibrationJob(key, ReplayStrategy(runner, recording.table), None, recording.files, lambda gpu: runner)


def live_job(key: CalibrationKey, budget_s: float | None, workload: Path | None) -> CalibrationJob:
    """Plan measurements on a GPU, which is not touched until `CalibrationJob.connect`."""
    options = PlanOptions() if budget_s is None else PlanOptions(max_seconds=budget_s)
    problems = read_problems(workload, dtype=key.dtype, layout=key.layout) if workload is not None else ()
    strategy = LiveStrategy(
        candidate_configs(key), key.arch, dtype=key.dtype, layout=key.layout, options=options,
        workload=[problem.dims for problem in problems],
    )  # fmt: skip
    return CalibrationJob(key, strategy, options, (), lambda gpu: live_runner(key, gpu, instead=NO_GPU))
