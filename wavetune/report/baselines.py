"""What one would do without a wave model: choose from the same measurements by plainer means."""

from __future__ import annotations

import numpy as np
from sklearn.ensemble import HistGradientBoostingRegressor

from wavetune.errors import MeasurementError
from wavetune.fit.threads import on_one_thread
from wavetune.store.table import FloatArray, IntArray, MeasurementTable

BOOSTING_ITERATIONS = 600
BOOSTING_LEARNING_RATE = 0.1
"""On recorded H200 sweeps (2026-11, 164 held-out shapes) 100, 200, 600 and 1500 iterations choose with a geometric-mean
efficiency of 0.874, 0.907, 0.929 and 0.934; faster learning rates with more leaves (0.2 with 63, 0.3 with 31) 0.916 to
0.922 after 200. 600 is what the demonstration has time for."""


def best_fixed_latency(training: MeasurementTable, judged: MeasurementTable) -> FloatArray:
    """Use one configuration everywhere: the best on average over the training part's exhaustive sweeps.

    Returns
    -------
    ndarray of shape (n_problems,)
        Its measured latency on each problem of ``judged``; NaN where it was not measured.

    Raises
    ------
    MeasurementError
        If no configuration was measured on every problem of the training part: then none is the best on average.
    """
    latency = training.select(training.exhaustive).latency_matrix()[1]
    regret = np.log(latency / np.nanmin(latency, axis=1)[:, None])
    measured_everywhere = ~np.isnan(regret).any(axis=0)
    if not measured_everywhere.any():
        raise MeasurementError(
            f"none of {latency.shape[1]} configurations was measured on all {len(latency)} problems; take a model's "
            "default configuration instead"
        )
    fixed = int(np.argmin(np.where(measured_everywhere, regret.mean(axis=0), np.inf)))
    return judged.latency_matrix()[1][:, fixed]


class BoostedLatency:
    """Gradient boosting on log latency, from sizes and configuration fields, without wave terms.

    Parameters
    ----------
    seed : int
        Seed of the regressor.
    """

    def __init__(self, seed: int = 0) -> None:
        self._regressor = HistGradientBoostingRegressor(
            max_iter=BOOSTING_ITERATIONS, learning_rate=BOOSTING_LEARNING_RATE, random_state=seed, early_stopping=False
        )

    @on_one_thread
    def fit(self, training: MeasurementTable) -> BoostedLatency:
        """Fit to every row."""
        self._table = training
        self._regressor.fit(_features(training, training.dims, training.config_index), np.log(training.latency_us))
        return self

    @on_one_thread
    def predict(self, dims: IntArray) -> FloatArray:
        """Predict every configuration of the training table, shape (n_problems, n_configs), log microseconds."""
        n_configs = len(self._table.configs)
        columns = np.tile(np.arange(n_configs), len(dims))
        rows = _features(self._table, np.repeat(dims, n_configs, axis=0), columns)
        predicted: FloatArray = self._regressor.predict(rows).reshape(len(dims), n_configs)
        return predicted

    def choose(self, dims: IntArray) -> IntArray:
        """Choose a configuration for each problem, shape (n_problems,): indices into the training table's."""
        choice: IntArray = np.argmin(self.predict(dims), axis=1)
        return choice


def boosted_choice_latency(training: MeasurementTable, judged: MeasurementTable, seed: int) -> FloatArray:
    """Choose by `BoostedLatency`.

    Returns
    -------
    ndarray of shape (n_problems,)
        Measured latency of its choice among the measured configurations of each problem.
    """
    boosted = BoostedLatency(seed).fit(training.restrict({entry.config for entry in judged.configs}))
    problems, latency = judged.latency_matrix()
    predicted = boosted.predict(problems)
    choice = np.argmin(np.where(np.isnan(latency), np.inf, predicted), axis=1)
    chosen_us: FloatArray = latency[np.arange(len(problems)), choice]
    return chosen_us


def _features(table: MeasurementTable, dims: IntArray, config_index: IntArray) -> FloatArray:
    numeric = [name for name in table.spec.fields if name not in table.spec.words]
    words = {name: table.spec.words[name] for name in table.spec.words}
    fields = np.array(
        [
            [float(entry.config[name]) for name in numeric]
            + [float(words[name].index(str(entry.config[name]))) for name in words]
            + [entry.num_regs, entry.smem_bytes]
            for entry in table.configs
        ]
    )
    return np.hstack([np.log2(dims), fields[config_index]])
