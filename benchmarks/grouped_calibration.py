"""Wall time of a calibration of grouped GEMM, by stage; keeps the model and the rows behind it. Needs a GPU.

python benchmarks/grouped_calibration.py --arch h200 --dtype bf16 --layout nk --out calibrated
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path

from wavetune.core.arch import find_arch
from wavetune.core.config import GROUPED_GEMM
from wavetune.kernels.registry import find_family
from wavetune.measure.triton_runner import TritonRunner
from wavetune.pipeline.grouped_calibration import calibrate_grouped, grouped_job
from wavetune.plan.grouped_plan import EXHAUSTIVE_STRATA, GroupedPlanOptions
from wavetune.runtime.family_file import family_file_name, write_family
from wavetune.store.csv_io import write_measurements
from wavetune.store.database import MeasurementStore


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arch", default="nvidia-h200", help="the GPU that is there")
    parser.add_argument("--dtype", default="bf16", help="element type")
    parser.add_argument("--layout", default="nk", choices=("nk", "gated"), help="one projection, or gate and up fused")
    parser.add_argument("--budget", type=float, default=95.0, help="seconds of timing")
    parser.add_argument("--problems", type=int, default=GroupedPlanOptions().n_problems, help="most problems")
    parser.add_argument("--out", type=Path, required=True, help="folder for model and rows")
    args = parser.parse_args()
    os.environ["TRITON_CACHE_DIR"] = tempfile.mkdtemp(prefix="triton-")
    arch = find_arch(args.arch)
    args.out.mkdir(parents=True, exist_ok=True)
    start = time.perf_counter()
    runner = TritonRunner(arch, "grouped_gemm", args.dtype, args.layout)
    job = grouped_job(find_family("grouped_gemm").configs(arch, args.dtype), arch, dtype=args.dtype, layout=args.layout)
    # The plan's prediction is within a factor of two; the clock decides.
    options = GroupedPlanOptions(max_seconds=2.0 * args.budget, n_problems=args.problems)
    with (
        tempfile.TemporaryDirectory() as folder,
        MeasurementStore(Path(folder) / "store.sqlite", runner.environment()) as store,
    ):
        result = calibrate_grouped(runner, job, store, options=options, budget_s=args.budget)
        wall = time.perf_counter() - start
        rows = store.to_table(GROUPED_GEMM, dtype=args.dtype, layout=args.layout, exhaustive_strata=EXHAUSTIVE_STRATA)
    name = family_file_name("grouped_gemm", args.dtype, args.layout)
    write_family(result.file, args.out / name)
    for kind, marks in (("sweep", rows.exhaustive), ("likely", ~rows.exhaustive)):
        if marks.any():
            write_measurements(args.out / f"{Path(name).stem}-{kind}.csv.gz", rows.select(marks))
    for failure in result.failures[:10]:
        print(
            f"failed: {failure.problem.dims} {list(failure.config.values())} {failure.status}: {failure.detail[:120]}"
        )
    summary = {
        "calibrated": name,
        "wall_s": round(wall, 1),
        "seconds": {stage: round(value, 1) for stage, value in result.seconds.items()},
        "measured": result.rows,
        "skipped": result.skipped,
        "failures": len(result.failures),
        "forms": len(result.file.forms),
        "accuracy": result.file.accuracy,
        "default": dict(result.file.forms[result.file.default_index].config),
        "conditions": runner.conditions(),
    }
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
