"""What a decision costs, as a multiple of ``table.get((m, n, k))`` with the tuple built in the call.

    python benchmarks/decision_cost.py [--json FILE]

Everything goes through the public functions, validation included; the cost of the loop around the call is
subtracted. Cases take turns and the best of many short repeats counts, so a busy machine moves all of them alike.
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
from dataclasses import replace
from pathlib import Path

import wavetune
from wavetune.runtime.codec import read_model, write_model
from wavetune.runtime.locate import MODELS_VARIABLE, find_model_file

Shape = tuple[int, int, int]

ARCH = "nvidia-h200"
HOT = (512, 4096, 4096)
N_SHAPES = 40_000
"""Fresh shapes: fewer than the memo's limit, so a repeat measures them once and then forgets."""

TARGETS = {"repeated shape": 4.0, "new shape, from a cell": 60.0, "new shape, all forms": 200.0}


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


def choose_by_environment(shapes: Sequence[Shape]) -> None:
    """Choose for shapes on the GPU that the environment names."""
    choose_config = wavetune.choose_config
    for m, n, k in shapes:
        choose_config(m, n, k)


def explain(shapes: Sequence[Shape]) -> None:
    """Explain the choices for shapes."""
    explain_choice = wavetune.explain_choice
    for m, n, k in shapes:
        explain_choice(m, n, k, arch=ARCH)


Case = tuple[Callable[[Sequence[Shape]], None], Sequence[Shape]]


def best_ns(cases: dict[str, Case], repeats: int) -> dict[str, float]:
    """Return nanoseconds a shape, loop included, each case's best repeat; every repeat starts with an empty memo."""
    best = dict.fromkeys(cases, float("inf"))
    for _ in range(repeats):
        for name, (case, shapes) in cases.items():
            wavetune.clear_caches()
            wavetune.choose_config(8, 64, 64, arch=ARCH)
            start = time.perf_counter()
            case(shapes)
            best[name] = min(best[name], (time.perf_counter() - start) / len(shapes) * 1e9)
    return best


def main() -> int:
    """Print the table and, with ``--json``, write the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the ratios here")
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    os.environ.pop(MODELS_VARIABLE, None)
    path = find_model_file(ARCH, "gemm", "bf16", "nk")
    if path is None:
        sys.exit(f"no shipped model for {ARCH}")
    model = read_model(path)
    shapes = realistic_shapes(N_SHAPES, seed=1)
    cell_shapes = [
        shape
        for shape in shapes
        if tuple((size - 1).bit_length() for size in shape) in model.cells and shape not in model.exact
    ]
    assert len(cell_shapes) >= 20_000, len(cell_shapes)
    repeated, few = [HOT] * 50_000, shapes[:300]

    os.environ["WAVETUNE_ARCH"] = ARCH
    cases = {
        "loop": (loop, repeated),
        "table.get((m, n, k))": (look_up, repeated),
        "repeated shape": (choose, repeated),
        "repeated shape, WAVETUNE_ARCH": (choose_by_environment, repeated),
        "new shape, from a cell": (choose, cell_shapes),
        "explain_choice": (explain, few),
    }
    best = best_ns(cases, options.repeats)
    with tempfile.TemporaryDirectory() as folder:
        # The same model without its cells and exact shapes: every answer is then one of all forms.
        write_model(replace(model, cells={}, exact={}), Path(folder) / ARCH / path.name)
        os.environ[MODELS_VARIABLE] = folder
        wavetune.clear_caches()
        assert wavetune.explain_choice(*HOT, arch=ARCH).source == "model"
        all_forms = {"loop": (loop, repeated), "new shape, all forms": (choose, shapes[:20_000])}
        best |= best_ns(all_forms, options.repeats)
        del os.environ[MODELS_VARIABLE]
    of_loop = best.pop("loop")
    cost = {name: value - of_loop for name, value in best.items()}
    unit = cost["table.get((m, n, k))"]
    ratios = {name: round(value / unit, 1) for name, value in cost.items()}
    write = sys.stdout.write
    write(f"{'case':32}{'ns':>10}{'ratio':>8}{'target':>8}\n")
    for name, value in cost.items():
        target = TARGETS.get(name)
        write(f"{name:32}{value:10.0f}{ratios[name]:8.1f}{f'<= {target:.0f}' if target else '':>8}\n")
    write(f"{len(cell_shapes)} shapes from cells, {sum(f.coefficients is not None for f in model.forms)} forms\n")
    if options.json:
        options.json.write_text(json.dumps(ratios, indent=2) + "\n")
    else:
        write(json.dumps(ratios) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
