"""The command line: one module a verb.

Modules here import only the standard library, typer and the standard-library layers at the top; numpy, scikit-learn
and rich are imported inside the verbs, so that ``wavetune choose`` answers at once.
"""

from __future__ import annotations

import os


def main() -> None:
    """Run the ``wavetune`` command and exit with its code."""
    # OpenMP threads that wait busily make a fit on a loaded machine several times slower. Read when the library loads.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    from wavetune.cli.app import app

    app(prog_name="wavetune")
