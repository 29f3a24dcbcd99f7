"""The command line: one module a verb.

Modules here import only the standard library, typer and the standard-library layers at the top; numpy, scikit-learn
and rich are imported inside the verbs, so that ``wavetune choose`` answers at once.
"""

from __future__ import annotations

import io
import os
import sys


def main() -> None:
    """Run the ``wavetune`` command and exit with its code."""
    # Some shells without a terminal say 0, in which rich would print nothing at all.
    if os.environ.get("COLUMNS") == "0":
        del os.environ["COLUMNS"]
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A bar or a name that its encoding lacks must not end the command.
        sys.stdout.reconfigure(errors="replace")
    # OpenMP threads that wait busily make a fit on a loaded machine several times slower. Read when the library loads.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    from wavetune.cli.app import app
    from wavetune.cli.parsing import end_without_output

    try:
        app(prog_name="wavetune")
    except OSError as error:
        sys.exit(end_without_output(error))
