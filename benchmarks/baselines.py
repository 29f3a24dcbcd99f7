"""Every way to choose a configuration that this project knows of, on the same measurements, in one table. Needs no GPU.

    python benchmarks/baselines.py [--json FILE]

Two sets of held-out shapes of one H200: the recorded oracle (pointer kernels, five folds by weight matrix, everything
fitted without the fold that is judged), and the hold-out sweep of the shipped model (TMA kernels, shapes that its
calibration never measured, 18 of 128 with the n and k of an anchor; the exact table is off). Efficiency is the best
measured latency over the chosen one's.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from joblib import Parallel, delayed, parallel_config
from nvidia_heuristics import suggest
from rivals import FourTermForm, PaperScheme, RooflineAndWaves
from tutorial_list import tutorial_configs

from wavetune.core.arch import find_arch
from wavetune.core.config import GEMM
from wavetune.fit.model import WaveLatencyModel
from wavetune.pipeline.folds import HOLDOUT_FOLDS, split_fold
from wavetune.pipeline.recording import read_recording
from wavetune.report.accuracy import evaluate_model
from wavetune.report.baselines import BoostedLatency, best_fixed_latency
from wavetune.report.document import decision_us
from wavetune.report.metrics import summarise_efficiency
from wavetune.report.noise import replay_noise
from wavetune.runtime.codec import read_model
from wavetune.runtime.model_file import ModelFile
from wavetune.store.table import FloatArray, MeasurementTable
from wavetune.tables.build import build_model_file

ROOT = Path(__file__).resolve().parent.parent
EVIDENCE = ROOT / "calibration" / "nvidia-h200"
ARCH = find_arch("nvidia-h200")

DO_BENCH_MS = 125.0
"""One configuration in Triton's autotuner by default: 25 ms of warm-up and 100 ms of repetitions."""

N_TIMED = 12
"""Shapes that a decision is timed on."""

TARGET_S = 300.0

ORDER = (
    "wavetune, top 8 measured",
    "wavetune, top 3 measured",
    "wavetune, one shot",
    "one noisy exhaustive sweep, replayed",
    "four-term form",
    "gradient boosting alone",
    "paper's scheme (reconstruction)",
    "Triton tutorial's list, searched",
    "nvMatmulHeuristics top 8, measured (nearest configuration)",
    "nvMatmulHeuristics top 1 (nearest configuration)",
    "roofline and waves, no measurement",
    "best fixed configuration",
)


@dataclass
class Method:
    """What one way of choosing is worth on one set of shapes.

    Parameters
    ----------
    efficiency : ndarray of shape (n_shapes,)
        Best measured over chosen latency.
    decision_us : float
        Time of one decision, microseconds; of a search, what Triton's autotuner would spend by default.
    before : float
        Kernel timings that are needed before the first decision.
    per_shape : int
        Kernel timings for each new shape.
    """

    efficiency: FloatArray
    decision_us: float
    before: float = 0.0
    per_shape: int = 0
    note: str = ""


@dataclass
class Judgement:
    """Methods by name, on some shapes."""

    methods: dict[str, Method] = field(default_factory=dict)


def read(points: Sequence[str], sweeps: Sequence[str]) -> MeasurementTable:
    """Read evidence files."""
    paths = [[EVIDENCE / name for name in names] for names in (points, sweeps)]
    return read_recording(*paths, GEMM, ARCH, dtype="bf16", layout="nk", skip_bad_rows=True).table


def timed(choose: Callable[[np.ndarray], Any], problems: np.ndarray) -> float:
    """Time decisions on single shapes: the median over shapes of the best of three, microseconds."""
    seconds = []
    for row in np.linspace(0, len(problems) - 1, min(N_TIMED, len(problems))).astype(int):
        one = problems[row : row + 1]
        tries = []
        for _ in range(3):
            start = time.perf_counter()
            choose(one)
            tries.append(time.perf_counter() - start)
        seconds.append(min(tries))
    return float(np.median(seconds)) * 1e6


def searched(measured: FloatArray, columns: Sequence[Sequence[int]]) -> FloatArray:
    """Return the fastest measured latency among some configurations of each problem; NaN where none was measured."""
    fastest = []
    for row, some in zip(measured, columns, strict=True):
        among = row[list(some)]
        fastest.append(np.nanmin(among) if len(among) and not np.isnan(among).all() else np.nan)
    return np.array(fastest)


def judge(training: MeasurementTable, judged: MeasurementTable, model: ModelFile | None) -> Judgement:
    """Let every method choose on the judged shapes; ``model`` is fitted to the training rows if not given."""
    problems, measured = judged.latency_matrix()
    best = np.nanmin(measured, axis=1)
    position = {entry.config: index for index, entry in enumerate(judged.configs)}
    found = Judgement()

    def add(name: str, latency: FloatArray, decision_us: float, **cost: Any) -> None:
        found.methods[name] = Method(best / latency, decision_us, **cost)

    ours = model
    if ours is None:
        estimator = WaveLatencyModel(dtype="bf16", arch=ARCH.name, cell_dims=problems).fit_table(training)
        ours = build_model_file(estimator, training, provenance={})
    n_rows = float(len(training))
    report = evaluate_model(ours, judged)
    decision = decision_us(ours, [result.dims for result in report.results])
    results = {
        name: np.array([getattr(r, name) for r in report.results]) for name in ("measured_us", "top3_us", "top8_us")
    }
    add("wavetune, one shot", results["measured_us"], decision, before=n_rows)
    for count in (3, 8):
        add(
            f"wavetune, top {count} measured",
            results[f"top{count}_us"],
            count * DO_BENCH_MS * 1e3,
            before=n_rows,
            per_shape=count,
        )

    for name, rival in (
        ("four-term form", FourTermForm().fit(training, ARCH)),
        ("paper's scheme (reconstruction)", PaperScheme().fit(training, ARCH)),
        ("gradient boosting alone", BoostedLatency().fit(training)),
        ("roofline and waves, no measurement", RooflineAndWaves().fit(judged, ARCH)),
    ):
        configs = judged.configs if isinstance(rival, RooflineAndWaves) else training.configs
        columns = [[position[configs[index].config]] for index in rival.choose(problems).tolist()]
        before = 0.0 if isinstance(rival, RooflineAndWaves) else n_rows
        note = "decisions in plain NumPy; the paper states 5 to 6 us" if isinstance(rival, PaperScheme) else ""
        add(name, searched(measured, columns), timed(rival.choose, problems), before=before, note=note)

    if model is None:
        add(
            "best fixed configuration",
            best_fixed_latency(training, judged),
            0.0,
            before=float(training.exhaustive.sum()),
        )
    else:
        default = position[model.forms[model.default_index].config]
        add("best fixed configuration", measured[:, default], 0.0, before=n_rows, note="the model's default")
    tutorial = [position[config] for config in tutorial_configs() if config in position]
    n_tutorial = len(tutorial_configs())
    if 2 * len(tutorial) >= n_tutorial:
        add(
            "Triton tutorial's list, searched",
            searched(measured, [tutorial] * len(problems)),
            len(tutorial) * DO_BENCH_MS * 1e3,
            per_shape=len(tutorial),
            note=f"{len(tutorial)} of its {n_tutorial} configurations were measured",
        )
    suggestions = suggest(problems.tolist(), [entry.config for entry in judged.configs], 8)
    if suggestions is not None:
        first = [ranked[:1] for ranked in suggestions.ranked]
        add("nvMatmulHeuristics top 1 (nearest configuration)", searched(measured, first), suggestions.query_us)
        add(
            "nvMatmulHeuristics top 8, measured (nearest configuration)",
            searched(measured, suggestions.ranked),
            suggestions.query_us + 8 * DO_BENCH_MS * 1e3,
            per_shape=8,
        )
    return found


def judge_fold(fold: int) -> Judgement:
    """Judge one fold of the recorded oracle."""
    table = recorded()
    split = split_fold(table, fold)
    assert split is not None
    return judge(table.select(split.training), table.select(split.judged), None)


def judge_live() -> Judgement:
    """Judge the shipped model's hold-out sweep."""
    judged = read([], ["gemm-bf16-holdout.csv.gz"])
    # What was not swept could not be judged.
    swept = {entry.config for entry in judged.configs}
    training = read(["gemm-bf16-anchors.csv.gz"], ["gemm-bf16-layers.csv.gz"]).restrict(swept)
    found = judge(training, judged, read_model(ROOT / "models" / "nvidia-h200" / "gemm-bf16.json"))
    add_noise(
        found, judged, read([], ["gemm-bf16-holdout-repeat.csv.gz"]), "its four finalists, re-timed as CUDA graphs"
    )
    return found


def recorded() -> MeasurementTable:
    """Read the recorded points and the recorded oracle."""
    return read(["recorded/h200-gemm-bf16-anchors.csv.gz"], ["recorded/h200-gemm-bf16-oracle.csv.gz"])


def add_noise(found: Judgement, sweep: MeasurementTable, repeat: MeasurementTable, note: str) -> None:
    """Add the fastest configuration of one sweep, looked up in another."""
    regret = np.array(replay_noise(sweep, repeat).column("regret"), dtype=np.float64)
    n_configs = len(sweep.configs)
    found.methods["one noisy exhaustive sweep, replayed"] = Method(
        1.0 / (1.0 + regret), n_configs * DO_BENCH_MS * 1e3, per_shape=n_configs, note=f"{len(regret)} shapes; {note}"
    )


def pool(parts: Sequence[Judgement]) -> Judgement:
    """Join folds: shapes together, costs averaged."""
    pooled = Judgement()
    for name, method in parts[0].methods.items():
        same = [part.methods[name] for part in parts]
        pooled.methods[name] = Method(
            np.concatenate([entry.efficiency for entry in same]),
            float(np.median([entry.decision_us for entry in same])),
            float(np.mean([entry.before for entry in same])),
            method.per_shape,
            method.note,
        )
    return pooled


def rows_of(judgement: Judgement) -> Iterator[dict[str, Any]]:
    """Yield a table row for each method, in the order of `ORDER`."""
    for name in sorted(judgement.methods, key=ORDER.index):
        method = judgement.methods[name]
        known = method.efficiency[~np.isnan(method.efficiency)]
        summary = summarise_efficiency(known)
        yield {
            "method": name,
            "shapes": len(known),
            "unmeasured": len(method.efficiency) - len(known),
            "geomean": round(summary.geomean, 4),
            "p5": round(summary.p5, 4),
            "min": round(summary.min, 4),
            "decision_us": float(f"{method.decision_us:.3g}"),
            "timings_before": round(method.before),
            "timings_per_shape": method.per_shape,
            "note": method.note,
        }


def print_table(title: str, rows: Sequence[dict[str, Any]]) -> None:
    """Print one table."""
    print(f"\n{title}")
    print(f"{'':60}{'geomean':>8}{'5th pct':>8}{'worst':>8}{'decision':>12}{'before':>9}{'a shape':>9}")
    for row in rows:
        decision = (
            f"{row['decision_us'] / 1e6:.2g} s *" if row["timings_per_shape"] else f"{row['decision_us']:,.3g} us"
        )
        note = f"  {row['note']}" if row["note"] else ""
        print(
            f"{row['method']:60}{row['geomean']:8.3f}{row['p5']:8.3f}{row['min']:8.3f}{decision:>12}"
            f"{row['timings_before']:9,}{row['timings_per_shape']:9}{note}"
        )


def main() -> int:
    """Print the tables and, with ``--json``, write them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the tables here")
    options = parser.parse_args()
    start = time.perf_counter()
    # The parts that are not threaded take most of the time: two processes beat two threads.
    with parallel_config("loky", inner_max_num_threads=1), Parallel(n_jobs=2) as parallel:
        *folds, live = parallel([*(delayed(judge_fold)(fold) for fold in range(HOLDOUT_FOLDS)), delayed(judge_live)()])
    pooled = pool(folds)
    add_noise(
        pooled,
        read([], ["recorded/h200-gemm-bf16-oracle.csv.gz"]),
        read([], ["recorded/h200-gemm-bf16-repeat.csv.gz"]),
        "the oracle's fastest, looked up in a single-round sweep",
    )
    titles = {
        "recorded": "Recorded oracle: 330 pointer kernels, held out in five folds by (n, k)",
        "live": "Hold-out sweep of the shipped bf16 model: 342 TMA and pointer kernels, shapes never measured before",
    }
    tables = {"recorded": list(rows_of(pooled)), "live": list(rows_of(live))}
    for name, rows in tables.items():
        print_table(titles[name], rows)
    seconds = time.perf_counter() - start
    print("\nbefore, a shape: kernel timings before the first decision, and for each new shape.")
    print(f"* a search: {DO_BENCH_MS:g} ms a configuration, the default of Triton's autotuner; no GPU was used here.")
    print("Of grouped GEMM, with vLLM's default rule: benchmarks/family_holdout.py, on a GPU.")
    if not any("nvMatmul" in row["method"] for row in tables["live"]):
        print("Not in the table: nvMatmulHeuristics, which is not installed (pip install 'wavetune[nvmmh]').")
    print(f"{seconds:.0f} s (target {TARGET_S:.0f} s on two cores)")
    if options.json:
        document = {"seconds": round(seconds), "do_bench_ms": DO_BENCH_MS, "titles": titles, **tables}
        options.json.write_text(json.dumps(document, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
