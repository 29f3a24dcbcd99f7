"""What ``wavetune verify`` does on a GPU: run the answers, time them, and say what was found."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import typer

from wavetune.cli.live import CalibrationKey, live_runner, note_conditions
from wavetune.cli.output import data_table, describe_config, format_sizes, format_us, note, show
from wavetune.cli.progress import watch
from wavetune.core.config import GEMM, KernelConfig
from wavetune.core.problem import GemmProblem
from wavetune.runtime.device import Device

if TYPE_CHECKING:
    from wavetune.measure.check_choices import CheckedChoice
    from wavetune.pipeline.proof import Proof

LISTED = 20
"""Answers that are listed: failures first, then those with the most time."""

NO_GPU = "--numerics and --remeasure need the GPU itself; without them no GPU is needed"


def prove(
    problems: list[tuple[GemmProblem, int]], device: Device, gpu: int, *, numerics: bool, remeasure: bool
) -> list[Proof]:
    """Prove the answers of problems with their call counts; those without an answer are left out.

    Raises
    ------
    RunnerError
        If there is no usable GPU.
    """
    from wavetune.pipeline.proof import answers_to_prove, prove_numerics

    proofs = answers_to_prove(problems, device)
    if not proofs:
        return []
    # Refuses a GPU that is not there, or is another.
    first = proofs[0].problem
    live_runner(CalibrationKey(GEMM.name, device.arch, first.dtype, first.layout), gpu, instead=NO_GPU)
    with watch() as observer:
        if numerics:
            observer.begin("checking results", len(proofs))
            proofs = prove_numerics(proofs, lambda pairs: _check(pairs, device, gpu, observer))
        if remeasure:
            proofs = _remeasure(proofs, device, gpu, observer)
    return proofs


def _check(
    pairs: list[tuple[GemmProblem, KernelConfig]], device: Device, gpu: int, observer: Any
) -> list[CheckedChoice]:
    from wavetune.measure.check_choices import check_choices

    return check_choices(pairs, device.arch, gpu=gpu, progress=lambda done, _: observer.update(done))


def _remeasure(proofs: list[Proof], device: Device, gpu: int, observer: Any) -> list[Proof]:
    from wavetune.cli.tune_run import open_runner
    from wavetune.pipeline.proof import remeasure

    groups: dict[tuple[str, str], list[Proof]] = {}
    for proof in proofs:
        groups.setdefault((proof.problem.dtype, proof.problem.layout), []).append(proof)
    found = {}
    for (dtype, layout), group in groups.items():
        observer.begin(f"timing {dtype} {layout}", 0)
        runner = open_runner(CalibrationKey(GEMM.name, device.arch, dtype, layout), gpu)
        for proof in remeasure(group, runner, lambda done, _: observer.update(done)):
            found[proof.problem] = proof
        note_conditions(runner)
    return [found[proof.problem] for proof in proofs]


def proof_counts(proofs: list[Proof], n_problems: int, *, numerics: bool, remeasure: bool) -> dict[str, int]:
    """Count what speaks against the answers, for the summary."""
    counts = {"unanswered": n_problems - len(proofs)}
    if numerics:
        counts["wrong"] = sum(bool(proof.wrong) for proof in proofs)
    if remeasure:
        counts["slower"] = sum(proof.is_slower for proof in proofs)
        counts["unmeasured"] = sum(bool(proof.unmeasured) for proof in proofs)
    return counts


def proof_document(proof: Proof) -> dict[str, Any]:
    """Return what was found about one answer as JSON."""
    return {
        "config": dict(proof.config), "default": dict(proof.default), "error": proof.error, "wrong": proof.wrong,
        "chosen_us": proof.chosen_us, "default_us": proof.default_us, "torch_mm_us": proof.library_us,
        "spread_us": proof.spread_us, "is_slower": proof.is_slower, "unmeasured": proof.unmeasured,
    }  # fmt: skip


def print_proofs(proofs: list[Proof], *, numerics: bool, remeasure: bool) -> None:
    """Print the answers, and the sums of their times."""
    columns = ["calls", "m x n x k", "dtype", "answer"]
    columns += ["error"] if numerics else []
    columns += ["us", "default us", "torch.mm us", "speed-up"] if remeasure else []
    table = data_table(*columns, "verdict", right=("calls", "error", "us", "default us", "torch.mm us", "speed-up"))
    ordered = sorted(proofs, key=lambda proof: (not proof.is_failed, -_weight(proof)))
    for proof in ordered[:LISTED]:
        cells = [
            f"{proof.count:,}", format_sizes(proof.problem.dims), proof.problem.dtype, describe_config(proof.config)
        ]  # fmt: skip
        cells += [f"{proof.error:.1e}" if math.isfinite(proof.error) else "-"] if numerics else []
        if remeasure:
            cells += [_us(proof.chosen_us), _us(proof.default_us), _us(proof.library_us)]
            cells += [f"{proof.speedup:.3f}x" if math.isfinite(proof.speedup) else "-"]
        table.add_row(*cells, _verdict(proof))
    show(table)
    if len(ordered) > LISTED:
        typer.echo(f"and {len(ordered) - LISTED:,} more")
    timed = [proof for proof in proofs if math.isfinite(proof.speedup)]
    if timed:
        chosen_us, default_us = (
            sum(proof.count * getattr(proof, f"{name}_us") for proof in timed) for name in ("chosen", "default")
        )
        note(f"weighted by calls, the answers take 1 / {default_us / chosen_us:.3f} of the default's time")


def _weight(proof: Proof) -> float:
    problem = proof.problem
    return proof.count * problem.m * problem.n * problem.k


def _verdict(proof: Proof) -> str:
    if proof.wrong:
        return f"wrong: {proof.wrong}"
    if proof.unmeasured:
        return f"not timed: {proof.unmeasured}"
    return "slower than the default" if proof.is_slower else "ok"


def _us(value: float) -> str:
    return format_us(value) if math.isfinite(value) else "-"
