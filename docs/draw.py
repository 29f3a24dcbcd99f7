"""Draw the pictures of the documentation from the shipped H200 evidence; run it again when the evidence changes.

Needs matplotlib, of the extra ``docs``: ``python docs/draw.py``. What the parts buy is drawn from what
``benchmarks/ablation.py`` found.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
import numpy as np

from wavetune.core.arch import find_arch
from wavetune.core.config import GEMM
from wavetune.core.problem import GemmProblem
from wavetune.pipeline.evidence import evidence_names
from wavetune.pipeline.shipped import find_recording
from wavetune.report.predictions import model_geometry
from wavetune.report.staircase import SQUARE, form_latency
from wavetune.runtime.chooser import GemmChooser
from wavetune.runtime.model_file import ModelFile
from wavetune.runtime.sources import find_model
from wavetune.store.csv_io import read_measurements
from wavetune.store.table import FloatArray, MeasurementTable, concatenate

ARCH, DTYPE, TRIPS, MAX_WAVES = find_arch("h200"), "bf16", 16, 6
OUT = Path(__file__).parent / "pictures"
ABLATION = Path(__file__).parent.parent / "benchmarks" / "results" / "nvidia-h200" / "ablation.json"
INK, ACCENT, FAINT = "#33383d", "#0b7285", "#ced4da"
HEADINGS = {
    "term": "without a term", "points": "without points", "pruning": "pruned otherwise",
    "correction": "without correction", "screening": "without screening",
}  # fmt: skip


def main() -> None:
    """Draw every picture."""
    plt.rcParams.update({
        "svg.hashsalt": "wavetune", "svg.fonttype": "none", "font.family": "sans-serif", "font.size": 10,
        "axes.spines.top": False, "axes.spines.right": False, "axes.edgecolor": INK, "text.color": INK,
        "axes.labelcolor": INK, "xtick.color": INK, "ytick.color": INK,
    })  # fmt: skip
    model, _ = find_model("gemm", DTYPE, "nk", ARCH.name)
    assert model is not None
    draw_staircase(model, read_evidence())
    draw_decisions(GemmChooser(model, ARCH, use_exact=False))
    ablation = json.loads(ABLATION.read_text())
    draw_growth(ablation)
    draw_parts(ablation)


def read_evidence() -> MeasurementTable:
    """Read the measurements behind the shipped model."""
    names = zip(evidence_names("gemm", DTYPE, "nk")[:2], (False, True), strict=True)
    return concatenate([
        read_measurements(find_recording(ARCH.name, name), GEMM, DTYPE, ARCH, exhaustive=mark).table
        for name, mark in names
    ])  # fmt: skip


def draw_staircase(model: ModelFile, table: MeasurementTable) -> None:
    """Draw latency against grid size at one number of trips: measured points of square grids, and the fitted form."""
    modelled = {form.config: index for index, form in enumerate(model.forms[: model.n_modelled])}
    shown: tuple[int, FloatArray, FloatArray] = (-1, np.empty(0), np.empty(0))
    for index, entry in enumerate(table.configs):
        form, rows = modelled.get(entry.config), table.config_index == index
        # A persistent kernel walks over tiles, which blurs its steps.
        if form is None or entry.config["schedule"] != "tile":
            continue
        points = model_geometry(model).points(table.dims[rows], np.full(int(rows.sum()), form))
        square = np.maximum(points.tiles_m, points.tiles_n) <= SQUARE * np.minimum(points.tiles_m, points.tiles_n)
        kept = square & (points.loop_trips == TRIPS) & (points.waves <= MAX_WAVES)
        if kept.sum() > len(shown[1]):
            shown = form, points.grid_size[kept].astype(float), table.latency_us[rows][kept]
    form, grid, measured = shown
    config = model.forms[form].config
    width = ARCH.num_sms * model.forms[form].ctas_per_sm
    line = np.arange(1.0, grid.max() + 1.0)
    figure, axes = plt.subplots(figsize=(7.2, 3.6))
    for wave in range(1, int(grid.max() // width) + 1):
        axes.axvline(wave * width, color=FAINT, linewidth=1, zorder=0)
    axes.plot(line, form_latency(model, form, line, np.full(len(line), float(TRIPS))), color=ACCENT, label="model")
    axes.plot(grid, measured, "o", color=INK, markersize=4, label="measured")
    tile = f"{config['block_m']}x{config['block_n']}x{config['block_k']}"
    axes.set(
        xlabel=f"CTAs in the grid (lines: multiples of the {width} that are resident at once)", ylabel="latency, us",
        ylim=(0, None), title=f"{tile}, {TRIPS} loop trips, square grids: a step with every wave",
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


def draw_growth(ablation: dict[str, Any]) -> None:
    """Draw efficiency against the number of measured points, beside gradient boosting on the same points."""
    rows = ablation["growth"]
    points = [row["points"] for row in rows]
    figure, axes = plt.subplots(figsize=(7.2, 3.4))
    axes.fill_between(points, [row["low"] for row in rows], [row["high"] for row in rows], color=ACCENT, alpha=0.15)
    for name, label, style in (
        ("top3", "best of the top 3,\nmeasured", {"color": ACCENT, "linestyle": ":", "marker": "o"}),
        ("geomean", "one shot", {"color": ACCENT, "marker": "o"}),
        ("boosting", "gradient boosting,\non the same points", {"color": "#868e96", "marker": "o"}),
    ):
        axes.plot(points, [row[name] for row in rows], label=label, linewidth=1.8, markersize=4, **style)
    axes.set_xscale("log")
    axes.set_xticks(points, [f"{row['points']:,}\n{row['fraction']:.0%}" for row in rows])
    axes.minorticks_off()
    axes.set(
        xlabel="measured points, and their share of a calibration", ylabel="share of the best speed", ylim=(0.7, 1.0),
        title=f"Efficiency on {ablation['shapes']} held-out shapes against what was measured",
    )  # fmt: skip
    axes.title.set_size(11)
    axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    save(figure, "growth")


def draw_parts(ablation: dict[str, Any]) -> None:
    """Draw what is lost without each part, with standard errors; the band is what seeds alone make.

    What six stalled shapes say is left out: its error is several times as wide as all the rest.
    """
    rows = [row for row in ablation["parts"] if row["part"] != "row screen, six stalled shapes"]
    spread = 100 * float(np.std(np.log(ablation["seeds"]), ddof=1))
    heights, place = [], 0.0
    for row, before in zip(rows, [rows[0], *rows], strict=False):
        place += 1.0 if row["group"] == before["group"] else 2.2
        heights.append(place)
    figure, axes = plt.subplots(figsize=(7.2, 0.2 * heights[-1] + 0.9))
    axes.axvspan(-spread, spread, color=FAINT, alpha=0.5, linewidth=0)
    axes.axvline(0, color=INK, linewidth=0.8)
    losses, errors = ([100 * row[name] for row in rows] for name in ("loss", "error"))
    axes.barh(heights, losses, height=0.7, color=ACCENT, xerr=errors, error_kw={"ecolor": INK, "elinewidth": 0.8})
    axes.set_yticks(heights, [row["part"] for row in rows])
    axes.tick_params(axis="y", length=0, labelsize=8.5)
    axes.invert_yaxis()
    for group in dict.fromkeys(row["group"] for row in rows):
        first = next(height for height, row in zip(heights, rows, strict=True) if row["group"] == group)
        axes.annotate(
            HEADINGS[group], (0, first - 1.05),
            xycoords=("axes fraction", "data"), xytext=(-6, 0), textcoords="offset points", ha="right", va="center",
            fontsize=9, fontweight="bold",
        )  # fmt: skip
    axes.set(xlabel="efficiency lost, %  (grey: what another seed changes, one standard deviation)")
    axes.spines["left"].set_visible(False)
    save(figure, "ablation")


def save(figure: plt.Figure, name: str) -> None:
    """Write an SVG that is the same for the same data."""
    OUT.mkdir(exist_ok=True)
    figure.savefig(OUT / f"{name}.svg", bbox_inches="tight", metadata={"Date": None}, facecolor="white")
    plt.close(figure)


if __name__ == "__main__":
    main()
