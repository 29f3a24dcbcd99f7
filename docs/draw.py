"""Draw the pictures of the documentation from the shipped H200 evidence; run it again when the evidence changes.

Needs matplotlib: ``python docs/draw.py``.
"""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
import numpy as np

from wavetune.core.arch import find_arch
from wavetune.core.config import GEMM
from wavetune.core.problem import GemmProblem
from wavetune.mapping.gemm import map_gemm
from wavetune.pipeline.evidence import evidence_names
from wavetune.pipeline.shipped import find_recording
from wavetune.runtime.chooser import GemmChooser
from wavetune.runtime.codec import read_model
from wavetune.runtime.locate import find_model_file
from wavetune.store.csv_io import read_measurements
from wavetune.store.table import MeasurementTable, concatenate

ARCH, DTYPE, TRIPS = find_arch("h200"), "bf16", 64
OUT = Path(__file__).parent / "pictures"
INK, ACCENT, FAINT = "#33383d", "#0b7285", "#ced4da"


def main() -> None:
    """Draw every picture."""
    plt.rcParams.update({
        "svg.hashsalt": "wavetune", "svg.fonttype": "none", "font.family": "sans-serif", "font.size": 10,
        "axes.spines.top": False, "axes.spines.right": False, "axes.edgecolor": INK, "text.color": INK,
        "axes.labelcolor": INK, "xtick.color": INK, "ytick.color": INK,
    })  # fmt: skip
    chooser = GemmChooser(read_model(find_model_file(ARCH.name, "gemm", DTYPE, "nk")), ARCH, use_exact=False)
    table = read_evidence()
    draw_staircase(chooser, table)
    draw_decisions(chooser)


def read_evidence() -> MeasurementTable:
    """Read the measurements behind the shipped model."""
    names = zip(evidence_names("gemm", DTYPE, "nk")[:2], (False, True), strict=True)
    return concatenate([
        read_measurements(find_recording(ARCH.name, name), GEMM, DTYPE, ARCH, exhaustive=mark).table
        for name, mark in names
    ])  # fmt: skip


def draw_staircase(chooser: GemmChooser, table: MeasurementTable) -> None:
    """Draw latency against grid size at one number of trips: measured points and what the model says of each."""
    forms = {form.config: form for form in chooser.model.forms[: chooser.model.n_modelled]}

    def rows_of(index: int) -> np.ndarray:
        trips = -(-table.dims[:, 2] // int(table.configs[index].config["block_k"]))
        return np.flatnonzero((table.config_index == index) & (trips == TRIPS))

    modelled = [i for i, entry in enumerate(table.configs) if entry.config in forms]
    index = max(modelled, key=lambda i: len(rows_of(i)))
    config, rows = table.configs[index].config, rows_of(index)
    problems = [GemmProblem(*map(int, table.dims[row]), dtype=DTYPE) for row in rows]
    grid = np.array([map_gemm(problem, config, ARCH).grid_size for problem in problems])
    predicted = np.array([chooser.predict(problem)[config] for problem in problems])
    kept = grid <= 6 * ARCH.num_sms * forms[config].ctas_per_sm
    order = np.argsort(grid[kept])
    figure, axes = plt.subplots(figsize=(7.2, 3.6))
    width = ARCH.num_sms * forms[config].ctas_per_sm
    for wave in range(1, int(grid[kept].max() // width) + 1):
        axes.axvline(wave * width, color=FAINT, linewidth=1, zorder=0)
    axes.plot(grid[kept][order], predicted[kept][order], "_", color=ACCENT, markersize=11, label="model")
    axes.plot(grid[kept], table.latency_us[rows][kept], "o", color=INK, markersize=3.5, label="measured")
    tile = f"{config['block_m']}x{config['block_n']}x{config['block_k']}"
    axes.set(
        xlabel=f"CTAs in the grid (lines: {width} are resident at once)", ylabel="latency, us", ylim=(0, None),
        title=f"{tile} {config['schedule']}, {TRIPS} loop trips: latency climbs wave by wave",
    )  # fmt: skip
    axes.title.set_size(11)
    axes.legend(frameon=False, loc="upper left")
    save(figure, "staircase")


def draw_decisions(chooser: GemmChooser, n: int = 10240, k: int = 8192) -> None:
    """Draw which tile is chosen against m for one layer, and in how many waves it runs."""
    tokens = np.unique(np.round(np.exp2(np.linspace(0, 13, 400))).astype(int))
    choices = [chooser.explain(GemmProblem(int(m), n, k, dtype=DTYPE)) for m in tokens]
    names = [f"{c.config['block_m']}x{c.config['block_n']} {c.config['schedule']}" for c in choices]
    rows = list(dict.fromkeys(names))
    figure, axes = plt.subplots(figsize=(7.2, 0.26 * len(rows) + 1.5))
    for row, name in enumerate(rows):
        here = [m for m, other in zip(tokens, names, strict=True) if other == name]
        axes.plot(here, [row] * len(here), "|", color=ACCENT, markersize=9)
    axes.set_yticks(range(len(rows)), rows)
    axes.invert_yaxis()
    axes.set_xscale("log", base=2)
    axes.set_xticks([1, 4, 16, 64, 256, 1024, 4096], ["1", "4", "16", "64", "256", "1024", "4096"])
    axes.set(xlabel="m, tokens", title=f"What is chosen for n = {n}, k = {k} (qkv of Llama-3-70B)")
    axes.title.set_size(11)
    save(figure, "decisions")


def save(figure: plt.Figure, name: str) -> None:
    """Write an SVG that is the same for the same data."""
    OUT.mkdir(exist_ok=True)
    figure.savefig(OUT / f"{name}.svg", bbox_inches="tight", metadata={"Date": None}, facecolor="white")
    plt.close(figure)


if __name__ == "__main__":
    main()
