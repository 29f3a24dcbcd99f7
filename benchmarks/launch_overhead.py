"""What a launch costs the host: a bare ``kernel[grid](...)``, the launcher, the torch operator, and torch.mm.

    python benchmarks/launch_overhead.py [--json FILE] [--rounds 60]

Every case launches the same configuration on the same operands, once loading by TMA descriptors, once by pointers, once
with k split over CTAs (two kernels and a workspace). Calls of one case are timed in a row without waiting for the GPU,
fewer of them than its queue is long; cases take turns, and what is reported are medians and quartiles over the rounds,
and of the differences to the bare launch of the same round. Needs a GPU; with TRITON_INTERPRET=1 it only checks itself.
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import triton

import wavetune
from wavetune.core.config import GEMM, KernelConfig
from wavetune.kernels.call import IS_INTERPRETED
from wavetune.kernels.gemm import gemm_calls
from wavetune.kernels.gemm_operands import GemmOperands, operand_problem
from wavetune.launch.gpu import find_gpu
from wavetune.launch.matmul import matmul

M, N, K = 16, 1024, 1024
"""Small, so that the GPU is done before the host is, whatever it launches."""

CALLS = 100
"""Calls in a row; the GPU's queue takes 1024 launches."""

TARGET_US = 3.0
"""Largest overhead of the launcher over the bare launch of the same kernel."""

_BASE = {"block_m": 16, "block_n": 64, "block_k": 128, "group_m": 8, "num_warps": 4, "num_stages": 4}
CONFIGS = {
    "tma": GEMM.config({**_BASE, "load": "tma"}),
    "pointer": GEMM.config({**_BASE, "load": "pointer"}),
    "split_k": GEMM.config({**_BASE, "load": "tma", "schedule": "split_k", "split_k": 4}),
}

Call = Callable[[], object]


def make_cases(config: KernelConfig, device: torch.device) -> dict[str, Call]:
    """Return what is timed, by name; the bare launch first."""
    dtype = torch.float16 if IS_INTERPRETED else torch.bfloat16
    a, weight = torch.randn(M, K, device=device).to(dtype), torch.randn(N, K, device=device).to(dtype)
    b, out = weight.t(), torch.empty(M, N, device=device, dtype=dtype)
    arch = find_gpu(a.device).arch
    operands = GemmOperands(operand_problem(a, weight, out, "nk"), a, weight, out).with_workspace(config)
    # As a user would write it: arguments and descriptors are ready, constants and options are given at each call.
    calls = [
        (call.variant.kernel, (call.grid_size,), call.args, call.variant.options())
        for call in gemm_calls(operands, config, arch)
    ]

    def bare() -> None:
        for kernel, grid, args, options in calls:
            kernel[grid](*args, **options)

    def bare_with_new_descriptors() -> None:
        for call in gemm_calls(operands, config, arch):
            call.variant.kernel[(call.grid_size,)](*call.args, **call.variant.options())

    operator = torch.ops.wavetune.matmul
    cases: dict[str, Call] = {
        "bare kernel[grid](...)": bare,
        "bare, arguments made anew": bare_with_new_descriptors,
        "wavetune.matmul(out=)": lambda: matmul(a, b, out=out),
        "wavetune.matmul": lambda: matmul(a, b),
        "torch.ops.wavetune.matmul": lambda: operator(a, b),
        "torch.mm(out=)": lambda: torch.mm(a, b, out=out),
        "torch.mm": lambda: torch.mm(a, b),
    }
    expected = a.double() @ b.double()
    for name, call in cases.items():
        out.zero_()
        result = call()
        result = out if result is None else result
        error = float((result.double() - expected).norm() / expected.norm())
        assert error < 1e-2, (name, error)
    return cases


def time_cases(cases: dict[str, Call], rounds: int, calls: int, synchronize: Call) -> dict[str, list[float]]:
    """Return microseconds a call of every case in every round."""
    readings: dict[str, list[float]] = {name: [] for name in cases}
    names = list(cases)
    gc.disable()
    for turn in range(rounds):
        # Each round begins with another case, so that none always follows the same one.
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            call = cases[name]
            call()
            synchronize()
            start = time.perf_counter()
            for _ in range(calls):
                call()
            readings[name].append((time.perf_counter() - start) / calls * 1e6)
            synchronize()
        gc.collect()
    gc.enable()
    return readings


def quartiles(values: list[float]) -> tuple[float, float, float]:
    """Return lower quartile, median, upper quartile."""
    if len(values) < 2:
        return values[0], values[0], values[0]
    low, median, high = statistics.quantiles(values, n=4)
    return low, median, high


def main() -> int:
    """Print the table and, with ``--json``, write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--rounds", type=int, default=60)
    options = parser.parse_args()
    if not (IS_INTERPRETED or torch.cuda.is_available()):
        sys.exit("needs a GPU, or TRITON_INTERPRET=1 to check the program itself")
    device = torch.device("cpu" if IS_INTERPRETED else "cuda")
    rounds, calls = (2, 1) if IS_INTERPRETED else (options.rounds, CALLS)
    synchronize: Call = (lambda: None) if IS_INTERPRETED else torch.cuda.synchronize

    write = sys.stdout.write
    results: dict[str, dict[str, dict[str, float]]] = {}
    for kind, config in CONFIGS.items():
        wavetune.configure(force_config=config)
        readings = time_cases(make_cases(config, device), rounds, calls, synchronize)
        bare = next(iter(readings.values()))
        write(f"\n{kind}: {M} x {N} x {K}\n{'case':28}{'us':>8}{'quartiles':>16}{'over bare':>11}{'quartiles':>16}\n")
        results[kind] = {}
        for name, values in readings.items():
            low, median, high = quartiles(values)
            over_low, over, over_high = quartiles([value - base for value, base in zip(values, bare, strict=True)])
            results[kind][name] = {
                key: round(value, 3)
                for key, value in (
                    ("us", median), ("low_us", low), ("high_us", high),
                    ("over_bare_us", over), ("over_bare_low_us", over_low), ("over_bare_high_us", over_high),
                )
            }  # fmt: skip
            spread, over_spread = f"{low:.2f}-{high:.2f}", f"{over_low:+.2f} {over_high:+.2f}"
            write(f"{name:28}{median:8.2f}{spread:>16}{over:+11.2f}{over_spread:>16}\n")
    wavetune.configure(force_config=None)
    worst = max(results[kind]["wavetune.matmul(out=)"]["over_bare_us"] for kind in CONFIGS)
    worst_new = max(results[kind]["wavetune.matmul"]["over_bare_us"] for kind in CONFIGS)
    write(
        f"\nwavetune.matmul over the bare launch, at worst: {worst:+.2f} us with out, {worst_new:+.2f} us without; "
        f"target <= {TARGET_US:+.0f} us\n"
    )
    if options.json:
        report = {
            "gpu": "interpreter" if IS_INTERPRETED else torch.cuda.get_device_name(),
            "torch": torch.__version__,
            "triton": triton.__version__,
            "python": platform.python_version(),
            "rounds": rounds,
            "calls": calls,
            "shape": [M, N, K],
            "cases": results,
        }
        options.json.write_text(json.dumps(report, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
