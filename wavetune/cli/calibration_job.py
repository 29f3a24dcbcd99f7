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
from wavetune.pipeline.recording import Recording, read_recording
from wavetune.pipeline.strategy import LiveStrategy, ReplayStrategy, Strategy
from wavetune.plan.sampling import PlanOptions

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
    recording : Recording or None
        What is replayed; None for a live run.
    connect : callable
        Given the ordinal of the GPU, returns the runner.
    """

    key: CalibrationKey
    strategy: Strategy
    options: PlanOptions | None
    recording: Recording | None
    connect: Callable[[int], Runner]


def replay_job(
    key: CalibrationKey, files: Sequence[Path], sweeps: Sequence[Path], skip_bad_rows: bool
) -> CalibrationJob:
    """Read recorded measurements; their account goes to stderr.

    Parameters
    ----------
    key : CalibrationKey
        What was measured.
    files : sequence of Path
        Files whose kind is told by their content.
    sweeps : sequence of Path
        Exhaustive sweeps, however few configurations they have.
    skip_bad_rows : bool
        Leave impossible rows out.
    """
    spec = find_kernel_spec(key.kernel)
    recording = read_recording(
        files, sweeps, spec, key.arch, dtype=key.dtype, layout=key.layout, skip_bad_rows=skip_bad_rows, detect=True
    )
    for report in recording.files:
        first, *more = report.lines()
        note(f"{first} ({'exhaustive sweep' if report.path in recording.sweeps else 'wave-structured points'})")
        for line in more:
            note(line)
    if files:
        note(
            "the kind of a file given with --replay is told by its content; a sweep of real shapes that is taken for "
            "points belongs to --oracle, and `wavetune fit --measurements` takes any file for points"
        )
    runner = ReplayRunner(recording.table, key.arch)
    return CalibrationJob(key, ReplayStrategy(runner, recording.table), None, recording, lambda gpu: runner)


def live_job(key: CalibrationKey, budget_s: float | None, workload: Path | None) -> CalibrationJob:
    """Plan measurements on a GPU, which is not touched until `CalibrationJob.connect`."""
    options = PlanOptions() if budget_s is None else PlanOptions(max_seconds=budget_s)
    problems = read_problems(workload, dtype=key.dtype, layout=key.layout) if workload is not None else ()
    strategy = LiveStrategy(
        candidate_configs(key), key.arch, dtype=key.dtype, layout=key.layout, options=options,
        workload=[problem.dims for problem in problems],
    )  # fmt: skip
    return CalibrationJob(key, strategy, options, None, lambda gpu: live_runner(key, gpu, instead=NO_GPU))
