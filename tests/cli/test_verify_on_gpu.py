"""``wavetune verify --numerics --remeasure`` on a GPU, with the shipped model."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_shell import Runner

torch = pytest.importorskip("torch")

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]


def test_shipped_answers_are_right_and_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Errors are of rounding alone, every latency is known, and the summary counts what failed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WAVETUNE_CACHE_DIR", str(tmp_path / "cache"))
    Path("w.csv").write_text("m,n,k,count\n1,6144,4096,32\n77,4096,4096,3\n2048,6144,4096,1\n")
    result = Runner().run("verify", "w.csv", "--numerics", "--remeasure", "--json")
    problems, summary = result.json["problems"], result.json["summary"]
    assert summary["wrong"] == summary["unmeasured"] == summary["unanswered"] == 0
    assert all(1e-4 < problem["error"] < 8e-3 for problem in problems)
    assert all(min(problem[f"{name}_us"] for name in ("chosen", "default", "torch_mm")) > 1.0 for problem in problems)
    # Slow by several times would be a configuration of another problem.
    assert all(problem["chosen_us"] < 2.0 * problem["torch_mm_us"] for problem in problems)
    assert summary["slower"] == sum(problem["is_slower"] for problem in problems)
    assert result.code == (summary["slower"] > 0)
