"""These tests run in Triton's interpreter, in a process that `tests/interpreter/test_interpreted.py` starts."""

import os
from collections.abc import Iterator

import pytest

if os.environ.get("TRITON_INTERPRET") != "1":
    # Triton decides at import whether kernels are interpreted, so one process cannot do both.
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[object]]:
    """Return a list that receives (operands, configuration) of every launch."""
    from wavetune.launch import attention_plan

    seen: list[object] = []
    launch = attention_plan._launch

    def record(gpu: object, operands: object, config: object, *rest: object) -> None:
        seen.append((operands, config))
        launch(gpu, operands, config, *rest)

    monkeypatch.setattr(attention_plan, "_launch", record)
    attention_plan.clear_attention_plans()
    yield seen
    attention_plan.clear_attention_plans()
