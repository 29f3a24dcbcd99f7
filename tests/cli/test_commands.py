"""What holds for every command: help, version, documented options, and how values are written."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer

from wavetune import __version__
from wavetune.cli.app import app
from wavetune.cli.output import describe_config, emit_json
from wavetune.cli.parsing import exit_code_of, unwrap
from wavetune.errors import NoModelError, WavetuneError
from wavetune.fit.selection import N_FALLBACKS
from wavetune.pipeline.refit import FitOptions
from wavetune.plan.sampling import PlanOptions


def commands(group: Any, path: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    """Return every command by its words."""
    found = {path: group}
    for name, command in getattr(group, "commands", {}).items():
        found |= commands(command, (*path, name))
    return found


COMMANDS = commands(typer.main.get_command(app))


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_help(cli, words: tuple[str, ...]):
    """Every command has help, and every option and argument of it is described there."""
    result = cli(*words, "--help")
    assert result.code == 0
    assert "Usage: wavetune" in result.stdout
    command = COMMANDS[words]
    assert command.help
    for param in command.params:
        assert getattr(param, "help", None), f"{' '.join(words)}: {param.name} has no help"
        if param.param_type_name == "option":
            assert param.opts[0] in result.stdout


def test_reading_commands_take_json():
    """Whatever only reads can print JSON."""
    for words in ("choose", "evaluate", "demo", "doctor", "models list", "models show", "models verify"):
        assert "--json" in [flag for param in COMMANDS[tuple(words.split())].params for flag in param.opts]


def test_defaults_in_help_are_the_real_ones():
    """Help cannot import the layers that own these defaults, so a test compares them."""
    for words in (("fit",), ("calibrate",)):
        texts = {param.name: param.help for param in COMMANDS[words].params}
        assert f"Default: {FitOptions().n_configs}." in texts["n_configs"]
        assert f"up to {['no', 'one', 'two', 'three', 'four'][N_FALLBACKS]} of gemm" in texts["n_configs"]
    assert f"Default: {PlanOptions().max_seconds:g}." in texts["budget"]


def test_version(cli):
    """The version is that of the package."""
    assert cli("--version").stdout == f"wavetune {__version__}\n"


def test_nothing_is_a_usage_error(cli):
    """Without a verb there is help, and exit code 2."""
    assert cli().code == 2
    assert cli("nonsense").code == 2


def test_every_error_has_an_exit_code():
    """No model is 4, every other mistake 3."""
    for kind in WavetuneError.__subclasses__():
        assert exit_code_of(kind("x")) == (4 if kind is NoModelError else 3)


def test_json_has_no_nan(capsys: pytest.CaptureFixture[str]):
    """Numbers that JSON does not have become null, at any depth; NumPy numbers are numbers."""
    emit_json({"a": [float("nan"), np.float64("inf")], "b": {"c": np.int64(3)}, "d": (1.5, None, "x")})
    assert json.loads(capsys.readouterr().out) == {"a": [None, None], "b": {"c": 3}, "d": [1.5, None, "x"]}


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"block_m": 16, "block_n": 64, "block_k": 128, "split_k": 4, "schedule": "split_k", "num_warps": 4},
         "16x64x128 w4 split4"),
        ({"block_m": 128, "block_n": 256, "block_k": 64, "split_k": 1, "schedule": "persistent", "num_stages": 3,
          "load": "tma", "epilogue_split": 2}, "128x256x64 s3 persistent tma e2"),
        ({"block_m": 64, "rows": 2}, "block_m=64 rows=2"),
    ],
)  # fmt: skip
def test_shorthand_of_configurations(fields: dict[str, int | str], text: str):
    """Tables use one shorthand; fields without one are written out."""
    assert describe_config(fields) == text


def test_module_and_interrupt(points: Path, tmp_path: Path):
    """``python -m wavetune`` is the command; a real SIGINT ends it with 130 and no traceback."""
    fifo = tmp_path / "slow.csv"
    os.mkfifo(fifo)
    process = subprocess.Popen(
        [sys.executable, "-m", "wavetune", "fit", "--measurements", str(fifo), "--arch", "h200", "--out", "m.json"],
        stderr=subprocess.PIPE, text=True, cwd=tmp_path,
    )  # fmt: skip
    try:
        # Opening the other end succeeds once the command reads; then it waits for rows that never come.
        with fifo.open("w"):
            time.sleep(0.2)
            process.send_signal(signal.SIGINT)
            _, stderr = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    assert "Traceback" not in stderr
    assert "interrupted" in stderr


def run_in_shell(*arguments: str, stdout: Any = subprocess.PIPE, **environment: str) -> Any:
    """Run the command in a process of its own: encodings and what stdout is belong to the process."""
    return subprocess.run(
        [sys.executable, "-m", "wavetune", *arguments], stdout=stdout, stderr=subprocess.PIPE,
        env={**os.environ, **environment}, timeout=60,
    )  # fmt: skip


@pytest.mark.parametrize("words", [("choose", "1", "2", "3"), ("choose", "1", "2", "3", "--explain"), ("--help",)])
def test_output_that_cannot_be_written_ends_with_a_line(words: tuple[str, ...], models: Path) -> None:
    """A full disk behind stdout is no bug, and no answer of ``verify``, whose code is 1."""
    with open("/dev/full", "wb") as full:
        done = run_in_shell(*words, stdout=full, WAVETUNE_ARCH="h200", WAVETUNE_MODELS=str(models))
    assert done.returncode == 3
    assert done.stderr.decode().splitlines() == ["error: cannot write to standard output: No space left on device"]


def test_a_terminal_of_no_width_is_one_that_does_not_say(models: Path) -> None:
    """COLUMNS=0 hides nothing: neither tables nor help nor errors."""
    environment = {"COLUMNS": "0", "WAVETUNE_ARCH": "h200", "WAVETUNE_MODELS": str(models)}
    assert b"waves" in run_in_shell("explain", "512", "4096", "4096", **environment).stdout
    assert b"Usage" in run_in_shell("choose", "--help", **environment).stdout
    assert b"--nonsense" in run_in_shell("choose", "--nonsense", **environment).stderr


def test_what_an_encoding_lacks_is_replaced(models: Path) -> None:
    """The bars of ``explain`` are no characters of latin-1."""
    environment = {"PYTHONIOENCODING": "latin-1", "WAVETUNE_ARCH": "h200", "WAVETUNE_MODELS": str(models)}
    done = run_in_shell("explain", "512", "4096", "4096", **environment)
    assert done.returncode == 0, done.stderr
    assert "????" in done.stdout.decode("latin-1").splitlines()[-1]


def test_help_fits_any_width(cli) -> None:
    """Paragraphs of docstrings are joined: a line is broken where the terminal ends, and nowhere else."""
    assert unwrap("One\nline.\n\nAnother\n  one.") == "One line.\n\nAnother one."
    for command in (("tune",), ("workload", "import")):
        lines = cli(*command, "--help").stdout.splitlines()
        text = [line.strip() for line in lines[: lines.index(next(line for line in lines if "Arguments" in line))]]
        full = [line for line, after in itertools.pairwise(text) if line and after]
        assert full
        assert all(len(line) > 60 for line in full), full
