"""The examples run, in Triton's interpreter, and say that they are right."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.mark.parametrize("name", ["row_softmax", "gemm_row_norm"])
def test_examples_agree_with_torch(name: str, tmp_path: Path) -> None:
    """Each asserts its own results; what it prints names error, source and configuration."""
    pytest.importorskip("torch")
    path = EXAMPLES / f"{name}.py"
    if not path.exists():
        pytest.skip("examples are in the checkout, not in the wheel")
    environment = {**os.environ, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": "", "XDG_CACHE_HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, str(path)], env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "default: " in done.stdout
    assert "num_warps" in done.stdout


def test_examples_cover_two_kinds_of_kernels() -> None:
    """A reduction and a fused product; every script is run above."""
    if not EXAMPLES.is_dir():
        pytest.skip("examples are in the checkout, not in the wheel")
    assert {path.stem for path in EXAMPLES.glob("*.py")} == {"row_softmax", "gemm_row_norm"}
