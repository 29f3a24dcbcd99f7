"""``wavetune freeze``: the answers for a workload as a pinned table. Imports neither numpy nor rich."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from wavetune.cli.options import (
    ArchOption,
    DtypeOption,
    JsonOption,
    LayoutOption,
    NumericsOption,
    NumSmsOption,
    OnMissOption,
)
from wavetune.cli.output import emit_json, note
from wavetune.core.workload import Workload
from wavetune.errors import WorkloadError
from wavetune.runtime.freeze import freeze
from wavetune.runtime.pinned import write_pinned


def freeze_command(
    workload: Annotated[
        Path, typer.Option("--workload", metavar="FILE", help="Problems: a workload (JSON) or CSV with m,n,k.")
    ],
    out: Annotated[Path, typer.Option("--out", metavar="PINNED.json", help="Where to write the table.")],
    arch: ArchOption = None,
    num_sms: NumSmsOption = None,
    numerics: NumericsOption = "any",
    on_miss: OnMissOption = None,
    dtype: DtypeOption = "bf16",
    layout: LayoutOption = "nk",
    as_json: JsonOption = False,
) -> None:
    """Freeze the answers for a workload: WAVETUNE_PINNED then answers these problems, whatever models say later."""
    if on_miss == "measure":
        raise typer.BadParameter("nothing is measured here; use --on-miss model, default or error")
    read = Workload.read(workload, dtype=dtype, layout=layout)
    problems = [problem for problem, _ in read.gemm_problems()]
    if not problems:
        raise WorkloadError(f"{workload}: no plain GEMM that a configuration can be chosen for")
    table = freeze(problems, arch=arch, num_sms=num_sms, numerics=numerics, on_miss=on_miss or "model")
    write_pinned(table, out)
    kinds = Counter(f"{problem.dtype} {problem.layout}" for problem in table.entries)
    if as_json:
        emit_json(
            {
                "out": str(out), "arch": table.arch, "num_sms": table.num_sms, "numerics": table.numerics,
                "problems": len(table.entries), "configs": len(table.configs), "kinds": dict(kinds),
                "left_out": len(read.entries) - len(problems), "fingerprint": table.provenance["fingerprint"],
            }
        )  # fmt: skip
        return
    if len(problems) < len(read.entries):
        note(f"{workload}: {len(problems)} of {len(read.entries)} entries are plain GEMMs; the others are left out")
    found = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
    typer.echo(f"{out}: {len(table.entries)} problems ({found}), {len(table.configs)} configurations, {table.arch}")
    note(f"use it: WAVETUNE_PINNED={out}")
