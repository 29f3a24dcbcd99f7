"""``wavetune report``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from made_up_gpu import write_rows

pytest.importorskip("plotly", reason="the extra `report` is not installed")
pytest.importorskip("jinja2", reason="the extra `report` is not installed")


@pytest.fixture
def unseen(tmp_path: Path) -> Path:
    """Return a sweep over layers that the model has not seen."""
    return write_rows(tmp_path / "unseen.csv", [(m, n, 2560) for m in (5, 100, 900) for n in (2304, 5376)])


def test_a_report_is_written(cli, model: Path, unseen: Path, tmp_path: Path):
    """A page, its JSON and its tables are written, and the terminal says the headline."""
    result = cli("report", "--model", model, "--oracle", unseen, "--out", tmp_path / "out")
    assert result.code == 0
    assert "Held out: none of the 6 shapes" in result.stdout
    assert "geomean" in result.stdout
    assert str(tmp_path / "out" / "report.html") in result.stdout
    document = json.loads((tmp_path / "out" / "report.json").read_text())
    assert document["headline"]["shapes"] == 6
    assert document["evidence"]["held_out"] is True
    assert len(list((tmp_path / "out" / "tables").glob("*.csv"))) > 8


def test_json_is_the_headline(cli, model: Path, unseen: Path, points: Path, tmp_path: Path):
    """With --json the facts are on stdout, and points that were named make a staircase."""
    arguments = (
        "report",
        "--model",
        model,
        "--oracle",
        unseen,
        "--points",
        points,
        "--out",
        tmp_path / "out",
        "--json",
    )
    result = cli(*arguments)
    assert 0.9 < result.json["headline"]["efficiency"]["geomean"] <= 1.0
    assert result.json["evidence"]["files"][0]["name"] == "unseen.csv"
    assert str(tmp_path / "out" / "tables" / "wave_points.csv") in result.json["written"]


def test_the_training_data_is_no_evidence(cli, model: Path, oracle: Path, tmp_path: Path):
    """A sweep that the model was fitted to is judged, with a warning on stderr and on the page."""
    result = cli("report", "--model", model, "--oracle", oracle, "--out", tmp_path / "out")
    assert result.code == 0
    assert "warning: All 32 shapes were part of the fit" in result.stderr
    assert "All 32 shapes were part of the fit" in (tmp_path / "out" / "report.html").read_text()


def test_the_exact_table_is_off(cli, model: Path, oracle: Path, tmp_path: Path):
    """Shapes of the exact table are answered as if they had never been measured."""
    result = cli("report", "--model", model, "--oracle", oracle, "--out", tmp_path / "out", "--json")
    assert result.json["headline"]["sources"] == {"nearest": 32}


def test_a_repeat_makes_the_noise(cli, model: Path, unseen: Path, tmp_path: Path):
    """A second measurement of the same shapes tells how much of the regret is noise; here there is none."""
    again = tmp_path / "again.csv"
    again.write_text(unseen.read_text() + "\n")
    arguments = ("report", "--model", model, "--oracle", unseen, "--repeat", again, "--out", tmp_path / "out", "--json")
    assert cli(*arguments).json["noise"] == {"shapes": 6, "mean": 0.0, "p95": 0.0}


def test_what_ships_needs_no_options(cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Without options the shipped bf16 model is judged on the hold-out sweep that ships with it, noise included."""
    monkeypatch.delenv("WAVETUNE_MODELS")
    result = cli("report", "--out", tmp_path / "out", "--json")
    assert result.code == 0
    assert result.json["model"]["arch"] == "nvidia-h200"
    assert result.json["evidence"]["held_out"] is True
    assert result.json["headline"]["shapes"] > 100
    assert result.json["headline"]["efficiency"]["geomean"] > 0.95
    assert result.json["noise"]["shapes"] > 100
    assert result.json["calibration"]["seconds"]


def test_a_missing_sweep_is_told(cli, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Where no hold-out sweep ships, the option that names one is named."""
    monkeypatch.delenv("WAVETUNE_MODELS")
    result = cli("report", "--dtype", "fp16", "--out", tmp_path / "out")
    assert (result.code, result.stdout) == (3, "")
    assert "--oracle" in result.stderr
    result = cli("report", "--arch", "b200", "--out", tmp_path / "out")
    assert result.code == 4
    assert "--model" in result.stderr
    assert not (tmp_path / "out").exists()


def test_a_sweep_of_another_dtype_is_refused(cli, unseen: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """An unknown dtype or a damaged sweep is bad input, and nothing is written."""
    damaged = tmp_path / "damaged.csv"
    damaged.write_text(unseen.read_text().replace("latency_us", "milliseconds"))
    for arguments in (("--dtype", "bf17"), ("--oracle", damaged)):
        result = cli("report", *arguments, "--out", tmp_path / "out")
        assert result.code == 3
        assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("contradiction", [("--arch", "a100"), ("--dtype", "fp16"), ("--layout", "kn")])
def test_what_contradicts_the_model_is_refused(cli, model: Path, tmp_path: Path, contradiction: tuple[str, str]):
    """The file says what it is for; an option that says something else is not passed over."""
    result = cli("report", "--model", model, *contradiction, "--out", tmp_path / "out")
    assert result.code == 4
    assert f"is a model for {contradiction[0].removeprefix('--')}" in result.stderr
    assert not (tmp_path / "out").exists()


def test_out_is_needed(cli):
    """What is missing is named."""
    result = cli("report")
    assert result.code == 2
    assert "--out" in result.stderr
