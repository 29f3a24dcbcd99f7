"""fp8 against torch._scaled_mm: one scale for the tensor or one for each row, fast accumulation off and on.

All in one run, interleaved, as CUDA graphs over rotating buffers. Ours has a scale for each row, which costs the same
as one for the tensor, and is what the model chooses; without a model, the best of a sweep over every candidate, which
with one is timed beside it (--sweep). Errors are those of a long k against float64. Needs a GPU.

    python benchmarks/fp8_vendor.py --dtype fp8 --model models/nvidia-h200/gemm-fp8.json --out fp8-vendor.json
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from live_timing import PAIR_RULE, Comparison
from vendor import BANDS, LAYERS, TOKENS

from wavetune.core.arch import ArchSpec, find_arch
from wavetune.core.config import KernelConfig
from wavetune.core.problem import GemmProblem
from wavetune.kernels.reference import gemm_reference, relative_error
from wavetune.kernels.registry import find_family
from wavetune.measure.cuda_timing import Candidate
from wavetune.measure.gpu_session import GpuSession
from wavetune.measure.timing import GRAPH_METHOD, STREAM_METHOD
from wavetune.measure.triton_runner import TritonRunner
from wavetune.report.metrics import geometric_mean
from wavetune.runtime.chooser import GemmChooser
from wavetune.runtime.codec import read_model
from wavetune.store.record import Point

RIVALS = {
    "tensor": ("tensor", False), "row": ("row", False), "tensor_fast": ("tensor", True), "row_fast": ("row", True),
    "block": ("block", False),
}  # fmt: skip
"""How scales are spread, and use_fast_accum. Not every build of torch takes every one."""

N_FINALISTS = 3
LONG = (512, 512, 16384)


def rival_launches(
    problem: GemmProblem, mode: str, use_fast_accum: bool, windows: Any, n_windows: int
) -> list[Callable[[], Any]]:  # fmt: skip
    """Return launches of torch._scaled_mm, each on operands of its own."""
    import torch

    m, n, k = problem.dims
    launches = []
    for _ in range(n_windows):
        a, b = windows.take(problem.dtype, m, k), windows.take(problem.dtype, n, k).t()
        out = windows.take(problem.dtype, m, n, is_output=True)
        if mode == "block":
            # torch wants the scales of A and B with the blocks of k outermost.
            scale_a = windows.take("fp32", -(-k // 128), m).t()
            scale_b = windows.take("fp32", -(-n // 128), -(-k // 128)).t()
        elif mode == "row":
            scale_a, scale_b = windows.take("fp32", m, 1), windows.take("fp32", 1, n)
        else:
            scale_a, scale_b = windows.take("fp32", 1, 1), windows.take("fp32", 1, 1)

        def launch(a: Any = a, b: Any = b, scale_a: Any = scale_a, scale_b: Any = scale_b, out: Any = out) -> Any:
            return torch._scaled_mm(
                a, b, scale_a, scale_b, out_dtype=torch.bfloat16, use_fast_accum=use_fast_accum, out=out
            )

        launches.append(launch)
    return launches


def able_rivals(problem: GemmProblem, session: GpuSession, n_windows: int) -> dict[str, list[Callable[[], Any]]]:
    """Return the launches of every rival that this build of torch can compute the problem with."""
    import torch

    able = {}
    for name, (mode, use_fast_accum) in RIVALS.items():
        if mode == "block" and problem.dtype != "fp8_block128":
            continue
        try:
            with torch.cuda.stream(session.stream):
                launches = rival_launches(problem, mode, use_fast_accum, session.windows, n_windows)
                launches[0]()
            session.stream.synchronize()
        except (RuntimeError, ValueError) as error:
            if name not in _UNABLE:
                _UNABLE[name] = str(error).splitlines()[0][:160]
        else:
            able[name] = launches
    return able


_UNABLE: dict[str, str] = {}


def finalists(problem: GemmProblem, configs: list[KernelConfig], session: GpuSession) -> list[KernelConfig]:
    """Return the fastest configurations on a busy stream, best first."""
    legal = [config for config in configs if session.family.legal(problem, config, session.arch) is None]
    n_windows = session.n_windows(Point(problem, legal[0], ""), session.expected_us(problem), STREAM_METHOD)
    timings = session.timer.time([Candidate(session.bind(Point(problem, config, ""), n_windows)) for config in legal])
    measured = [(timing.latency_us, index) for index, timing in enumerate(timings) if timing is not None]
    return [legal[index] for _, index in sorted(measured)[:N_FINALISTS]]


def compare(problem: GemmProblem, configs: dict[str, KernelConfig], session: GpuSession) -> dict[str, float]:
    """Time configurations and rivals against each other; equal configurations are timed once."""
    n_windows = session.n_windows(Point(problem, KernelConfig(), ""), 0.0, GRAPH_METHOD)
    distinct = list(dict.fromkeys(configs.values()))
    ours = [Candidate(session.bind(Point(problem, config, ""), n_windows)) for config in distinct]
    rivals = able_rivals(problem, session, n_windows)
    timings = session.graph_timer.time([*ours, *(Candidate(launches) for launches in rivals.values())], PAIR_RULE)
    latency = [float("nan") if timing is None else timing.latency_us for timing in timings]
    by_config = dict(zip(distinct, latency, strict=False))
    return {
        **{label: by_config[config] for label, config in configs.items()},
        **dict(zip(rivals, latency[len(distinct) :], strict=True)),
    }


def errors(dtype: str, config: KernelConfig, arch: ArchSpec) -> dict[str, float]:
    """Return relative errors against float64 of a product with a long k: ours, and torch's with the same operands."""
    import torch

    family = find_family("gemm")
    operands = family.make_operands(GemmProblem(*LONG, dtype=dtype), "cuda", 0)[0].with_workspace(config)
    expected = gemm_reference(operands)
    family.launch(operands, config, arch)
    found = {"ours": relative_error(operands.out, expected)}
    if dtype != "fp8_block128":
        for name, use_fast_accum in (("torch", False), ("torch_fast", True)):
            result = torch._scaled_mm(
                operands.a, operands.b.t(), operands.scale_a, operands.scale_b.t(), out_dtype=torch.bfloat16,
                use_fast_accum=use_fast_accum,
            )  # fmt: skip
            found[name] = relative_error(result, expected)
    return {name: float(f"{error:.3g}") for name, error in found.items()}


def band_table(rows: list[dict[str, Any]], ours: str) -> dict[str, Any]:
    """Return geometric means of rival latency over ours, by band of m."""
    table: dict[str, Any] = {}
    for band, (low, high) in {**BANDS, "all": (0, 1 << 30)}.items():
        among = [row for row in rows if low <= row["m"] <= high]
        if not among:
            continue
        table[band] = {"shapes": len(among)}
        for rival in [*RIVALS, "oracle"]:
            ratios = [row[f"{rival}_us"] / row[f"{ours}_us"] for row in among if f"{rival}_us" in row]
            if ratios and rival != ours:
                table[band][rival] = round(geometric_mean(ratios), 4)
                table[band][f"{rival}_min"] = round(min(ratios), 4)
    return table


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", default="fp8", help="fp8, fp8_fast or fp8_block128")
    parser.add_argument("--model", type=Path, help="model file to choose from; the best of a sweep without one")
    parser.add_argument("--arch", default="nvidia-h200", help="the GPU, where no model names it")
    parser.add_argument("--sweep", action="store_true", help="with a model, also time the best of a sweep")
    parser.add_argument("--out", type=Path, required=True, help="JSON file for the table")
    parser.add_argument("--budget", type=float, default=120.0, help="seconds after which no shape is begun")
    args = parser.parse_args()
    model = read_model(args.model) if args.model else None
    arch, dtype = find_arch(model.arch if model else args.arch), model.dtype if model else args.dtype
    # The question is what an unmeasured shape gets: no exact table.
    chooser = GemmChooser(model, arch, use_exact=False) if model else None
    configs: list[KernelConfig] = []
    if args.sweep or chooser is None:
        prepared = TritonRunner(arch, "gemm", dtype).prepare(find_family("gemm").configs(arch, dtype))
        configs = [entry.config for entry in prepared.compiled]
        for failure in prepared.failures:
            print("rejected", list(failure.config.values()), failure.detail[:120])
    ours, rows = "chosen" if chooser else "oracle", []
    start = time.perf_counter()
    with Comparison(arch, dtype) as comparison:
        session = comparison.session
        # Layers in turns over m, so that a budget that runs out has seen every band.
        problems = [
            (name, GemmProblem(m, *layer, dtype=dtype))
            for name, layers in LAYERS.items()
            for layer in layers
            for m in TOKENS
        ]
        for name, problem in sorted(problems, key=lambda entry: hash(entry[1].dims)):
            if time.perf_counter() - start > args.budget:
                break
            candidates = {"chosen": chooser.choose(problem)} if chooser else {}
            if configs:
                candidates |= {f"best{i}": config for i, config in enumerate(finalists(problem, configs, session))}
            us = compare(problem, candidates, session)
            best = [label for label in us if label.startswith("best")]
            if best:
                winner = min(best, key=us.__getitem__)
                us["oracle"], candidates["oracle"] = us[winner], candidates[winner]
            row = {"model": name, "m": problem.m, "n": problem.n, "k": problem.k}
            row |= {f"{label}_us": round(value, 3) for label, value in us.items() if not label.startswith("best")}
            rows.append({**row, "config": list(candidates[ours].values())})
        conditions = session.conditions()
    table = band_table(rows, ours)
    exactness = errors(dtype, KernelConfig(**dict(candidates[ours])), arch) if rows else {}
    result = {
        "dtype": dtype, "ours": ours, "rival_over_ours": table, "relative_error": exactness, "unable": _UNABLE,
        "conditions": conditions, "rows": rows,
    }  # fmt: skip
    args.out.write_text(json.dumps(result, indent=1) + "\n")
    print(f"{dtype}: latency of torch._scaled_mm over {ours}, geometric mean (above 1: ours is faster)")
    for band, values in table.items():
        print(json.dumps({band: values}))
    print(json.dumps({"relative_error at k = 16384": exactness, "unable": _UNABLE}))
    reference = next((rival for rival in RIVALS if rows and f"{rival}_us" in rows[0]), None)
    if reference:
        for row in sorted(rows, key=lambda row: row[f"{reference}_us"] / row[f"{ours}_us"])[:8]:
            ratio = row[f"{reference}_us"] / row[f"{ours}_us"]
            print(f"{ratio:.3f} of {reference}", row["m"], row["n"], row["k"], row["config"])


if __name__ == "__main__":
    main()
