"""``wavetune workload record``: run a command, and count its matrix products."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import wavetune
from wavetune.cli.options import JsonOption
from wavetune.cli.output import emit_json, note, warn
from wavetune.core.whole_file import check_place, describe_os_error
from wavetune.errors import WorkloadError

if TYPE_CHECKING:
    from wavetune.core.workload import Workload
    from wavetune.workloads.recorded import RecordedFolder

SOURCES = ("auto", "torch", "cublaslt")

EXIT_NOT_FOUND = 127
"""As shells report a command that does not exist."""

DEFAULT_OUT = Path("workload.json")

FOLDER_VARIABLE = "WAVETUNE_RECORD_FOLDER"
"""Also read by ``wavetune/recording/inject/sitecustomize.py``."""

_INJECTED = Path(wavetune.__file__).resolve().parent / "recording" / "inject"
_NVIDIA_DRIVER = ("/dev/nvidiactl", "/proc/driver/nvidia/version", "/dev/dxg")
_LISTED_DIFFERENCES = 5


def record_command(
    command: Annotated[
        list[str],
        typer.Argument(metavar="COMMAND...", help="Program and arguments, as a shell has them.", show_default=False),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="FILE", show_default=False,
            help=f"Where to write the workload. Default: {DEFAULT_OUT}, if there is no such file yet.",
        ),
    ] = None,
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
) -> None:  # fmt: skip
    """Run a Python program and record its GEMMs, grouped GEMMs and attentions, in all its processes.

    Needs no change to the program; CPU is enough. Exits with the program's exit code. Of CUDA graphs the capture is
    counted, not the replays; of torch.compile the calls of libraries, not the products of kernels that it wrote itself.
    """
    if by not in SOURCES:
        raise typer.BadParameter(f"cannot record by {by!r}; known: {', '.join(SOURCES)}")
    if out is None and DEFAULT_OUT.exists():
        raise typer.BadParameter(
            f"there is a {DEFAULT_OUT} already; --out {DEFAULT_OUT} replaces it, --out FILE keeps it"
        )
    out = out or DEFAULT_OUT
    try:
        # The program may run for hours.
        check_place(out)
    except OSError as error:
        raise WorkloadError(describe_os_error(out, error)) from None
    with (
        _recording_folder() as folder,
        run_recorded(command, recording_environment(os.environ, folder.path, by)) as code,
    ):
        workload, document = _collect(folder, by)
        if workload.entries:
            workload.write(out)
    # Only now: whoever closed the terminal reads none of it.
    _report(document)
    if workload.entries:
        note(f"wrote {out}: {len(workload.entries)} problems, {workload.calls:,} calls")
        if ended := _killer(code):
            warn(f"the program was ended by {ended}: its last half second may be missing")
    else:
        warn(f"nothing was recorded: {_why_nothing(document, command, code, by)}")
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


@contextmanager
def run_recorded(command: Sequence[str], environment: Mapping[str, str]) -> Iterator[int]:
    """Run a command to its end; yields its exit code, 128 + N after signal N.

    Ctrl-C reaches the command, too, which ends as it likes. SIGTERM, and SIGHUP of a terminal that is closed, are
    handed on; this process outlives them until the block ends, for what was recorded is written there.
    """
    processes: list[subprocess.Popen[bytes]] = []
    received: list[int] = []

    def hand_on(number: int, frame: object) -> None:
        received.append(number)
        for process in processes:
            process.send_signal(number)

    # What is ignored, as SIGHUP is under nohup, the program ignores, too.
    numbers = [n for n in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) is not signal.SIG_IGN]
    before = {number: signal.signal(number, hand_on) for number in numbers}
    try:
        processes.append(subprocess.Popen(command, env=environment))
        # Those that came while it was being started.
        for number in received:
            processes[0].send_signal(number)
        yield _exit_code(processes[0])
    except OSError as error:
        if processes:
            raise
        typer.echo(f"error: cannot run {command[0]!r} ({error.strerror or error})", err=True)
        raise typer.Exit(EXIT_NOT_FOUND) from None
    finally:
        for number, handler in before.items():
            # After one there is only the exit left, whose code a second must not change.
            signal.signal(number, signal.SIG_IGN if received else handler)


def _exit_code(process: subprocess.Popen[bytes]) -> int:
    while True:
        try:
            code = process.wait()
            return code if code >= 0 else 128 - code
        except KeyboardInterrupt:
            continue


@contextmanager
def _recording_folder() -> Iterator[RecordedFolder]:
    """Yield where processes write to; it goes when all is done, and stays if what is in it would be lost."""
    from wavetune.workloads.recorded import RecordedFolder

    folder = RecordedFolder(Path(tempfile.mkdtemp(prefix="wavetune-record-")))
    is_done = False
    try:
        yield folder
        is_done = True
    finally:
        if is_done or not folder.files:
            shutil.rmtree(folder.path, ignore_errors=True)
        else:
            warn(f"what was recorded is kept: wavetune workload import {shlex.join(map(str, folder.files))}")


def _collect(folder: RecordedFolder, by: str) -> tuple[Workload, dict[str, Any]]:
    from wavetune.workloads.recorded import Agreement

    document: dict[str, Any] = {
        "python_processes": folder.python_processes,
        "torch_processes": folder.torch_processes,
        "cublaslt_logs": len(folder.cublaslt_logs),
        "failures": folder.failures,
    }
    of_torch, of_library = folder.torch_workload(), folder.cublaslt_workload()
    if of_torch.entries and of_library.entries:
        agreement = Agreement.of(of_torch, of_library)
        document["agreement"] = {
            "torch_calls": agreement.calls,
            "cublaslt_calls": agreement.other_calls,
            "same_calls": agreement.same_calls,
            "different": list(agreement.different),
        }
    is_torchs = by != "cublaslt" and bool(of_torch.entries)
    document["by"] = "torch" if is_torchs else "cublaslt"
    return of_torch if is_torchs else of_library, document


def _report(document: Mapping[str, Any]) -> None:
    for failure in document["failures"]:
        warn(f"a process could not be recorded: {failure}")
    agreement = document.get("agreement")
    if agreement is not None:
        note(
            f"torch ran {agreement['torch_calls']:,} products, cuBLASLt logged {agreement['cublaslt_calls']:,}; "
            f"{agreement['same_calls']:,} are the same"
        )
        for line in agreement["different"][:_LISTED_DIFFERENCES]:
            note(f"  {line}")


def _killer(code: int) -> str:
    """Return the signal that ended a program, by its exit code; empty if none did.

    Python ends as usual after SIGINT, Ctrl-C, and reports it all the same.
    """
    try:
        return signal.Signals(code - 128).name if code != 128 + signal.SIGINT else ""
    except ValueError:
        return ""


def _why_nothing(document: Mapping[str, Any], command: Sequence[str], code: int, by: str) -> str:
    text, ended = shlex.join(command), _killer(code)
    if by == "cublaslt":
        if document["cublaslt_logs"]:
            return f"`{text}` ran no matrix product that cuBLASLt logged"
        return (
            f"`{text}` left no log of cuBLASLt to read: it did not use that library, which needs an NVIDIA GPU, or "
            "CUBLASLT_LOG_* was set"
        )
    if not document["python_processes"]:
        return (
            f"no Python started under `{text}`, or one with -E, -I or -S. Programs in other languages are recorded by "
            "cuBLASLt's log only (--by cublaslt, on an NVIDIA GPU)"
        )
    if not document["torch_processes"]:
        until = f" before {ended} ended it" if ended else ""
        return f"`{text}` is a Python program that did not import torch{until}"
    if ended:
        return f"`{text}` was ended by {ended}, and what it ran in its last half second is lost"
    return f"`{text}` imported torch, and ran no matrix product or attention"
