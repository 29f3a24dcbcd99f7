"""The fingerprint without a GPU, and the timing lock."""

import subprocess
import sys
from pathlib import Path

import pytest

from wavetune.errors import RunnerError
from wavetune.measure.environment import device_name, timing_lock

HOLDER = """
import sys
from wavetune.measure.environment import timing_lock
with timing_lock(3):
    print("held", flush=True)
    sys.stdin.readline()
"""


def has_driver() -> bool:
    """Whether NVML answers."""
    try:
        device_name()
    except RunnerError:
        return False
    return True


@pytest.mark.skipif(has_driver(), reason="there is an NVIDIA driver")
def test_without_a_driver_the_error_says_so() -> None:
    """The message names what is missing and the way out."""
    with pytest.raises(RunnerError, match=r"no NVIDIA driver.*replay"):
        device_name()


def test_one_timing_job_per_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second job is refused and told who holds the GPU; a killed holder lets go; other GPUs are free."""
    monkeypatch.setenv("WAVETUNE_LOCK_DIR", str(tmp_path))
    holder = subprocess.Popen([sys.executable, "-c", HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(RunnerError, match=f"GPU 3 is already being timed by process {holder.pid}"), timing_lock(3):
            pass
        with timing_lock(4):
            pass
    finally:
        holder.kill()
        holder.wait()
    with timing_lock(3):
        pass


def test_a_lock_folder_that_does_not_exist_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The way out is named too."""
    monkeypatch.setenv("WAVETUNE_LOCK_DIR", "/nowhere/at/all")
    with pytest.raises(RunnerError, match="WAVETUNE_LOCK_DIR"), timing_lock(0):
        pass
