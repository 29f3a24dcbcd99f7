"""Progress on stderr: a live bar on a terminal, one line a stage elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from wavetune.cli.output import note

if TYPE_CHECKING:
    from rich.progress import Progress

_LABELS = {
    "prepare": "preparing configurations",
    "sparse": "measuring: sparse over the whole space",
    "dense": "measuring: dense where configurations can win",
    "finalists": "measuring: what the model would choose on other shapes",
    "replay": "replaying recorded measurements",
    "fit": "fitting",
}


class ProgressObserver:
    """Draws the stages of a calibration; an observer of `wavetune.pipeline.calibrate`.

    Parameters
    ----------
    progress : rich.progress.Progress or None
        The bar; None where stderr is no terminal.
    """

    def __init__(self, progress: Progress | None) -> None:
        self._progress = progress
        self._task: Any = None
        self._started = 0.0
        self._label = ""

    def begin(self, stage: str, total: int) -> None:
        """Show a stage of ``total`` steps; 0 if unknown."""
        self.finish()
        self._label = _LABELS.get(stage, stage)
        self._started = time.perf_counter()
        if self._progress is not None:
            self._task = self._progress.add_task(self._label, total=total or None)
        else:
            note(f"{self._label} ({total:,} points) ..." if total else f"{self._label} ...")

    def update(self, done: int) -> None:
        """Move the bar."""
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, completed=done)

    def finish(self) -> None:
        """Complete the current stage."""
        if self._label and self._progress is not None and self._task is not None:
            total = self._progress.tasks[self._task].total or 1
            self._progress.update(self._task, total=total, completed=total)
        elif self._label:
            note(f"{self._label}: {time.perf_counter() - self._started:.1f} s")
        self._label = ""


@contextmanager
def watch() -> Iterator[ProgressObserver]:
    """Yield an observer for the stages of one command."""
    if not sys.stderr.isatty():
        observer = ProgressObserver(None)
        yield observer
        observer.finish()
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        SpinnerColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
        TimeElapsedColumn(), TextColumn("ETA"), TimeRemainingColumn(),
    )  # fmt: skip
    with Progress(*columns, console=Console(stderr=True)) as progress:
        observer = ProgressObserver(progress)
        yield observer
        observer.finish()
