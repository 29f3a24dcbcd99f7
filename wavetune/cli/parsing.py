"""How command lines are read, and how errors end: the one place that turns them into exit codes."""

from __future__ import annotations

import os
import re
import sys
from contextlib import suppress
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from wavetune.errors import NoModelError, WavetuneError

EXIT_BAD_INPUT = 3
EXIT_NO_MODEL = 4
EXIT_INTERRUPTED = 130
"""128 + SIGINT, as shells report it."""

_NEGATIVE = re.compile(r"-[0-9]+")
INTEGER = re.compile(r"\s*[+-]?[0-9]{1,100}\s*")
"""Not all that `int` takes: no 1_0, and no digits of other scripts."""


def integer(text: str) -> int:
    """Read a size on a command line; what is none is named, which the types of typer do not do.

    Raises
    ------
    BadParameter
        If it is no integer.
    """
    if not INTEGER.fullmatch(str(text)):
        raise typer.BadParameter(f"{text!r} is not an integer")
    return int(text)


def exit_code_of(error: WavetuneError) -> int:
    """Return the exit code of a mistake; usage errors (2) never get this far."""
    return EXIT_NO_MODEL if isinstance(error, NoModelError) else EXIT_BAD_INPUT


def unwrap(text: str) -> str:
    """Join the lines of each paragraph of a docstring: a terminal breaks lines at its own width."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))


class WavetuneGroup(TyperGroup):
    """Ends a verb that failed with one line on stderr and an exit code, never with a traceback."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a verb, or a group of them, with help that fits any width."""
        found = super().get_command(ctx, cmd_name)
        for command in (found, *getattr(found, "commands", {}).values()):
            if command is not None and command.help:
                command.help = unwrap(command.help)
        return found

    def invoke(self, ctx: Any) -> Any:
        """Run a verb."""
        try:
            return super().invoke(ctx)
        except WavetuneError as error:
            print_error(str(error))
            raise typer.Exit(exit_code_of(error)) from None
        except KeyboardInterrupt:
            typer.echo("interrupted", err=True)
            raise typer.Exit(EXIT_INTERRUPTED) from None


def print_error(message: str) -> None:
    """Print on stderr why a command ends."""
    typer.secho("error: ", fg="red", bold=True, nl=False, err=True)
    typer.echo(message, err=True)


def end_without_output(error: OSError) -> int:
    """Say in a line what the system refused, a full disk behind stdout for instance, and return the exit code."""
    if error.filename is None:
        # Python would try to write the rest when it exits, and end with a code of its own.
        with suppress(OSError, ValueError), open(os.devnull, "w") as nothing:
            os.dup2(nothing.fileno(), sys.stdout.fileno())
    print_error(f"{error.filename or 'cannot write to standard output'}: {error.strerror or error}")
    return EXIT_BAD_INPUT


class ManyValuesCommand(TyperCommand):
    """A verb without positional arguments whose repeatable options also take several values: ``--oracle A B``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Repeat the flag before each of its values, then parse as usual."""
        flags = {flag for param in self.params if getattr(param, "multiple", False) for flag in param.opts}
        expanded: list[str] = []
        current = ""
        # The first value after a flag needs no flag of its own.
        has_value = True
        for token in args:
            if token.startswith("-") and token != "-":
                name, equals, _ = token.partition("=")
                current = name if name in flags else ""
                has_value = bool(equals)
            elif current:
                if has_value:
                    expanded.append(current)
                has_value = True
            expanded.append(token)
        return super().parse_args(ctx, expanded)


class NegativeNumbersCommand(TyperCommand):
    """A verb whose positional integers may be negative: the size is then refused, not taken for an option."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Let ``-5`` through to the arguments: with a blank before it, it is no option, and the same integer."""
        return super().parse_args(ctx, [f" {token}" if _NEGATIVE.fullmatch(token) else token for token in args])
