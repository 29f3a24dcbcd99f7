"""``wavetune fit``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest


def test_text_accounts_for_every_row(cli, points: Path, oracle: Path):
    """The summary names each file with its rows, and where the model went."""
    result = cli(
        "fit", "--measurements", points, "--oracle", oracle, "--arch", "h200", "--out", "m.json", "--no-holdout"
    )
    assert result.code == 0, result.stderr
    assert f"{oracle}: 192 of 192 rows" in result.stdout
    assert "wrote" in result.stdout
    assert "not estimated" in result.stdout
    assert Path("m.json").is_file()
    assert "fitting" in result.stderr
    assert "wavetune choose --model m.json`, or move it to nvidia-h200/gemm-bf16.json below" in result.stderr


def test_a_model_in_its_place_is_used_by_its_folder(cli, points: Path, tmp_path: Path):
    """The hint holds in every working folder."""
    out = Path("mine", "nvidia-h200", "gemm-bf16.json")
    result = cli("fit", "--measurements", points, "--arch", "h200", "--out", out, "--no-holdout")
    assert result.code == 0, result.stderr
    assert f"WAVETUNE_MODELS={tmp_path / 'mine'}\n" in result.stderr


def test_json_summary(cli, points: Path, oracle: Path):
    """Programs get the same account; stdout holds nothing else."""
    summary = cli(
        "fit", "--measurements", points, "--oracle", oracle, "--arch", "h200", "--out", "m.json", "--json"
    ).json  # fmt: skip
    assert [file["rows_read"] for file in summary["files"]] == [240, 192]
    for file in summary["files"]:
        assert file["rows_read"] == file["rows_kept"] + file["rows_merged"] + file["rows_skipped"]
    assert summary["rows"] == 432
    assert summary["exact_problems"] == 32
    assert summary["held_out"]["efficiency"]["geomean"] > 0.9


@pytest.mark.parametrize("command", [("fit", "--measurements"), ("calibrate", "--replay")])
def test_a_reading_too_fast_to_be_true_is_reported(cli, points: Path, oracle: Path, tmp_path: Path, command):
    """It is named with file, sizes, configuration and factor, and is not the exact answer."""
    bad = tmp_path / "bad.csv"
    header, *rows = oracle.read_text().splitlines()
    of_shape = [row for row in rows if row.startswith("2048,4096,4096,")]
    slowest, best = (choose(of_shape, key=lambda row: float(row.split(",")[-1])) for choose in (max, min))
    spoiled = f"{slowest.rsplit(',', 1)[0]},{0.9 * float(best.split(',')[-1]):.3f}"
    bad.write_text("\n".join([header, *(spoiled if row == slowest else row for row in rows)]) + "\n")
    arguments = (*command, points, "--oracle", bad, "--arch", "h200", "--no-holdout", "--out", "m.json")
    (found,) = cli(*arguments, "--json").json["too_fast"]
    assert found["file"] == str(bad)
    assert [found[name] for name in "mnk"] == [2048, 4096, 4096]
    assert [str(found["config"][f"block_{name}"]) for name in "mnk"] == slowest.split(",")[3:6]
    assert found["factor"] > 1.5
    assert "1 readings kept out of the exact answers" in cli(*arguments).stdout
    answer = cli("choose", 2048, 4096, 4096, "--model", "m.json", "--json").json
    assert answer["config"] != found["config"]


@pytest.mark.parametrize("form", ["values", "flags", "equals"])
def test_several_files(cli, points: Path, oracle: Path, tmp_path: Path, form: str):
    """``--measurements A B``, ``--measurements A --measurements B`` and ``--measurements=A B`` are the same."""
    lines = points.read_text().splitlines()
    first, second = tmp_path / "a.csv", tmp_path / "b.csv"
    first.write_text("\n".join(lines[:90]) + "\n")
    second.write_text("\n".join([lines[0], *lines[90:]]) + "\n")
    files = {
        "values": ["--measurements", first, second],
        "flags": ["--measurements", first, "--measurements", second],
        "equals": [f"--measurements={first}", second],
    }[form]
    result = cli("fit", *files, "--oracle", oracle, "--arch", "h200", "--out", "m.json", "--no-holdout", "--json")
    assert [file["rows_kept"] for file in result.json["files"]] == [89, 151, 192]


def test_equal_seeds_give_equal_tables(cli, points: Path):
    """A fit is deterministic."""
    for name in ("a.json", "b.json"):
        assert cli("fit", "--measurements", points, "--arch", "h200", "--seed", 3, "--out", name).code == 0
    assert Path("a.json").read_bytes() == Path("b.json").read_bytes()


def test_bad_rows_stop_or_are_counted(cli, points: Path, tmp_path: Path):
    """A row that cannot be true is an error with its line, or with --skip-bad-rows a count."""
    bad = tmp_path / "bad.csv"
    lines = points.read_text().splitlines()
    bad.write_text("\n".join([*lines, lines[1].rsplit(",", 1)[0] + ",-1"]) + "\n")
    refused = cli("fit", "--measurements", bad, "--arch", "h200", "--out", "m.json")
    assert refused.code == 3
    assert f"{bad}:{len(lines) + 1}" in refused.stderr
    assert not Path("m.json").exists()
    skipped = cli("fit", "--measurements", bad, "--arch", "h200", "--out", "m.json", "--skip-bad-rows", "--json").json
    assert skipped["files"][0]["rows_skipped"] == 1
    assert skipped["files"][0]["skipped"][0]["first_line"] == len(lines) + 1


def test_the_same_file_twice_is_refused(cli, oracle: Path):
    """Rows given as points and as a sweep would count twice."""
    result = cli("fit", "--measurements", oracle, "--oracle", oracle, "--arch", "h200", "--out", "m.json")
    assert result.code == 3
    assert "give it once" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--arch", "h200"], 2, "--measurements"),
        (["--measurements", "missing.csv", "--arch", "h200"], 3, "missing.csv"),
        (["--measurements", "{points}", "--arch", "gtx"], 3, "gtx"),
        (["--measurements", "{points}"], 3, "WAVETUNE_ARCH"),
        (["--measurements", "{points}", "--arch", "h200", "--kernel", "conv"], 3, "conv"),
        (["--measurements", "{points}", "--arch", "h200", "--dtype", "x"], 3, "dtype"),
        (["--measurements", "{points}", "--arch", "h200", "--n-configs", "0"], 2, "n-configs"),
    ],
)
def test_mistakes(cli, points: Path, arguments: list[str], code: int, message: str):
    """Each kind of mistake has its exit code and a message that names it."""
    result = cli("fit", *(word.format(points=points) for word in arguments), "--out", "m.json")
    assert (result.code, result.stdout) == (code, "")
    assert message in result.stderr
    assert not Path("m.json").exists()


@pytest.mark.parametrize("content", [b"", b"m,n,k\n1,2,3\n", b"\x1f\x8b\x08cut", b"\xff\xfe\x00"])
def test_damaged_files_are_bad_input(cli, tmp_path: Path, content: bytes):
    """Whatever is in the file, there is a message and no traceback."""
    path = tmp_path / "damaged.csv.gz"
    path.write_bytes(content)
    result = cli("fit", "--measurements", path, "--arch", "h200", "--out", "m.json")
    assert result.code == 3
    assert str(path) in result.stderr


def test_output_that_cannot_be_written(cli, points: Path, tmp_path: Path):
    """A file where the folder should be is named."""
    (tmp_path / "file").write_text("")
    result = cli("fit", "--measurements", points, "--arch", "h200", "--out", tmp_path / "file" / "m.json")
    assert result.code == 3
    assert "file" in result.stderr


def test_provenance_knows_the_files(model: Path, oracle: Path):
    """The model says which files it was fitted to."""
    files = json.loads(model.read_text())["provenance"]["files"]
    assert [file["name"] for file in files] == ["points.csv", oracle.name]


def test_the_measuring_machine_goes_into_the_model(cli, points: Path, tmp_path: Path):
    """``--facts`` carries GPU, driver and compiler from a calibration's facts into the provenance."""
    environment = {"arch": "nvidia-h200", "triton": "3.6.0", "driver": "580.1"}
    facts = tmp_path / "facts.json"
    facts.write_text(json.dumps({"environment": environment}))
    assert cli("fit", "--measurements", points, "--facts", facts, "--arch", "h200", "--out", "m.json").code == 0
    assert json.loads(Path("m.json").read_text())["provenance"]["environment"] == environment


@pytest.mark.parametrize(
    "text",
    [
        "{}", "[]", "no json", '{"environment": {"arch": "nvidia-h100"}}',
        '{"environment": {"arch": "nvidia-h200"}, "kernel": "attention"}',
        '{"environment": {"arch": "nvidia-h200"}, "kernel": "gemm", "dtype": "fp16"}',
        '{"environment": {"arch": "nvidia-h200"}, "layout": "kn"}',
    ],
)  # fmt: skip
def test_foreign_facts_are_refused(cli, points: Path, tmp_path: Path, text: str):
    """Facts of another GPU, kernel, dtype or layout, or another file, are named before anything is fitted."""
    facts = tmp_path / "facts.json"
    facts.write_text(text)
    result = cli("fit", "--measurements", points, "--facts", facts, "--arch", "h200", "--out", "m.json")
    assert result.code == 3
    assert str(facts) in result.stderr
    assert not Path("m.json").exists()
