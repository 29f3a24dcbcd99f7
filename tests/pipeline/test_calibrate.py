"""The whole pipeline on a synthetic GPU: replay, store, resume, fit, held-out judgement."""

from __future__ import annotations

import datetime
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "fit"))

from synthetic_gpu import ARCH, SyntheticGpu, fitted, held_out_problems

from wavetune.core.arch import find_arch
from wavetune.core.problem import GemmProblem
from wavetune.errors import FitError, StoreError
from wavetune.measure.replay_runner import ReplayRunner
from wavetune.measure.runner import Progress, no_progress
from wavetune.pipeline import refit
from wavetune.pipeline.calibrate import BATCH, CalibrationResult, calibrate
from wavetune.pipeline.refit import FitOptions, fit_model_file, hold_out
from wavetune.pipeline.strategy import ReplayStrategy
from wavetune.runtime.chooser import GemmChooser
from wavetune.runtime.codec import encode_model, read_model, write_model
from wavetune.store.database import MeasurementStore
from wavetune.store.record import Measurement, Point
from wavetune.store.table import MeasurementTable

OPTIONS = FitOptions(n_configs=16, holdout=False)


class CountingRunner(ReplayRunner):
    """Counts what it measures, and can be cut off after so many points."""

    def __init__(self, table: MeasurementTable, limit: int | None = None) -> None:
        super().__init__(table, ARCH)
        self.measured = 0
        self.limit = limit

    def measure(self, points: Sequence[Point], progress: Progress = no_progress) -> Iterator[Measurement]:
        """Replay, and stop like a killed process at the limit."""
        for measurement in super().measure(points, progress):
            if self.measured == self.limit:
                raise KeyboardInterrupt
            self.measured += 1
            yield measurement


class RecordingObserver:
    """Remembers what it saw."""

    def __init__(self) -> None:
        self.stages: list[tuple[str, int]] = []
        self.done: dict[str, list[int]] = {}

    def begin(self, stage: str, total: int) -> None:
        """Note a stage."""
        self.stages.append((stage, total))

    def update(self, done: int) -> None:
        """Note a step."""
        self.done.setdefault(self.stages[-1][0], []).append(done)


@pytest.fixture(scope="module")
def recording() -> MeasurementTable:
    """Return the anchors and twenty realistic problems."""
    table = SyntheticGpu().table(seed=1)[0]
    n_anchors = int((~table.exhaustive).sum())
    return table.select(np.arange(n_anchors + 20 * len(table.configs)))


def run(path: Path, runner: ReplayRunner, table: MeasurementTable, **options: object) -> CalibrationResult:
    """Calibrate by replay into a store."""
    with MeasurementStore(path, runner.environment()) as store:
        return calibrate(
            runner, ReplayStrategy(runner, table), store, kernel="gemm", dtype="bf16", layout="nk",
            options=OPTIONS, **options,
        )  # fmt: skip


def test_from_recording_to_answers_and_resuming(recording: MeasurementTable, tmp_path: Path) -> None:
    """A replayed calibration ends in a file that answers well; a second run measures nothing and ends in the same."""
    path = tmp_path / "store.sqlite"
    runner, observer = CountingRunner(recording), RecordingObserver()
    first = run(path, runner, recording, observer=observer)
    n_points = len(runner.recorded_points())
    assert runner.measured == n_points == first.points["replay"]
    assert (first.resumed, first.failures) == (0, [])
    assert len(first.table) == n_points
    assert first.table.exhaustive.sum() == recording.exhaustive.sum()
    stages = [stage for stage, _ in observer.stages]
    assert stages.index("prepare") < stages.index("replay") < stages.index("fit")
    assert observer.done["replay"] == list(range(1, n_points + 1))
    assert set(first.seconds) >= {"prepare", "replay", "fit"}

    write_model(first.fitted.file, tmp_path / "model.json")
    chooser = GemmChooser(read_model(tmp_path / "model.json"), ARCH, use_exact=False)
    problems = held_out_problems(80)
    truth = SyntheticGpu().all_latencies(problems)
    index_of = {entry.config: i for i, entry in enumerate(SyntheticGpu().configs)}
    chosen = [index_of[chooser.choose(GemmProblem(*dims))] for dims in problems.tolist()]
    assert np.exp(np.mean(np.log(truth.min(axis=1) / truth[np.arange(len(truth)), chosen]))) > 0.98

    again = CountingRunner(recording)
    second = run(path, again, recording)
    assert again.measured == 0
    assert second.resumed == n_points
    assert encode_model(second.fitted.file) == encode_model(first.fitted.file)


def test_a_stopped_run_goes_on_where_it_stopped(recording: MeasurementTable, tmp_path: Path) -> None:
    """A run that is interrupted keeps its finished batches, and the next one measures only the rest."""
    anchors = recording.select(~recording.exhaustive)
    path = tmp_path / "store.sqlite"
    stopped = CountingRunner(anchors, limit=BATCH + 100)
    with pytest.raises(KeyboardInterrupt):
        run(path, stopped, anchors)
    runner = CountingRunner(anchors)
    result = run(path, runner, anchors)
    assert BATCH <= result.resumed <= stopped.measured
    assert runner.measured == len(runner.recorded_points()) - result.resumed
    assert len(result.table) == len(runner.recorded_points())


def test_a_store_of_another_recording_is_refused(recording: MeasurementTable, tmp_path: Path) -> None:
    """Rows of two recordings are never mixed in one store."""
    anchors = recording.select(~recording.exhaustive)
    run(tmp_path / "store.sqlite", CountingRunner(anchors), anchors)
    changed = replace(anchors, latency_us=anchors.latency_us * 1.01)
    with pytest.raises(StoreError, match="recording_sha256"):
        run(tmp_path / "store.sqlite", CountingRunner(changed), changed)


def test_nothing_prepared_is_an_error(recording: MeasurementTable, tmp_path: Path) -> None:
    """With no configuration that can be prepared there is nothing to fit, and the reason is given."""
    runner = CountingRunner(recording)
    strategy = ReplayStrategy(runner, recording)
    unknown = recording.configs[0].config.replace(num_stages=7)
    strategy.configs = lambda: [unknown]  # type: ignore[method-assign]
    with (
        MeasurementStore(tmp_path / "store.sqlite", runner.environment()) as store,
        pytest.raises(FitError, match="no such configuration"),
    ):
        calibrate(runner, strategy, store, kernel="gemm", dtype="bf16", layout="nk", options=OPTIONS)


def test_held_out_layers_are_not_trained_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """No (n, k) of the judged part is among the rows of the refit, wave-structured rows included."""
    fit = fitted()
    # One anchor row that shares its layer with realistic problems.
    table = fit.table
    dims = table.dims.copy()
    dims[0] = (16, 4096, 4096)
    table = replace(table, dims=dims)
    seen: dict[str, object] = {}
    build = refit.build_model_file
    evaluate = refit.evaluate_model

    def spy_build(model: object, rows: MeasurementTable, **options: object) -> object:
        seen["trained"] = {tuple(layer) for layer in rows.dims[:, 1:].tolist()}
        return build(model, rows, **options)

    def spy_evaluate(file: object, rows: MeasurementTable) -> object:
        seen["judged"] = {tuple(layer) for layer in rows.dims[:, 1:].tolist()}
        seen["all_exhaustive"] = bool(rows.exhaustive.all())
        return evaluate(file, rows)

    monkeypatch.setattr(refit, "build_model_file", spy_build)
    monkeypatch.setattr(refit, "evaluate_model", spy_evaluate)
    reports = []
    layers = set()
    for fold in (0, 1):
        report = hold_out(table, fit.model, fold=fold)
        assert report is not None
        assert seen["all_exhaustive"]
        assert seen["judged"]
        assert not seen["trained"] & seen["judged"]  # type: ignore[operator]
        assert {result.dims[1:] for result in report.results} == seen["judged"]
        assert not layers & seen["judged"]  # type: ignore[operator]
        layers |= seen["judged"]  # type: ignore[arg-type]
        reports.append(report)
    assert all(report.efficiency.geomean > 0.98 for report in reports)
    assert all("exact" not in report.sources for report in reports)


def test_too_few_layers_are_not_judged() -> None:
    """With fewer than five layers nothing is held out."""
    fit = fitted()
    few = fit.table.select(~fit.table.exhaustive | (fit.table.dims[:, 2] == 4096) & (fit.table.dims[:, 1] < 12000))
    assert hold_out(few, fit.model) is None


def test_provenance_says_what_went_in(recording: MeasurementTable) -> None:
    """Rows, date, seed, versions and accuracy are in the file, and equal inputs give equal bytes."""
    anchors = recording.select(~recording.exhaustive)
    files = [
        fit_model_file(anchors, ARCH, options=FitOptions(n_configs=4), created=datetime.date(2026, 1, 2)).file
        for _ in range(2)
    ]
    assert encode_model(files[0]) == encode_model(files[1])
    provenance = files[0].provenance
    assert provenance["created"] == "2026-01-02"
    assert (provenance["rows"], provenance["exhaustive_rows"]) == (len(anchors), 0)
    assert provenance["fitted_configs"] == 20
    assert {"wavetune", "numpy"} <= set(provenance["versions"])
    assert files[0].accuracy == {"held_out": None}
    assert files[0].arch == find_arch("h200").name
