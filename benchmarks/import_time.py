"""What ``import wavetune`` and the first ``choose_config`` cost over a bare interpreter, in milliseconds.

    python benchmarks/import_time.py [--json FILE]

Bare, import-only and first-decision processes take turns; medians and bests of the differences in wall time are
reported. The first decision reads and checks the whole model file.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

TARGET_MS = 60.0
PROGRAMS = {
    "bare": "pass",
    "import wavetune": "import wavetune",
    "import and first choose_config": "import wavetune; wavetune.choose_config(512, 4096, 4096, arch='nvidia-h200')",
}


def wall_ms(program: str) -> float:
    """Run a program in a fresh interpreter and return its wall time."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("WAVETUNE_")}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # Or every process compiles what was edited.
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", program], check=True, env=environment)
    return (time.perf_counter() - start) * 1e3


def main() -> int:
    """Print the table and, with ``--json``, write the medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the medians here")
    parser.add_argument("--runs", type=int, default=20)
    options = parser.parse_args()
    for program in PROGRAMS.values():
        wall_ms(program)  # Compiles bytecode and fills the file cache.
    times: dict[str, list[float]] = {name: [] for name in PROGRAMS}
    for _ in range(options.runs):
        for name, program in PROGRAMS.items():
            times[name].append(wall_ms(program))
    bare_median, bare_best = statistics.median(times["bare"]), min(times["bare"])
    medians = {name: round(statistics.median(values) - bare_median, 1) for name, values in times.items()}
    bests = {name: round(min(values) - bare_best, 1) for name, values in times.items()}
    write = sys.stdout.write
    write(f"{'over a bare interpreter':34}{'median ms':>10}{'best ms':>10}\n")
    for name in PROGRAMS:
        if name != "bare":
            write(f"{name:34}{medians[name]:10.1f}{bests[name]:10.1f}\n")
    write(f"target: about {TARGET_MS:.0f} ms; bare interpreter: {bare_median:.1f} ms, {options.runs} runs\n")
    if options.json:
        options.json.write_text(json.dumps({"median_ms": medians, "best_ms": bests}, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
