"""``wavetune patterns``: look after caches of winners."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from wavetune.cli.options import JsonOption
from wavetune.cli.output import data_table, describe_config, emit_json, note, show
from wavetune.workloads.pattern_cache import (
    LEAST_RATE,
    MAX_PATTERNS,
    Pattern,
    PatternCache,
    read_patterns,
    updating_patterns,
)

patterns_app = typer.Typer(
    no_args_is_help=True, help="Winners of tunings as patterns (`tune --pattern-cache`): show, merge, prune."
)

FileArgument = Annotated[Path, typer.Argument(metavar="FILE", help="Pattern cache.", show_default=False)]


@patterns_app.command("show")
def show_command(file: FileArgument, as_json: JsonOption = False) -> None:
    """List patterns, the most promising first; classes are octaves: of waves, of loop trips, of rows over columns."""
    ordered = sorted(read_patterns(file), key=lambda pattern: (-pattern.rate, -pattern.wins, str(pattern.key)))
    if as_json:
        emit_json({"patterns": [_document(pattern) for pattern in ordered]})
        return
    right = ("waves", "trips", "aspect", "wins", "uses")
    table = data_table("dtype", "B", "GPU", *right, "last used", "config", right=right)
    for pattern in ordered:
        launch = pattern.launch
        table.add_row(
            pattern.dtype, pattern.layout, pattern.arch, *(f"2^{o}" for o in (launch.wave, launch.loop, launch.aspect)),
            f"{pattern.wins}", f"{pattern.uses}", pattern.last_used, describe_config(pattern.config),
        )  # fmt: skip
    show(table)


@patterns_app.command("merge")
def merge_command(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Pattern caches.", show_default=False)],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="Where to write the sum.")],
) -> None:
    """Add caches up: wins and uses of the same pattern are summed."""
    if len(set(files)) < len(files):
        raise typer.BadParameter("a file is named twice; its counts would count twice")
    merged = PatternCache()
    for file in files:
        merged.merge(read_patterns(file))
    merged.prune()
    merged.write(out)
    typer.echo(f"{out}: {len(merged)} patterns")


@patterns_app.command("prune")
def prune_command(
    file: FileArgument,
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=0, help="Patterns to keep at most.")] = MAX_PATTERNS,
    least_rate: Annotated[
        float,
        typer.Option("--least-rate", metavar="SHARE", min=0.0, max=1.0, help="Drop those that win less often."),
    ] = LEAST_RATE,
) -> None:
    """Drop patterns that hardly ever win, and the least useful beyond the limit; rewrites the file."""
    with updating_patterns(file) as cache:
        gone = cache.prune(limit, least_rate)
    typer.echo(f"{file}: {len(cache)} patterns")
    note(f"{gone} dropped")


def _document(pattern: Pattern) -> dict[str, object]:
    launch = pattern.launch
    return {
        "kernel": "gemm", "dtype": pattern.dtype, "layout": pattern.layout, "arch": pattern.arch, "wave": launch.wave,
        "loop": launch.loop, "aspect": launch.aspect, "config": dict(pattern.config), "wins": pattern.wins,
        "uses": pattern.uses, "last_used": pattern.last_used, "rate": pattern.rate,
    }  # fmt: skip
