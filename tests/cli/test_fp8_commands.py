"""The commands on fp8: calibrate, choose, measure. No GPU."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest
from made_up_gpu import HEADER

from wavetune import choose_config, clear_caches
from wavetune.core.arch import find_arch
from wavetune.core.config import GEMM
from wavetune.core.problem import GemmProblem
from wavetune.errors import ModelFileError
from wavetune.measure.replay_runner import ReplayRunner
from wavetune.runtime.codec import decode_model, read_model
from wavetune.store.csv_io import read_measurements


def test_calibrate_and_choose(cli, points: Path, oracle: Path, monkeypatch: pytest.MonkeyPatch):
    """An alias names the dtype; the model's file has the short name; the runtime finds it under either."""
    arguments = ("calibrate", "--arch", "h200", "--dtype", "fp8_e4m3", "--no-holdout", "--replay", points, oracle)
    assert cli(*arguments, "--out", "mine/nvidia-h200/gemm-fp8.json").code == 0
    monkeypatch.setenv("WAVETUNE_MODELS", str(Path("mine").absolute()))
    clear_caches()
    answer = cli("choose", 512, 4096, 4096, "--arch", "h200", "--dtype", "fp8_e4m3", "--json").json
    assert answer["source"] == "exact"
    config = choose_config(512, 4096, 4096, arch="h200", dtype="torch.float8_e4m3fn")
    assert dict(config) == answer["config"]
    clear_caches()


def test_formats_have_models_of_their_own(cli, points: Path, monkeypatch: pytest.MonkeyPatch):
    """Without --out, each lands in its file; with scales in blocks, a trip that is no block is never legal."""
    monkeypatch.setenv("WAVETUNE_MODELS", str(Path("mine").absolute()))
    header, *rows = points.read_text().splitlines()
    in_blocks = [row for row in rows if row.split(",")[HEADER.index("block_k")] == "128"]
    Path("blocks.csv").write_text("\n".join([header, *in_blocks]))
    for dtype, recorded in (("fp8_fast", points), ("fp8_block128", "blocks.csv")):
        result = cli("calibrate", "--arch", "h200", "--dtype", dtype, "--no-holdout", "--replay", recorded)
        assert result.code == 0, result.stderr
    models = Path("mine/nvidia-h200")
    clear_caches()
    assert choose_config(3000, 4096, 4096, arch="h200", dtype="fp8_block128")["block_k"] == 128
    clear_caches()
    fast = read_model(models / "gemm-fp8_fast.json")
    assert fast.dtype == "fp8_fast"
    assert 64 in {form.config["block_k"] for form in fast.forms}
    text = (models / "gemm-fp8_fast.json").read_text().replace('"fp8_fast"', '"fp8_block128"')
    blank = re.sub("sha256:[0-9a-f]{64}", "sha256:" + "0" * 64, text, count=1).encode()
    data = blank.replace(b"0" * 64, hashlib.sha256(blank).hexdigest().encode(), 1)
    with pytest.raises(ModelFileError, match="never legal: a loop trip of fp8_block128 is one block of 128"):
        decode_model(data, "m.json")


def test_measure(cli, oracle: Path, monkeypatch: pytest.MonkeyPatch):
    """The problems that are timed are of fp8."""
    table = read_measurements(oracle, GEMM, "fp8", find_arch("h200"), exhaustive=True).table
    runner = ReplayRunner(table, find_arch("h200"))
    seen = []
    measure = runner.measure

    def record(points, *rest, **options):
        seen.extend(point.problem for point in points)
        return measure(points, *rest, **options)

    monkeypatch.setattr(runner, "measure", record)
    monkeypatch.setattr("wavetune.measure.triton_runner.TritonRunner", lambda *arguments: runner)
    monkeypatch.setattr("wavetune.cli.measure.candidate_configs", lambda key: [entry.config for entry in table.configs])
    Path("shapes.csv").write_text("m,n,k\n512,4096,4096\n")
    arguments = ("measure", "--shapes", "shapes.csv", "--all-configs", "--arch", "h200", "--dtype", "fp8_e4m3")
    result = cli(*arguments, "--out", "o.csv.gz", "--json")
    assert result.code == 0, result.stderr
    assert set(seen) == {GemmProblem(512, 4096, 4096, dtype="fp8")}
