"""``wavetune calibrate``: replays, dry runs, stores and interruptions. No GPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from wavetune.errors import RunnerError
from wavetune.measure.replay_runner import ReplayRunner
from wavetune.runtime.device import forget_devices
from wavetune.runtime.nvml import VisibleGpu
from wavetune.runtime.settings import reread

REPLAY = ("calibrate", "--arch", "h200", "--no-holdout")


def test_replay_writes_a_model(cli, points: Path, oracle: Path):
    """The whole pipeline from files; the sweep is told from the points."""
    result = cli(*REPLAY, "--replay", points, oracle, "--out", "out/m.json")
    assert result.code == 0, result.stderr
    assert f"{oracle}: 192 of 192 rows, 0 skipped (exhaustive sweep)" in result.stderr
    assert "(wave-structured points)" in result.stderr
    assert "32 exact problems" in result.stdout
    assert cli("choose", 512, 4096, 4096, "--model", "out/m.json", "--json").json["source"] == "exact"
    assert [path.name for path in Path("out").iterdir()] == ["m.json"]


def test_a_sweep_of_few_configurations_can_be_named(cli, points: Path, oracle: Path, tmp_path: Path):
    """Three configurations a shape look like points; --oracle says that they are a sweep, as it does for a fit."""
    few = tmp_path / "few.csv"
    header, *rows = oracle.read_text().splitlines()
    # Each shape has six rows: of every other one the first, the third and the fifth, of the rest the others.
    kept = [row for index, row in enumerate(rows) if (index + index // 6) % 2]
    few.write_text("\n".join([header, *kept]) + "\n")
    taken = cli(*REPLAY, "--replay", points, few, "--out", "points.json")
    assert f"{few}: 96 of 96 rows, 0 skipped (wave-structured points)" in taken.stderr
    assert "belongs to --oracle" in taken.stderr
    named = cli(*REPLAY, "--replay", points, "--oracle", few, "--out", "sweep.json")
    assert f"{few}: 96 of 96 rows, 0 skipped (exhaustive sweep)" in named.stderr
    assert cli(*REPLAY, "--oracle", few, "--out", "alone.json").code == 0
    fit = ("fit", "--arch", "h200", "--no-holdout", "--measurements", points, "--oracle", few)
    assert cli(*fit, "--out", "f.json").code == 0
    read = [json.loads(Path(name).read_text()) for name in ("sweep.json", "f.json")]
    assert read[0]["forms"] == read[1]["forms"]
    assert read[0]["exact"] == read[1]["exact"]


def test_default_output_is_where_the_runtime_looks(cli, points: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Without --out, the model lands in the first folder of WAVETUNE_MODELS, or in a folder of its own."""
    monkeypatch.setenv("WAVETUNE_MODELS", str(tmp_path / "mine"))
    reread()
    assert cli(*REPLAY, "--replay", points).code == 0
    assert (tmp_path / "mine" / "nvidia-h200" / "gemm-bf16.json").is_file()
    monkeypatch.delenv("WAVETUNE_MODELS")
    reread()
    assert cli(*REPLAY, "--replay", points).code == 0
    assert Path("wavetune-models/nvidia-h200/gemm-bf16.json").is_file()


def test_store_is_resumed(cli, points: Path):
    """Points in the store are not measured again, and give the same model."""
    arguments = (*REPLAY, "--replay", points, "--store", "s.sqlite", "--json")
    first = cli(*arguments, "--out", "a.json").json
    second = cli(*arguments, "--out", "b.json").json
    assert (first["resumed_points"], second["resumed_points"]) == (0, 240)
    assert second["points"] == {"replay": 240}
    assert Path("a.json").read_bytes() == Path("b.json").read_bytes()


def test_store_of_another_recording_is_refused(cli, points: Path, oracle: Path):
    """The fingerprint's field that differs is named."""
    assert cli(*REPLAY, "--replay", points, "--store", "s.sqlite", "--out", "a.json").code == 0
    result = cli(*REPLAY, "--replay", oracle, "--store", "s.sqlite", "--out", "b.json")
    assert result.code == 3
    assert "recording_sha256" in result.stderr
    assert not Path("b.json").exists()


def test_interruption_keeps_everything(cli, points: Path, monkeypatch: pytest.MonkeyPatch):
    """Ctrl-C exits with 130, says how to go on, and the next run goes on."""
    measure = ReplayRunner.measure

    def interrupted(self, todo, progress):
        for done, entry in enumerate(measure(self, todo, progress)):
            if done == 100:
                raise KeyboardInterrupt
            yield entry

    monkeypatch.setattr(ReplayRunner, "measure", interrupted)
    arguments = (*REPLAY, "--replay", points, "--store", "s.sqlite", "--out", "m.json")
    result = cli(*arguments)
    assert (result.code, result.stdout) == (130, "")
    assert "s.sqlite" in result.stderr
    assert "go on with: wavetune" in result.stderr
    assert not Path("m.json").exists()
    monkeypatch.setattr(ReplayRunner, "measure", measure)
    assert cli(*arguments, "--json").json["resumed_points"] == 100


def test_evidence_gives_the_model_again(cli, points: Path, oracle: Path):
    """What --evidence writes can be fitted again."""
    assert cli(*REPLAY, "--replay", points, oracle, "--out", "m.json", "--evidence", "kept").code == 0
    names = sorted(path.name for path in Path("kept").iterdir())
    assert names == ["gemm-bf16-anchors.csv.gz", "gemm-bf16-calibration.json", "gemm-bf16-layers.csv.gz"]


def test_dry_run_of_a_replay(cli, points: Path):
    """Nothing is fitted or written."""
    plan = cli(*REPLAY, "--replay", points, "--dry-run", "--json").json
    assert plan == {"configs": 6, "points": 240, "seconds": 0.0}
    assert list(Path().iterdir()) == []


def test_dry_run_of_a_gpu_needs_none(cli):
    """A plan is made without the GPU; a smaller budget gives a smaller plan."""
    plan = cli("calibrate", "--arch", "h200", "--dry-run", "--json").json
    small = cli("calibrate", "--arch", "h200", "--dry-run", "--budget", 5, "--json").json
    assert plan["configs"] >= 300
    assert plan["sparse"]["points"] > small["sparse"]["points"] > 0
    assert small["max_seconds"] == 5
    assert "configs" in cli("calibrate", "--arch", "h200", "--dry-run").stdout


def test_no_gpu_names_the_replay(cli, monkeypatch: pytest.MonkeyPatch):
    """Without a GPU the way out is named."""

    def no_gpu(gpu: int) -> str:
        raise RunnerError("no NVIDIA driver answers")

    monkeypatch.setattr("wavetune.measure.environment.device_name", no_gpu)
    result = cli("calibrate", "--arch", "h200", "--out", "m.json")
    assert result.code == 3
    assert "--replay" in result.stderr
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize(
    "command", [("calibrate",), ("calibrate", "--kernel", "attention"), ("measure", "--shapes", "s")]
)
def test_no_gpu_is_said_before_its_name_is_asked_for(cli, command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch):
    """To name one would not help; where one is there, its name is known."""

    def no_gpu(gpu: int) -> str:
        raise RunnerError("no NVIDIA driver answers")

    monkeypatch.setattr("wavetune.runtime.nvml.describe_visible", no_gpu)
    result = cli(*command, "--out", "m.json")
    assert result.code == 3
    assert "no NVIDIA driver answers" in result.stderr
    assert "pass" not in result.stderr


def test_the_gpu_that_is_there_needs_no_name(cli, monkeypatch: pytest.MonkeyPatch):
    """A plan without --arch is one for this machine's GPU."""
    monkeypatch.setattr("wavetune.runtime.nvml.describe_visible", lambda gpu: VisibleGpu("NVIDIA H200", None))
    forget_devices()
    try:
        assert "on nvidia-h200" in cli("calibrate", "--dry-run").stdout
    finally:
        forget_devices()


@pytest.mark.parametrize(
    ("arguments", "known"),
    [
        (("--arch", "h200", "--dtype", "int8"), "bf16, fp16, fp32, fp8"),
        (("--arch", "a100", "--dtype", "fp8"), "bf16, fp16, fp32"),
        (("--arch", "h200", "--layout", "kn", "--dtype", "fp8"), "bf16, fp16, fp32\n"),
        (("--arch", "h200", "--kernel", "attention", "--dtype", "fp8"), "bf16, fp16"),
        (("--arch", "h200", "--kernel", "grouped_gemm", "--dtype", "int8"), "bf16, fp16"),
    ],
)
def test_what_no_kernel_computes_has_no_plan(cli, arguments: tuple[str, ...], known: str):
    """A plan of no configurations would be a mistake that shows after two minutes."""
    result = cli("calibrate", *arguments, "--dry-run")
    assert (result.code, result.stdout) == (3, "")
    assert f"kernel computes {arguments[-1]} " in result.stderr
    assert known in result.stderr


def test_a_replay_is_of_gemm(cli, points: Path):
    """Help says so, and the error names the command that takes the files of other families."""
    assert "gemm: take measurements" in " ".join(cli("calibrate", "--help").stdout.replace("│", " ").split())
    result = cli("calibrate", "--arch", "h200", "--kernel", "attention", "--replay", points)
    assert result.code == 2
    assert "wavetune fit --kernel attention" in " ".join(result.stderr.replace("│", " ").split())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("m,n\n1,2\n", "no column 'k'"),
        ("m,n,k\n1,2\n", "integers"),
        ("m,n,k\n1,2,-3\n", ":2: k must not be negative"),
        ("m,n,k\n0,2,3\n", "zero"),
        ("m,n,k\n", "no shapes"),
        ("", "the file is empty"),
    ],
)
def test_bad_workloads(cli, content: str, message: str):
    """A workload's mistakes are named with file and line."""
    Path("shapes.csv").write_text(content)
    result = cli("calibrate", "--arch", "h200", "--workload", "shapes.csv", "--dry-run")
    assert result.code == 3
    assert "shapes.csv" in result.stderr
    assert message in result.stderr


def test_workload_and_replay_exclude_each_other(cli, points: Path):
    """A recording cannot be directed."""
    assert cli(*REPLAY, "--replay", points, "--budget", 5).code == 2
