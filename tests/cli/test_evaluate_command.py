"""``wavetune evaluate``."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_up_gpu import write_rows

KEYS = {
    "shapes", "efficiency", "regret", "top3_efficiency", "top8_efficiency", "mape_chosen", "mape_near_best",
    "unmeasured", "sources", "worst", "warnings",
}  # fmt: skip


@pytest.fixture
def unseen(tmp_path: Path) -> Path:
    """Return a sweep over layers that the model has not seen."""
    return write_rows(tmp_path / "unseen.csv", [(m, n, 2560) for m in (5, 100, 900) for n in (2304, 5376)])


def test_json_keys(cli, model: Path, unseen: Path):
    """The report has the documented keys, and judges every shape."""
    result = cli("evaluate", "--model", model, "--oracle", unseen, "--json")
    assert result.json.keys() >= KEYS
    assert result.json["shapes"] == 6
    assert result.json["efficiency"].keys() == {"geomean", "p5", "min"}
    assert result.json["regret"].keys() == {"mean", "p95", "max"}
    assert 0.9 < result.json["efficiency"]["geomean"] <= 1.0
    assert result.json["sources"] == {"nearest": 6}
    assert result.json["warnings"] == []
    assert result.stderr == ""
    assert {"choice", "best", "predicted_us", "measured_us"} <= result.json["worst"][0].keys()


def test_text_shows_the_worst_shapes(cli, model: Path, unseen: Path):
    """People get the distribution and the worst shapes."""
    text = cli("evaluate", "--model", model, "--oracle", unseen).stdout
    for word in ("geomean", "5th percentile", "worst shapes", "best of top 3"):
        assert word in text


def test_training_data_is_warned_of(cli, model: Path, oracle: Path):
    """Accuracy on the training data is no accuracy."""
    result = cli("evaluate", "--model", model, "--oracle", oracle, "--json")
    assert result.code == 0
    assert "warning" in result.stderr
    assert len(result.json["warnings"]) == 1
    assert "training data" in result.json["warnings"][0]


def test_exact_answers_only_if_asked(cli, model: Path, oracle: Path):
    """Exact answers would be no test of the model."""
    arguments = ("evaluate", "--model", model, "--oracle", oracle, "--json")
    assert cli(*arguments).json["sources"] == {"nearest": 32}
    with_exact = cli(*arguments, "--with-exact").json
    assert with_exact["sources"] == {"exact": 32}
    assert with_exact["efficiency"]["min"] > 0.99


def test_unmeasured_choices_are_counted(cli, model: Path, unseen: Path, tmp_path: Path):
    """A sweep without the chosen configurations yields null, not NaN, and counts them."""
    lines = unseen.read_text().splitlines()
    chosen = cli("evaluate", "--model", model, "--oracle", unseen, "--json").json["worst"]
    tiles = {tuple(row["choice"][name] for name in ("block_m", "block_n", "block_k")) for row in chosen}
    rest = [line for line in lines[1:] if tuple(map(int, line.split(",")[3:6])) not in tiles]
    path = tmp_path / "rest.csv"
    path.write_text("\n".join([lines[0], *rest]) + "\n")
    report = cli("evaluate", "--model", model, "--oracle", path, "--json").json
    assert report["unmeasured"] == report["shapes"] == 6
    assert report["efficiency"]["geomean"] is None
    assert cli("evaluate", "--model", model, "--oracle", path).code == 0


@pytest.mark.parametrize("cut", [0, 1, 100, -2])
def test_damaged_models_are_refused(cli, model: Path, unseen: Path, tmp_path: Path, cut: int):
    """A model that was cut anywhere is bad input."""
    damaged = tmp_path / "cut.json"
    damaged.write_bytes(model.read_bytes()[:cut])
    result = cli("evaluate", "--model", damaged, "--oracle", unseen)
    assert (result.code, result.stdout) == (3, "")
    assert str(damaged) in result.stderr


def test_usage(cli, model: Path):
    """What is missing is named."""
    result = cli("evaluate", "--model", model)
    assert result.code == 2
    assert "--oracle" in result.stderr
