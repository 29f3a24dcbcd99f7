"""GEMM schedules that are not in the family, against torch.mm and the configuration that the model chooses.

- stream_k: full waves of whole tiles, then equal shares of the rest; deterministic.
- warp specialisation: a warp of its own for loads; says whether the compiler engaged it.
- packed: B stored tile by tile, beside the same kernel on B as it is.
- guarded: loops that always make a trip, beside the same kernels without. Triton 3.6 leaves a way around the loop, and
  ptxas then runs one wgmma after another where a tile is computed by 8 warps or persistently in two parts.

Every variant is checked against torch before it is timed; all take turns, as CUDA graphs over rotating buffers.

    python benchmarks/experiments/gemm_variants.py --model models/nvidia-h200/gemm-bf16.json --out variants.json
    python benchmarks/experiments/gemm_variants.py --compile-only    # needs no GPU
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import triton
import variant_kernels
from joblib import Parallel, delayed
from triton.tools.tensor_descriptor import TensorDescriptor

from wavetune.core.arch import ArchSpec, find_arch
from wavetune.core.problem import GemmProblem
from wavetune.kernels.call import (
    IS_INTERPRETED,
    KernelCall,
    KernelVariant,
    Launch,
    LaunchSequence,
    bind,
    compile_call,
    compile_offline,
    load_call,
)
from wavetune.kernels.placeholder import Placeholder
from wavetune.mapping.gemm import ceil_div
from wavetune.measure.compile import read_resources

SHAPES = (
    (256, 10240, 8192), (512, 10240, 8192), (512, 6144, 4096), (1024, 6144, 4096), (1024, 2304, 7168),
    (1, 4096, 4096), (16, 28672, 4096), (16, 4096, 14336), (64, 8192, 8192), (256, 4096, 14336),
    (2048, 4096, 4096), (4096, 8192, 8192),
)  # fmt: skip
"""Wave-quantised ones first, then decode, then prefill."""

UNIT = 8
"""Elements of 16 bytes; every size here is a multiple of it."""

FIX_UP_ROWS = 16
MAX_ERROR = 8e-3


@dataclass(frozen=True)
class Operands:
    """A [m, k], B [n, k] and C [m, n], tensors or stand-ins; ``pieces`` is the workspace of stream-k."""

    a: Any
    b: Any
    out: Any
    pieces: Any = None


@dataclass(frozen=True)
class Variant:
    """One kernel with its constants.

    Parameters
    ----------
    name : str
        Kind and configuration.
    tile : tuple of int
        ``(block_m, block_n, block_k)``; of a pair the whole width.
    make : callable
        Given the variant, operands, GPU and resident CTAs, returns the launches.
    num_warps, num_stages : int
        Compile options.
    rows : tuple of int
        Smallest and largest m that it is tried on.
    packs : bool
        Whether B is packed for it.
    constants : dict
        More constants.
    """

    name: str
    tile: tuple[int, int, int]
    make: Callable[[Variant, Operands, ArchSpec, int], list[KernelCall]]
    num_warps: int
    num_stages: int
    rows: tuple[int, int] = (1, 1 << 30)
    packs: bool = False
    constants: dict[str, Any] = field(default_factory=dict)

    def kernel(self, kernel: Any, constants: dict[str, Any], arch: ArchSpec, *, is_persistent: bool) -> KernelVariant:
        """Return what is compiled; one object for each GPU, so that it is compiled once."""
        key = (self.name, kernel.__name__, arch.name)
        if key not in _VARIANTS:
            _VARIANTS[key] = KernelVariant(
                kernel, constants, self.num_warps, self.num_stages, arch, is_persistent=is_persistent
            )
        return _VARIANTS[key]


_VARIANTS: dict[tuple[str, str, str], KernelVariant] = {}


def box(tensor: Any, rows: int, columns: int) -> TensorDescriptor:
    """Describe boxes of a contiguous matrix."""
    return TensorDescriptor(tensor, list(tensor.shape), [tensor.shape[1], 1], [rows, columns])


def sizes(operands: Operands) -> tuple[int, int, int]:
    """Return (m, n, k); n comes from C, since a packed B has another shape."""
    return (*operands.out.shape, operands.a.shape[1])


def n_tiles(variant: Variant, m: int, n: int) -> int:
    """Return the output tiles."""
    return ceil_div(m, variant.tile[0]) * ceil_div(n, variant.tile[1])


def tile_calls(variant: Variant, operands: Operands, arch: ArchSpec, n_slots: int) -> list[KernelCall]:
    """Compute one tile per CTA."""
    block_m, block_n, block_k = variant.tile
    m, n, k = sizes(operands)
    constants = {
        "BLOCK_M": block_m, "BLOCK_N": block_n, "BLOCK_K": block_k, "GROUP_M": 8, "SWAP": block_m < 64,
        "PACKED": variant.packs, **variant.constants,
    }  # fmt: skip
    compiled = variant.kernel(variant_kernels.tile_kernel, constants, arch, is_persistent=False)
    args = (
        box(operands.a, block_m, block_k), box(operands.b, block_n, block_k), box(operands.out, block_m, block_n),
        m, n, k,
    )  # fmt: skip
    return [KernelCall(compiled, args, n_tiles(variant, m, n))]


def pair_calls(variant: Variant, operands: Operands, arch: ArchSpec, n_slots: int) -> list[KernelCall]:
    """Compute tiles of two parts."""
    block_m, block_n, block_k = variant.tile
    m, n, k = sizes(operands)
    widths = (128, block_n - 128)
    constants = {
        "BLOCK_M": block_m, "BLOCK_K": block_k, "GROUP_M": 8, "WIDTH": widths[0], "WIDTH2": widths[1],
        **variant.constants,
    }  # fmt: skip
    compiled = variant.kernel(
        variant_kernels.pair_kernel, constants, arch, is_persistent=variant.constants["PERSISTENT"]
    )
    args = (
        box(operands.a, block_m, block_k), *(box(operands.b, width, block_k) for width in widths),
        *(box(operands.out, block_m, width) for width in widths), m, n, k,
    )  # fmt: skip
    return [KernelCall(compiled, args, n_tiles(variant, m, n))]


def walk_calls(variant: Variant, operands: Operands, arch: ArchSpec, n_slots: int) -> list[KernelCall]:
    """Walk over tiles as the family does; a tile is stored in two halves."""
    block_m, block_n, block_k = variant.tile
    m, n, k = sizes(operands)
    constants = {"BLOCK_M": block_m, "BLOCK_N": block_n, "BLOCK_K": block_k, "GROUP_M": 8, **variant.constants}
    compiled = variant.kernel(variant_kernels.walk_kernel, constants, arch, is_persistent=True)
    args = (
        box(operands.a, block_m, block_k), box(operands.b, block_n, block_k),
        box(operands.out, block_m, block_n // 2), m, n, k,
    )  # fmt: skip
    return [KernelCall(compiled, args, n_tiles(variant, m, n))]


def specialized_calls(variant: Variant, operands: Operands, arch: ArchSpec, n_slots: int) -> list[KernelCall]:
    """Walk over tiles with a warp for loads; one CTA an SM, since the warps are more than ``num_warps``."""
    block_m, block_n, block_k = variant.tile
    m, n, k = sizes(operands)
    constants = {"BLOCK_M": block_m, "BLOCK_N": block_n, "BLOCK_K": block_k, "GROUP_M": 8, "UNIT": UNIT}
    compiled = variant.kernel(variant_kernels.specialized_kernel, constants, arch, is_persistent=False)
    args = (
        box(operands.a, block_m, block_k), box(operands.b, block_n, block_k), operands.out, m, n // UNIT, k, n // UNIT
    )  # fmt: skip
    return [KernelCall(compiled, args, min(arch.num_sms, n_tiles(variant, m, n)))]


def stream_k_calls(variant: Variant, operands: Operands, arch: ArchSpec, n_slots: int) -> list[KernelCall]:
    """Compute whole tiles and shares of the rest, and add up the pieces."""
    block_m, block_n, block_k = variant.tile
    m, n, k = sizes(operands)
    tiles = n_tiles(variant, m, n)
    # Shares of at least a tile: what is left after the last full wave but one.
    n_whole = tiles if tiles % n_slots == 0 else max(tiles // n_slots - 1, 0) * n_slots
    constants = {"BLOCK_M": block_m, "BLOCK_N": block_n, "BLOCK_K": block_k, "GROUP_M": 8}
    overlap = {"OVERLAP": not IS_INTERPRETED}
    main = variant.kernel(variant_kernels.stream_k_kernel, {**constants, **overlap}, arch, is_persistent=False)
    args = (
        box(operands.a, block_m, block_k), box(operands.b, block_n, block_k), box(operands.out, block_m, block_n),
        operands.pieces, m, n, k, n_whole,
    )  # fmt: skip
    calls = [KernelCall(main, args, n_slots)]
    if n_whole < tiles:
        key = (variant.name, "fix_up", arch.name)
        if key not in _VARIANTS:
            _VARIANTS[key] = KernelVariant(
                variant_kernels.fix_up_kernel, {**constants, "ROWS": FIX_UP_ROWS, "UNIT": UNIT, **overlap},
                4, 1, arch, overlaps_previous=overlap["OVERLAP"],
            )  # fmt: skip
        fix_args = (operands.pieces, operands.out, m, n // UNIT, k, n_whole, n_slots, n // UNIT)
        calls.append(KernelCall(_VARIANTS[key], fix_args, (tiles - n_whole) * (block_m // FIX_UP_ROWS)))
    return calls


def variants() -> list[Variant]:
    """Return everything that is tried."""
    wide = (64, 1 << 30)
    found = [
        Variant(f"stream_k {m}x{n}x{k} {warps}w {stages}s", (m, n, k), stream_k_calls, warps, stages, (256, 4096))
        for m, n, k, warps, stages in ((128, 128, 64, 4, 4), (128, 128, 64, 8, 4), (128, 256, 64, 8, 3))
    ]
    found += [
        Variant(f"specialized {m}x{n}x{k} {warps}w {stages}s", (m, n, k), specialized_calls, warps, stages, wide)
        for m, n, k, warps, stages in ((128, 128, 64, 4, 3), (128, 128, 64, 4, 4), (64, 128, 64, 4, 4))
    ]
    for m, n, k, warps, stages, rows in (
        (16, 64, 128, 4, 6, (1, 16)), (16, 128, 128, 4, 4, (1, 16)), (64, 128, 64, 4, 4, (64, 512)),
        (128, 128, 64, 4, 4, wide), (128, 256, 64, 8, 3, (256, 1 << 30)),
    ):  # fmt: skip
        for packs in (False, True):
            name = f"{'packed' if packs else 'as it is'} {m}x{n}x{k} {warps}w {stages}s"
            found.append(Variant(name, (m, n, k), tile_calls, warps, stages, rows, packs, {"GUARD": True}))
    for guard in (False, True):
        word = "guarded" if guard else "unguarded"
        found += [
            Variant(
                f"{word} {m}x{n}x{k} {w}w {s}s", (m, n, k), tile_calls, w, s, (256, 1 << 30), False, {"GUARD": guard}
            )
            for m, n, k, w, s in ((128, 128, 64, 8, 4), (128, 256, 64, 8, 3), (256, 128, 64, 8, 3))
        ]
        found += [
            Variant(
                f"{word} walk {m}x{n}x{k} {w}w {s}s", (m, n, k), walk_calls, w, s, (256, 1 << 30), False,
                {"GUARD": guard},
            )
            for m, n, k, w, s in ((128, 128, 64, 8, 4), (128, 256, 64, 8, 3), (256, 128, 64, 8, 3))
        ]  # fmt: skip
        found += [
            Variant(
                f"{word} pair {m}x{n}x{k} {w}w {s}s {kind}", (m, n, k), pair_calls, w, s, (256, 1 << 30), False,
                {"GUARD": guard, "PERSISTENT": kind != "tile", "FLATTEN": kind == "persistent"},
            )
            for m, n, k, w, s, kind in (
                (128, 160, 64, 8, 4, "tile"), (128, 160, 64, 8, 4, "persistent"), (128, 160, 64, 8, 4, "unflattened"),
                (128, 192, 64, 8, 4, "persistent"), (128, 192, 64, 8, 4, "unflattened"),
                (128, 160, 64, 4, 4, "unflattened"),
            )
        ]  # fmt: skip
    return found


def pack_weight(b: Any, block_n: int, block_k: int) -> Any:
    """Store B [n, k] tile by tile: each block_n x block_k tile contiguous, a row of tiles one behind another."""
    import torch

    n, k = b.shape
    tiles_n, trips = ceil_div(n, block_n), ceil_div(k, block_k)
    padded = torch.nn.functional.pad(b, (0, trips * block_k - k, 0, tiles_n * block_n - n))
    tiles = padded.view(tiles_n, block_n, trips, block_k).transpose(1, 2)
    return tiles.reshape(tiles_n * trips * block_n, block_k).contiguous()


def piece_count(variant: Variant, n_slots: int) -> int:
    """Return the fp32 partial sums of a stream-k launch."""
    return 2 * n_slots * variant.tile[0] * variant.tile[1] if variant.make is stream_k_calls else 0


def is_serialized(ptx: str) -> bool:
    """Whether ptxas says that it runs one wgmma after another."""
    tools = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    for tool in ("ptxas", "ptxas-blackwell"):
        command = [tools / tool, "-v", "--gpu-name=sm_90a", "-", "-o", "/dev/null"]
        run = subprocess.run(command, input=ptx, capture_output=True, text=True)
        if run.returncode == 0:
            return "wgmma.mma_async instructions are serialized" in run.stderr + run.stdout
    return False


def describe(compiled: Any) -> dict[str, Any]:
    """Return what the compiler made of a kernel."""
    registers, spills = read_resources(compiled)
    return {
        "registers": registers,
        "spills": spills,
        "smem_bytes": int(compiled.metadata.shared),
        "warps": int(compiled.metadata.num_warps),
        "is_specialized": re.search(r"ttg\.warp_specialize[({]", compiled.asm["ttgir"]) is not None,
        "is_serialized": is_serialized(compiled.asm["ptx"]),
    }


def compile_ahead(arch: ArchSpec, only: str = "") -> dict[str, dict[str, Any]]:
    """Compile what is wanted for a GPU that need not be there, in parallel; return what came of each kernel.

    Triton's cache then serves the process that launches.
    """
    wanted = [index for index, variant in enumerate(variants()) if re.search(only, variant.name)]
    reports = Parallel(n_jobs=-1)(delayed(compile_variant)(index, arch) for index in wanted)
    return {name: report for kernels in reports for name, report in kernels.items()}


def compile_variant(index: int, arch: ArchSpec) -> dict[str, dict[str, Any]]:
    """Compile the kernels of one variant. Asking ptxas what it serialized compiles once more, so not while timing."""
    compile_offline(arch)
    variant = variants()[index]
    size = 1 << 13
    matrix = Placeholder("bf16", (size, size))
    b = Placeholder("bf16", (size * size // variant.tile[2], variant.tile[2])) if variant.packs else matrix
    operands = Operands(matrix, b, matrix, Placeholder("fp32", (1 << 30,)))
    reports = {}
    for call in variant.make(variant, operands, arch, arch.num_sms):
        try:
            report = describe(compile_call(call))
        except Exception as error:
            report = {"error": f"{type(error).__name__}: {str(error).splitlines()[-1][:120]}"}
        reports[f"{variant.name} {call.variant.kernel.__name__}"] = report
    return reports


class Bench:
    """Binds variants on one GPU.

    Parameters
    ----------
    session : GpuSession
        Stream, data and timers.
    """

    def __init__(self, session: Any) -> None:
        self.session = session

    def launches(self, variant: Variant, problem: GemmProblem, n_windows: int) -> list[Launch]:
        """Return bound launches, each on data of its own, the first of them checked against torch."""
        import torch

        found: list[Launch] = []
        for _ in range(n_windows):
            operands = self._operands(variant, problem)
            ready, calls = self._calls(variant, operands)
            parts = tuple(bind(call, self.session.stream.cuda_stream) for call in calls)
            launch: Launch = parts[0] if len(parts) == 1 else LaunchSequence(parts)
            if not found:
                with torch.cuda.stream(self.session.stream):
                    ready.out.fill_(float("nan"))
                    launch()
                    launch()
                    expected = operands.a.double() @ operands.b.double().t()
                    error = float((ready.out.double() - expected).norm() / expected.norm())
                self.session.stream.synchronize()
                if not error < MAX_ERROR:
                    raise RuntimeError(f"wrong result: relative error {error:.2g}")
            found.append(launch)
        return found

    def _operands(self, variant: Variant, problem: GemmProblem) -> Operands:
        m, n, k = problem.dims
        take = self.session.windows.take
        return Operands(take(problem.dtype, m, k), take(problem.dtype, n, k), take(problem.dtype, m, n, is_output=True))

    def _calls(self, variant: Variant, operands: Operands) -> tuple[Operands, list[KernelCall]]:
        import torch

        arch, n_slots = self.session.arch, self.session.arch.num_sms
        with torch.cuda.stream(self.session.stream):
            b = pack_weight(operands.b, *variant.tile[1:]) if variant.packs else operands.b
        ready = Operands(operands.a, b, operands.out, self.session.windows.scratch(1))
        if variant.make is stream_k_calls:
            n_slots = load_call(variant.make(variant, ready, arch, n_slots)[0]).slots
            pieces = self.session.windows.scratch(piece_count(variant, n_slots))
            ready = Operands(operands.a, b, operands.out, pieces)
        return ready, variant.make(variant, ready, arch, n_slots)


def measure(
    model_path: Path, out: Path, budget_s: float, only: str, shapes: Sequence[tuple[int, int, int]]
) -> None:  # fmt: skip
    """Check and time everything on every shape."""
    import torch
    from live_timing import PAIR_RULE, Comparison

    from wavetune.measure.cuda_timing import Candidate
    from wavetune.measure.timing import GRAPH_METHOD
    from wavetune.runtime.chooser import GemmChooser
    from wavetune.runtime.codec import read_model
    from wavetune.store.record import Point

    model = read_model(model_path)
    reports = compile_ahead(find_arch(model.arch), only)
    start = time.perf_counter()
    chooser = GemmChooser(model, find_arch(model.arch), use_exact=False)
    rows, failures = [], {}
    with Comparison(find_arch(model.arch), model.dtype) as comparison:
        session, bench = comparison.session, Bench(comparison.session)
        for dims in shapes:
            if time.perf_counter() - start > budget_s:
                print("out of time before", dims)
                continue
            problem = GemmProblem(*dims, dtype=model.dtype)
            chosen = chooser.choose(problem)
            n_windows = min(session.n_windows(Point(problem, chosen, ""), 0.0, GRAPH_METHOD), 24)
            candidates: dict[str, list[Launch]] = {}
            for _ in range(n_windows):
                operands = bench._operands(variants()[0], problem)
                launch = _torch_mm(torch, operands)
                candidates.setdefault("torch.mm", []).append(launch)
            candidates["chosen"] = list(session.bind(Point(problem, chosen, ""), n_windows))
            for variant in variants():
                low, high = variant.rows
                if not (low <= problem.m <= high and re.search(only, variant.name)):
                    continue
                try:
                    candidates[variant.name] = bench.launches(variant, problem, n_windows)
                except Exception as error:
                    failures[f"{variant.name} on {dims}"] = f"{type(error).__name__}: {error}"[:200]
            timings = session.graph_timer.time([Candidate(launches) for launches in candidates.values()], PAIR_RULE)
            us = {
                name: round(timing.latency_us, 2)
                for name, timing in zip(candidates, timings, strict=True)
                if timing is not None
            }
            rows.append({"dims": dims, "config": list(chosen.values()), "us": us})
            print_shape(dims, us)
            torch.cuda.empty_cache()
        conditions = session.conditions()
    versions = {"triton": triton.__version__, "torch": torch.__version__}
    pairs = {
        "guarded": compare_twins(rows, "unguarded", "guarded"),
        "packed": compare_twins(rows, "as it is", "packed"),
    }
    result = {
        "versions": versions, "speedup": pairs, "kernels": reports, "failures": failures,
        "conditions": conditions, "rows": rows,
        "seconds": round(time.perf_counter() - start, 1),
    }  # fmt: skip
    out.write_text(json.dumps(result, indent=1) + "\n")
    for kind, speedups in pairs.items():
        print(f"{kind} over its twin, geometric mean and range over shapes:", json.dumps(speedups))
    print(json.dumps({"failures": failures, "seconds": result["seconds"], **versions}))
    print("engaged:", [name for name, report in reports.items() if report.get("is_specialized")])
    print("one wgmma after another:", [name for name, report in reports.items() if report.get("is_serialized")])


def _torch_mm(torch: Any, operands: Operands) -> Launch:
    return lambda: torch.mm(operands.a, operands.b.t(), out=operands.out)


def compare_twins(rows: Sequence[dict[str, Any]], plain: str, changed: str) -> dict[str, tuple[float, float, float]]:
    """Return how much faster one kind is than its twin of the same configuration: mean, least and most over shapes."""
    from wavetune.report.metrics import geometric_mean

    ratios: dict[str, list[float]] = {}
    for row in rows:
        for name, value in row["us"].items():
            twin = name.replace(changed, plain, 1)
            if name.startswith(changed) and twin in row["us"]:
                ratios.setdefault(name, []).append(row["us"][twin] / value)
    return {name: (round(geometric_mean(r), 3), round(min(r), 3), round(max(r), 3)) for name, r in ratios.items()}


def print_shape(dims: tuple[int, int, int], us: dict[str, float]) -> None:
    """Print the best of each kind beside torch.mm and the choice, as latency over the choice's."""
    kinds: dict[str, tuple[float, str]] = {}
    for name, value in us.items():
        kind = " ".join(name.split()[: 2 if "pair" in name or "walk" in name or name.startswith("as") else 1])
        kinds[kind] = min(kinds.get(kind, (float("inf"), "")), (value, name))
    chosen = us["chosen"]
    parts = [f"{value / chosen:.3f} {name}" for value, name in sorted(kinds.values())]
    print(f"{dims} chosen {chosen:.1f} us | " + " | ".join(parts), flush=True)


def main() -> None:
    """Run the experiments."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=Path("models/nvidia-h200/gemm-bf16.json"), help="model file")
    parser.add_argument("--out", type=Path, default=Path("variants.json"), help="JSON file for everything")
    parser.add_argument("--budget", type=float, default=80.0, help="seconds after which no shape is begun")
    parser.add_argument("--only", default="", help="regular expression: the variants to try")
    parser.add_argument("--compile-only", action="store_true", help="compile for --arch and say what came of it")
    parser.add_argument("--arch", default="nvidia-h200", help="target of --compile-only")
    args = parser.parse_args()
    if args.compile_only:
        for name, report in compile_ahead(find_arch(args.arch), args.only).items():
            print(f"{name:64} {json.dumps(report)}")
    else:
        measure(args.model, args.out, args.budget, args.only, SHAPES)


if __name__ == "__main__":
    main()
