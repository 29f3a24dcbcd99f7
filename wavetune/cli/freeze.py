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
    refuse_overwriting,
)
from wavetune.cli.output import emit_json, note
from wavetune.core.problem import GemmProblem
from wavetune.core.workload import Workload
from wavetune.errors import NoModelError, WorkloadError
from wavetune.runtime.choose import find_resolver
from wavetune.runtime.freeze import freeze
from wavetune.runtime.pinned import write_pinned
from wavetune.runtime.settings import settings


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
    refuse_overwriting(out, [workload])
    read = Workload.read(workload, dtype=dtype, layout=layout)
    problems = [problem for problem, _ in read.gemm_problems()]
    if not problems:
        raise WorkloadError(f"{workload}: no plain GEMM that a configuration can be chosen for")
    answered, missing = _with_tables(problems, arch, num_sms, numerics)
    table = freeze(answered, arch=arch, num_sms=num_sms, numerics=numerics, on_miss=on_miss or "model")
    write_pinned(table, out)
    if settings().disable:
        note("WAVETUNE_DISABLE is on: what is pinned are default configurations, whatever the tables say")
    elif settings().force_config is not None:
        note("WAVETUNE_FORCE_CONFIG is set: it is pinned wherever it is legal, whatever the tables say")
    kinds = Counter(f"{problem.dtype} {problem.layout}" for problem in table.entries)
    if as_json:
        emit_json(
            {
                "out": str(out), "arch": table.arch, "num_sms": table.num_sms, "numerics": table.numerics,
                "problems": len(table.entries), "configs": len(table.configs), "kinds": dict(kinds),
                "left_out": len(read.entries) - len(answered), "fingerprint": table.provenance["fingerprint"],
            }
        )  # fmt: skip
        return
    if len(problems) < len(read.entries):
        note(f"{workload}: {len(problems)} of {len(read.entries)} entries are plain GEMMs; the others are left out")
    for kind, count in missing.items():
        note(f"{workload}: no tables of {table.arch} for {kind}: {count} entries are left out")
    found = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
    typer.echo(f"{out}: {len(table.entries)} problems ({found}), {len(table.configs)} configurations, {table.arch}")
    note(f"use it: WAVETUNE_PINNED={out.absolute()}")


def _with_tables(
    problems: list[GemmProblem], arch: str | None, num_sms: int | None, numerics: str
) -> tuple[list[GemmProblem], Counter[str]]:
    """Return the problems of types and layouts that tables answer for, and how many there are of each other kind.

    Raises
    ------
    NoModelError
        If none is left.
    """
    errors: dict[str, NoModelError] = {}
    missing: Counter[str] = Counter()
    answered = []
    for problem in problems:
        kind = f"{problem.dtype} {problem.layout}"
        if kind not in errors:
            try:
                find_resolver(problem, arch, num_sms, numerics)
                answered.append(problem)
                continue
            except NoModelError as error:
                errors[kind] = error
        missing[kind] += 1
    if not answered:
        raise errors[missing.most_common(1)[0][0]]
    return answered, missing
