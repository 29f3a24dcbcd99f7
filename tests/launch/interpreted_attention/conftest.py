"""These tests run in Triton's interpreter, in a process that `tests/interpreter/test_interpreted.py` starts."""

import os

import pytest

if os.environ.get("TRITON_INTERPRET") != "1":
    # Triton decides at import whether kernels are interpreted, so one process cannot do both.
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Return a list that receives (operands, configuration) of every launch."""
    from wavetune.kernels.launch_cache import LaunchCache
    from wavetune.launch import attention_launcher
    from wavetune.launch.choices import Choices

    seen: list[object] = []
    launch = attention_launcher._launch

    def record(gpu: object, operands: object, config: object, *rest: object) -> None:
        seen.append((operands, config))
        launch(gpu, operands, config, *rest)

    monkeypatch.setattr(attention_launcher, "_launch", record)
    monkeypatch.setattr(attention_launcher, "_launches", LaunchCache())
    monkeypatch.setattr(attention_launcher, "_choices", Choices())
    return seen
