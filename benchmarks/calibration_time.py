"""Wall time of a calibration from an empty Triton cache, by stage; keeps the model and its evidence. Needs a GPU.

python benchmarks/calibration_time.py --arch h200 --dtype bf16 --out calibrated
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path

from wavetune.core.arch import find_arch
from wavetune.kernels.registry import find_family
from wavetune.measure.triton_runner import TritonRunner
from wavetune.pipeline.calibrate import calibrate
from wavetune.pipeline.evidence import write_evidence
from wavetune.pipeline.strategy import LiveStrategy
from wavetune.plan.sampling import PlanOptions
from wavetune.runtime.codec import write_model
from wavetune.runtime.locate import model_file_name
from wavetune.store.database import MeasurementStore


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arch", default="nvidia-h200", help="the GPU that is there")
    parser.add_argument("--dtype", default="bf16", help="element type")
    parser.add_argument("--layout", default="nk", help="storage of B")
    parser.add_argument("--out", type=Path, required=True, help="folder for model and evidence")
    args = parser.parse_args()
    os.environ["TRITON_CACHE_DIR"] = tempfile.mkdtemp(prefix="triton-")
    arch = find_arch(args.arch)
    args.out.mkdir(parents=True, exist_ok=True)
    start = time.perf_counter()
    runner = TritonRunner(arch, "gemm", args.dtype, args.layout)
    strategy = LiveStrategy(
        find_family("gemm").configs(arch, args.dtype), arch, dtype=args.dtype, layout=args.layout, options=PlanOptions()
    )
    with (
        tempfile.TemporaryDirectory() as folder,
        MeasurementStore(Path(folder) / "store.sqlite", runner.environment()) as store,
    ):
        result = calibrate(runner, strategy, store, kernel="gemm", dtype=args.dtype, layout=args.layout)
        write_model(result.fitted.file, args.out / model_file_name("gemm", args.dtype, args.layout))
        wall = time.perf_counter() - start
        write_evidence(args.out, result, store.environment(), runner.conditions())
    held_out = result.fitted.held_out
    summary = {
        "calibrated": args.dtype,
        "wall_s": round(wall, 1),
        "seconds": {stage: round(value, 1) for stage, value in result.seconds.items()},
        "points": result.points,
        "measured": len(result.table),
        "failures": len(result.failures),
        "held_out": {k: v for k, v in held_out.to_dict(("m", "n", "k")).items() if k != "worst"} if held_out else None,
        "survivors": result.fitted.file.n_modelled,
        "default": dict(result.fitted.file.forms[result.fitted.file.default_index].config),
    }
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
