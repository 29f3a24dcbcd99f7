"""The parts that all pictures share: plotly figures as plain data.

A colour that begins with ``@`` is the name of a colour of the page, so that one figure serves light, dark and print.
A figure has variants where the reader may choose what is drawn.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

Trace = dict[str, Any]
Variant = dict[str, Any]
Figure = dict[str, Any]

SCALE = [[0.0, "@scale0"], [0.35, "@scale1"], [0.7, "@scale2"], [1.0, "@scale3"]]
"""Sequential, from little to much."""

LATENCIES = (2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000)
"""Ticks of logarithmic latency axes, microseconds."""


def make_figure(variants: list[Variant], height: int) -> Figure:
    """Put variants together; ``height`` is in CSS pixels."""
    return {"variants": variants, "height": height}


def make_variant(
    label: str, data: list[Trace], layout: dict[str, Any], narrow: dict[str, Any] | None = None
) -> Variant:
    """Name one drawing of a figure; ``narrow`` is laid over the layout on narrow screens."""
    return {"label": label, "data": data, "layout": layout, "narrow": narrow or {}}


def octave_ticks(values: Sequence[int]) -> dict[str, Any]:
    """Place ticks at powers of two on an axis of base-two logarithms, at most ten of them."""
    low, high = math.floor(math.log2(values[0])), math.ceil(math.log2(values[-1]))
    step = max(1, -(-(high - low) // 9))
    octaves = range(low, high + 1, step)
    return {"tickvals": list(octaves), "ticktext": [f"{2**octave:,}" for octave in octaves]}


def log_ticks(values: Sequence[int]) -> dict[str, Any]:
    """Place ticks at powers of four on a logarithmic axis."""
    high = math.ceil(math.log2(max(values)))
    ticks = [4**power for power in range(high // 2 + 1) if 4**power >= min(values)]
    return {"tickvals": ticks, "ticktext": [f"{tick:,}" for tick in ticks]}
