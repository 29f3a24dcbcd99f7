"""How near the choices of a family's model are to the best of the whole space, on problems calibration never saw.

Checks every configuration, sweeps them over held-out problems (prefill from 128 to 16384 tokens; decode up to 256
sequences and 65536 keys; expert layers of Qwen3-30B-A3B and DeepSeek-V3 under other skews), asks the model, and times
the chosen, the best three of its ranking, the best of the sweep, the default and the launcher's fixed rule again,
against each other, as CUDA graphs over rotating buffers. Grouped GEMM has rivals beside, see `grouped_rivals`. Goes on
where it was stopped. Needs a GPU.

    python benchmarks/family_holdout.py --kernel attention --model attention-bf16-d128.json --problems 64 --out holdout
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from grouped_rivals import GroupedRivals
from live_timing import Comparison, in_us

from wavetune.core.arch import ArchSpec, find_arch
from wavetune.core.config import KernelConfig, find_kernel_spec
from wavetune.core.problem import Problem
from wavetune.kernels.registry import find_family
from wavetune.measure.timing import StoppingRule
from wavetune.measure.triton_runner import TritonRunner
from wavetune.plan.attention_plan import holdout_keys
from wavetune.plan.grouped_plan import holdout_problems
from wavetune.report.family_accuracy import evaluate_family
from wavetune.report.metrics import rounded, summarise_efficiency, summarise_regret
from wavetune.runtime.families import chooser_for
from wavetune.runtime.family_file import FamilyFile, read_family
from wavetune.store.csv_io import write_measurements
from wavetune.store.database import MeasurementStore
from wavetune.store.record import CompiledConfig, Point
from wavetune.store.table import MeasurementTable

STRATUM, MORE_STRATUM = "holdout", "rival"
N_BEST = 3
"""Fastest of a sweep that are timed again: the single fastest reading is partly luck, and the best of a few the better
truth."""

PAIR_RULE = StoppingRule(relative=0.003, absolute_us=0.05, min_rounds=7, max_rounds=15, max_total_us=30_000.0)
"""For candidates that decide a comparison: 0.3 % or 0.05 us, at most 15 interleaved rounds."""

Timer = Callable[[Problem, Mapping[str, KernelConfig]], dict[str, float | None]]


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernel", required=True, choices=("grouped_gemm", "attention", "attention_decode"))
    parser.add_argument("--model", type=Path, required=True, help="model file to judge")
    parser.add_argument("--problems", type=int, default=64, help="held-out problems")
    parser.add_argument("--budget", type=float, default=75.0, help="seconds after which no problem is timed again")
    parser.add_argument("--out", type=Path, required=True, help="folder for the sweep, the rows and the summary")
    args = parser.parse_args()
    model = read_family(args.model)
    if model.kernel != args.kernel:
        parser.error(f"{args.model} is a model of {model.kernel}")
    args.out.mkdir(parents=True, exist_ok=True)
    arch, begin = find_arch(model.arch), time.perf_counter()

    runner = TritonRunner(arch, model.kernel, model.dtype, model.layout)
    problems = held_out(model, args.problems, arch)
    rivals = GroupedRivals(problems, arch) if model.kernel == "grouped_gemm" else None
    with MeasurementStore(args.out / f"{args.model.stem}-holdout.sqlite", runner.environment()) as store:
        if not store.compiled_configs():
            prepare(runner, find_family(model.kernel).configs(arch, model.dtype), store)
        compiled = store.compiled_configs()
        seconds = {"prepare": time.perf_counter() - begin}
        points = plan(model, problems, compiled, arch, rivals)
        done = store.done_points()
        store.record(runner.measure([point for point in points if point not in done]))
        table = store.to_table(
            find_kernel_spec(model.kernel), dtype=model.dtype, layout=model.layout, exhaustive_strata=(STRATUM,)
        )
    sweep = table.select(table.exhaustive)
    write_measurements(args.out / f"{args.model.stem}-holdout.csv.gz", sweep)
    seconds["sweep"] = time.perf_counter() - begin - seconds["prepare"]
    print(f"{len(compiled)} configurations, {len(points)} points, {len(points) - len(table)} failed")

    policies = rivals.policies(table, sweep) if rivals is not None else {}

    def time_us(problem: Problem, candidates: Mapping[str, KernelConfig]) -> dict[str, float | None]:
        return {label: in_us(timing) for label, timing in comparison.time(problem, candidates).items()}

    with Comparison(arch, model.dtype, kernel=model.kernel, rule=PAIR_RULE) as comparison:
        rows = []
        for index in spread_order(len(problems)):
            if time.perf_counter() - begin - seconds["prepare"] > args.budget:
                break
            problem = problems[index]
            extra = {name: choices[index] for name, choices in policies.items()}
            row = retime(model, problem, sweep, time_us, extra)
            if rivals is not None:
                row |= rivals.time(problem, row["config"], comparison)
            rows.append(row)
        conditions = comparison.session.conditions()
    seconds["all"] = time.perf_counter() - begin
    report = evaluate_family(model, sweep).to_dict(model.dims)
    summary = {
        "kernel": model.kernel, "model": args.model.name, "problems": len(problems), "retimed_problems": len(rows),
        "retimed": summarise(rows, ("chosen", "top3", "default", "rule", *policies)),
        "sweep": {name: report[name] for name in report if name not in ("worst", "sources")},
        "seconds": {name: round(value, 1) for name, value in seconds.items()}, "conditions": conditions,
    }  # fmt: skip
    if rivals is not None:
        summary["rivals"] = rivals.summary(rows)
    (args.out / f"{args.model.stem}-holdout.json").write_text(json.dumps({**summary, "rows": rows}, indent=1) + "\n")
    print(json.dumps(summary, indent=1))
    for row in sorted(rows, key=lambda row: row["efficiency"])[:8]:
        print(json.dumps(row))


def prepare(runner: TritonRunner, configs: Sequence[KernelConfig], store: MeasurementStore) -> None:
    """Compile and check configurations; the store keeps those that may be timed."""
    prepared = runner.prepare(configs)
    for failure in prepared.failures:
        print(f"not usable: {list(failure.config.values())} {failure.status}: {failure.detail[:150]}")
    store.record_compiled(prepared.compiled)


def held_out(model: FamilyFile, n_problems: int, arch: ArchSpec) -> list[Problem]:
    """Return problems that the model was not fitted to."""
    if model.kernel == "grouped_gemm":
        problems: list[Problem] = list(holdout_problems(2 * n_problems, dtype=model.dtype, layout=model.layout))
    else:
        keys = holdout_keys(model.kernel, 2 * n_problems, arch, dtype=model.dtype, layout=model.layout)
        problems = [key.problem for key in keys]
    return [problem for problem in problems if problem.dims not in model.exact][:n_problems]


def plan(
    model: FamilyFile,
    problems: Sequence[Problem],
    compiled: Sequence[CompiledConfig],
    arch: ArchSpec,
    rivals: GroupedRivals | None,
) -> list[Point]:
    """Return every legal configuration on every problem, and what the rivals need beside."""
    family = find_family(model.kernel)
    points = [Point(problem, entry.config, STRATUM) for problem in problems for entry in compiled]
    if rivals is not None:
        points += [Point(problem, config, MORE_STRATUM) for problem, config in rivals.points(compiled)]
    return [point for point in points if family.legal(point.problem, point.config, arch) is None]


def spread_order(n_items: int) -> list[int]:
    """Return all positions, those far apart first: whatever time ends is spread over the list."""
    step = next(step for step in range(max(int(0.618 * n_items), 1), 0, -1) if np.gcd(step, n_items) == 1)
    return [index * step % n_items for index in range(n_items)]


def retime(
    model: FamilyFile,
    problem: Problem,
    sweep: MeasurementTable,
    timer: Timer,
    extra: Mapping[str, KernelConfig] | None = None,
) -> dict[str, Any]:
    """Time what decides a problem, and say how good the choice is.

    Returns
    -------
    dict
        Sizes, microseconds by label, and ``efficiency``: the best of all of them over the chosen one.
    """
    ranked = [entry.config for entry in chooser_for(model, problem, use_exact=False).rank(problem.dims)]
    fastest = fastest_of(sweep, problem)
    family, arch = find_family(model.kernel), find_arch(model.arch)
    candidates = {f"top{i}": config for i, config in enumerate(ranked[:3], 1)}
    candidates |= {f"best{i}": config for i, config in enumerate(fastest[:N_BEST])}
    candidates |= {"default": model.forms[model.default_index].config, "rule": family.fallback_config(problem, arch)}
    candidates |= dict(extra or {})
    legal = {
        label: config for label, config in candidates.items() if family.legal(problem, config, arch) is None
    }  # fmt: skip
    us = timer(problem, legal)
    known = {label: value for label, value in us.items() if value is not None}
    chosen = known["top1"]
    best = min(known.values())
    top3 = min(value for label, value in known.items() if label.startswith("top"))
    return {
        **dict(zip(model.dims, problem.dims, strict=True)), **us, "chosen": chosen, "top3": top3, "best_us": best,
        "best of sweep": known.get("best0"), "efficiency": round(best / chosen, 4), "config": dict(ranked[0]),
        "best_config": dict(legal[min(known, key=lambda label: known[label])]),
    }  # fmt: skip


def fastest_of(sweep: MeasurementTable, problem: Problem) -> list[KernelConfig]:
    """Return the measured configurations of a problem, fastest first."""
    keys, latency = sweep.latency_matrix()
    row = latency[[tuple(key) for key in keys.tolist()].index(problem.dims)]
    return [sweep.configs[index].config for index in np.argsort(row) if np.isfinite(row[index])]


def summarise(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> dict[str, Any]:
    """Return efficiency and regret of each policy over what was timed again, and against the sweep's single fastest."""
    summary: dict[str, Any] = {}
    for name in names:
        values = np.array([row["best_us"] / row[name] for row in rows if row.get(name)])
        if len(values):
            summary[name] = {
                "problems": len(values), "efficiency": rounded(summarise_efficiency(values)),
                "regret": rounded(summarise_regret(values)),
            }  # fmt: skip
    pairs = np.array([min(row["best of sweep"] / row["chosen"], 1.0) for row in rows if row["best of sweep"]])
    summary["pair"] = {
        "efficiency": rounded(summarise_efficiency(pairs)), "regret": rounded(summarise_regret(pairs)),
    }  # fmt: skip
    return summary


if __name__ == "__main__":
    main()
