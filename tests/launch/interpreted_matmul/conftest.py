"""These tests run in Triton's interpreter, in a process that `tests/interpreter/test_interpreted.py` starts."""

import os
from collections.abc import Iterator

import pytest

if os.environ.get("TRITON_INTERPRET") != "1":
    # Triton decides at import whether kernels are interpreted, so one process cannot do both.
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[object]]:
    """Return a list that receives (problem, configuration) of every first launch."""
    from wavetune.launch import gemm_launcher, product_launchers

    seen: list[object] = []
    launch_first = gemm_launcher.launch_first

    def record(gpu: object, source: object, operands: object, config: object, stream: int) -> object:
        seen.append((operands.problem, config))
        return launch_first(gpu, source, operands, config, stream)

    monkeypatch.setattr(gemm_launcher, "launch_first", record)
    product_launchers.clear_launchers()
    yield seen
    product_launchers.clear_launchers()
