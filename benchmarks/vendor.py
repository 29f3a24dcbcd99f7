"""The chosen GEMM against cuBLAS, the best fixed configuration, and Triton's tutorial list, searched exhaustively.

All in one run, interleaved, as CUDA graphs over rotating buffers. The tutorial list runs on this project's pointer
kernel, which does what the tutorial's does. Needs a GPU.

    python benchmarks/vendor.py --model models/nvidia-h200/gemm-bf16.json --out vendor.json
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from live_timing import TORCH_MM, Comparison
from tutorial_list import tutorial_configs

from wavetune.core.arch import find_arch
from wavetune.core.problem import GemmProblem
from wavetune.kernels.registry import find_family
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


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="model file to choose from")
    parser.add_argument("--out", type=Path, required=True, help="JSON file for the table")
    parser.add_argument("--budget", type=float, default=120.0, help="seconds after which no shape is begun")
    args = parser.parse_args()
    model = read_model(args.model)
    arch = find_arch(model.arch)
    # Held-out layers or not, the question is what an unmeasured shape gets: no exact table.
    chooser = GemmChooser(model, arch, use_exact=False)
    default = model.forms[model.default_index].config
    family = find_family("gemm")
    rows = []
    start = time.perf_counter()
    with Comparison(arch, model.dtype) as comparison:
        for m in TOKENS:
            for name, layers in LAYERS.items():
                for n, k in layers:
                    if time.perf_counter() - start > args.budget:
                        continue
                    problem = GemmProblem(m, n, k, dtype=model.dtype, layout=model.layout)
                    chosen = chooser.choose(problem)
                    candidates = {"chosen": chosen, "default": default, TORCH_MM: TORCH_MM}
                    candidates |= {
                        f"tutorial{i}": config
                        for i, config in enumerate(tutorial_configs())
                        if family.legal(problem, config, arch) is None
                    }
                    us = {label: timing.latency_us for label, timing in comparison.time(problem, candidates).items()}
                    tutorial = min(value for label, value in us.items() if label.startswith("tutorial"))
                    rows.append(
                        {
                            "model": name, "m": m, "n": n, "k": k, "chosen_us": round(us["chosen"], 3),
                            "torch_mm_us": round(us[TORCH_MM], 3), "default_us": round(us["default"], 3),
                            "tutorial_us": round(tutorial, 3), "config": dict(chosen),
                        }
                    )  # fmt: skip
        conditions = comparison.session.conditions()
    table = {}
    for band, (low, high) in {**BANDS, "all": (0, 1 << 30)}.items():
        among = [row for row in rows if low <= row["m"] <= high]
        if among:
            ratio = {
                rival: [row[f"{rival}_us"] / row["chosen_us"] for row in among]
                for rival in ("torch_mm", "default", "tutorial")
            }
            table[band] = {"shapes": len(among), **{rival: round(geometric_mean(r), 4) for rival, r in ratio.items()}}
            table[band]["torch_mm_min"] = round(min(ratio["torch_mm"]), 4)
    args.out.write_text(json.dumps({"speedup_over": table, "conditions": conditions, "rows": rows}, indent=1) + "\n")
    print(f"{model.dtype}: rival latency over chosen latency, geometric mean (above 1: the chosen one is faster)")
    for band, values in table.items():
        print(json.dumps({band: values}))
    for row in sorted(rows, key=lambda row: row["torch_mm_us"] / row["chosen_us"])[:8]:
        print(
            f"{row['torch_mm_us'] / row['chosen_us']:.3f}", row["m"], row["n"], row["k"], list(row["config"].values())
        )


if __name__ == "__main__":
    main()
