"""``wavetune demo``: the main job on the shipped H200 calibration."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from wavetune.cli.options import JsonOption
from wavetune.cli.output import data_table, describe_config, emit_json, format_us, show
from wavetune.cli.progress import watch

if TYPE_CHECKING:
    from wavetune.pipeline.demo import DemoResult


def demo_command(as_json: JsonOption = False) -> None:
    """Fit real H200 measurements, judge the fit on shapes it has not seen, and choose for LLM layers. Needs no GPU."""
    from wavetune.pipeline.demo import run_demo

    with watch() as observer:
        result = run_demo(observer)
    if as_json:
        emit_json(demo_document(result))
    else:
        print_demo(result)


def print_demo(result: DemoResult) -> None:
    """Print the demo on stdout: a screenful."""
    from wavetune.pipeline.demo import WAVETUNE

    columns = ("geomean", "5th pct", "worst")
    methods = data_table("", *columns, right=columns)
    for name, method in result.methods.items():
        style = "bold" if name == WAVETUNE else ""
        methods.add_row(name, *(f"{value:.3f}" for value in (method.geomean, method.p5, method.min)), style=style)
    numeric = ("m", "n", "k", "us", "waves", "tail")
    choices = data_table("layer", "m", "n", "k", "config", "us", "waves", "tail", "source", right=numeric)
    for row in result.choices:
        choices.add_row(
            row.layer, *map(str, row.dims), describe_config(row.choice.config), format_us(row.choice.latency_us),
            str(row.choice.waves), str(row.choice.tail_ctas), row.choice.source.value,
        )  # fmt: skip
    show(
        f"[bold]{result.rows:,}[/bold] GEMM timings of one [bold]{result.gpu}[/bold], {result.n_configs} "
        "configurations: a calibration of two minutes.",
        f"Fitted in {result.fit_seconds:.0f} s. {result.n_survivors} configurations survive; "
        f"{result.disturbed_rows:,} disturbed rows down-weighted.",
        "",
        f"Share of the best measured speed, on {result.n_judged} other shapes "
        f"({result.judged_configs} configurations, {result.judged_rows:,} timings):",
        methods,
        f"If the model's top 3 were measured: {result.top3_efficiency:.3f}. "
        f"Predicted latency of a choice is off by {result.mape:.1%}.",
        "",
        "Choices for layers of Llama and Qwen:",
        choices,
        f"[dim]{result.seconds:.0f} s in all. One more: wavetune choose 512 4096 4096 --arch h200 --explain[/dim]",
    )


def demo_document(result: DemoResult) -> dict[str, Any]:
    """Return the demonstration as plain data."""
    return {
        "gpu": result.gpu,
        "rows": result.rows,
        "configs": result.n_configs,
        "survivors": result.n_survivors,
        "disturbed_rows": result.disturbed_rows,
        "judged_rows": result.judged_rows,
        "judged_configs": result.judged_configs,
        "judged_shapes": result.n_judged,
        "efficiency": {name: asdict(method) for name, method in result.methods.items()},
        "top3_efficiency": result.top3_efficiency,
        "mape_chosen": result.mape,
        "choices": [
            {
                "layer": row.layer,
                "m": row.dims[0],
                "n": row.dims[1],
                "k": row.dims[2],
                "config": dict(row.choice.config),
                "source": row.choice.source.value,
                "latency_us": row.choice.latency_us,
                "waves": row.choice.waves,
                "tail_ctas": row.choice.tail_ctas,
            }
            for row in result.choices
        ],
        "seconds": {"fit": round(result.fit_seconds, 2), "total": round(result.seconds, 2)},
    }
