"""What a decision costs, as a multiple of ``table.get((m, n, k))`` with the tuple built in the call.

    python benchmarks/decision_cost.py [--json FILE]

Everything goes through the public functions, validation included; the cost of the loop around the call is
subtracted. Cases take turns, each is timed in short chunks, and the best of each chunk's repeats counts, so a busy
machine moves all of them alike. Then calls without ``arch``, which find the device each time. And a repeated shape
through the cache hit of ``triton.autotune``, around a kernel that does nothing, if triton is installed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import wavetune
from wavetune.runtime.codec import write_model
from wavetune.runtime.device import Device, resolve_device
from wavetune.runtime.sources import find_model

Shape = tuple[int, int, int]

ARCH = "nvidia-h200"
HOT = (512, 4096, 4096)
N_SHAPES = 40_000
"""Fresh shapes: fewer than the memo's limit, so a repeat measures them once and then forgets."""

CHUNK = 500
"""Shapes that are timed at a time: short enough to fall between two disturbances."""

UNIT = "table.get((m, n, k))"
REPEATED = "repeated shape"
AUTOTUNE = "triton.autotune, cache hit"

TARGETS = {REPEATED: 4.0, "new shape, from a cell": 50.0, "new shape, all forms": 200.0}
SHARE_OF_AUTOTUNE = 0.1
"""Most that a repeated shape may cost of what triton.autotune takes."""


def realistic_shapes(n_shapes: int, seed: int) -> list[Shape]:
    """Draw distinct layer shapes: m log-uniform from decode to prefill, n and k multiples of 64."""
    rng = random.Random(seed)
    shapes: dict[Shape, None] = {}
    while len(shapes) < n_shapes:
        m = int(2 ** rng.uniform(0, 13.5))
        shapes[m, 64 * rng.randint(8, 448), 64 * rng.randint(8, 448)] = None
    return list(shapes)


def loop(shapes: Sequence[Shape]) -> None:
    """Run the loop alone."""
    for _m, _n, _k in shapes:
        pass


def look_up(shapes: Sequence[Shape]) -> None:
    """Look shapes up in a dictionary: the unit of cost."""
    table = {HOT: 0}
    for m, n, k in shapes:
        table.get((m, n, k))


def choose(shapes: Sequence[Shape]) -> None:
    """Choose for shapes."""
    choose_config = wavetune.choose_config
    for m, n, k in shapes:
        choose_config(m, n, k, arch=ARCH)


def choose_here(shapes: Sequence[Shape]) -> None:
    """Choose for shapes without naming a GPU."""
    choose_config = wavetune.choose_config
    for m, n, k in shapes:
        choose_config(m, n, k)


def choose_invariant(shapes: Sequence[Shape]) -> None:
    """Choose for shapes in the class of batch-invariant results."""
    choose_config = wavetune.choose_config
    for m, n, k in shapes:
        choose_config(m, n, k, arch=ARCH, numerics="batch_invariant")


def explain(shapes: Sequence[Shape]) -> None:
    """Explain the choices for shapes."""
    explain_choice = wavetune.explain_choice
    for m, n, k in shapes:
        explain_choice(m, n, k, arch=ARCH)


def find_device(shapes: Sequence[Shape]) -> None:
    """Find the device that no argument names."""
    for _m, _n, _k in shapes:
        resolve_device()


@dataclass(frozen=True)
class Case:
    """What is timed: a function of shapes, after the caches were emptied and ``prepare`` was called."""

    run: Callable[[Sequence[Shape]], None]
    shapes: Sequence[Shape]
    prepare: Callable[[], None] = lambda: None


def best_ns(cases: dict[str, Case], repeats: int) -> dict[str, float]:
    """Return nanoseconds a shape, loop included; every repeat starts with an empty memo and loaded tables."""
    best: dict[tuple[str, int], float] = {}
    for _ in range(repeats):
        for name, case in cases.items():
            wavetune.clear_caches()
            case.prepare()
            wavetune.choose_config(8, 64, 64, arch=ARCH)
            wavetune.choose_config(8, 64, 64)
            for start in range(0, len(case.shapes), CHUNK):
                chunk = case.shapes[start : start + CHUNK]
                before = time.perf_counter()
                case.run(chunk)
                seconds = time.perf_counter() - before
                best[name, start] = min(best.get((name, start), float("inf")), seconds)
    return {
        name: sum(seconds for (other, _), seconds in best.items() if other == name) / len(case.shapes) * 1e9
        for name, case in cases.items()
    }


def autotuned() -> Callable[[Sequence[Shape]], None] | None:
    """Return a loop over launches of an autotuned kernel that does nothing; None without triton."""
    try:
        import triton
        from triton.runtime.autotuner import Autotuner
    except ImportError:
        return None

    def kernel(**_: Any) -> None:
        """Stand in for the source of a kernel."""

    def run(*args: Any, **kwargs: Any) -> None:
        """Launch nothing."""

    # The signature of the matrix product of Triton's tutorial; tensors have a dtype, as torch's do.
    names = ["a_ptr", "b_ptr", "c_ptr", "M", "N", "K", "stride_am", "stride_bk", "stride_cm"]
    sizes = [(128, 256, 64), (128, 128, 64), (64, 128, 64), (64, 64, 64)]
    configs = [triton.Config({"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k}, num_warps=4) for m, n, k in sizes]
    tuner = Autotuner(
        SimpleNamespace(fn=kernel, run=run, arg_names=names, __name__="kernel"), names, configs, ["M", "N", "K"], None,
        None, do_bench=lambda call, quantiles: [1.0, 1.0, 1.0],
    )  # fmt: skip
    a, b, c = (SimpleNamespace(dtype="torch.bfloat16") for _ in range(3))

    def launch(shapes: Sequence[Shape]) -> None:
        grid = (1,)
        for m, n, k in shapes:
            tuner[grid](a, b, c, m, n, k, k, k, n)

    launch([HOT])
    return launch


def stand_in_for_torch() -> Any:
    """Return torch if it sees a GPU; otherwise an object that answers as one that has started CUDA would."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        torch.zeros(1, device="cuda")
        return torch
    properties = SimpleNamespace(name="NVIDIA H200", multi_processor_count=132)
    cuda = SimpleNamespace(
        is_initialized=lambda: True, current_device=lambda: 0, get_device_properties=lambda index: properties
    )
    return SimpleNamespace(cuda=cuda)


def main() -> int:
    """Print the table and, with ``--json``, write the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the ratios here")
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    for name in [name for name in os.environ if name.startswith("WAVETUNE_")]:
        del os.environ[name]
    folder = tempfile.TemporaryDirectory()
    wavetune.configure(cache_dir=Path(folder.name) / "cache")
    model, refused = find_model("gemm", "bf16", "nk", ARCH)
    if model is None:
        sys.exit(f"no shipped model for {ARCH}: {'; '.join(refused)}")
    shapes = realistic_shapes(N_SHAPES, seed=1)
    cell_shapes = [
        shape
        for shape in shapes
        if tuple((size - 1).bit_length() for size in shape) in model.cells and shape not in model.exact
    ]
    assert len(cell_shapes) >= 20_000, len(cell_shapes)
    # The same model without its cells and exact shapes: every answer is then one of all forms.
    bare = Path(folder.name) / "models"
    write_model(replace(model, cells={}, exact={}), bare / ARCH / Path(model.path).name)
    repeated, few = [HOT] * 10_000, shapes[:CHUNK]
    torch = stand_in_for_torch()

    def by_setting() -> None:
        wavetune.configure(arch=ARCH, models=None)
        sys.modules.pop("torch", None)

    def by_torch() -> None:
        wavetune.configure(arch=None, models=None)
        sys.modules["torch"] = torch

    def by_driver() -> None:
        wavetune.configure(arch=None, models=None)
        sys.modules.pop("torch", None)
        from wavetune.runtime import device

        spec = wavetune.find_arch(ARCH)
        device._by_driver.append(Device(spec, spec.num_sms, "NVIDIA H200", 0))

    def without_cells() -> None:
        wavetune.configure(arch=ARCH, models=bare)

    launch = autotuned()
    cases = {
        "loop": Case(loop, repeated, by_setting),
        UNIT: Case(look_up, repeated, by_setting),
        REPEATED: Case(choose, repeated, by_setting),
        "repeated shape, batch_invariant": Case(choose_invariant, repeated, by_setting),
        "new shape, from a cell": Case(choose, cell_shapes, by_setting),
        "new shape, all forms": Case(choose, shapes[:20_000], without_cells),
        "explain_choice": Case(explain, few, by_setting),
        "no arch: repeated, by the setting": Case(choose_here, repeated, by_setting),
        "no arch: repeated, by the driver": Case(choose_here, repeated, by_driver),
        "no arch: repeated, by torch": Case(choose_here, repeated, by_torch),
        "device alone, by the driver": Case(find_device, repeated, by_driver),
        "device alone, by torch": Case(find_device, repeated, by_torch),
    }
    if launch is not None:
        cases[AUTOTUNE] = Case(launch, repeated, by_setting)
    without_cells()
    assert wavetune.explain_choice(*HOT, arch=ARCH).source == "model"
    best = best_ns(cases, options.repeats)
    of_loop = best.pop("loop")
    cost = {name: value - of_loop for name, value in best.items()}
    ratios = {name: round(value / cost[UNIT], 1) for name, value in cost.items()}
    write = sys.stdout.write
    write(f"{'case':36}{'ns':>10}{'ratio':>8}{'target':>8}\n")
    for name, value in cost.items():
        target = TARGETS.get(name)
        write(f"{name:36}{value:10.0f}{ratios[name]:8.1f}{f'<= {target:.0f}' if target else '':>8}\n")
    if AUTOTUNE in cost:
        share = cost[REPEATED] / cost[AUTOTUNE]
        ratios["repeated shape over triton.autotune"] = round(share, 3)
        write(f"a repeated shape costs {share:.3f} of {AUTOTUNE} (target <= {SHARE_OF_AUTOTUNE})\n")
    write(f"{len(cell_shapes)} shapes from cells, {sum(f.coefficients is not None for f in model.forms)} forms\n")
    if options.json:
        options.json.write_text(json.dumps(ratios, indent=2) + "\n")
    else:
        write(json.dumps(ratios) + "\n")
    folder.cleanup()
    return 0


if __name__ == "__main__":
    sys.exit(main())
