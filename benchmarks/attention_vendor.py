"""Attention against every backend of torch's scaled_dot_product_attention, each forced in turn.

Configurations are checked against a float64 reference first. Then, problem by problem: all of them on a busy stream,
and the three best of them, the fixed default and the backends against each other, as CUDA graphs over rotating buffers.
Decode also shows our kernel with the splits of FlashAttention's rule. Needs a GPU.

    python benchmarks/attention_vendor.py --out attention.json
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

from live_timing import Comparison

from wavetune.core.arch import ArchSpec, find_arch
from wavetune.core.attention_problem import AttentionDecodeProblem, AttentionProblem
from wavetune.core.config import KernelConfig
from wavetune.kernels.attention_space import occupancy_splits
from wavetune.mapping.attention import most_decode_trips, row_tiles
from wavetune.measure.cuda_timing import Candidate
from wavetune.measure.timing import STREAM_METHOD, StoppingRule
from wavetune.measure.triton_runner import TritonRunner
from wavetune.report.metrics import geometric_mean
from wavetune.store.record import Point

PAIR_RULE = StoppingRule(relative=0.003, absolute_us=0.05, min_rounds=7, max_rounds=15, max_total_us=60_000.0)
"""For candidates that decide a comparison: 0.3 % or 0.05 us, at most 15 interleaved rounds."""

BACKENDS = {"cudnn": "CUDNN_ATTENTION", "flash": "FLASH_ATTENTION", "efficient": "EFFICIENT_ATTENTION"}
"""Names of our rows, and of members of torch.nn.attention.SDPBackend."""

TOKENS = 16384
LENGTHS = (1024, 2048, 4096, 8192, 16384)
DECODES = ((1, 4096), (1, 32768), (8, 1024), (8, 8192), (32, 2048), (64, 8192))
HEADS = ((32, 32), (32, 8))
HEAD_DIM = 128
MAX_ERROR = 0.02
"""Relative difference at which our result and a backend's are not the same computation."""


def prefill_problems(dtype: str) -> list[AttentionProblem]:
    """Return causal prefills of `TOKENS` tokens."""
    return [
        AttentionProblem((length,) * (TOKENS // length), (), heads, kv_heads, HEAD_DIM, True, dtype=dtype)
        for heads, kv_heads in HEADS
        for length in LENGTHS
    ]


def decode_problems(dtype: str) -> list[AttentionDecodeProblem]:
    """Return decode steps of sequences of one length."""
    return [
        AttentionDecodeProblem((length,) * batch, heads, kv_heads, HEAD_DIM, 16, dtype=dtype)
        for heads, kv_heads in HEADS[1:]
        for batch, length in DECODES
    ]


class Rival:
    """One backend on one problem: a callable that computes it on operands of its own.

    Parameters
    ----------
    backend : str
        Member of torch.nn.attention.SDPBackend.
    problem : AttentionProblem or AttentionDecodeProblem
        What to compute; a cache of a decode is contiguous here, since the backends know no pages.
    windows : DataWindows
        Where operands come from.
    """

    def __init__(self, backend: str, problem: Any, windows: Any) -> None:
        from torch.nn.attention import SDPBackend

        self._backend = getattr(SDPBackend, backend)
        self._is_causal = problem.kernel == "attention"
        self._shares_heads = problem.group > 1
        batch = len(problem.kv_lengths)
        queries = problem.q_lengths[0] if self._is_causal else 1

        def take(tokens: int, heads: int) -> Any:
            rows = windows.take(problem.dtype, batch * tokens * heads, problem.head_dim)
            return rows.view(batch, tokens, heads, problem.head_dim).transpose(1, 2)

        self.q = take(queries, problem.heads)
        self.k, self.v = (take(problem.kv_lengths[0], problem.kv_heads) for _ in range(2))

    def __call__(self) -> Any:
        """Launch on the current stream."""
        from torch.nn.attention import sdpa_kernel
        from torch.nn.functional import scaled_dot_product_attention

        with sdpa_kernel([self._backend]):
            return scaled_dot_product_attention(
                self.q, self.k, self.v, is_causal=self._is_causal, enable_gqa=self._shares_heads
            )


class AttentionComparison(Comparison):
    """Times the candidates of one family and torch's backends; checks every configuration first.

    Parameters
    ----------
    arch : ArchSpec
        The GPU.
    kernel, dtype : str
        The family and the element type.
    gpu : int, default=0
        Ordinal, as CUDA counts.
    """

    def __init__(self, arch: ArchSpec, kernel: str, dtype: str, gpu: int = 0) -> None:
        super().__init__(arch, dtype, kernel=kernel, gpu=gpu, rule=PAIR_RULE)
        runner = TritonRunner(arch, kernel, dtype, f"d{HEAD_DIM}", gpu)
        prepared = runner.prepare(self.family.configs(arch, dtype))
        self.configs = [entry.config for entry in prepared.compiled]
        self.rejected = [(list(failure.config.values()), failure.detail) for failure in prepared.failures]

    def finalists(self, problem: Any, count: int) -> list[KernelConfig]:
        """Return the fastest configurations on a busy stream, best first."""
        legal = [config for config in self.configs if self.family.legal(problem, config, self.arch) is None]
        points = [Point(problem, config, "") for config in legal]
        n_windows = self.session.n_windows(points[0], self.session.expected_us(problem), STREAM_METHOD)
        timings = self.session.timer.time([Candidate(self.session.bind(point, n_windows)) for point in points])
        measured = [
            (timing.latency_us, index) for index, timing in enumerate(timings) if timing is not None
        ]  # fmt: skip
        return [legal[index] for _, index in sorted(measured)[:count]]

    def rivals(self, problem: Any) -> dict[str, list[Any]]:
        """Return the launches of every backend that can compute the problem."""
        import torch

        n_windows = self.n_windows(problem)
        able = {}
        for name, backend in BACKENDS.items():
            try:
                with torch.cuda.stream(self.session.stream):
                    launches = [Rival(backend, problem, self.session.windows) for _ in range(n_windows)]
                    launches[0]()
                self.session.stream.synchronize()
            except RuntimeError as error:
                print(f"  {name} cannot: {str(error).splitlines()[0][:100]}")
            else:
                able[name] = launches
        return able

    def check(self, problem: AttentionProblem, config: KernelConfig, rival: Rival) -> float:
        """Return the relative difference of our result and a backend's on the same inputs."""
        from dataclasses import replace

        import torch

        from wavetune.kernels.reference import relative_error

        operands = self.family.carve_operands(problem, config, self.session.windows)
        operands = replace(operands, q=rival.q, k=rival.k, v=rival.v)
        torch.cuda.synchronize()
        self.family.launch(operands, config, self.arch)
        theirs = rival()
        torch.cuda.synchronize()
        return relative_error(operands.out, theirs.float())

    def time_all(
        self, problem: Any, configs: dict[str, KernelConfig], rivals: dict[str, list[Any]]
    ) -> dict[str, float]:  # fmt: skip
        """Time configurations and backends as graphs, interleaved; equal configurations are timed once."""
        distinct = list(dict.fromkeys(configs.values()))
        n_windows = self.n_windows(problem)
        ours = [self.session.bind(Point(problem, config, ""), n_windows) for config in distinct]
        timings = self.time_launches([*ours, *rivals.values()])
        latency = [float("nan") if timing is None else timing.latency_us for timing in timings]
        by_config = dict(zip(distinct, latency, strict=False))
        return {
            **{label: by_config[config] for label, config in configs.items()},
            **dict(zip(rivals, latency[len(distinct) :], strict=True)),
        }


def rule_config(problem: AttentionDecodeProblem, config: KernelConfig, arch: ArchSpec) -> KernelConfig:
    """Return a decode configuration with the splits of FlashAttention's rule."""
    ctas = len(problem.kv_lengths) * problem.kv_heads * row_tiles(problem.group)
    trips = most_decode_trips(problem, int(config["block_n"]))
    return config.replace(splits=occupancy_splits(ctas, trips, arch.num_sms))


def compare(comparison: AttentionComparison, problem: Any) -> dict[str, Any]:
    """Time one problem and return its row."""
    finalists = comparison.finalists(problem, 3)
    configs = {f"finalist{index}": config for index, config in enumerate(finalists)}
    configs["default"] = comparison.family.fallback_config(problem, comparison.arch)
    if problem.kernel == "attention_decode":
        configs["rule_splits"] = rule_config(problem, finalists[0], comparison.arch)
    rivals = comparison.rivals(problem)
    row: dict[str, Any] = {"problem": list(problem.dims)}
    if problem.kernel == "attention" and rivals:
        name, launches = next(iter(rivals.items()))
        row["difference"] = round(comparison.check(problem, finalists[0], launches[0]), 5)
        if not row["difference"] < MAX_ERROR:
            raise SystemExit(f"{name} computes something else than {dict(finalists[0])} on {problem.dims}")
    us = comparison.time_all(problem, configs, rivals)
    ours = {label: value for label, value in us.items() if label.startswith("finalist")}
    best = min(ours, key=lambda label: ours[label])
    flops, n_bytes = comparison.family.cost(problem)
    row |= {"best_us": round(us[best], 3), "default_us": round(us["default"], 3), "config": dict(configs[best])}
    row |= {f"{name}_us": round(us[name], 3) for name in rivals}
    row |= {"tflops": round(flops / us[best] * 1e-6, 1), "gb_per_s": round(n_bytes / us[best] * 1e-3, 1)}
    if rivals:
        fastest = min(rivals, key=lambda name: us[name])
        row |= {"fastest": fastest, "speedup": round(us[fastest] / us[best], 4)}
    if "rule_splits" in us:
        row["rule_us"] = round(us["rule_splits"], 3)
    return row


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arch", default="nvidia-h200", help="GPU, as `wavetune models` names it")
    parser.add_argument("--dtype", default="bf16", choices=("bf16", "fp16"))
    parser.add_argument("--out", type=Path, required=True, help="JSON file for the table")
    parser.add_argument("--budget", type=float, default=110.0, help="seconds after which no problem is begun")
    args = parser.parse_args()
    arch = find_arch(args.arch)
    start = time.perf_counter()
    document: dict[str, Any] = {"dtype": args.dtype}
    for kernel, problems in (
        ("attention", prefill_problems(args.dtype)), ("attention_decode", decode_problems(args.dtype)),
    ):  # fmt: skip
        comparison = AttentionComparison(arch, kernel, args.dtype)
        print(f"{kernel}: {len(comparison.configs)} configurations, {time.perf_counter() - start:.0f} s")
        for config, detail in comparison.rejected:
            print("  rejected", config, detail[:150])
        rows = []
        with comparison:
            for problem in problems:
                if time.perf_counter() - start > args.budget:
                    print("  out of time before", problem.dims)
                    continue
                rows.append(compare(comparison, problem))
                shown = {key: value for key, value in rows[-1].items() if key not in ("config", "problem")}
                print(" ", problem.dims, json.dumps(shown), list(rows[-1]["config"].values()))
        document[kernel] = {"rows": rows, "conditions": comparison.session.conditions()}
        speedups = [row["speedup"] for row in rows if "speedup" in row]
        if speedups:
            document[kernel]["speedup_over_fastest"] = round(geometric_mean(speedups), 4)
            print(f"{kernel}: {document[kernel]['speedup_over_fastest']} of the fastest backend, geometric mean")
        args.out.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
