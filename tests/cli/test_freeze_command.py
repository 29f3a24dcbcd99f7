"""``wavetune freeze``."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import wavetune
from wavetune.runtime.pinned import read_pinned

SHAPES = [(1, 4096, 4096), (512, 4096, 4096), (500, 4096, 4096), (2**22, 64, 2**20)]


@pytest.fixture
def workload(tmp_path: Path) -> Path:
    """Return a workload of four GEMMs, one of them twice, and a batched one."""
    problems = [{"m": m, "n": n, "k": k, "count": 3} for m, n, k in SHAPES]
    problems.append({"m": 8, "n": 64, "k": 64, "batch": 4})
    path = tmp_path / "workload.json"
    path.write_text(json.dumps({"schema_version": 1, "problems": problems}))
    return path


def test_the_answers_of_a_workload_are_pinned(cli, workload: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """What is frozen is what was chosen, and what WAVETUNE_PINNED answers from then on, models or not."""
    before = {dims: wavetune.explain_choice(*dims, arch="h200") for dims in SHAPES}
    out = tmp_path / "pinned.json"
    result = cli("freeze", "--workload", workload, "--out", out, "--arch", "h200")
    assert result.code == 0
    assert "4 problems (4 bf16 nk)" in result.stdout
    assert f"WAVETUNE_PINNED={out}" in result.stderr
    assert "4 of 5 entries" in result.stderr
    entries = {problem.dims: config for problem, (config, _) in read_pinned(out).entries.items()}
    assert entries == {dims: choice.config for dims, choice in before.items()}
    monkeypatch.setenv("WAVETUNE_PINNED", str(out))
    monkeypatch.setenv("WAVETUNE_MODELS", str(tmp_path / "nowhere"))
    wavetune.clear_caches()
    for dims in SHAPES:
        answer = cli("choose", *dims, "--arch", "h200", "--json").json
        assert (answer["source"], answer["config"]) == ("exact", dict(before[dims].config))
        assert answer["table"] == str(out)


def test_json_says_what_was_written(cli, workload: Path, tmp_path: Path):
    """A script learns counts, device and fingerprint."""
    out = tmp_path / "pinned.json"
    answer = cli(
        "freeze", "--workload", workload, "--out", out, "--arch", "h200", "--numerics", "batch_invariant", "--json"
    ).json
    assert (answer["problems"], answer["left_out"], answer["kinds"]) == (4, 1, {"bf16 nk": 4})
    assert (answer["arch"], answer["num_sms"], answer["numerics"]) == ("nvidia-h200", 132, "batch_invariant")
    assert answer["fingerprint"] == wavetune.fingerprint("h200")
    assert all(config["split_k"] == 1 for config in read_pinned(out).configs)


def test_csv_is_a_workload_too(cli, tmp_path: Path):
    """Columns m, n, k are enough; the other options say the rest."""
    shapes, out = tmp_path / "shapes.csv", tmp_path / "pinned.json"
    shapes.write_text("m,n,k\n" + "".join(f"{m},{n},{k}\n" for m, n, k in SHAPES))
    assert cli("freeze", "--workload", shapes, "--out", out, "--arch", "h200", "--num-sms", 66).code == 0
    assert read_pinned(out).num_sms == 66
    assert len(read_pinned(out).entries) == 4


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (("--arch", "h2000"), 3, "h2000"),
        (("--arch", "b200"), 4, "nvidia-b200/gemm-bf16.json"),
        (("--arch", "h200", "--on-miss", "error"), 3, "on_miss"),
        (("--arch", "h200", "--on-miss", "measure"), 2, "--on-miss"),
        (("--arch", "h200", "--numerics", "most"), 3, "most"),
        (("--arch", "h200", "--workload", "none.json"), 3, "none.json"),
        (("--arch", "h200", "--out", "workload.json/pinned.json"), 3, "cannot write"),
    ],
)
def test_mistakes_write_nothing(cli, workload: Path, tmp_path: Path, options, code: int, message: str):
    """A message, a code, and no file."""
    result = cli("freeze", "--workload", workload, "--out", tmp_path / "pinned.json", *options)
    assert (result.code, result.stdout) == (code, "")
    assert message in result.stderr
    assert not (tmp_path / "pinned.json").exists()


def test_no_heavy_module_is_imported(workload: Path, models: Path, tmp_path: Path):
    """Freezing starts as fast as choosing."""
    script = (
        "import sys; from wavetune.cli.app import app;"
        f"app(['freeze', '--workload', {str(workload)!r}, '--out', {str(tmp_path / 'p.json')!r}, '--arch', 'h200'],"
        " standalone_mode=False);"
        "print([name for name in ('numpy', 'scipy', 'sklearn', 'torch', 'triton') if name in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, env={"WAVETUNE_MODELS": str(models)}
    )
    assert result.stdout.splitlines()[-1] == "[]"
