"""The ``wavetune`` application: its verbs in the order of help."""

from __future__ import annotations

from typing import Annotated

import typer

from wavetune.cli.analyze import analyze_command
from wavetune.cli.calibrate import calibrate_command
from wavetune.cli.choose import choose_command
from wavetune.cli.convert import convert_app
from wavetune.cli.demo import demo_command
from wavetune.cli.doctor import doctor_command
from wavetune.cli.estimate import estimate_command
from wavetune.cli.evaluate import evaluate_command
from wavetune.cli.explain import explain_command
from wavetune.cli.export import export_command
from wavetune.cli.fit import fit_command
from wavetune.cli.freeze import freeze_command
from wavetune.cli.measure import measure_command
from wavetune.cli.models import models_app
from wavetune.cli.output import show_log
from wavetune.cli.parsing import ManyValuesCommand, NegativeNumbersCommand, WavetuneGroup
from wavetune.cli.quicktune import quicktune_command
from wavetune.cli.report import report_command
from wavetune.cli.tune import tune_command
from wavetune.cli.tune_patterns import patterns_app
from wavetune.cli.tune_retime import retime_command
from wavetune.cli.verify import verify_command
from wavetune.cli.workload import workload_app

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

    Exit codes: 0 done, 1 no match (verify), 2 usage, 3 bad input, 4 no model, 130 interrupted.
    """
    show_log()


app.command("choose", cls=NegativeNumbersCommand)(choose_command)
app.command("explain", cls=NegativeNumbersCommand)(explain_command)
app.command("freeze")(freeze_command)
app.command("demo")(demo_command)
app.command("fit", cls=ManyValuesCommand)(fit_command)
app.command("evaluate", cls=ManyValuesCommand)(evaluate_command)
app.command("report", cls=ManyValuesCommand)(report_command)
app.command("calibrate", cls=ManyValuesCommand)(calibrate_command)
app.command("measure")(measure_command)
app.command("doctor")(doctor_command)
app.command("estimate")(estimate_command)
app.command("tune")(tune_command)
app.command("quicktune")(quicktune_command)
app.command("retime", cls=NegativeNumbersCommand)(retime_command)
app.command("analyze")(analyze_command)
app.command("export")(export_command)
app.command("verify")(verify_command)
app.add_typer(models_app, name="models")
app.add_typer(convert_app, name="convert")
app.add_typer(workload_app, name="workload")
app.add_typer(patterns_app, name="patterns")
