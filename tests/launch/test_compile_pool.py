"""Compiling ahead in processes of their own, for a GPU that is not there."""

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

from wavetune.core.arch import find_arch
from wavetune.core.config import GEMM
from wavetune.core.problem import GemmProblem
from wavetune.launch import compile_pool
from wavetune.launch.compile_pool import compile_in_parallel
from wavetune.launch.compile_worker import CompileJob, arch_from_json, arch_to_json

H200 = find_arch("h200")
SMALL = {"block_m": 16, "block_n": 64, "block_k": 64, "group_m": 8, "num_warps": 4, "num_stages": 2}
JOBS = [
    CompileJob(GemmProblem(64, 256, 512), GEMM.config({**SMALL, **fields}), has_bias, activation)
    for fields, has_bias, activation in (
        ({"load": "tma"}, True, "gelu"),
        ({}, False, "none"),
        ({"schedule": "split_k", "split_k": 2}, True, "relu"),
    )
]

# What `wavetune.launch.warmup` does with the files: the same launches, now with the epilogue's own pointers.
AGAIN = """
import sys
from wavetune.core.arch import find_arch
from wavetune.kernels.call import compile_call, compile_offline
sys.path.insert(0, sys.argv[1])
from test_compile_pool import JOBS
arch = find_arch("h200")
compile_offline(arch)
for job in JOBS:
    for call in job.calls(arch):
        compile_call(call)
"""


def files_in(folder: Path) -> set[Path]:
    """Return every file below a folder."""
    return {path for path in folder.rglob("*") if path.is_file()}


def test_another_process_finds_everything_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels, bias and activation included, are in Triton's cache; a second process adds no file."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    assert list(compile_in_parallel(JOBS, H200, 2)) == [1, 2, 3]
    before = files_in(tmp_path / "cache")
    assert sum(path.suffix == ".cubin" for path in before) == 4, "one kernel each, two for split-k"
    subprocess.run([sys.executable, "-c", AGAIN, str(Path(__file__).parent)], check=True, timeout=120)
    assert files_in(tmp_path / "cache") == before


def test_failures_are_left_to_the_caller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that cannot be compiled, and a process that dies, end one job, not the rest."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    impossible = dataclasses.replace(JOBS[1], activation="no such")
    monkeypatch.setattr(CompileJob, "to_json", lambda self: "no json" if self is impossible else ORIGINAL(self))
    assert list(compile_in_parallel([impossible, JOBS[1]], H200, 1)) == [1, 2]
    assert any(path.suffix == ".cubin" for path in files_in(tmp_path / "cache"))


ORIGINAL = CompileJob.to_json


def test_a_process_that_dies_or_hangs_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its job counts as done, the next one starts in a fresh process."""
    count = tmp_path / "starts"
    program = f"open({str(count)!r}, 'a').write('x'); import sys, time; sys.stdin.readline(); sys.stdin.readline(); "
    start = subprocess.Popen
    for end in ("sys.exit(3)", "time.sleep(60)"):
        monkeypatch.setattr(
            compile_pool.subprocess,
            "Popen",
            lambda command, end=end, **options: start([sys.executable, "-c", program + end], **options),
        )
        monkeypatch.setattr(compile_pool, "COMPILE_LIMIT_S", 1.0)
        assert list(compile_in_parallel(JOBS[:2], H200, 1)) == [1, 2]
    assert count.read_text() == "xxxx"


def test_without_processes_nothing_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no process can be started, nothing is compiled ahead."""

    def refuse(*args: object, **options: object) -> None:
        raise OSError("no more processes")

    monkeypatch.setattr(compile_pool.subprocess, "Popen", refuse)
    assert list(compile_in_parallel(JOBS, H200, 2)) == []


def test_jobs_and_gpus_travel_as_text() -> None:
    """What is read is what was written, also of a GPU that is not in the list."""
    for job in JOBS:
        assert CompileJob.from_json(job.to_json()) == job
    unknown = dataclasses.replace(H200, name="some GPU", aliases=("a", "b"))
    assert arch_from_json(arch_to_json(unknown)) == unknown
    assert "\n" not in JOBS[0].to_json() + arch_to_json(unknown)


def test_the_worker_needs_no_torch() -> None:
    """Its start is the price of the first kernel that is not in the cache."""
    program = "import sys, wavetune.launch.compile_worker; print('torch' in sys.modules)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
