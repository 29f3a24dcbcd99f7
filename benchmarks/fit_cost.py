"""CPU seconds and peak memory of fitting the recorded H200 measurements.

    python benchmarks/fit_cost.py [--json FILE]

Each fit runs in its own process: peak memory is that of the process, imports and reading included. CPU time counts
every thread; reading the files is reported apart.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path

from wavetune.core.arch import find_arch
from wavetune.core.config import GEMM
from wavetune.fit.model import WaveLatencyModel
from wavetune.pipeline.refit import fit_model_file
from wavetune.store.csv_io import read_measurements
from wavetune.store.table import concatenate

RECORDED = Path(__file__).resolve().parent.parent / "calibration" / "nvidia-h200" / "recorded"
TARGET_CPU_S, TARGET_RSS_GIB = 60.0, 1.0


def measure(what: str) -> dict[str, float]:
    """Read, fit, and return the costs."""
    arch = find_arch("nvidia-h200")
    start, start_cpu = time.perf_counter(), time.process_time()
    tables = [
        read_measurements(
            RECORDED / f"h200-gemm-bf16-{name}.csv.gz", GEMM, "bf16", arch, exhaustive=exhaustive, on_bad_row="skip"
        ).table
        for name, exhaustive in (("anchors", False), ("oracle", True))
    ]
    table = concatenate(tables)
    read, read_cpu = time.perf_counter(), time.process_time()
    if what == "fit":
        WaveLatencyModel().fit_table(table)
    else:
        fit_model_file(table, arch)
    return {
        "rows": len(table),
        "read_cpu_s": round(read_cpu - start_cpu, 1),
        "fit_cpu_s": round(time.process_time() - read_cpu, 1),
        "fit_wall_s": round(time.perf_counter() - read, 1),
        "wall_s": round(time.perf_counter() - start, 1),
        "peak_rss_gib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 3),
    }


def main() -> int:
    """Print the table and, with ``--json``, write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--only", choices=("fit", "file"), help="measure in this process and print JSON")
    options = parser.parse_args()
    write = sys.stdout.write
    if options.only:
        write(json.dumps(measure(options.only)) + "\n")
        return 0
    names = {"fit": "WaveLatencyModel.fit", "file": "fit, held-out refit and tables"}
    figures = {}
    for what, name in names.items():
        command = [sys.executable, __file__, "--only", what]
        figures[name] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        write(f"{name:32}" + "".join(f"  {key} {value}" for key, value in figures[name].items()) + "\n")
    write(f"target: one fit of all rows in {TARGET_CPU_S:.0f} CPU seconds and {TARGET_RSS_GIB:.0f} GiB\n")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
