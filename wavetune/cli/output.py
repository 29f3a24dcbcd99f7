"""What verbs print: data on stdout, everything else on stderr."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

PIPE_COLUMNS = 160
"""Width of tables where the output is no terminal and COLUMNS does not say."""


def emit_json(data: Any) -> None:
    """Print data as JSON; numbers that JSON does not have become null."""
    typer.echo(json.dumps(_finite(data), indent=2, allow_nan=False))


def note(text: str) -> None:
    """Print a line about the work on stderr."""
    typer.echo(text, err=True)


def warn(text: str) -> None:
    """Print a warning on stderr."""
    typer.secho("warning: ", fg="yellow", bold=True, nl=False, err=True)
    typer.echo(text, err=True)


def show(*renderables: RenderableType) -> None:
    """Print tables and texts on stdout."""
    from rich.console import Console

    terminal = Console(highlight=False)
    if terminal.is_terminal:
        terminal.print(*renderables, sep="\n")
        return
    wide = None if "COLUMNS" in os.environ else PIPE_COLUMNS
    piped = Console(width=wide, highlight=False)
    with piped.capture() as captured:
        piped.print(*renderables, sep="\n")
    # Tables are padded to their width, which only gets in the way of whoever reads a pipe.
    for line in captured.get().splitlines():
        typer.echo(line.rstrip())


def two_columns(rows: Iterable[tuple[str, str]]) -> Table:
    """Arrange labels and texts; texts are plain, not markup."""
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for label, text in rows:
        table.add_row(label, Text(text))
    return table


def data_table(*columns: str, right: Iterable[str] = (), title: str | None = None) -> Table:
    """Return an empty table without lines; the columns named in ``right`` are aligned to the right."""
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), title=title, title_justify="left", header_style="dim")
    numeric = set(right)
    for name in columns:
        table.add_column(name, justify="right" if name in numeric else "left", overflow="fold")
    return table


def describe_config(config: Mapping[str, int | str]) -> str:
    """Describe a configuration in the shorthand of tables: tile, then what differs from the plainest kernel.

    ``128x256x64 w8 s3 g8 persistent tma e2`` is block sizes, warps, stages, group_m, schedule, load and
    epilogue_split; a split of k is ``split4``. Families with other fields are written out.
    """
    rest = dict(config)
    words = []
    if all(name in rest for name in ("block_m", "block_n", "block_k")):
        words.append("x".join(str(rest.pop(name)) for name in ("block_m", "block_n", "block_k")))
    short = {"num_warps": "w", "num_stages": "s", "group_m": "g", "epilogue_split": "e", "split_k": "split"}
    plain: dict[str, int | str] = {"split_k": 1, "epilogue_split": 1, "schedule": "tile", "load": "pointer"}
    # split_k above 1 says the schedule already.
    if rest.get("split_k", 1) != 1:
        rest.pop("schedule", None)
    for name in ("num_warps", "num_stages", "group_m", "split_k", "schedule", "load", "epilogue_split"):
        if name in rest:
            value = rest.pop(name)
            if plain.get(name) != value:
                words.append(f"{short.get(name, '')}{value}")
    return " ".join([*words, *(f"{name}={value}" for name, value in rest.items())])


def spell_config(config: Mapping[str, int | str]) -> str:
    """Write a configuration out, ``name=value`` separated by blanks."""
    return " ".join(f"{name}={value}" for name, value in config.items())


def format_sizes(sizes: Sequence[int]) -> str:
    """Write problem sizes as ``m x n x k``."""
    return " x ".join(map(str, sizes))


def format_us(latency_us: float) -> str:
    """Write a latency with three to four significant digits."""
    if math.isnan(latency_us):
        return "?"
    return f"{latency_us:.2f}" if latency_us < 100 else f"{latency_us:,.1f}"


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    # NumPy floats are floats; its integers are not ints, and carry `item`.
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    return value.item() if hasattr(value, "item") else value
