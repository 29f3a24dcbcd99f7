"""``wavetune evaluate``."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_up_gpu import write_rows

from wavetune.core.shorthand import describe_config

KEYS = {
    "shapes", "efficiency", "regret", "top3_efficiency", "top8_efficiency", "mape_chosen", "mape_near_best",
    "unmeasured", "sources", "worst", "warnings", "judged", "top3_judged", "top8_judged", "is_exhaustive", "arch",
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
    assert "nvidia-h200, the model's; measurement files name none" in " ".join(text.split())


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
    """A sweep without some of the chosen configurations counts them; without all of them it judges nothing."""
    lines = unseen.read_text().splitlines()
    chosen = cli("evaluate", "--model", model, "--oracle", unseen, "--json").json["worst"]
    tiles = {
        tuple(row[name] for name in "mnk"): tuple(row["choice"][f"block_{name}"] for name in "mnk") for row in chosen
    }
    cells = [(line, tuple(map(int, line.split(",")[:6]))) for line in lines[1:]]
    path = tmp_path / "rest.csv"
    spared = next(iter(tiles))
    rest = [line for line, sizes in cells if sizes[:3] == spared or sizes[3:] != tiles[sizes[:3]]]
    path.write_text("\n".join([lines[0], *rest]) + "\n")
    report = cli("evaluate", "--model", model, "--oracle", path, "--json").json
    assert (report["unmeasured"], report["judged"], report["shapes"]) == (5, 1, 6)
    assert report["top3_judged"] == 1
    assert "5 of 6 choices were not measured" in report["warnings"][0]
    result = cli("evaluate", "--model", model, "--oracle", path)
    assert "warning: 5 of 6 choices were not measured" in result.stderr
    assert result.stdout.count("(on 1 of 6 shapes)") == 4
    rest = [line for line, sizes in cells if sizes[3:] != tiles[sizes[:3]]]
    path.write_text("\n".join([lines[0], *rest]) + "\n")
    result = cli("evaluate", "--model", model, "--oracle", path)
    assert (result.code, result.stdout) == (3, "")
    assert "no measurement of anything that the model chooses" in result.stderr
    result = cli("report", "--out", "r", "--model", model, "--oracle", path)
    assert result.code == 3
    assert "no measurement of anything that the model chooses" in result.stderr
    assert not Path("r").exists()


def test_a_sweep_of_the_models_own_picks_is_no_yardstick(cli, model: Path, unseen: Path, tmp_path: Path):
    """What the best of three picks is worth is a bound, and said to be one; so is how many top picks were measured."""
    held = tmp_path / "top.csv"
    header, *rows = unseen.read_text().splitlines()
    names = header.split(",")
    sizes = sorted({tuple(row.split(",")[:3]) for row in rows})
    kept = [header]
    for m, n, k in sizes:
        choice = cli("choose", m, n, k, "--model", model, "--json").json["config"]
        kept += [row for row in rows if row.split(",")[:3] == [m, n, k]
                 and all(cell == str(choice[name]) for name, cell in zip(names, row.split(","), strict=True)
                         if name in choice)]  # fmt: skip
    held.write_text("\n".join(kept) + "\n")
    result = cli("evaluate", "--model", model, "--oracle", held)
    assert "1 or fewer of 4 configurations" in result.stderr
    assert "at most: geomean 1.0000" in result.stdout
    assert "best of top 3 not measured" in result.stdout
    document = cli("evaluate", "--model", model, "--oracle", held, "--json").json
    assert document["is_exhaustive"] is False
    assert document["top3_efficiency"] is None
    assert "losses are larger than they look" in document["warnings"][0]


def test_a_line_holds_one_configuration(cli, model: Path, unseen: Path, monkeypatch: pytest.MonkeyPatch):
    """On a terminal of 80 columns the choice and the best are whole, one below the other."""
    monkeypatch.setenv("COLUMNS", "80")
    text = cli("evaluate", "--model", model, "--oracle", unseen).stdout
    worst = cli("evaluate", "--model", model, "--oracle", unseen, "--json").json["worst"]
    for row in worst:
        assert describe_config(row["choice"]) in text
        assert describe_config(row["best"]) in text


def test_a_sweep_that_says_what_it_is_of_is_believed(cli, model: Path, unseen: Path, tmp_path: Path):
    """A bf16 model is not judged on a sweep of fp16."""
    header, *rows = unseen.read_text().splitlines()
    path = tmp_path / "other.csv"
    path.write_text("\n".join([f"{header},dtype", *(f"{row},fp16" for row in rows)]) + "\n")
    result = cli("evaluate", "--model", model, "--oracle", path)
    assert (result.code, result.stdout) == (3, "")
    assert "other.csv:2: dtype is fp16, asked for was bf16" in result.stderr


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
