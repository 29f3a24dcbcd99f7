"""What a new problem of attention and grouped GEMM costs to answer, and what the first answer of a process does.

    python benchmarks/family_decision.py [--json FILE]

New problems: every one differs, so none is remembered; the best of several passes, each after the answers were
forgotten, in microseconds a problem. First answers: fresh processes, over one that only imports the package, medians
in milliseconds.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import wavetune

ARCH = "nvidia-h200"
N_PROBLEMS = 300
FIRST = {
    "grouped_gemm": f"wavetune.choose_grouped_gemm_config([5, 7, 100, 3], 1536, 2048, arch={ARCH!r})",
    "attention": f"wavetune.choose_attention_config(500, heads=32, kv_heads=8, causal=True, arch={ARCH!r})",
    "attention_decode": f"wavetune.choose_attention_decode_config(500, heads=32, kv_heads=8, arch={ARCH!r})",
}


def calls(seed: int) -> dict[str, list[Callable[[], object]]]:
    """Return calls about different problems: 128 experts of Qwen3-30B-A3B, and prompts and caches of one sequence."""
    rng = random.Random(seed)
    lengths = rng.sample(range(100, 30_000), N_PROBLEMS)

    def grouped() -> Callable[[], object]:
        shares = [rng.random() ** rng.choice((1, 4)) for _ in range(128)]
        tokens = rng.choice((512, 4096, 16_384, 65_536))
        sizes = [int(share / sum(shares) * tokens) for share in shares]
        n, k = rng.choice(((1536, 2048), (2048, 768)))
        return lambda: wavetune.choose_grouped_gemm_config(sizes, n, k, arch=ARCH)

    def prefill(length: int) -> Callable[[], object]:
        return lambda: wavetune.choose_attention_config(length, heads=32, kv_heads=8, causal=True, arch=ARCH)

    def decode(length: int) -> Callable[[], object]:
        return lambda: wavetune.choose_attention_decode_config(length, heads=32, kv_heads=8, arch=ARCH)

    return {
        "grouped_gemm": [grouped() for _ in range(N_PROBLEMS)],
        "attention": [prefill(length) for length in lengths],
        "attention_decode": [decode(length) for length in lengths],
    }


def new_problem_us(problems: list[Callable[[], object]], repeats: int) -> float:
    """Return the microseconds of one call, the model being loaded."""
    passes = []
    for _ in range(repeats):
        wavetune.clear_caches()
        problems[0]()  # Reads the model.
        start = time.perf_counter()
        for call in problems[1:]:
            call()
        passes.append(time.perf_counter() - start)
    return min(passes) / (len(problems) - 1) * 1e6


def wall_ms(program: str) -> float:
    """Run a program in a fresh interpreter and return its wall time."""
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", f"import wavetune\n{program}"], check=True)
    return (time.perf_counter() - start) * 1e3


def main() -> int:
    """Print the table and, with ``--json``, write it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    for name in [name for name in os.environ if name.startswith("WAVETUNE_")]:
        del os.environ[name]
    rows = {}
    for kernel, problems in calls(seed=1).items():
        first = [wall_ms(FIRST[kernel]) - wall_ms("") for _ in range(options.repeats)]
        new_us = new_problem_us(problems, options.repeats)
        rows[kernel] = {"new_problem_us": round(new_us), "first_ms": round(statistics.median(first), 1)}
    write = sys.stdout.write
    write(f"{'kernel':20}{'new problem, us':>16}{'first answer, ms':>18}\n")
    for kernel, row in rows.items():
        write(f"{kernel:20}{row['new_problem_us']:16}{row['first_ms']:18}\n")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
