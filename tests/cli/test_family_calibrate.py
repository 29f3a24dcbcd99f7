"""``wavetune calibrate`` and ``fit`` for the families that choose by their own problems, on simulated GPUs."""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from command_shell import Result, Runner

sys.path.append(str(Path(__file__).resolve().parents[1] / "pipeline"))

from simulated_attention import SimulatedAttention
from simulated_grouped import SimulatedGrouped

from wavetune.core.arch import find_arch
from wavetune.errors import MeasurementError
from wavetune.pipeline.evidence import fit_family_evidence
from wavetune.runtime.family_file import read_family

Cli = Callable[..., Result]
FAMILIES = ("grouped_gemm", "attention", "attention_decode")
STEMS = {"grouped_gemm": "grouped_gemm-bf16-nk", "attention": "attention-bf16-d128",
         "attention_decode": "attention_decode-bf16-d128"}  # fmt: skip


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Return a function that runs ``wavetune`` in an empty folder; no model of a GEMM is needed here."""
    monkeypatch.setenv("WAVETUNE_MODELS", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return Runner().run


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Let the command find simulated GPUs and their few configurations; return the runners that it made."""
    made: list[object] = []

    def runner_of(kernel: str) -> object:
        return SimulatedGrouped() if kernel == "grouped_gemm" else SimulatedAttention(kernel)

    def configs_of(key) -> list[object]:
        runner = runner_of(key.kernel)
        return [entry.config for entry in runner.compiled] if key.kernel == "grouped_gemm" else runner.configs

    def connect(key, gpu, *, instead) -> object:
        made.append(runner_of(key.kernel))
        return made[-1]

    monkeypatch.setattr("wavetune.cli.family_calibration.candidate_configs", configs_of)
    monkeypatch.setattr("wavetune.cli.family_calibration.live_runner", connect)
    return made


@pytest.mark.parametrize("kernel", FAMILIES)
def test_calibrate_resumes_and_its_evidence_gives_the_model_again(
    cli: Cli, simulated: list, kernel: str, tmp_path: Path
) -> None:
    """What was measured is not measured again, and `fit` of the evidence gives the same forms, keys and accuracy."""
    command = ("calibrate", "--arch", "h200", "--kernel", kernel, "--budget", 1, "--store", "s.sqlite", "--json")
    first = cli(*command, "--out", "m.json", "--evidence", "kept")
    assert first.code == 0, first.stderr
    summary = first.json
    stem = STEMS[kernel]
    names = {path.name for path in Path("kept").iterdir()}
    assert {f"{stem}-sweep.csv.gz", f"{stem}-calibration.json"} <= names
    assert summary["held_out"]["efficiency"]["geomean"] > 0.95
    assert (summary["resumed_points"], len(simulated[0].measured)) == (0, summary["rows"])
    assert cli(*command, "--out", "second.json", "--no-holdout").json["resumed_points"] == summary["rows"]
    assert not set(simulated[0].measured) & set(simulated[1].measured)
    facts = json.loads((tmp_path / "kept" / f"{stem}-calibration.json").read_text())
    assert facts["measured"] == summary["rows"]
    likely = [f"kept/{stem}-likely.csv.gz"] if f"{stem}-likely.csv.gz" in names else []
    measurements = ("--measurements", *likely) if likely else ()
    again = cli(
        "fit", "--arch", "h200", "--kernel", kernel, *measurements, "--oracle", f"kept/{stem}-sweep.csv.gz",
        "--out", "again.json", "--json",
    )  # fmt: skip
    assert again.code == 0, again.stderr
    ours, theirs = read_family("again.json"), read_family("m.json")
    assert (ours.forms, ours.exact, ours.correction) == (theirs.forms, theirs.exact, theirs.correction)
    assert ours.accuracy == theirs.accuracy
    key = {"dtype": "bf16", "layout": stem.rpartition("-")[2]}
    fitted = fit_family_evidence(Path("kept"), kernel, find_arch("h200"), **key, holdout=False)
    assert fitted.file.forms == theirs.forms
    assert fitted.file.provenance["environment"] == theirs.provenance["environment"]
    (tmp_path / "kept" / f"{stem}-sweep.csv.gz").unlink()
    with pytest.raises(MeasurementError, match="sweep"):
        fit_family_evidence(Path("kept"), kernel, find_arch("h200"), **key)


@pytest.mark.parametrize("kernel", FAMILIES)
def test_the_plan_needs_no_gpu(cli: Cli, kernel: str) -> None:
    """Configurations, problems and seconds; a smaller budget gives a smaller plan."""
    pytest.importorskip("triton")
    command = ("calibrate", "--arch", "h200", "--kernel", kernel, "--dry-run", "--json")
    plan, small = cli(*command).json, cli(*command, "--budget", 5).json
    assert plan["configs"] > 40
    assert plan["problems"] > small["problems"] > 10
    assert small["seconds"] <= 10
    assert plan["layout"] == STEMS[kernel].rpartition("-")[2]


def test_a_users_problems_come_first(cli: Cli, simulated: list) -> None:
    """Sizes by name, or a workload with groups, heads and lengths."""
    Path("sizes.csv").write_text("q_len,heads,kv_heads\n777,8,2\n")
    command = ("calibrate", "--arch", "h200", "--budget", 1, "--out", "m.json", "--no-holdout", "--json", "--workload")
    assert cli(*command, "sizes.csv", "--kernel", "attention").code == 0
    assert simulated[0].measured[0].problem.dims == (1, 777, 777, 0, 8, 2, 1, 0)
    Path("w.json").write_text(
        json.dumps({"problems": [{"m": 7, "n": 1024, "k": 512, "groups": [0, 5, 2]},
                                 {"m": 1, "n": 999, "k": 128, "operation": "attention", "batch": 3, "heads": 8}]})
    )  # fmt: skip
    assert cli(*command, "w.json", "--kernel", "grouped_gemm", "--store", "g.sqlite").code == 0
    assert simulated[1].measured[0].problem.dims == (3, 7, 2, 5, 1024, 512)
    assert cli(*command, "w.json", "--kernel", "attention_decode", "--store", "d.sqlite").code == 0
    assert simulated[2].measured[0].problem.dims == (3, 999, 0, 8, 8, 16, 0)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("q_len\n5\n", "attention needs the size heads"), ("q_len,heads\n5,x\n", "integers"),
        ("q_len,heads\n", "no shapes; add lines of q_len,heads"), ("q_len,heads,kv_heads\n5,8,3\n", ":2: kv_heads"),
        ("m,n,k\n5,8,3\n", "no attention of dtype bf16"),
    ],
)  # fmt: skip
def test_wrong_problems_are_named(cli: Cli, simulated: list, content: str, message: str) -> None:
    """With file and line."""
    Path("sizes.csv").write_text(content)
    result = cli("calibrate", "--arch", "h200", "--kernel", "attention", "--workload", "sizes.csv", "--dry-run")
    assert result.code == 3
    assert message in result.stderr


def test_what_has_no_plan_is_refused(cli: Cli) -> None:
    """A replay is of a GEMM; an unknown family is named."""
    Path("f.csv").write_text("m,n,k\n")
    assert cli("calibrate", "--arch", "h200", "--kernel", "attention", "--replay", "f.csv").code == 2
    unknown = cli("calibrate", "--arch", "h200", "--kernel", "convolution", "--dry-run")
    assert (unknown.code, "convolution" in unknown.stderr) == (3, True)


def test_a_budget_that_does_not_suffice_is_said(cli: Cli) -> None:
    """The time of the whole plan beside a smaller limit would contradict itself."""
    command = ("calibrate", "--arch", "h200", "--kernel", "grouped_gemm", "--dry-run")
    plan = cli(*command, "--json").json
    enough, short = (cli(*command, "--budget", budget).stdout for budget in (10 * plan["seconds"], 1))
    assert "at most" in enough
    seconds = cli(*command, "--budget", 1, "--json").json["seconds"]
    assert ("of which --budget allows 1 s" in short) == (seconds > 1)


def test_a_reading_too_fast_to_be_true_is_reported_of_a_family(cli: Cli, simulated: list, tmp_path: Path) -> None:
    """`fit` names it with file, sizes, configuration and factor; it is not the exact answer."""
    options = ("--arch", "h200", "--kernel", "attention")
    assert cli("calibrate", *options, "--budget", 1, "--no-holdout", "--out", "m.json", "--evidence", "kept").code == 0
    sweep = Path("kept/attention-bf16-d128-sweep.csv.gz")
    header, *rows = gzip.decompress(sweep.read_bytes()).decode().splitlines()
    place = header.split(",").index("latency_us")
    of_key = [row for row in rows if row.split(",")[:8] == rows[0].split(",")[:8]]
    slowest, best = (choose(of_key, key=lambda row: float(row.split(",")[place])) for choose in (max, min))
    cells = slowest.split(",")
    cells[place] = f"{0.9 * float(best.split(',')[place]):.3f}"
    sweep.unlink()
    Path("bad.csv").write_text(
        "\n".join([header, *(",".join(cells) if row == slowest else row for row in rows)]) + "\n"
    )
    command = ("fit", *options, "--oracle", "bad.csv", "--no-holdout", "--out", "again.json")
    (found,) = cli(*command, "--json").json["too_fast"]
    assert found["file"] == "bad.csv"
    assert [str(found[name]) for name in header.split(",")[:8]] == cells[:8]
    assert found["factor"] > 1.5
    text = cli(*command).stdout
    assert "1 readings kept out of the exact answers" in text
    assert f"batch={cells[0]} q_len={cells[1]}" in text
    model = read_family("again.json")
    assert dict(model.forms[model.exact[tuple(map(int, cells[:8]))][0]].config) != found["config"]


def test_a_row_that_nobody_can_have_measured_is_refused_or_counted(cli: Cli, simulated: list) -> None:
    """More splits than a cache has trips; `fit` and `evaluate` name the line, or say how many they leave out."""
    options = ("--arch", "h200", "--kernel", "attention_decode")
    assert cli("calibrate", *options, "--budget", 1, "--no-holdout", "--out", "m.json", "--evidence", "kept").code == 0
    text = gzip.decompress(Path("kept/attention_decode-bf16-d128-sweep.csv.gz").read_bytes()).decode()
    header, *rows = text.splitlines()
    names = header.split(",")
    cells = dict(zip(names, rows[0].split(","), strict=True)) | {"kv_len": "40", "spread": "0", "splits": "64"}
    Path("bad.csv").write_text("\n".join([header, *rows, ",".join(cells[name] for name in names)]) + "\n")
    fit = ("fit", *options, "--oracle", "bad.csv", "--no-holdout", "--out", "again.json")
    for command in (fit, ("evaluate", "--model", "m.json", "--oracle", "bad.csv")):
        result = cli(*command)
        assert (result.code, result.stdout) == (3, "")
        assert f"bad.csv:{len(rows) + 2}: the configuration cannot compute the problem" in result.stderr
        assert "splits=64 exceeds the" in result.stderr
        assert cli(*command, "--skip-bad-rows").code == 0
    shown = " ".join(cli(*fit, "--skip-bad-rows").stdout.split())
    assert f"1 rows from line {len(rows) + 2}: the configuration cannot compute the problem" in shown
