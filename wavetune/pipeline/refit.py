"""From a table of measurements to a model file, with the accuracy on layers it has not seen."""

from __future__ import annotations

import datetime
import importlib.metadata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from joblib import Parallel, delayed

import wavetune
from wavetune.core.arch import ArchSpec
from wavetune.fit.model import WaveLatencyModel
from wavetune.pipeline.folds import split_fold
from wavetune.report.accuracy import AccuracyReport, evaluate_model
from wavetune.report.metrics import without_nan
from wavetune.runtime.model_file import ModelFile
from wavetune.store.read_report import FileReport
from wavetune.store.table import MeasurementTable
from wavetune.tables.build import build_model_file
from wavetune.tables.too_fast import FastReading, find_too_fast, without

PARALLEL_ROWS = 10_000
"""Rows from which judging has a process of its own: starting one takes one to two seconds."""

_VERSIONED = ("numpy", "scipy", "scikit-learn")


@dataclass(frozen=True)
class FitOptions:
    """Knobs of a fit.

    Parameters
    ----------
    n_configs : int
        Most launch configurations that survive, beside the few for unaligned operands.
    random_state : int
        Seed of everything random.
    holdout : bool
        Whether to estimate accuracy on held-out layers, which costs a second, smaller fit.
    """

    n_configs: int = 64
    random_state: int = 0
    holdout: bool = True


@dataclass(frozen=True)
class FittedModel:
    """A fit and what is known of its quality.

    Parameters
    ----------
    estimator : WaveLatencyModel
        Fitted to every row.
    file : ModelFile
        Its tables.
    held_out : AccuracyReport or None
        Accuracy of a model fitted without one part of the realistic layers, on that part; None if there are no
        realistic layers, or too few.
    too_fast : tuple of FastReading
        Readings that are in no exact answer, because they are too fast to be true.
    """

    estimator: WaveLatencyModel
    file: ModelFile
    held_out: AccuracyReport | None
    too_fast: tuple[FastReading, ...] = ()


def fit_model_file(
    table: MeasurementTable,
    arch: ArchSpec,
    *,
    sources: Sequence[FileReport] = (),
    environment: Mapping[str, str] | None = None,
    options: FitOptions | None = None,
    created: datetime.date | None = None,
) -> FittedModel:
    """Fit a model and build its file.

    Parameters
    ----------
    table : MeasurementTable
        Rows marked exhaustive belong to realistic problems.
    arch : ArchSpec
        GPU that was measured.
    sources : sequence of FileReport
        The files behind the table, for the provenance.
    environment : mapping of str to str, optional
        Fingerprint of the measuring machine, for the provenance.
    options : FitOptions, optional
        Defaults if not given.
    created : date, optional
        Date in the provenance; today if not given.

    Raises
    ------
    FitError
        If the rows are not enough.
    """
    options = options or FitOptions()
    estimator = WaveLatencyModel(
        kernel=table.spec.name,
        dtype=table.dtype,
        arch=arch.name,
        n_configs=options.n_configs,
        random_state=options.random_state,
    )
    # Processes, since threads wait for Python's lock: on two cores 25 s for a calibration, against 21 and 31 in turn.
    n_jobs = 2 if options.holdout and len(table) >= PARALLEL_ROWS else 1
    tasks = [delayed(estimator.fit_table)(table)]
    if options.holdout:
        tasks.append(delayed(hold_out)(table, estimator))
    estimator, held_out = [*Parallel(n_jobs=n_jobs)(tasks), None][:2]
    accuracy: dict[str, Any] = {"held_out": None}
    if held_out is not None:
        headline = held_out.to_dict(table.spec.dims)
        accuracy["held_out"] = without_nan({k: v for k, v in headline.items() if k not in ("worst", "sources")})
    too_fast = find_too_fast(estimator, table)
    file = build_model_file(
        estimator,
        without(table, too_fast),
        provenance=_provenance(table, estimator, sources, environment or {}, options, created),
        accuracy=accuracy,
    )
    return FittedModel(estimator, file, held_out, too_fast)


def hold_out(table: MeasurementTable, estimator: WaveLatencyModel, fold: int = 0) -> AccuracyReport | None:
    """Judge an estimator on layers it has not seen: fit it without one part of the (n, k) of realistic problems.

    Parameters
    ----------
    table : MeasurementTable
        All rows.
    estimator : WaveLatencyModel
        Its parameters count; it is not fitted itself.
    fold : int, default=0
        Which part of `wavetune.pipeline.folds.HOLDOUT_FOLDS` to hold out.

    Returns
    -------
    AccuracyReport or None
        None if there are fewer than `wavetune.pipeline.folds.MIN_HOLDOUT_LAYERS` realistic layers.
    """
    split = split_fold(table, fold)
    if split is None:
        return None
    training = table.select(split.training)
    params = {**estimator.get_params(), "cell_dims": split.problems}
    fitted = WaveLatencyModel(**params).fit_table(training)
    file = build_model_file(fitted, training, provenance={})
    return evaluate_model(file, table.select(split.judged))


def _provenance(
    table: MeasurementTable,
    estimator: WaveLatencyModel,
    sources: Sequence[FileReport],
    environment: Mapping[str, str],
    options: FitOptions,
    created: datetime.date | None,
) -> dict[str, Any]:
    screening = estimator.screening_
    return {
        "created": (created or datetime.date.today()).isoformat(),
        "rows": len(table),
        "exhaustive_rows": int(table.exhaustive.sum()),
        "problems": len(estimator.measured_dims_),
        "fitted_configs": len(estimator.configs_),
        "disturbed_rows": int(screening.disturbed.sum()) if screening is not None else 0,
        "files": [
            {
                "name": Path(entry.path).name,
                "sha256": entry.sha256,
                "rows": entry.rows_kept,
                "skipped": entry.rows_skipped,
            }
            for entry in sources
        ],
        "environment": dict(environment),
        "random_state": options.random_state,
        "versions": {
            "wavetune": wavetune.__version__,
            **{name: importlib.metadata.version(name) for name in _VERSIONED},
        },
    }
