"""What ``wavetune tune`` prints."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import typer

from wavetune.cli.output import data_table, describe_config, emit_json, format_sizes, format_us, note, show
from wavetune.pipeline.tune_summary import RIVALS, Totals, outcomes, totals_by_class
from wavetune.pipeline.tune_verdict import Outcome, TunedProblem

if TYPE_CHECKING:
    from wavetune.cli.tune_run import TuneRun

LISTED = 20
"""Problems that are listed, those with the most time first."""


def note_not_tuned(run: TuneRun, n_entries: int) -> None:
    """Say on stderr which entries were left as they are, and why."""
    if not run.plan.not_tuned:
        return
    note(f"{len(run.plan.not_tuned)} of {n_entries} entries are not tuned:")
    for left in run.plan.not_tuned[:LISTED]:
        key = left.entry.key
        sizes = format_sizes((key.m, key.n, key.k))
        note(f"  {key.operation} {sizes} {key.dtype}, {left.entry.count:,} calls: {left.reason}")
    if len(run.plan.not_tuned) > LISTED:
        note(f"  and {len(run.plan.not_tuned) - LISTED:,} more")


def print_tuning(run: TuneRun, as_json: bool) -> None:
    """Print the results."""
    if as_json:
        emit_json(tuning_document(run))
        return
    right = ("calls", "us", "default", "model", "torch")
    table = data_table("m x n x k", "dtype", *right, "status", "config", right=right)
    found = sorted(run.problems, key=lambda tuned: -_weight(tuned))
    for tuned in found[:LISTED]:
        table.add_row(
            format_sizes(tuned.plan.problem.dims), tuned.plan.problem.dtype, f"{tuned.plan.count:,}",
            format_us(tuned.latency_us), *(_ratio(us, tuned.latency_us) for us in
            (tuned.default_us, tuned.pick_us, tuned.library_us)), tuned.outcome.value, describe_config(tuned.config),
        )  # fmt: skip
    show(table)
    if len(found) > LISTED:
        typer.echo(f"and {len(found) - LISTED:,} more in {run.files['tuned']}")
    for tuned in found:
        if tuned.outcome is Outcome.FAILED:
            typer.echo(f"failed: {format_sizes(tuned.plan.problem.dims)}: {tuned.reason}")
    typer.echo()
    show(totals_table(totals_by_class(run.problems)))
    counts = ", ".join(f"{number} {name}" for name, number in outcomes(run.problems).items() if number)
    typer.echo(f"{len(run.problems)} problems: {counts}")
    note(f"{run.measured:,} points timed, {run.resumed:,} taken from the journal")
    for role, path in run.files.items():
        note(f"{role}: {path}")


def totals_table(totals: dict[str, Totals]) -> Any:
    """Return the table of weighted times by class."""
    columns = ("problems", "calls", "tuned us", *(f"{rival} / tuned" for rival in RIVALS))
    table = data_table("class", *columns, right=columns)
    for name, part in totals.items():
        ratios = (_times(part.speedup[rival]) for rival in RIVALS)
        table.add_row(name, f"{part.problems:,}", f"{part.calls:,}", f"{part.tuned_us:,.1f}", *ratios)
    return table


def tuning_document(run: TuneRun) -> dict[str, Any]:
    """Return the results as JSON."""
    return {
        "outcomes": outcomes(run.problems),
        "totals": totals_document(totals_by_class(run.problems)),
        "problems": [_problem_document(tuned) for tuned in run.problems],
        "not_tuned": [{**left.entry.document(), "reason": left.reason} for left in run.plan.not_tuned],
        "measured_points": run.measured,
        "resumed_points": run.resumed,
        "failures": run.failures,
        "seconds": run.seconds,
        "environment": run.environment,
        "conditions": run.conditions,
        "patterns": run.patterns,
        "files": {role: str(path) for role, path in run.files.items()},
        "confirmed": {" ".join(group): str(path) for group, path in run.confirmed.items()},
    }


def totals_document(totals: dict[str, Totals]) -> dict[str, Any]:
    """Return weighted times by class as JSON."""
    return {
        name: {
            "problems": part.problems, "calls": part.calls, "tuned_us": part.tuned_us, "speedup_over": part.speedup,
            "rival_us": part.rival_us,
        }
        for name, part in totals.items()
    }  # fmt: skip


def _problem_document(tuned: TunedProblem) -> dict[str, Any]:
    problem = tuned.plan.problem
    return {
        "m": problem.m, "n": problem.n, "k": problem.k, "dtype": problem.dtype, "layout": problem.layout,
        "alignment": problem.alignment, "count": tuned.plan.count, "status": tuned.outcome.value,
        "config": dict(tuned.config), "latency_us": tuned.latency_us, "spread_us": tuned.spread_us,
        "default_us": tuned.default_us, "model_us": tuned.pick_us, "torch_us": tuned.library_us,
        "default_config": dict(tuned.plan.default), "model_config": dict(tuned.plan.pick),
        "winner": dict(tuned.winner or {}), "winner_us": tuned.winner_us, "measured": tuned.measured,
        "failed": tuned.failed, "skipped": tuned.skipped, "reason": tuned.reason,
    }  # fmt: skip


def _weight(tuned: TunedProblem) -> float:
    return tuned.plan.count * tuned.latency_us if math.isfinite(tuned.latency_us) else 0.0


def _ratio(latency_us: float, tuned_us: float) -> str:
    return _times(latency_us / tuned_us)


def _times(ratio: float) -> str:
    return f"{ratio:.2f}x" if math.isfinite(ratio) else "?"
