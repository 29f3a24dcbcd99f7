"""``wavetune verify``: whether the tables in use answer a workload exactly, and whether the answers hold on the GPU."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wavetune.cli.options import ArchOption, DtypeOption, GpuOption, JsonOption, LayoutOption, NumSmsOption
from wavetune.cli.output import data_table, emit_json, format_sizes, note, show
from wavetune.core.workload import Workload
from wavetune.errors import WorkloadError
from wavetune.runtime.device import resolve_device

if TYPE_CHECKING:
    from wavetune.pipeline.proof import Proof
    from wavetune.workloads.verification import Verified

EXIT_MISMATCH = 1
"""Of --strict where not everything matched, and of answers that are wrong or slower than the default."""

LISTED = 20
"""Problems that are listed, those with the most work first."""


def verify_command(
    workload: Annotated[Path, typer.Argument(metavar="WORKLOAD", help="Workload: JSON, or CSV.", show_default=False)],
    arch: ArchOption = None,
    num_sms: NumSmsOption = None,
    dtype: DtypeOption = "bf16",
    layout: LayoutOption = "nk",
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 unless every problem matched.")] = False,
    numerics: Annotated[
        bool, typer.Option("--numerics", help="Run every answer on its problem, and compare with torch in float64.")
    ] = False,
    remeasure: Annotated[
        bool, typer.Option("--remeasure", help="Time every answer against the default configuration and torch.mm.")
    ] = False,
    gpu: GpuOption = 0,
    as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Verify that the tables in use answer a workload by what was measured or pinned for it.

    matched: exactly. fellback: by a neighbour, the model or the default. stale: that, too, although a file or the store
    has a measurement, of another Triton or another GPU. In the summary, tuned problems are the matched ones that were
    measured on this machine, invalidated ones the stale.

    With --numerics and --remeasure the answers are proved on the GPU, whatever their source; a wrong result, or an
    answer that reads more than 2 % slower than the default, exits with 1.
    """
    from wavetune.workloads.verification import Status, summary_counts, verify_workload

    read = Workload.read(workload, dtype=dtype, layout=layout)
    device = resolve_device(arch, num_sms)
    verified = verify_workload(read, device)
    if not verified:
        raise WorkloadError(f"{workload}: no plain GEMM that a configuration can be chosen for")
    left_out = sum(entry.key.gemm_problem() is None for entry in read.entries)
    counts = summary_counts(verified)
    proofs: list[Proof] = []
    if numerics or remeasure:
        from wavetune.cli.verify_gpu import proof_counts, prove

        problems = [(entry.problem, entry.count) for entry in verified]
        proofs = prove(problems, device, gpu, numerics=numerics, remeasure=remeasure)
        counts |= proof_counts(proofs, len(verified), numerics=numerics, remeasure=remeasure)
    if as_json:
        from wavetune.cli.verify_gpu import proof_document

        found = {proof.problem: proof_document(proof) for proof in proofs}
        emit_json(
            {
                "summary": counts,
                "left_out": left_out,
                "calls": sum(entry.count for entry in verified),
                "matched_calls": sum(entry.count for entry in verified if entry.status is Status.MATCHED),
                "problems": [_document(entry) | found.get(entry.problem, {}) for entry in verified],
            }
        )
    else:
        _print([entry for entry in verified if entry.status is not Status.MATCHED])
        if left_out:
            note(f"{left_out} of {len(read.entries)} entries are no plain GEMM: the tables do not answer them")
        if proofs:
            from wavetune.cli.verify_gpu import print_proofs

            print_proofs(proofs, numerics=numerics, remeasure=remeasure)
        typer.echo("summary " + " ".join(f"{name}={count}" for name, count in counts.items()))
    if (strict and counts["matched"] < counts["shapes"]) or any(proof.is_failed for proof in proofs):
        raise typer.Exit(EXIT_MISMATCH)


def _print(mismatches: list[Verified]) -> None:
    if not mismatches:
        return
    ordered = sorted(mismatches, key=lambda entry: -entry.count * entry.problem.m * entry.problem.n * entry.problem.k)
    table = data_table("status", "calls", "m x n x k", "dtype", "B", "source", "reason", right=("calls",))
    for entry in ordered[:LISTED]:
        problem = entry.problem
        table.add_row(
            entry.status.value, f"{entry.count:,}", format_sizes(problem.dims), problem.dtype, problem.layout,
            entry.source, entry.reason,
        )  # fmt: skip
    show(table)
    if len(ordered) > LISTED:
        typer.echo(f"and {len(ordered) - LISTED:,} more")


def _document(entry: Verified) -> dict[str, object]:
    problem = entry.problem
    return {
        "m": problem.m, "n": problem.n, "k": problem.k, "dtype": problem.dtype, "layout": problem.layout,
        "alignment": problem.alignment, "count": entry.count, "status": entry.status.value, "source": entry.source,
        "table": entry.table, "tuned": entry.is_tuned, "reason": entry.reason,
    }  # fmt: skip
