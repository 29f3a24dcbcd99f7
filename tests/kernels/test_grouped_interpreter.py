"""Starts the interpreter tests of grouped GEMM in a process where Triton interprets."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent / "interpreted_grouped"


def test_grouped_gemm_in_the_interpreter() -> None:
    """All tests below `interpreted_grouped` pass with TRITON_INTERPRET=1."""
    pytest.importorskip("torch")
    command = [sys.executable, "-m", "pytest", str(FOLDER), "-p", "no:cacheprovider"]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280)
    assert result.returncode == 0, result.stdout[-6000:] + result.stderr[-2000:]
    assert " passed" in result.stdout
