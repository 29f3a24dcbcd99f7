"""Runs the folders of interpreter tests in processes where Triton interprets.

Triton decides at import whether kernels are interpreted, so one process cannot do both.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
# What is served by default is tested by default, in one process; the other families take minutes.
BY_DEFAULT = ("kernels/interpreted_gemm", "launch/interpreted_matmul")
FOLDERS = sorted(str(folder.relative_to(TESTS)) for folder in TESTS.glob("*/interpreted_*"))
OTHERS = [(name,) for name in FOLDERS if name not in BY_DEFAULT]


def test_the_folders_are_there() -> None:
    """No folder is forgotten, and none is empty."""
    assert set(BY_DEFAULT) < set(FOLDERS)
    assert all(list((TESTS / folder).glob("test_*.py")) for folder in FOLDERS)


@pytest.mark.parametrize(
    "folders", [BY_DEFAULT, *(pytest.param(names, marks=pytest.mark.slow) for names in OTHERS)], ids=" ".join
)
def test_in_the_interpreter(folders: tuple[str, ...]) -> None:
    """All tests of the folders pass with TRITON_INTERPRET=1."""
    pytest.importorskip("torch")
    command = [sys.executable, "-m", "pytest", *(str(TESTS / folder) for folder in folders), "-p", "no:cacheprovider"]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": "", "WAVETUNE_ARCH": "nvidia-h200"}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280)
    assert result.returncode == 0, result.stdout[-6000:] + result.stderr[-2000:]
    assert " passed" in result.stdout
