"""``wavetune freeze``."""

from __future__ import annotations

import csv
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


def test_predictions_stay_predictions(cli, workload: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """What was frozen from a prediction is nowhere called measured; what was measured is."""
    out = tmp_path / "pinned.json"
    assert cli("freeze", "--workload", workload, "--out", out, "--arch", "h200").code == 0
    monkeypatch.setenv("WAVETUNE_PINNED", str(out))
    for dims, word in ((SHAPES[1], "measured"), (SHAPES[2], "predicted")):
        wavetune.clear_caches()
        assert f"us {word}" in cli("choose", *dims, "--arch", "h200", "--explain").stdout
        assert f"us {word}" in cli("explain", *dims, "--arch", "h200").stdout
    assert "this problem is pinned" in cli("choose", *SHAPES[2], "--arch", "h200", "--explain").stdout
    shapes = tmp_path / "shapes.csv"
    shapes.write_text("m,n,k\n" + "".join(f"{m},{n},{k}\n" for m, n, k in SHAPES[1:3]))
    result = cli("export", shapes, "--format", "quicktune-csv", "--out", tmp_path / "q.csv", "--arch", "h200")
    assert result.code == 0, result.stderr
    rows = csv.DictReader((tmp_path / "q.csv").read_text().splitlines())
    assert [row["latency_source"] for row in rows] == ["measured", "predicted"]


def test_kinds_without_a_model_are_left_out(cli, tmp_path: Path):
    """A log holds a few fp32 products; they are counted, and the others are pinned."""
    workload, out = tmp_path / "log.json", tmp_path / "pinned.json"
    problems = [{"m": m, "n": 64, "k": 64, "dtype": "fp32"} for m in (1, 2)] + [{"m": 3, "n": 4096, "k": 4096}]
    workload.write_text(json.dumps({"schema_version": 1, "problems": problems}))
    result = cli("freeze", "--workload", workload, "--out", out, "--arch", "h200")
    assert result.code == 0, result.stderr
    assert "no tables of nvidia-h200 for fp32 nk: 2 entries are left out" in result.stderr
    assert [problem.dims for problem in read_pinned(out).entries] == [(3, 4096, 4096)]
    answer = cli("freeze", "--workload", workload, "--out", out, "--arch", "h200", "--json").json
    assert (answer["problems"], answer["left_out"]) == (1, 2)
    result = cli("freeze", "--workload", workload, "--out", out, "--arch", "a100")
    assert (result.code, "no model nvidia-a100/gemm-fp32.json" in result.stderr) == (4, True)


def test_what_settings_pin_is_said(cli, workload: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Defaults and a forced configuration are pinned knowingly; what no kernel can be compiled for is not pinned."""
    freeze = ("freeze", "--workload", workload, "--out", tmp_path / "pinned.json", "--arch", "h200")
    monkeypatch.setenv("WAVETUNE_DISABLE", "1")
    assert "WAVETUNE_DISABLE is on" in cli(*freeze).stderr
    monkeypatch.delenv("WAVETUNE_DISABLE")
    fields = {
        "block_m": 256, "block_n": 256, "block_k": 16, "group_m": 8, "num_warps": 8, "num_stages": 2, "load": "tma",
    }  # fmt: skip
    for block_m, is_pinned in ((256, True), (100, False)):
        wavetune.clear_caches()
        words = ",".join(f"{name}={value}" for name, value in {**fields, "block_m": block_m}.items())
        monkeypatch.setenv("WAVETUNE_FORCE_CONFIG", words)
        assert "WAVETUNE_FORCE_CONFIG is set" in cli(*freeze).stderr
        found = {config["block_m"] for config, _ in read_pinned(tmp_path / "pinned.json").entries.values()}
        assert (found == {256}) == is_pinned
    monkeypatch.setenv("WAVETUNE_FORCE_CONFIG", words.replace("block_m=100", "block_m=256"))
    wavetune.clear_caches()
    text = cli("choose", *SHAPES[1], "--arch", "h200", "--explain").stdout
    assert "nan" not in text
    assert "unknown" in text


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
