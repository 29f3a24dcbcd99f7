"""The chosen GEMM against torch.mm, the best of cuBLASLt's list, the default, and Triton's tutorial list.

All in one run, as CUDA graphs over rotating buffers. Lists are searched exhaustively: their entries are timed against
each other, and the fastest once more beside the chosen one. The tutorial list runs on this project's pointer kernel,
which does what the tutorial's does. Needs a GPU; cuBLASLt's list needs the extra `cublaslt`, and is left out without.

    python benchmarks/vendor.py --model models/nvidia-h200/gemm-bf16.json --out vendor.json
"""

from __future__ import annotations

import argparse
import contextlib
import json
import time
from pathlib import Path
from typing import Any

from tutorial_list import tutorial_configs

from wavetune.core.arch import find_arch
from wavetune.core.config import KernelConfig
from wavetune.core.problem import GemmProblem
from wavetune.measure.contest import PAIR_RULE, TORCH_MM
from wavetune.measure.cublaslt import Algorithm
from wavetune.measure.cublaslt_contest import QUALIFYING_RULE, Entrant, VendorContest
from wavetune.report.metrics import geometric_mean
from wavetune.runtime.chooser import GemmChooser
from wavetune.runtime.codec import read_model

TOKENS = (1, 16, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
LAYERS = {
    "Llama-3-8B": ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336)),
    "Llama-3-70B": ((10240, 8192), (8192, 8192), (57344, 8192), (8192, 28672)),
    "Qwen3-32B": ((10240, 5120), (5120, 8192), (51200, 5120), (5120, 25600)),
}
"""(n, k) of qkv, output, gate and up, and down projections, from each model's published config.json."""

BANDS = {"m <= 16": (1, 16), "64 <= m <= 1024": (64, 1024), "m >= 2048": (2048, 1 << 30)}
RIVALS = ("torch_mm", "cublaslt", "default", "tutorial")


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="model file to choose from")
    parser.add_argument("--out", type=Path, required=True, help="JSON file for the table")
    parser.add_argument("--budget", type=float, default=240.0, help="seconds after which no shape is begun")
    parser.add_argument("--top", type=int, default=8, help="algorithms of cuBLASLt's list; 0 leaves it out")
    args = parser.parse_args()
    model = read_model(args.model)
    arch = find_arch(model.arch)
    # Held-out layers or not, the question is what an unmeasured shape gets: no exact table.
    chooser = GemmChooser(model, arch, use_exact=False)
    default = model.forms[model.default_index].config
    rows = []
    start = time.perf_counter()
    with VendorContest(arch, model.dtype, needs_list=False) as contest:
        if contest.library is None:
            print(f"no column of cuBLASLt's list: {contest.missing}")
        for m in TOKENS:
            for name, layers in LAYERS.items():
                for n, k in layers:
                    if time.perf_counter() - start > args.budget:
                        continue
                    problem = GemmProblem(m, n, k, dtype=model.dtype, layout=model.layout)
                    row = run(contest, problem, chooser.choose(problem), default, args.top)
                    rows.append({"model": name, "m": m, "n": n, "k": k, **row})
        contest.session.watch()
        conditions = contest.session.conditions()
        if contest.library is not None:
            conditions["cublaslt"] = str(contest.library.version)
    table = {band: summary(rows, *bounds) for band, bounds in {**BANDS, "all": (0, 1 << 30)}.items()}
    document = {"speedup_over": table, "top": args.top, "conditions": conditions, "rows": rows}
    args.out.write_text(json.dumps(document, indent=1) + "\n")
    print(f"{model.dtype}: rival latency over chosen latency, geometric mean (above 1: the chosen one is faster)")
    for band, values in table.items():
        print(json.dumps({band: values}))
    for row in sorted(rows, key=lambda row: row["torch_mm_us"] / row["chosen_us"])[:8]:
        print(
            f"{row['torch_mm_us'] / row['chosen_us']:.3f}", row["m"], row["n"], row["k"], list(row["config"].values())
        )


def run(
    contest: VendorContest, problem: GemmProblem, chosen: KernelConfig, default: KernelConfig, top: int
) -> dict[str, Any]:
    """Time one shape: the lists among themselves, then their winners beside the others."""
    legal = contest.session.family.legal
    tutorial = [config for config in tutorial_configs() if legal(problem, config, contest.session.arch) is None]
    with contextlib.ExitStack() as stack:
        plan, algorithms = None, []
        if contest.library is not None and top:
            plan = stack.enter_context(contest.library.plan(problem, top))
            failures = contest.check(plan)
            algorithms = [entry for entry in plan.algorithms if entry.rank not in failures]
        entrants = [*tutorial, *algorithms]
        latency = {
            entrant: timing.latency_us
            for entrant, timing in zip(entrants, contest.time(problem, entrants, plan, QUALIFYING_RULE), strict=True)
            if timing is not None
        }
        rivals: dict[str, Entrant] = {"chosen": chosen, "torch_mm": TORCH_MM, "default": default}
        for label, among in (("tutorial", tutorial), ("cublaslt", algorithms)):
            timed = [entrant for entrant in among if entrant in latency]
            if timed:
                rivals[label] = min(timed, key=lambda entrant: latency[entrant])
        finalists = list(dict.fromkeys(rivals.values()))
        final = dict(zip(finalists, contest.time(problem, finalists, plan, PAIR_RULE), strict=True))
    row: dict[str, Any] = {
        f"{label}_us": round(timing.latency_us, 3)
        for label, entrant in rivals.items()
        if (timing := final[entrant]) is not None
    }
    best = rivals.get("cublaslt")
    if isinstance(best, Algorithm):
        row["algorithm"] = best.describe()
    return {**row, "config": dict(chosen)}


def summary(rows: list[dict[str, Any]], low: int, high: int) -> dict[str, Any]:
    """Return how many times slower each rival is, over the shapes of a band that it was timed on."""
    among = [row for row in rows if low <= row["m"] <= high]
    values: dict[str, Any] = {"shapes": len(among)}
    for rival in RIVALS:
        ratios = [row[f"{rival}_us"] / row["chosen_us"] for row in among if f"{rival}_us" in row]
        if ratios:
            values[rival] = round(geometric_mean(ratios), 4)
            values[f"{rival}_min"] = round(min(ratios), 4)
    return values


if __name__ == "__main__":
    main()
