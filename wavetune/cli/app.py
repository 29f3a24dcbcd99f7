"""The ``wavetune`` application: its verbs in the order of help."""

from __future__ import annotations

from typing import Annotated

import typer

from wavetune.cli.calibrate import calibrate_command
from wavetune.cli.choose import choose_command
from wavetune.cli.demo import demo_command
from wavetune.cli.doctor import doctor_command
from wavetune.cli.evaluate import evaluate_command
from wavetune.cli.fit import fit_command
from wavetune.cli.measure import measure_command
from wavetune.cli.models import models_app
from wavetune.cli.parsing import ManyValuesCommand, NegativeNumbersCommand, WavetuneGroup

app = typer.Typer(
    cls=WavetuneGroup,
    no_args_is_help=True,
    add_completion=False,
    # A bug should show a plain traceback, not one with the values of all variables.
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from wavetune import __version__

        typer.echo(f"wavetune {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Near-best GPU kernel configurations in microseconds.

    Exit codes: 0 done, 2 usage, 3 bad input, 4 no model, 130 interrupted.
    """


app.command("choose", cls=NegativeNumbersCommand)(choose_command)
app.command("demo")(demo_command)
app.command("fit", cls=ManyValuesCommand)(fit_command)
app.command("evaluate", cls=ManyValuesCommand)(evaluate_command)
app.command("calibrate", cls=ManyValuesCommand)(calibrate_command)
app.command("measure")(measure_command)
app.command("doctor")(doctor_command)
app.add_typer(models_app, name="models")
