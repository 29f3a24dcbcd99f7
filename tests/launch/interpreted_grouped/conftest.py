"""These tests run in the process that `tests/interpreter/test_interpreted.py` starts, in the interpreter."""

import os
from collections.abc import Iterator

import pytest

if os.environ.get("TRITON_INTERPRET") != "1":
    # Triton decides at import whether kernels are interpreted, so one process cannot do both.
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[object]]:
    """Return a list that receives (problem, configuration) of every launch."""
    from wavetune.launch import grouped_plan

    seen: list[object] = []
    launch = grouped_plan.launch_operands

    def record(operands: object, config: object, arch: object) -> None:
        seen.append((operands.problem, config))
        launch(operands, config, arch)

    monkeypatch.setattr(grouped_plan, "launch_operands", record)
    grouped_plan.clear_grouped_plans()
    yield seen
    grouped_plan.clear_grouped_plans()
