"""How much faster the best of a calibration is than that of another one, of other kernels: by band of m.

Both files are sweeps of realistic layers, as `wavetune calibrate --evidence` writes them. What equal configurations
took on the same problems is the drift between the two, and is taken out. With --without, one calibration against what
it would be without a schedule, on problems that were read with it, too. Needs no GPU.

    git show 97fbba4:calibration/nvidia-h200/gemm-fp8-layers.csv.gz > before.csv.gz
    python benchmarks/compare_calibrations.py before.csv.gz calibration/nvidia-h200/gemm-fp8-layers.csv.gz --dtype fp8
    python benchmarks/compare_calibrations.py calibration/nvidia-h200/gemm-bf16-layers.csv.gz --without warp_specialized
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path

from wavetune.core.arch import find_arch
from wavetune.core.config import GEMM, KernelConfig
from wavetune.report.metrics import geometric_mean
from wavetune.store.csv_io import read_measurements

BANDS = ((1, 16), (17, 128), (129, 512), (513, 1024), (1025, 2**31))
"""First and last m."""

MIN_CONFIGS = 10
"""Configurations that the first calibration must have read on a problem, so that its best is one."""

Sweep = dict[tuple[int, ...], dict[KernelConfig, float]]


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="+", help="measurements of the first calibration and of the second")
    parser.add_argument("--without", help="a schedule; of one file")
    parser.add_argument("--dtype", default="bf16")
    parser.add_argument("--arch", default="h200")
    args = parser.parse_args()
    before, after = (read(path, args.dtype, args.arch) for path in (args.files[0], args.files[-1]))
    if args.without:
        before = {
            dims: others for dims, of_dims in after.items() if (others := without(of_dims, args.without)) != of_dims
        }
    shared = set(before) & set(after)
    drift = statistics.median(
        before[dims][config] / after[dims][config] for dims in shared for config in set(before[dims]) & set(after[dims])
    )
    rows = {}
    for first, last in BANDS:
        gains = [
            min(before[dims].values()) / min(after[dims].values()) / drift
            for dims in shared
            if first <= dims[0] <= last and len(before[dims]) >= MIN_CONFIGS
        ]
        if gains:
            rows[f"m {first} to {last}"] = {"problems": len(gains), "times as fast": round(geometric_mean(gains), 3)}
    print(json.dumps({"drift": round(drift, 4), **rows}, indent=1))


def without(latencies: dict[KernelConfig, float], schedule: str) -> dict[KernelConfig, float]:
    """Return the latencies of the other schedules."""
    return {config: latency_us for config, latency_us in latencies.items() if config["schedule"] != schedule}


def read(path: Path, dtype: str, arch: str) -> Sweep:
    """Return latencies by problem and configuration."""
    table = read_measurements(path, GEMM, dtype, find_arch(arch), exhaustive=True).table
    sweep: Sweep = {}
    for dims, column, latency_us in zip(table.dims.tolist(), table.config_index, table.latency_us, strict=True):
        sweep.setdefault(tuple(dims), {})[table.configs[column].config] = float(latency_us)
    return sweep


if __name__ == "__main__":
    main()
