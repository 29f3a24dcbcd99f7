"""What each part of the method buys, and how efficiency grows with the number of measurements. Needs no GPU.

    python benchmarks/ablation.py [--json FILE]

One part at a time is taken out, the model is fitted again, and its choices are judged. Data, all of one H200:

- fitted: the calibration behind the shipped bf16 model, as far as its configurations were swept;
- judged: its hold-out sweep, 128 shapes that the calibration never measured, 342 TMA and pointer kernels, no
  exact table. Efficiency is the best measured over the chosen one's latency.
- Row screening is judged once more where a host really stalled: six shapes of the recorded oracle (pointer kernels) as
  a disturbed sweep read them, fitted with everything else that is recorded, and judged by undisturbed readings.

A loss is the mean over shapes of the logarithm of the complete model's efficiency over the reduced one's, averaged over
seeds, with its standard error over shapes. Fits that differ in nothing but the seed show how much of that is chance.
The plan is not run again: what its later stages measured, all of its earlier ones had directed.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from ablation_parts import Change, changes, strata_of
from baselines import ARCH, read, recorded
from threadpoolctl import threadpool_limits

from wavetune.core.problem import GemmProblem
from wavetune.errors import FitError
from wavetune.fit.model import WaveLatencyModel
from wavetune.report.accuracy import evaluate_model
from wavetune.report.baselines import boosted_choice_latency
from wavetune.report.metrics import geometric_mean, summarise_efficiency
from wavetune.runtime.chooser import GemmChooser
from wavetune.store.table import FloatArray, MeasurementTable, concatenate
from wavetune.tables.build import build_model_file

TARGET_S = 300.0

FRACTIONS = (0.01, 0.03, 0.1, 0.3, 1.0)
N_DRAWS = 3
"""Draws of each fraction but the whole."""

SEEDS = (0, 1)
"""Of every fit. A reduced model is compared with the complete one of its seed."""

MORE_SEEDS = (2, 3, 4)
"""Of the complete model: how far an otherwise equal fit moves."""

MIN_CONFIG_ROWS = 24
"""A small share of the points is not spread over all configurations: each drawn one keeps at least so many on average.
Fewer than eight rows are not fitted at all, and few of a form's ten coefficients are at work at once."""


@dataclass(frozen=True)
class Data:
    """Measurements: fitted, judged, and the stratum of the plan that each fitted row came from."""

    table: MeasurementTable
    judged: MeasurementTable
    stratum: np.ndarray


@cache
def data() -> Data:
    """Read the shipped evidence, once: worker processes inherit it."""
    sweep = read([], ["gemm-bf16-holdout.csv.gz"])
    # What was not swept could not be judged.
    swept = {entry.config for entry in sweep.configs}
    table = read(["gemm-bf16-anchors.csv.gz"], ["gemm-bf16-layers.csv.gz"]).restrict(swept)
    return Data(table, sweep, strata_of(table))


@dataclass(frozen=True)
class Outcome:
    """A fit and its choices.

    Parameters
    ----------
    efficiency : ndarray of shape (n_shapes,)
        Of each choice.
    top3, mape : float
        Geometric-mean efficiency of the best of the top three; mean error of predictions near the best.
    rows, fitted, forms : int
        Points, configurations that were fitted, configurations that survive.
    candidates : float
        Mean number of forms that decide a shape.
    weights : ndarray of shape (n_rows,) or None
        What the screening made of the rows.
    boosting : float
        Geometric-mean efficiency of gradient boosting on the same rows.
    """

    efficiency: FloatArray
    top3: float
    mape: float
    rows: int
    fitted: int
    forms: int
    candidates: float
    weights: FloatArray | None
    boosting: float = float("nan")

    def facts(self) -> dict[str, float]:
        """Return the figures of a table row."""
        summary = summarise_efficiency(self.efficiency)
        return {
            "points": self.rows, "forms": self.forms, "candidates": self.candidates, "geomean": summary.geomean,
            "p5": summary.p5, "min": summary.min, "top3": self.top3, "mape_near_best": self.mape,
        }  # fmt: skip


def fit_and_judge(
    table: MeasurementTable, judged: MeasurementTable, change: Change, seed: int, weights: FloatArray | None
) -> Outcome:
    """Fit, build the tables, and let them choose; without weights the fit screens its rows itself."""
    problems, measured = judged.latency_matrix()
    params = {"cell_dims": problems, "screen": weights is None, "random_state": seed, **change.params}
    with ExitStack() as stack:
        for make in change.patches:
            stack.enter_context(make())
        model = WaveLatencyModel(dtype="bf16", arch=ARCH.name, **params).fit_table(table, weights)
        file = build_model_file(model, table, provenance={})
        report = evaluate_model(file, judged)
    efficiency = np.array([result.efficiency for result in report.results])
    chooser = GemmChooser(file, ARCH, use_exact=False)
    cells = [file.cells.get(tuple((size - 1).bit_length() for size in dims)) for dims in problems.tolist()]
    # Beyond the cells of a small draw, all forms are asked.
    asked = [len(cell.candidates) if cell else file.n_modelled for cell in cells]
    if change.all_forms:
        position = {entry.config: index for index, entry in enumerate(judged.configs)}
        ranked = [position[chooser.rank(GemmProblem(*dims, "bf16"))[0].config] for dims in problems.tolist()]
        efficiency = np.nanmin(measured, axis=1) / measured[np.arange(len(problems)), ranked]
        asked = []
    if np.isnan(efficiency).any():
        raise FitError(f"{change.part}: a choice was not measured in the sweep; efficiencies cannot be compared")
    return Outcome(
        efficiency,
        report.top3_efficiency,
        report.mape_near_best,
        len(table),
        len(model.configs_),
        file.n_modelled,
        float(np.mean(asked)) if asked else file.n_modelled,
        model.screening_.weights if model.screening_ is not None else None,
    )


def run_change(change: Change, seed: int, weights: FloatArray | None = None) -> Outcome:
    """Fit and judge the live evidence without one part."""
    kept = ~np.isin(data().stratum, change.strata)
    if weights is not None:
        weights = weights[kept] if change.screened else np.ones(int(kept.sum()))
    return fit_and_judge(data().table.select(kept), data().judged, change, seed, weights)


def run_stalls(screened: bool) -> Outcome:
    """Fit the recorded points and oracle, six shapes as a stalled host read them; judge those by the oracle."""
    whole, stalled = recorded(), read([], ["recorded/h200-gemm-bf16-disturbed.csv.gz"])
    shapes = {tuple(dims) for dims in stalled.problems()[0].tolist()}
    again = np.array([tuple(dims) in shapes for dims in whole.dims.tolist()])
    table = concatenate([whole.select(~again), stalled])
    return fit_and_judge(
        table, whole.select(again & whole.exhaustive), Change(), SEEDS[0], None if screened else np.ones(len(table))
    )


def draw(table: MeasurementTable, fraction: float, seed: int) -> MeasurementTable:
    """Draw a share of the points: rows at random, of as many configurations as get `MIN_CONFIG_ROWS` each."""
    rng = np.random.default_rng(seed)
    n_points = round(fraction * len(table))
    order = rng.permutation(len(table.configs))
    n_configs = min(max(n_points // MIN_CONFIG_ROWS, 1), len(order))
    # Some configurations have few points themselves; then another one joins.
    while np.isin(table.config_index, order[:n_configs]).sum() < n_points:
        n_configs += 1
    rows = np.flatnonzero(np.isin(table.config_index, order[:n_configs]))
    return used_configs(table.select(np.sort(rng.choice(rows, n_points, replace=False))))


def used_configs(table: MeasurementTable) -> MeasurementTable:
    """Drop configurations without a row."""
    used, index = np.unique(table.config_index, return_inverse=True)
    return replace(table, configs=tuple(table.configs[i] for i in used), config_index=index.reshape(-1))


def run_draw(fraction: float, seed: int) -> Outcome:
    """Fit and judge a share of the points, and gradient boosting on the same rows."""
    judged = data().judged
    some = draw(data().table, fraction, seed)
    found = fit_and_judge(some, judged, Change(), seed, None)
    best = np.nanmin(judged.latency_matrix()[1], axis=1)
    known = {entry.config for entry in some.configs}
    columns = np.array([entry.config in known for entry in judged.configs])
    boosted = boosted_choice_latency(some, used_configs(judged.select(columns[judged.config_index])), seed)
    return replace(found, boosting=geometric_mean(best / boosted))


def mean_facts(outcomes: Sequence[Outcome]) -> dict[str, float]:
    """Average the figures of equal fits with different seeds; counts stay whole where they agree."""
    rows = [outcome.facts() for outcome in outcomes]
    return {name: round(float(np.mean([row[name] for row in rows])), 4) for name in rows[0]}


def loss(reduced: Sequence[Outcome], complete: Sequence[Outcome]) -> dict[str, float]:
    """Return the mean log ratio of efficiencies, complete over reduced, and its standard error over shapes."""
    pairs = zip(reduced, complete, strict=True)
    ratio = np.mean([np.log(whole.efficiency / part.efficiency) for part, whole in pairs], axis=0)
    return {"loss": round(float(ratio.mean()), 4), "error": round(float(ratio.std(ddof=1) / len(ratio) ** 0.5), 4)}


def growth_row(fraction: float, draws: Sequence[Outcome]) -> dict[str, float]:
    """Summarise the draws of a fraction."""
    geomeans = [geometric_mean(outcome.efficiency) for outcome in draws]
    means = {"geomean": geomeans, "top3": [outcome.top3 for outcome in draws]}
    means |= {"p5": [float(np.percentile(outcome.efficiency, 5)) for outcome in draws]}
    means |= {"boosting": [outcome.boosting for outcome in draws]}
    return {
        "fraction": fraction, "points": draws[0].rows, "draws": len(draws),
        "configs": round(float(np.mean([outcome.fitted for outcome in draws]))),
        "low": round(min(geomeans), 4), "high": round(max(geomeans), 4),
        **{name: round(float(np.mean(values)), 4) for name, values in means.items()},
    }  # fmt: skip


def measure(jobs: int) -> dict[str, Any]:
    """Run everything; return the tables."""
    data()
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(jobs, mp_context=context, initializer=threadpool_limits, initargs=(1,)) as pool:
        whole = [pool.submit(run_change, Change(), seed) for seed in (*SEEDS, *MORE_SEEDS)]
        stalls = [pool.submit(run_stalls, screened) for screened in (False, True)]
        draws: dict[float, list[Future[Outcome]]] = {
            fraction: [pool.submit(run_draw, fraction, seed) for seed in range(N_DRAWS if fraction < 1.0 else 1)]
            for fraction in FRACTIONS
        }
        complete = [task.result() for task in whole[: len(SEEDS)]]
        tasks = [
            (change, [pool.submit(run_change, change, seed, complete[seed].weights) for seed in SEEDS])
            for change in changes()
        ]
        parts: list[dict[str, Any]] = []
        for change, fits in tasks:
            reduced = [task.result() for task in fits]
            parts.append({
                "group": change.group, "part": change.part, **mean_facts(reduced), **loss(reduced, complete)
            })  # fmt: skip
        without, screened = ([task.result()] for task in stalls)
        parts.append({
            "group": "screening", "part": "row screen, six stalled shapes", **mean_facts(without),
            **loss(without, screened), "complete_geomean": mean_facts(screened)["geomean"],
        })  # fmt: skip
        return {
            "shapes": len(complete[0].efficiency),
            "complete": mean_facts(complete),
            "seeds": [round(geometric_mean(task.result().efficiency), 4) for task in whole],
            "parts": parts,
            "growth": [
                growth_row(fraction, [task.result() for task in fits]) for fraction, fits in draws.items()
            ],
        }  # fmt: skip


def print_tables(document: dict[str, Any]) -> None:
    """Print what was found."""
    print(f"{document['shapes']} held-out shapes of one H200; loss: mean log ratio to the complete model, %")
    heads = ("points", "forms", "asked", "geomean", "5th pct", "worst", "top 3")
    print(f"{'without':38}" + "".join(f"{head:>9}" for head in heads) + f"{'loss':>14}")
    group = ""
    for row in [{"group": "", "part": "complete", **document["complete"]}, *document["parts"]]:
        if row["group"] != group:
            group = row["group"]
            print(group)
        counts = f"{row['points']:9,.0f}{row['forms']:9.0f}{row['candidates']:9.1f}"
        values = "".join(f"{row[name]:9.3f}" for name in ("geomean", "p5", "min", "top3"))
        lost = f"{100 * row['loss']:8.2f} ±{100 * row['error']:5.2f}" if "loss" in row else ""
        print(f"  {row['part']:36}{counts}{values}{lost}")
    seeds = " ".join(f"{value:.3f}" for value in document["seeds"])
    print(f"the complete model with {len(document['seeds'])} seeds: {seeds}")
    print(f"\n{'points':>8}{'share':>7}{'configurations':>16}{'geomean':>9}{'draws':>16}{'top 3':>8}{'boosting':>10}")
    for row in document["growth"]:
        print(
            f"{row['points']:8,}{row['fraction']:7.0%}{row['configs']:16}{row['geomean']:9.3f}"
            f"{row['low']:8.3f}-{row['high']:.3f}  {row['top3']:8.3f}{row['boosting']:10.3f}"
        )


def main() -> int:
    """Print the tables and, with ``--json``, write them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the tables here")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    options = parser.parse_args()
    start = time.perf_counter()
    document = measure(options.jobs)
    seconds = time.perf_counter() - start
    print_tables(document)
    print(f"{seconds:.0f} s (target {TARGET_S:.0f} s on two cores)")
    if options.json:
        options.json.write_text(json.dumps({"seconds": round(seconds), **document}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
