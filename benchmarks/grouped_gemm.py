"""How near choices for grouped GEMM are to the best of the space, beside the policies that others use. Needs a GPU.

Checks every configuration, sweeps held-out expert layers (Qwen3-30B-A3B, DeepSeek-V3) and the balanced twins of skewed
ones, and re-times the chosen, the best of the sweep, rival policies and torch against each other as CUDA graphs.
Without ``--model`` the forms are fitted to the other problems of the sweep, five parts in turn.

    python benchmarks/grouped_gemm.py --out grouped --problems 40
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from wavetune.core.arch import ArchSpec, find_arch
from wavetune.core.config import GROUPED_GEMM, KernelConfig
from wavetune.core.grouped_problem import GroupedGemmProblem, spread_groups
from wavetune.fit.family_correction import correct_family
from wavetune.fit.family_model import fit_family, predict_family
from wavetune.kernels.registry import find_family
from wavetune.mapping.grouped_gemm import map_grouped_gemm
from wavetune.mapping.grouped_shape import GroupedShaper
from wavetune.measure import environment
from wavetune.measure.cuda_timing import Candidate, lock_identity
from wavetune.measure.gpu_session import GpuSession
from wavetune.measure.timing import GRAPH_METHOD, StoppingRule
from wavetune.measure.triton_runner import TritonRunner
from wavetune.plan.grouped_plan import could_win, holdout_problems
from wavetune.report.metrics import geometric_mean
from wavetune.runtime.family_file import read_family
from wavetune.runtime.grouped_forms import GroupedForms
from wavetune.store.csv_io import write_measurements
from wavetune.store.database import MeasurementStore
from wavetune.store.record import Point
from wavetune.store.table import MeasurementTable

N_FOLDS = 5
PAIR_RULE = StoppingRule(relative=0.003, absolute_us=0.05, min_rounds=7, max_rounds=15, max_total_us=30_000.0)
"""For candidates that decide a comparison: 0.3 % or 0.05 us, at most 15 interleaved rounds."""


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arch", default="nvidia-h200", help="the GPU that is there")
    parser.add_argument("--dtype", default="bf16", help="element type")
    parser.add_argument("--layout", default="nk", choices=("nk", "gated"), help="one projection, or gate and up fused")
    parser.add_argument("--problems", type=int, default=40, help="held-out problems")
    parser.add_argument("--retimed", type=int, default=24, help="problems that are timed again, as graphs")
    parser.add_argument("--model", type=Path, help="model file to choose from")
    parser.add_argument("--out", type=Path, required=True, help="folder for the sweep, the rows and the summary")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    arch, begin = find_arch(args.arch), time.perf_counter()
    stem = f"grouped_gemm-{args.dtype}" + ("-gated" if args.layout == "gated" else "")

    runner = TritonRunner(arch, "grouped_gemm", args.dtype, args.layout)
    prepared = runner.prepare(find_family("grouped_gemm").configs(arch, args.dtype))
    for failure in prepared.failures:
        print(f"not usable: {list(failure.config.values())} {failure.status}: {failure.detail[:150]}")
    prepared_s = time.perf_counter() - begin
    print(f"prepared {len(prepared.compiled)} configurations, {len(prepared.failures)} failed, {prepared_s:.1f} s")

    problems = holdout_problems(args.problems, dtype=args.dtype, layout=args.layout)
    twins = {problem: balanced(problem) for problem in problems}
    family = find_family("grouped_gemm")
    points = [
        Point(problem, entry.config, "holdout")
        for problem in dict.fromkeys([*problems, *twins.values()])
        for entry in (prepared.compiled if problem in problems else could_win(problem, prepared.compiled, arch))
        if family.legal(problem, entry.config, arch) is None
    ]
    with MeasurementStore(args.out / f"{stem}-holdout.sqlite", runner.environment()) as store:
        store.record_compiled(prepared.compiled)
        store.record(runner.measure(points))
        table = store.to_table(
            GROUPED_GEMM, dtype=args.dtype, layout=args.layout, exhaustive_strata=("holdout",)
        )  # fmt: skip
    write_measurements(args.out / f"{stem}-holdout.csv.gz", table)
    swept_s = time.perf_counter() - begin - prepared_s
    print(f"swept {len(points)} points in {swept_s:.1f} s, {len(points) - len(table)} failed")

    sweep = Sweep(table, problems, arch)
    ours = read_ranking(args.model, sweep, arch) if args.model else cross_validated(sweep, arch)
    policies = {
        "chosen": [ranking[0] for ranking in ours],
        "one fixed": [sweep.best_fixed()] * len(problems),
        "token total": [sweep.fastest(twins[problem])[0] for problem in problems],
        "four terms": cross_validated_four_terms(sweep, arch),
    }
    judged = {name: sweep.efficiency(choices) for name, choices in policies.items()}
    judged["top 3"] = [max(sweep.efficiency_of(p, c) for c in r[:3]) for p, r in zip(problems, ours, strict=True)]

    rows = []
    with Comparison(arch, args.dtype) as comparison:
        for index in spread_over(len(problems), args.retimed):
            problem = problems[index]
            candidates: dict[str, KernelConfig | str] = {name: choices[index] for name, choices in policies.items()}
            candidates |= {f"top{i}": config for i, config in enumerate(ours[index][:3], 1)}
            # The sweep's single fastest reading is partly luck: the best of its first few is the better truth.
            candidates |= {f"best{i}": config for i, config in enumerate(sweep.fastest(problem)[:4])}
            candidates |= {name: name for name in TORCH}
            us = comparison.time(problem, candidates)
            best = min(us[label] for label in us if label not in TORCH and us[label] is not None)
            mapping = map_grouped_gemm(problem, ours[index][0], arch)
            rows.append(
                {
                    **dict(zip(GROUPED_GEMM.dims, problem.dims, strict=True)), **us, "best_us": best,
                    "any histogram": comparison.time_any(problem, ours[index][0]),
                    "surplus_ctas": mapping.launched_ctas - mapping.grid_size, "config": dict(ours[index][0]),
                }
            )  # fmt: skip
        conditions = comparison.session.conditions()
    total_s = time.perf_counter() - begin

    summary = {
        "problems": len(problems), "sweep": {name: describe(values) for name, values in judged.items()},
        "retimed": describe_rows(rows, (*policies, "top 3")), "over torch": over_torch(rows),
        "surplus_cta_us": surplus_cost(rows, arch), "seconds": {"prepare": round(prepared_s, 1), "sweep": round(swept_s,
        1), "total": round(total_s, 1)}, "conditions": conditions,
    }  # fmt: skip
    (args.out / f"{stem}-holdout.json").write_text(json.dumps({**summary, "rows": rows}, indent=1) + "\n")
    print(json.dumps({name: summary[name] for name in ("problems", "seconds", "conditions")}))
    for part in ("sweep", "retimed"):
        print(f"{part}: best latency over that of each policy")
        for name, values in summary[part].items():
            print(f"  {name:12s} {json.dumps(values)}")
    print(f"torch latency over chosen: {json.dumps(summary['over torch'])}")
    print(f"a CTA beyond the last tile takes {json.dumps(summary['surplus_cta_us'])} us of its SM")
    for row in sorted(rows, key=lambda row: row["best_us"] / row["chosen"])[:6]:
        print(json.dumps({key: value for key, value in row.items() if value is not None}))


def balanced(problem: GroupedGemmProblem) -> GroupedGemmProblem:
    """Return the problem of the same token total, spread evenly: what a policy by totals is tuned on."""
    active = min(problem.experts, problem.tokens)
    sizes = spread_groups(problem.experts, problem.tokens, active, -(-problem.tokens // active))
    return GroupedGemmProblem(sizes, problem.n, problem.k, problem.dtype, problem.layout)


def spread_over(n_items: int, wanted: int) -> list[int]:
    """Return positions evenly spread over a list."""
    return sorted({round(index * (n_items - 1) / max(wanted - 1, 1)) for index in range(wanted)})


class Sweep:
    """Latencies of every configuration on every problem."""

    def __init__(self, table: MeasurementTable, problems: Sequence[GroupedGemmProblem], arch: ArchSpec) -> None:
        self.table, self.problems, self.arch = table, problems, arch
        dims, latency = table.latency_matrix()
        self.configs = [entry.config for entry in table.configs]
        self._rows = {tuple(key): latency[index] for index, key in enumerate(dims.tolist())}
        self._column = {config: index for index, config in enumerate(self.configs)}

    def latency(self, problem: GroupedGemmProblem) -> np.ndarray:
        """Return the latency of each configuration, NaN where it was not measured."""
        return self._rows[problem.dims]

    def fastest(self, problem: GroupedGemmProblem) -> list[KernelConfig]:
        """Return the measured configurations, fastest first."""
        latency = self.latency(problem)
        return [self.configs[index] for index in np.argsort(latency) if np.isfinite(latency[index])]

    def best_fixed(self) -> KernelConfig:
        """Return the configuration with the least mean regret over these very problems: a generous rival."""
        ratio = np.array([row / np.nanmin(row) for row in map(self.latency, self.problems)])
        # Not measured where it could not win: counted as three times too slow.
        return self.configs[int(np.argmin(np.log(np.where(np.isnan(ratio), 3.0, ratio)).mean(axis=0)))]

    def efficiency_of(self, problem: GroupedGemmProblem, config: KernelConfig) -> float:
        """Return best over chosen latency; a third where the choice was not worth measuring."""
        latency = self.latency(problem)
        chosen = latency[self._column[config]]
        return float(np.nanmin(latency) / chosen) if np.isfinite(chosen) else 1.0 / 3.0

    def efficiency(self, choices: Sequence[KernelConfig]) -> list[float]:
        """Return the efficiency of one choice a problem."""
        return [self.efficiency_of(problem, config) for problem, config in zip(self.problems, choices, strict=True)]

    def folds(self) -> list[list[int]]:
        """Return positions of problems to hold out, part by part."""
        return [list(range(fold, len(self.problems), N_FOLDS)) for fold in range(N_FOLDS)]

    def without(self, held_out: Sequence[int]) -> MeasurementTable:
        """Return the rows of all problems but some, whose twins are left out as well."""
        keys = {self.problems[index].dims for index in held_out} | {
            balanced(self.problems[index]).dims for index in held_out
        }
        return self.table.select(np.array([tuple(key) not in keys for key in self.table.dims.tolist()]))


def cross_validated(sweep: Sweep, arch: ArchSpec) -> list[list[KernelConfig]]:
    """Rank configurations by forms fitted to the other parts of the sweep."""
    shape = GroupedShaper(sweep.table.dtype, sweep.table.layout, arch)
    rankings: dict[int, list[KernelConfig]] = {}
    for held_out in sweep.folds():
        training = sweep.without(held_out)
        fit = correct_family(fit_family(training, shape, arch), training, shape, arch)
        predicted = predict_family(fit, [sweep.problems[index].dims for index in held_out], shape, arch)
        for index, latency in zip(held_out, predicted, strict=True):
            rankings[index] = [fit.configs[column].config for column in np.argsort(latency)]
    return [rankings[index] for index in range(len(sweep.problems))]


def cross_validated_four_terms(sweep: Sweep, arch: ArchSpec) -> list[KernelConfig]:
    """Choose by ``a + b g/SM + c g + d log(g + 1)``, least squares for each configuration, g its CTAs.

    The form was made for one layer: it has no trips and no bytes. So it is fitted to latencies per trip here.
    """
    choices: dict[int, KernelConfig] = {}
    for held_out in sweep.folds():
        training = sweep.without(held_out)
        best: dict[int, tuple[float, KernelConfig]] = {}
        for column, entry in enumerate(training.configs):
            rows = training.select(training.config_index == column)
            if len(rows) < 8:
                continue
            design, trips = four_terms([tuple(key) for key in rows.dims.tolist()], entry.config, rows, arch)
            coefficients, *_ = np.linalg.lstsq(design, rows.latency_us / trips, rcond=None)
            keys = [sweep.problems[index].dims for index in held_out]
            values, trips = four_terms(keys, entry.config, rows, arch)
            for index, latency in zip(held_out, values @ coefficients * trips, strict=True):
                if index not in best or latency < best[index][0]:
                    best[index] = (float(latency), entry.config)
        choices |= {index: config for index, (_, config) in best.items()}
    return [choices[index] for index in range(len(sweep.problems))]


def four_terms(
    keys: Sequence[tuple[int, ...]], config: KernelConfig, table: MeasurementTable, arch: ArchSpec
) -> tuple[np.ndarray, np.ndarray]:
    """Return the design matrix of the four-term form, and the loop trips."""
    mappings = [
        map_grouped_gemm(GroupedGemmProblem.from_dims(key, table.dtype, table.layout), config, arch) for key in keys
    ]
    grid = np.array([mapping.grid_size for mapping in mappings], dtype=float)
    trips = np.array([mapping.loop_trips for mapping in mappings], dtype=float)
    return np.stack([np.ones_like(grid), grid / arch.num_sms, grid, np.log(grid + 1.0)], axis=1), trips


def read_ranking(path: Path, sweep: Sweep, arch: ArchSpec) -> list[list[KernelConfig]]:
    """Rank configurations by a model file."""
    forms, rankings = GroupedForms(read_family(path), arch.num_sms), []
    for problem in sweep.problems:
        legal = forms.legal(problem)
        latencies = forms.latencies(problem, legal)
        rankings.append([forms.configs[legal[place]] for place in np.argsort(latencies)])
    return rankings


def torch_grouped(x: Any, w: Any, out: Any, sizes: Sequence[int], ends: Any) -> Callable[[], Any]:
    """Return a call of torch's own grouped GEMM."""
    import torch

    function = getattr(torch.nn.functional, "grouped_mm", None) or torch._grouped_mm
    return lambda: function(x, w.transpose(-2, -1), offs=ends)


def torch_loop(x: Any, w: Any, out: Any, sizes: Sequence[int], ends: Any) -> Callable[[], Any]:
    """Return a loop of torch.mm over the experts that have tokens."""
    import torch

    parts, start = [], 0
    for expert, size in enumerate(sizes):
        if size:
            parts.append((x[start : start + size], w[expert].T, out[start : start + size]))
        start += size

    def launch() -> None:
        for a, b, c in parts:
            torch.mm(a, b, out=c)

    return launch


TORCH = {"torch grouped": torch_grouped, "torch loop": torch_loop}


class Comparison:
    """Times candidates of one problem, interleaved. A context manager: the GPU is locked while it is open."""

    def __init__(self, arch: ArchSpec, dtype: str, gpu: int = 0) -> None:
        self.arch, self._dtype, self._gpu = arch, dtype, gpu

    def __enter__(self) -> Comparison:
        self._lock = environment.timing_lock(self._gpu, lock_identity(self._gpu))
        self._lock.__enter__()
        self.session = GpuSession(self.arch, find_family("grouped_gemm"), self._dtype, self._gpu)
        self.session.watch()
        return self

    def __exit__(self, *error: Any) -> None:
        self.session.watch()
        self._lock.__exit__(*error)

    def time(self, problem: GroupedGemmProblem, candidates: Mapping[str, KernelConfig | str]) -> dict[str, Any]:
        """Return the latency of each label, None for what cannot run here; equal configurations are timed once."""
        n_windows = self.session.n_windows(Point(problem, KernelConfig(), ""), 0.0, GRAPH_METHOD)
        usable = {}
        for entry in dict.fromkeys(candidates.values()):
            try:
                launches = self._launches(problem, entry, n_windows)
                launches[0]()
            except Exception as error:
                print(f"{entry} on {problem.dims}: {type(error).__name__}: {str(error)[:120]}")
            else:
                usable[entry] = Candidate(launches)
        timings = self.session.graph_timer.time(list(usable.values()), PAIR_RULE)
        us = {e: None if t is None else round(t.latency_us, 3) for e, t in zip(usable, timings, strict=True)}
        return {label: us.get(entry) for label, entry in candidates.items()}

    def time_any(self, problem: GroupedGemmProblem, config: KernelConfig) -> float | None:
        """Return the latency of a launch that does not know its histogram, as a captured one."""
        family, session = find_family("grouped_gemm"), self.session
        n_windows = session.n_windows(Point(problem, KernelConfig(), ""), 0.0, GRAPH_METHOD)
        operands = [
            family.carve_operands(problem, config, session.windows).for_any_histogram() for _ in range(n_windows)
        ]
        launches = [family.bind(entry, config, self.arch, session.stream.cuda_stream) for entry in operands]
        (timing,) = session.graph_timer.time([Candidate(launches)], PAIR_RULE)
        return None if timing is None else round(timing.latency_us, 3)

    def _launches(self, problem: GroupedGemmProblem, entry: KernelConfig | str, n_windows: int) -> list[Any]:
        if isinstance(entry, KernelConfig):
            return list(self.session.bind(Point(problem, entry, ""), n_windows))
        if problem.is_gated:
            raise NotImplementedError("torch has no gated grouped GEMM")
        operands = [
            find_family("grouped_gemm").carve_operands(problem, KernelConfig(), self.session.windows)
            for _ in range(n_windows)
        ]
        return [TORCH[entry](o.x, o.w, o.out, problem.group_sizes, o.groups.cumsum(0).int()) for o in operands]


def describe(values: Sequence[float]) -> dict[str, float]:
    """Summarize efficiencies."""
    ordered = sorted(values)
    return {
        "geomean": round(geometric_mean(ordered), 4),
        "mean_regret": round(statistics.fmean(1.0 / value - 1.0 for value in ordered), 4),
        "p5": round(statistics.quantiles(ordered, n=20)[0], 4),
        "min": round(ordered[0], 4),
    }


def describe_rows(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> dict[str, dict[str, float]]:
    """Summarize what was timed again."""
    summary = {}
    for name in names:
        labels = ("top1", "top2", "top3") if name == "top 3" else (name,)
        chosen = [min((row[label] for label in labels if row[label] is not None), default=None) for row in rows]
        values = [row["best_us"] / us for row, us in zip(rows, chosen, strict=True) if us is not None]
        if len(values) > 1:
            summary[name] = describe(values)
    return summary


def surplus_cost(rows: Sequence[Mapping[str, Any]], arch: ArchSpec) -> float | None:
    """Return the time that a CTA beyond the last tile takes from its SM, median where there are many, microseconds."""
    costs = [
        (row["any histogram"] - row["chosen"]) * arch.num_sms / row["surplus_ctas"]
        for row in rows
        if row["config"]["schedule"] == "tile" and row["surplus_ctas"] > 4 * arch.num_sms
    ]
    return round(statistics.median(costs), 3) if costs else None


def over_torch(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return torch's latency over that of the choice, and the smallest, where torch ran."""
    summary: dict[str, Any] = {}
    for name in TORCH:
        ratio = [row[name] / row["chosen"] for row in rows if row[name] is not None]
        if ratio:
            summary[name] = {
                "problems": len(ratio),
                "geomean": round(geometric_mean(ratio), 3),
                "min": round(min(ratio), 3),
            }
    return summary


if __name__ == "__main__":
    main()
