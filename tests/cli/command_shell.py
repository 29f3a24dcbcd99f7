"""Run the application in this process and look at what a shell would see."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from typer.testing import CliRunner

from wavetune.cli.app import app


@dataclass(frozen=True)
class Result:
    """What a command left: exit code and both streams."""

    code: int
    stdout: str
    stderr: str

    @property
    def json(self) -> Any:
        """Parse stdout strictly: NaN and Infinity are no JSON."""

        def refuse(name: str) -> None:
            raise AssertionError(f"{name} is no JSON")

        return json.loads(self.stdout, parse_constant=refuse)


class Runner:
    """Runs commands; an exception other than an exit fails the test."""

    def run(self, *arguments: object) -> Result:
        """Run ``wavetune`` with these arguments."""
        result = CliRunner().invoke(app, [str(argument) for argument in arguments], prog_name="wavetune")
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert "Traceback" not in result.stderr
        return Result(result.exit_code, result.stdout, result.stderr)
