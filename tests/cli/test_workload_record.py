"""``wavetune workload record``: programs that know nothing of it, run and counted."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from wavetune.cli.workload_record import recording_environment
from wavetune.core.workload import Workload

pytest.importorskip("torch")

PROGRAM = """
import os, sys, threading, multiprocessing
import torch
torch.set_num_threads(1)

def work():
    torch.nn.functional.linear(torch.zeros(5, 64), torch.zeros(32, 64))

def child():
    work()
    if os.environ.get("LEAVE"):
        os._exit(0)

if __name__ == "__main__":
    work()
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    # A forked child, and one that starts anew.
    for method in ("fork", "spawn"):
        process = multiprocessing.get_context(method).Process(target=child)
        process.start()
        process.join()
    print("out of the program", *sys.argv[1:])
    sys.exit(7)
"""


def test_all_processes_are_one_workload(cli, capfd: pytest.CaptureFixture[str]):
    """Threads, forked and spawned processes are counted; output and exit code are the program's."""
    Path("program.py").write_text(PROGRAM)
    result = cli("workload", "record", "--out", "w.json", "--json", sys.executable, "program.py", "--top", 3)
    assert result.code == 7
    assert "out of the program --top 3" in capfd.readouterr().out
    (entry,) = Workload.read("w.json").entries
    assert (entry.key.m, entry.key.n, entry.key.k, entry.key.layout, entry.count) == (5, 32, 64, "nk", 4)
    assert sorted(entry.sources.values()) == [1, 1, 2]
    assert result.json["exit_code"] == 7
    assert result.json["torch_processes"] == 2
    assert result.json["problems"][0]["count"] == 4
    assert "4 calls" in result.stderr


def test_a_users_sitecustomize_still_runs(cli, monkeypatch: pytest.MonkeyPatch):
    """The sitecustomize that the recorder hides is loaded after it, and PYTHONPATH is kept."""
    site = Path("site")
    site.mkdir()
    (site / "sitecustomize.py").write_text("import os; os.environ['CUSTOMIZED'] = 'yes'")
    monkeypatch.setenv("PYTHONPATH", str(site.resolve()))
    code = "import os, sys; sys.exit(5 if os.environ.get('CUSTOMIZED') == 'yes' else 6)"
    result = cli("workload", "record", "--", sys.executable, "-c", code)
    assert result.code == 5
    assert "did not import torch" in result.stderr
    assert not Path("workload.json").exists()


@pytest.mark.parametrize(
    ("command", "code", "message"),
    [
        (["sh", "-c", "exit 3"], 3, "no Python started under `sh -c 'exit 3'`"),
        (["sh", "-c", "kill -9 $$"], 137, "no Python started"),
        ([sys.executable, "-c", "import torch"], 0, "ran no matrix product"),
        ([sys.executable, "-I", "-c", "1"], 0, "-E, -I or -S"),
        ([sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"], 137, "did not import torch before SIGKILL"),
        ([sys.executable, "-c", "import os, torch; os.kill(os.getpid(), 9)"], 137, "ended by SIGKILL, and what it ran"),
        ([sys.executable, "-c", "import os, torch; os.kill(os.getpid(), 2)"], 130, "ran no matrix product"),
        (["--by", "cublaslt", sys.executable, "-c", "1"], 0, "left no log of cuBLASLt"),
        (["./no-such-program"], 127, "cannot run './no-such-program'"),
    ],
)
def test_when_nothing_is_recorded(cli, command: list[str], code: int, message: str):
    """The exit code is the command's, 128 + N after a signal; why there is nothing is said."""
    separator = [] if command[0] == "--by" else ["--"]
    result = cli("workload", "record", *separator, *command)
    assert result.code == code
    assert message in result.stderr


def test_cublaslt_log_where_there_is_a_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys):
    """With an NVIDIA driver, or if asked for, cuBLASLt logs to the folder; a log of the user's is left alone."""
    monkeypatch.setattr("wavetune.cli.workload_record._NVIDIA_DRIVER", (str(tmp_path),))
    both = recording_environment({"PYTHONPATH": "mine"}, tmp_path, "auto")
    assert both["CUBLASLT_LOG_LEVEL"] == "2"
    assert both["CUBLASLT_LOG_FILE"].startswith(str(tmp_path))
    assert both["PYTHONPATH"].endswith(f"{os.pathsep}mine")
    assert "CUBLASLT_LOG_LEVEL" not in recording_environment({}, tmp_path, "torch")
    alone = recording_environment({}, tmp_path, "cublaslt")
    assert "CUBLASLT_LOG_FILE" in alone
    assert "PYTHONPATH" not in alone
    kept = recording_environment({"CUBLASLT_LOG_FILE": "mine"}, tmp_path, "auto")
    assert kept["CUBLASLT_LOG_FILE"] == "mine"
    assert "left alone" in capsys.readouterr().err


def test_both_sources_are_compared(cli, monkeypatch: pytest.MonkeyPatch):
    """Where cuBLASLt's log and torch's count are there, their agreement is reported, and torch's is kept."""
    monkeypatch.setattr("wavetune.cli.workload_record._NVIDIA_DRIVER", ("/",))
    line = (
        "[cublasLt][1][Trace][cublasLtTSTMatmul] A=0X1 Adesc=[type=R_32F rows=64 cols=32 ld=64] B=0X1 "
        "Bdesc=[type=R_32F rows=64 cols={n} ld=64] C=0X1 Cdesc=[type=R_32F rows=32 cols={n} ld=32] D=0X1 "
        "Ddesc=[type=R_32F rows=32 cols={n} ld=32] computeDesc=[computeType=COMPUTE_32F transa=OP_T] algo=[algoId=1]"
    )
    program = (
        "import os, torch\n"
        "for m in (5, 5, 6): torch.nn.functional.linear(torch.zeros(m, 64), torch.zeros(32, 64))\n"
        f"lines = [{line.format(n=5)!r}, {line.format(n=5)!r}, {line.format(n=7)!r}]\n"
        "open(os.environ['CUBLASLT_LOG_FILE'].replace('%i', '1'), 'w').write('\\n'.join(lines) + '\\n')\n"
    )
    result = cli("workload", "record", "--json", "--", sys.executable, "-c", program)
    assert result.json["by"] == "torch"
    assert result.json["agreement"]["same_calls"] == 2
    assert len(result.json["agreement"]["different"]) == 2
    assert {(p["m"], p["count"]) for p in result.json["problems"]} == {(5, 2), (6, 1)}
    # Without torch's count, any program will do.
    program = "\n".join(["import os", *program.splitlines()[2:]])
    result = cli("workload", "record", "--json", "--by", "cublaslt", "--out", "l.json", sys.executable, "-c", program)
    assert {(p["m"], p["count"]) for p in result.json["problems"]} == {(5, 2), (7, 1)}
    assert list(result.json["problems"][0]["sources"]) == ["cuBLASLt, process 1"]


def test_wrong_usage(cli):
    """An unknown source is a usage error, and so is no command."""
    assert cli("workload", "record", "--by", "magic", "ls").code == 2
    assert cli("workload", "record").code == 2


RECORDS_ITSELF = """
import os, pathlib, sys, time
folder = pathlib.Path(os.environ["WAVETUNE_RECORD_FOLDER"])
(folder / "1-1-0.jsonl").write_text('{"m": 5, "n": 32, "k": 64, "count": 3}\\n')
"""
"""Leaves a count as a recorder of torch does, without torch."""


def test_a_place_that_cannot_be_written_is_said_first(cli):
    """The program, which may take hours, does not begin."""
    Path("file").write_text("")
    for out in ("none/w.json", "file/w.json", "."):
        result = cli("workload", "record", "--out", out, sys.executable, "-c", "open('ran', 'w')")
        assert result.code == 3
        assert f"{out}: cannot write" in result.stderr
    assert not Path("ran").exists()


def test_an_earlier_recording_is_not_replaced_unasked(cli):
    """The default file is taken once; named, it is replaced."""
    command = ("--", sys.executable, "-c", RECORDS_ITSELF)
    assert cli("workload", "record", *command).code == 0
    result = cli("workload", "record", "--", sys.executable, "-c", "open('ran', 'w')")
    assert result.code == 2
    assert "there is a workload.json already" in result.stderr
    assert not Path("ran").exists()
    assert cli("workload", "record", "--out", "workload.json", *command).code == 0


def test_a_recording_that_cannot_be_written_is_kept(cli):
    """Where the place is gone when the program ends, the counts stay, and a command that reads them is printed."""
    Path("out").mkdir()
    program = f"{RECORDS_ITSELF}os.rmdir('out')"
    result = cli("workload", "record", "--out", "out/w.json", sys.executable, "-c", program)
    assert result.code == 3
    kept = next(line for line in result.stderr.splitlines() if "is kept: " in line).partition("wavetune ")[2]
    assert cli(*kept.split(), "--out", "w.json").code == 0
    assert Workload.read("w.json").calls == 3
    shutil.rmtree(Path(kept.split()[-1]).parent)


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM])
def test_a_recording_outlives_its_terminal(tmp_path: Path, number: signal.Signals):
    """The signal is handed on, as often as it comes; what was counted until then is written, and no folder stays."""
    program = f"{RECORDS_ITSELF}print('ready', flush=True)\ntime.sleep(60)"
    command = [sys.executable, "-m", "wavetune", "workload", "record", "--out", str(tmp_path / "w.json"), "--"]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        [*command, sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        while process.poll() is None:
            process.send_signal(number)
            time.sleep(0.002)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert f"ended by {number.name}" in errors
    assert Workload.read(tmp_path / "w.json").calls == 3
    assert os.listdir(tmp_path) == ["w.json"]
