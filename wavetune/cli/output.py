"""What verbs print: data on stdout, everything else on stderr."""

from __future__ import annotations

import json
import logging
import math
import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import typer

from wavetune.core.shorthand import describe_config as describe_config
from wavetune.core.shorthand import format_sizes as format_sizes
from wavetune.core.shorthand import format_us as format_us
from wavetune.core.shorthand import spell_config as spell_config

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


class _LogToStderr(logging.Handler):
    """Shows what the library logs as this command's own notes and warnings."""

    def emit(self, record: logging.LogRecord) -> None:
        """Show one record."""
        (warn if record.levelno >= logging.WARNING else note)(record.getMessage())


_LOG = _LogToStderr()


def show_log() -> None:
    """Show warnings of the library on stderr; a file that is passed over must not go unseen."""
    logging.getLogger("wavetune").addHandler(_LOG)


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


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    # NumPy floats are floats; its integers are not ints, and carry `item`.
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    return value.item() if hasattr(value, "item") else value
