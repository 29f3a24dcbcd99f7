"""These tests run in the process that `tests/interpreter/test_interpreted.py` starts, in the interpreter."""

import os

import pytest

if os.environ.get("TRITON_INTERPRET") != "1":
    # Triton decides at import whether kernels are interpreted, so one process cannot do both.
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Return a list that receives (problem, configuration) of every launch."""
    from wavetune.launch import grouped_launcher
    from wavetune.launch.choices import Choices

    seen: list[object] = []
    launch = grouped_launcher.launch_operands

    def record(operands: object, config: object, arch: object) -> None:
        seen.append((operands.problem, config))
        launch(operands, config, arch)

    monkeypatch.setattr(grouped_launcher, "launch_operands", record)
    monkeypatch.setattr(grouped_launcher, "_choices", Choices())
    return seen
