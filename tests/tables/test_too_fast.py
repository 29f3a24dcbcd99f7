"""One reading too fast to be true is found, and does not become the answer."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "fit"))

from synthetic_gpu import ARCH, fitted

from wavetune.pipeline.refit import FitOptions, fit_model_file
from wavetune.store.table import MeasurementTable
from wavetune.tables.too_fast import TOO_FAST, find_too_fast

DIMS = (100, 4096, 4096)


def spoiled(factor: float) -> tuple[MeasurementTable, int]:
    """Return a table whose slowest reading of a problem is ``factor`` times the best one, and the row."""
    table = fitted().table
    of_problem = np.flatnonzero(table.exhaustive & (table.dims == DIMS).all(axis=1))
    row = int(of_problem[np.argmax(table.latency_us[of_problem])])
    latency_us = table.latency_us.copy()
    latency_us[row] = factor * latency_us[of_problem].min()
    return replace(table, latency_us=latency_us), row


def test_what_was_measured_is_believed() -> None:
    """No reading of a GPU that bends as no form can, with noise and stalls, is called too fast."""
    for fit in (fitted(), fitted(stalls=14), fitted(deviation=0.2)):
        assert find_too_fast(fit.model, fit.table) == ()


def test_a_reading_below_the_best_is_found_by_its_own_model() -> None:
    """It is named with its configuration and its factor; one above the best could be no answer, and is not."""
    table, row = spoiled(0.9)
    (found,) = find_too_fast(fitted().model, table)
    assert (found.row, found.dims) == (row, DIMS)
    assert found.config == table.configs[table.config_index[row]].config
    assert found.latency_us == table.latency_us[row]
    assert found.factor == pytest.approx(fitted().table.latency_us[row] / table.latency_us[row], rel=0.1)
    assert found.factor > TOO_FAST
    assert find_too_fast(fitted().model, spoiled(1.1)[0]) == ()


def test_a_problem_that_is_faster_than_its_model_as_a_whole_is_believed() -> None:
    """What all configurations do alike is the model's fault."""
    table = fitted().table
    rows = table.exhaustive & (table.dims == DIMS).all(axis=1)
    assert find_too_fast(fitted().model, replace(table, latency_us=np.where(rows, 0.4, 1.0) * table.latency_us)) == ()


def test_a_reading_that_is_not_believed_is_no_exact_answer() -> None:
    """The fit that learned from the row answers its problem with the configuration that is truly fast."""
    table, row = spoiled(0.9)
    fit = fit_model_file(table, ARCH, options=FitOptions(holdout=False))
    assert [found.row for found in fit.too_fast] == [row]
    entry = fit.file.exact[DIMS]
    assert fit.file.forms[entry.config_index].config != table.configs[table.config_index[row]].config
    assert entry.latency_us > table.latency_us[row]
