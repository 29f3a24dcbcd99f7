"""How fast ``wavetune workload import --json`` reads hipBLASLt logs, and how much memory it takes.

    python benchmarks/workload_import.py [--lines N] [--runs N] [--folder DIR] [--json FILE]

Two logs are made: one of 40 shapes, and one where no shape comes twice. In both, every line has its own solution index,
so that no line is like another. The command runs in a process of its own, its output goes to a file, and its start-up
counts; both logs take turns, and the best of the runs is reported: by the wall clock, and by processor time, which
other work on the machine disturbs less.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

MB = 1e6
TARGETS_MB_S = {"40 shapes": 100.0, "all different": 40.0}
MEMORY_TARGET_MB = 300.0
"""Of the log of 40 shapes."""

FEATURES = (1024, 4096, 5120, 6144, 14336, 28672)
SHAPE_COUNT = 1 << 24
SCATTER = 2_654_435_761
"""2**32 over the golden ratio."""
DEPTHS = (2048, 4096, 5120, 8192, 14336)


def few_shapes(lines: int, rng: random.Random) -> Iterator[tuple[int, int, int]]:
    """Yield tokens, features and depth of 40 shapes, at random."""
    shapes = [(rng.randrange(1, 8192), rng.choice(FEATURES), rng.choice(DEPTHS)) for _ in range(40)]
    return (rng.choice(shapes) for _ in range(lines))


def all_different(lines: int, rng: random.Random) -> Iterator[tuple[int, int, int]]:
    """Yield shapes in scattered order, none twice."""
    first = rng.randrange(SHAPE_COUNT)
    # An odd factor permutes the numbers below a power of two.
    numbers = ((first + index * SCATTER) % SHAPE_COUNT for index in range(lines))
    return ((1 + number % 4096, 8 * (1 + number // 4096), 4096) for number in numbers)


SHAPES = {"40 shapes": few_shapes, "all different": all_different}


def write_log(path: Path, shapes: Iterator[tuple[int, int, int]]) -> None:
    """Write a line of ``HIPBLASLT_LOG_MASK=32`` for every shape, with a solution index of its own."""
    types = " ".join(f"--{matrix}_type bf16_r" for matrix in "abcd")
    strides = " ".join(f"--stride_{matrix} 0" for matrix in "abcd")
    with path.open("w", encoding="ascii") as file:
        for index, (tokens, features, depth) in enumerate(shapes):
            file.write(
                f"hipblaslt-bench --api_method c -m {features} -n {tokens} -k {depth} --lda {depth} --ldb {depth} "
                f"--ldc {features} --ldd {features}  {strides}  --alpha 1.000000 --beta 0.000000 --transA T --transB N "
                f"--batch_count 1 --scaleA 0 --scaleB 0  {types} --scale_type f32_r --bias_type f32_r   "
                f"--compute_type f32_r --algo_method index --solution_index {index} --activation_type none "
                "--rotating 0 --cold_iters 0 --iters 0 \n"
            )


def run_import(log: Path, out: Path) -> dict[str, float]:
    """Import a log in a process of its own; return seconds, processor seconds and peak megabytes."""
    command = [sys.executable, "-m", "wavetune", "workload", "import", str(log), "--json"]
    start = time.perf_counter()
    with out.open("wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
    # Linux counts kilobytes.
    return {"wall_s": seconds, "cpu_s": usage.ru_utime + usage.ru_stime, "peak_mb": usage.ru_maxrss / 1e3}


def count_problems(out: Path, lines: int) -> int:
    """Return the number of problems in a document; what this process holds would count as the next one's memory."""
    problems = 0
    with out.open(encoding="ascii") as file:
        for line in file:
            problems += line.startswith('    {"operation"')
            if line.strip() == f'"recognised": {lines},':
                return problems
    raise SystemExit(f"{out}: not all {lines} lines were recognised")


def main() -> int:
    """Print the table; returns 1 if a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument(
        "--folder", type=Path, help="where to make the logs, 1 GB at a million lines; default: temporary"
    )
    parser.add_argument("--json", type=Path, help="write the figures here")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        logs = {}
        for kind, shapes in SHAPES.items():
            logs[kind] = folder / f"{kind.replace(' ', '-')}.log"
            write_log(logs[kind], shapes(options.lines, random.Random(0)))
        figures: dict[str, dict[str, float]] = {}
        for _ in range(options.runs):
            for kind, log in logs.items():
                run = run_import(log, folder / "out.json")
                run["problems"] = count_problems(folder / "out.json", options.lines)
                best = figures.setdefault(kind, run)
                figures[kind] = {field: min(value, best[field]) for field, value in run.items()}
        for kind, log in logs.items():
            size_mb = log.stat().st_size / MB
            figures[kind] |= {
                "log_mb": size_mb,
                "mb_per_s": size_mb / figures[kind]["wall_s"],
                "mb_per_cpu_s": size_mb / figures[kind]["cpu_s"],
            }
    columns = ("log_mb", "problems", "wall_s", "mb_per_s", "mb_per_cpu_s", "peak_mb")
    write = sys.stdout.write
    write(f"{'log':16}{''.join(f'{column:>14}' for column in columns)}  target MB/s\n")
    for kind, row in figures.items():
        write(f"{kind:16}{''.join(f'{row[column]:14,.1f}' for column in columns)}  {TARGETS_MB_S[kind]:.0f}\n")
    write(f"{options.lines:,} lines, best of {options.runs}; memory target of 40 shapes: {MEMORY_TARGET_MB:.0f} MB\n")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")
    missed = [kind for kind, row in figures.items() if row["mb_per_s"] < TARGETS_MB_S[kind]]
    if figures["40 shapes"]["peak_mb"] > MEMORY_TARGET_MB:
        missed.append("memory")
    return bool(missed)


if __name__ == "__main__":
    sys.exit(main())
