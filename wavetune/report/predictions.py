"""What a model says about every row of a sweep, beside what was measured."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from wavetune.core.arch import find_arch
from wavetune.core.dtype import find_dtype
from wavetune.core.problem import GemmProblem
from wavetune.fit.points import GemmGeometry, GemmPoints
from wavetune.report.metrics import NEAR_BEST
from wavetune.runtime.chooser import GemmChooser
from wavetune.runtime.model_file import ModelFile
from wavetune.store.record import CompiledConfig
from wavetune.store.table import BoolArray, FloatArray, IntArray, MeasurementTable


@dataclass(frozen=True)
class Predictions:
    """Rows of modelled configurations, in the order of the sweep; arrays of shape (n_rows,) if not said otherwise.

    Parameters
    ----------
    problems : ndarray of shape (n_problems, 3)
        Distinct problems.
    problem, form : ndarray of int
        Index into ``problems``, and into the model's forms.
    predicted_us, measured_us, best_us : ndarray
        Of the row, and the best measured on its problem by any configuration.
    is_choice : ndarray of bool
        Rows of the configuration that the runtime chooses.
    points : GemmPoints
        The rows as the GPU sees them.
    """

    problems: IntArray
    problem: IntArray
    form: IntArray
    predicted_us: FloatArray
    measured_us: FloatArray
    best_us: FloatArray
    is_choice: BoolArray
    points: GemmPoints

    def __len__(self) -> int:
        return len(self.form)

    @property
    def error(self) -> FloatArray:
        """Predicted over measured latency, minus 1."""
        return self.predicted_us / self.measured_us - 1.0

    @property
    def near_best(self) -> BoolArray:
        """Rows within `wavetune.report.metrics.NEAR_BEST` of the best: the only ones whose error matters."""
        near: BoolArray = self.measured_us <= NEAR_BEST * self.best_us
        return near

    @property
    def best_held_us(self) -> FloatArray:
        """Fastest measured latency of a modelled configuration on each problem, shape (n_problems,); NaN for none."""
        held = np.full(len(self.problems), np.inf)
        np.minimum.at(held, self.problem, self.measured_us)
        return np.where(np.isinf(held), np.nan, held)

    def select(self, rows: BoolArray) -> Predictions:
        """Return these rows; the problems stay."""
        names = ("problem", "form", "predicted_us", "measured_us", "best_us", "is_choice")
        return replace(
            self, points=select_points(self.points, rows), **{name: getattr(self, name)[rows] for name in names}
        )


def select_points(points: GemmPoints, rows: BoolArray) -> GemmPoints:
    """Return some of the points."""
    columns: dict[str, Any] = {
        name: value[rows] for name, value in vars(points).items() if isinstance(value, np.ndarray)
    }
    return replace(points, **columns)


def model_geometry(model: ModelFile) -> GemmGeometry:
    """Return the geometry of the model's forms, in their order."""
    compiled = [CompiledConfig(form.config, form.num_regs, 0, form.smem_bytes) for form in model.forms]
    return GemmGeometry(compiled, find_arch(model.arch), find_dtype(model.dtype))


def predict_sweep(model: ModelFile, sweep: MeasurementTable) -> Predictions:
    """Predict every row of a sweep whose configuration the model holds a form of.

    The exact table is off: predictions are those for problems that were never measured.
    """
    chooser = GemmChooser(model, find_arch(model.arch), use_exact=False)
    position = {form.config: index for index, form in enumerate(model.forms[: model.n_modelled])}
    form = np.array([position.get(entry.config, -1) for entry in sweep.configs], dtype=np.int64)[sweep.config_index]
    problems, problem = sweep.problems()
    best = np.full(len(problems), np.inf)
    np.minimum.at(best, problem, sweep.latency_us)
    predicted = np.empty((len(problems), model.n_modelled))
    choice = np.empty(len(problems), dtype=np.int64)
    for row, (m, n, k) in enumerate(problems.tolist()):
        asked = GemmProblem(m, n, k, model.dtype, model.layout)
        predicted[row] = list(chooser.predict(asked).values())
        choice[row] = position.get(chooser.choose(asked), -1)
    kept = form >= 0
    dims, problem, form = sweep.dims[kept], problem[kept], form[kept]
    return Predictions(
        problems=problems,
        problem=problem,
        form=form,
        predicted_us=predicted[problem, form],
        measured_us=sweep.latency_us[kept],
        best_us=best[problem],
        is_choice=form == choice[problem],
        points=model_geometry(model).points(dims, form),
    )
