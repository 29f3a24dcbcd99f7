"""The facts of a report as two short tables of labels and texts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

UNKNOWN = "–"  # noqa: RUF001 - an en dash is what is meant
NOT_RECORDED = "not recorded"


def share(value: float | None, digits: int = 1) -> str:
    """Write a fraction in percent."""
    return UNKNOWN if value is None else f"{value:.{digits}%}"


def number(value: float | None, digits: int = 3) -> str:
    """Write a number: integers whole, others with so many decimals."""
    if value is None:
        return UNKNOWN
    return f"{value:,}" if isinstance(value, int) else f"{value:,.{digits}f}"


def describe_choices(facts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield label and text of what is known about the choices."""
    head, model = facts["headline"], facts["model"]
    efficiency, regret, default = head["efficiency"], head["regret"], head["default_efficiency"]
    unmeasured = f"; {head['unmeasured']} choices were not measured" if head["unmeasured"] else ""
    yield "shapes", f"{head['shapes']}, {facts['evidence']['layers']} different (n, k){unmeasured}"
    yield (
        "efficiency",
        f"{number(efficiency['geomean'], 4)} geometric mean, {number(efficiency['p5'], 4)} 5th percentile, "
        f"{number(efficiency['min'], 4)} worst",
    )
    yield (
        "regret",
        f"{share(regret['mean'], 2)} mean, {share(regret['p95'])} 95th percentile, {share(regret['max'])} worst",
    )
    yield (
        "best is hit",
        f"{share(head['top1_rate'], 0)} by the choice, {share(head['top3_rate'], 0)} in the top 3, "
        f"{share(head['top8_rate'], 0)} in the top 8, to 1%",
    )
    yield (
        "if measured",
        f"{number(head['top3_efficiency'], 4)} with the top 3{_measured_on(head, 3)}, "
        f"{number(head['top8_efficiency'], 4)} with the top 8{_measured_on(head, 8)}, "
        f"{number(head['held_efficiency'], 4)} with all {model['configs']} configurations of the model",
    )
    yield (
        "default",
        f"{number(default['geomean'], 4)} geometric mean, {number(default['min'], 4)} worst: {model['default']}",
    )
    yield "no slower than it", f"on {share(head['never_slower_rate'])} of the shapes, to 1%"
    yield "source", ", ".join(f"{count} {source}" for source, count in head["sources"].items())
    yield "a decision", f"{number(head['decision_us'], 2)} µs for a new shape, on the machine that wrote this page"


def _measured_on(head: Mapping[str, Any], count: int) -> str:
    """Say on how many shapes the sweep has the first of the ranking, where it is not all."""
    judged = head[f"top{count}_judged"]
    return f" (on {judged} of {head['shapes']} shapes)" if judged < head["shapes"] else ""


def describe_measurements(facts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield label and text of where the numbers come from."""
    model, evidence = facts["model"], facts["evidence"]
    origin, calibration = model["provenance"], facts["calibration"]
    created = f", {origin['created']}" if origin.get("created") else ""
    yield (
        "model",
        f"{model['file'] or 'in memory'}: {model['configs']} configurations, {number(model['cells'])} cells{created}",
    )
    if model["digest"]:
        yield "digest", model["digest"][:26]
    names = ", ".join(entry["name"] for entry in evidence["files"])
    yield (
        "judged on",
        f"{names + ', ' if names else ''}{number(evidence['rows'])} timings of {evidence['configs']} configurations",
    )
    problems = f" of {number(origin['problems'])} problems" if origin.get("problems") else ""
    yield "fitted to", f"{number(origin['rows'])} timings{problems}" if origin.get("rows") else NOT_RECORDED
    yield "calibration took", _stages(calibration.get("seconds") or {})
    yield "environment", _environment(calibration.get("environment") or origin.get("environment") or {}, model["gpu"])
    yield "while calibrating", _conditions(calibration.get("conditions") or {})


def _stages(seconds: Mapping[str, float]) -> str:
    if not seconds:
        return NOT_RECORDED
    return f"{sum(seconds.values()):.0f} s: " + ", ".join(f"{stage} {value:.0f}" for stage, value in seconds.items())


def _environment(environment: Mapping[str, str], gpu: str) -> str:
    if not environment:
        return NOT_RECORDED
    versions = [f"{name} {environment[name]}" for name in ("triton", "torch", "cuda", "driver") if name in environment]
    return ", ".join([environment.get("gpu_name", gpu), *versions])


def _conditions(conditions: Mapping[str, str]) -> str:
    units = {"sm_clock_mhz": "SM clock {} MHz", "memory_clock_mhz": "memory {} MHz", "power_w": "{} W"}
    units |= {"temperature_c": "{} °C", "throttle_reasons": "throttled: {}"}
    parts = []
    for name, text in units.items():
        # First and last reading of the run.
        values = list(dict.fromkeys(str(conditions.get(name, "")).split()))
        if values:
            parts.append(text.format(" to ".join(values)))
    return ", ".join(parts) or NOT_RECORDED
