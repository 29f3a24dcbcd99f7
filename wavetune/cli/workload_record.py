"""``wavetune workload record``: run a command, and count its matrix products."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import wavetune
from wavetune.cli.options import JsonOption
from wavetune.cli.output import emit_json, note, warn

if TYPE_CHECKING:
    from wavetune.core.workload import Workload
    from wavetune.workloads.recorded import RecordedFolder

SOURCES = ("auto", "torch", "cublaslt")

EXIT_NOT_FOUND = 127
"""As shells report a command that does not exist."""

FOLDER_VARIABLE = "WAVETUNE_RECORD_FOLDER"
"""Also read by ``wavetune/launch/inject/sitecustomize.py``."""

_INJECTED = Path(wavetune.__file__).resolve().parent / "launch" / "inject"
_NVIDIA_DRIVER = ("/dev/nvidiactl", "/proc/driver/nvidia/version", "/dev/dxg")
_LISTED_DIFFERENCES = 5


def record_command(
    command: Annotated[
        list[str],
        typer.Argument(metavar="COMMAND...", help="Program and arguments, as a shell has them.", show_default=False),
    ],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="Where to write the workload.")] = Path(
        "workload.json"
    ),
    by: Annotated[
        str,
        typer.Option(
            "--by",
            metavar="WHAT",
            help="torch: count torch's operations. cublaslt: read cuBLASLt's log. auto: both where there is an NVIDIA "
            "GPU, say whether they agree, and keep torch's.",
        ),
    ] = "auto",
    as_json: JsonOption = False,
) -> None:
    """Run a Python program and record its GEMMs, grouped GEMMs and attentions, in all its processes.

    Needs no change to the program; CPU is enough. Exits with the program's exit code. Of CUDA graphs the capture is
    counted, not the replays; of torch.compile the calls of libraries, not the products of kernels that it wrote itself.
    """
    if by not in SOURCES:
        raise typer.BadParameter(f"cannot record by {by!r}; known: {', '.join(SOURCES)}")
    from wavetune.workloads.recorded import RecordedFolder

    with tempfile.TemporaryDirectory(prefix="wavetune-record-", ignore_cleanup_errors=True) as name:
        code = run_recorded(command, recording_environment(os.environ, Path(name), by))
        folder = RecordedFolder(Path(name))
        workload, document = _collect(folder, by)
    for failure in document["failures"]:
        warn(f"a process could not be recorded: {failure}")
    if workload.entries:
        workload.write(out)
        note(f"wrote {out}: {len(workload.entries)} problems, {workload.calls:,} calls")
    else:
        warn(f"nothing was recorded: {_why_nothing(document, command)}")
    if as_json:
        written = str(out) if workload.entries else None
        emit_json({"exit_code": code, "out": written, **document, "problems": workload.document()["problems"]})
    raise typer.Exit(code)


def recording_environment(inherited: Mapping[str, str], folder: Path, by: str) -> dict[str, str]:
    """Return the environment of a recorded program."""
    environment = dict(inherited)
    if by != "cublaslt":
        environment[FOLDER_VARIABLE] = str(folder)
        paths = [str(_INJECTED), inherited.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    wants_log = by == "cublaslt" or (by == "auto" and any(Path(path).exists() for path in _NVIDIA_DRIVER))
    if wants_log:
        if any(name.startswith("CUBLASLT_LOG_") for name in inherited):
            note("CUBLASLT_LOG_* is set already: its log is left alone, and not read")
        else:
            from wavetune.workloads.recorded import CUBLASLT_LOG

            environment |= {"CUBLASLT_LOG_LEVEL": "2", "CUBLASLT_LOG_FILE": str(folder / CUBLASLT_LOG)}
    return environment


def run_recorded(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run a command to its end; returns its exit code, 128 + N after signal N.

    Ctrl-C reaches the command, too, which ends as it likes; SIGTERM is handed on.
    """
    try:
        process = subprocess.Popen(command, env=environment)
    except OSError as error:
        typer.echo(f"error: cannot run {command[0]!r} ({error.strerror or error})", err=True)
        raise typer.Exit(EXIT_NOT_FOUND) from None
    before = signal.signal(signal.SIGTERM, lambda number, frame: process.terminate())
    try:
        while True:
            try:
                code = process.wait()
                return code if code >= 0 else 128 - code
            except KeyboardInterrupt:
                continue
    finally:
        signal.signal(signal.SIGTERM, before)


def _collect(folder: RecordedFolder, by: str) -> tuple[Workload, dict[str, Any]]:
    from wavetune.workloads.recorded import Agreement

    document: dict[str, Any] = {
        "python_processes": folder.python_processes,
        "torch_processes": folder.torch_processes,
        "failures": folder.failures,
    }
    of_torch, of_library = folder.torch_workload(), folder.cublaslt_workload()
    if of_torch.entries and of_library.entries:
        agreement = Agreement.of(of_torch, of_library)
        note(
            f"torch ran {agreement.calls:,} products, cuBLASLt logged {agreement.other_calls:,}; "
            f"{agreement.same_calls:,} are the same"
        )
        for line in agreement.different[:_LISTED_DIFFERENCES]:
            note(f"  {line}")
        document["agreement"] = {
            "torch_calls": agreement.calls,
            "cublaslt_calls": agreement.other_calls,
            "same_calls": agreement.same_calls,
            "different": list(agreement.different),
        }
    is_torchs = by != "cublaslt" and bool(of_torch.entries)
    document["by"] = "torch" if is_torchs else "cublaslt"
    return of_torch if is_torchs else of_library, document


def _why_nothing(document: Mapping[str, Any], command: Sequence[str]) -> str:
    text = shlex.join(command)
    if not document["python_processes"]:
        return (
            f"no Python started under `{text}`, or one with -E, -I or -S. Programs in other languages are recorded by "
            "cuBLASLt's log only (--by cublaslt, on an NVIDIA GPU)"
        )
    if not document["torch_processes"]:
        return f"`{text}` is a Python program that did not import torch"
    return f"`{text}` imported torch, and ran no matrix product or attention"
