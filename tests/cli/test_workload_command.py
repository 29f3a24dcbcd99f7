"""``wavetune workload import | dedupe | show | merge | split``."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest

from wavetune.core.workload import Workload

DATA = Path(__file__).parents[1] / "workloads" / "data"
LOG = DATA / "hipblaslt-mask32.log"


def test_import_prints_problems_and_lines(cli):
    """JSON has every problem with m = tokens, the account of lines, and what was exchanged."""
    result = cli("workload", "import", LOG, "--json")
    document = result.json
    (layer,) = (p for p in document["problems"] if p["m"] == 48)
    assert (layer["n"], layer["k"], layer["dtype"], layer["count"]) == (5120, 3200, "bf16", 3)
    assert layer["sources"] == {str(LOG): 3}
    assert document["lines"] == {"read": 12, "recognised": 10, "skipped": 2, "bad": 0, "first_bad": None}
    assert document["files"][0]["format"] == "hipblaslt-log"
    assert "m and n exchanged" in result.stderr


def test_import_of_several_files_and_standard_input():
    """Files of different formats are one workload; a dash is standard input."""
    command = [sys.executable, "-m", "wavetune", "workload", "import", "-", str(DATA / "cublaslt.log"), "--json"]
    with LOG.open("rb") as log:
        done = subprocess.run(command, stdin=log, capture_output=True, check=True)
    (layer,) = (p for p in json.loads(done.stdout)["problems"] if p["m"] == 48 and p["n"] == 5120)
    assert layer["count"] == 5
    assert layer["sources"] == {"stdin": 3, str(DATA / "cublaslt.log"): 2}


def test_import_writes_a_workload(cli):
    """The file that is written reads back, and imports again, as the same workload."""
    assert cli("workload", "import", LOG, "--out", "w.json.gz").code == 0
    workload = Workload.read("w.json.gz")
    assert workload.calls == 9
    again = cli("workload", "import", "w.json.gz", "--json").json
    assert again["problems"] == [entry.document() for entry in workload.entries]


def test_strict_import(cli):
    """A bad line is reported with its number, and with --strict it is an error."""
    broken = DATA / "hipblaslt-broken.log"
    result = cli("workload", "import", broken, "--json")
    assert result.json["lines"]["first_bad"]["line"] == 2
    assert result.json["lines"]["bad"] == 7
    assert f"{broken}:2: no option transB" in result.stderr
    result = cli("workload", "import", broken, "--strict")
    assert result.code == 3
    assert result.stdout == ""
    assert f"{broken}:2:" in result.stderr


def test_import_as_a_list(cli):
    """Without --json, the problems with the most calls are listed."""
    result = cli("workload", "import", LOG)
    assert "9 calls, 7 different problems" in result.stdout
    assert "48 x 5120 x 3200" in result.stdout
    assert "3 groups, largest 96 rows" in result.stdout


def test_what_files_cannot_say(cli):
    """A model's sizes complete a fused-experts file; --device picks the rows of one GPU."""
    fused = DATA / "E=64,N=768,device_name=NVIDIA_H200.json"
    assert cli("workload", "import", fused).code == 3
    document = cli("workload", "import", fused, "--hidden-size", 2048, "--experts-per-token", 8, "--json").json
    assert {p["m"] for p in document["problems"]} == {8, 512}
    assert cli("workload", "import", DATA / "bf16_tuned_gemm.csv", "--device", "gfx950").code == 3
    assert cli("workload", "import", LOG, "--format", "nonsense").code == 3


def test_dedupe_by_meaning_and_by_bytes(cli):
    """The same calls: three lines by bytes, one problem by meaning."""
    document = cli("workload", "dedupe", LOG, "--json").json
    assert sum(p["count"] for p in document["problems"]) == 9
    exact = cli("workload", "dedupe", "--exact-lines", LOG, "--json").json["lines"]
    layer = [line for line in exact if "-m 5120 -n 48" in line["line"]]
    assert [line["count"] for line in layer] == [1, 1, 1]
    assert (
        cli("workload", "dedupe", "--exact-lines", LOG, LOG.with_name("cublaslt.log"), "--out", "unique.log").code == 0
    )
    lines = Path("unique.log").read_text().splitlines()
    assert len(lines) == len(set(lines))
    assert set(lines) < set(LOG.read_text().splitlines()) | set(LOG.with_name("cublaslt.log").read_text().splitlines())
    assert cli("workload", "dedupe", "--exact-lines", "--format", "csv", LOG).code == 2


def test_show(cli):
    """A workload is shown by class and by work; anything that imports can be shown."""
    Path("w.csv").write_text("m,n,k,count\n1,4096,4096,1000\n128,4096,4096,10\n4096,4096,4096,1\n")
    document = cli("workload", "show", "w.csv", "--json").json
    assert document["calls"] == 1011
    assert {name: c["calls"] for name, c in document["classes"].items()} == {"decode": 1000, "small": 10, "prefill": 1}
    assert sum(c["share_of_flops"] for c in document["classes"].values()) == pytest.approx(1)
    assert document["classes"]["prefill"]["share_of_flops"] == pytest.approx(4096 / (1000 + 1280 + 4096))
    text = cli("workload", "show", "w.csv", "--top", 1).stdout
    assert "4096 x 4096 x 4096" in text
    assert "and 2 more" in text


def test_split_and_merge_are_inverse(cli):
    """The parts of a workload, merged, are the workload, whatever it was split by."""
    cli("workload", "import", LOG, DATA / "plain.jsonl", "--out", "w.json")
    whole = {entry.key: entry for entry in Workload.read("w.json").entries}
    for by, names in (("class", {"decode", "small"}), ("operation", None), ("dtype", {"bf16", "fp16", "fp8"})):
        written = cli("workload", "split", "w.json", "--by", by, "--out", by, "--json").json
        assert names is None or {part[by] for part in written} == names
        parts = [part["file"] for part in written]
        assert len(parts) > 1
        assert cli("workload", "merge", *parts, "--out", "back.json").code == 0
        assert {entry.key: entry for entry in Workload.read("back.json").entries} == whole


def test_merge_adds_counts_and_names_sources(cli):
    """Equal problems are added up; a file without sources becomes one."""
    Path("a.csv").write_text("m,n,k,count\n8,16,32,5\n")
    Path("b.csv").write_text("m,n,k\n8,16,32\n4,16,32\n")
    problems = cli("workload", "merge", "a.csv", "b.csv").json["problems"]
    assert [(p["m"], p["count"], p["sources"]) for p in problems] == [
        (8, 6, {"a.csv": 5, "b.csv": 1}), (4, 1, {"b.csv": 1}),
    ]  # fmt: skip


def test_mistakes(cli):
    """Bad workloads are refused by name; files named twice and unknown ways to split are usage errors."""
    Path("bad.csv").write_text("m,n,k\n8,16,x\n")
    for verb in (("merge", "bad.csv"), ("split", "bad.csv"), ("import", "missing")):
        result = cli("workload", *verb)
        assert result.code == 3
        assert verb[1] in result.stderr
    Path("good.csv").write_text("m,n,k\n8,16,32\n")
    Path("link.csv").symlink_to("good.csv")
    for again in ("good.csv", "./good.csv", "link.csv"):
        assert cli("workload", "merge", "good.csv", again).code == 2
    assert cli("workload", "import", "good.csv", "./good.csv").code == 3
    assert cli("workload", "split", "good.csv", "--by", "colour").code == 2


def test_no_verb_exchanges_rows_and_columns(cli):
    """What export writes column-major is imported as it was; verbs that read workloads say so, and read nothing."""
    Path("w.csv").write_text("m,n,k,count\n48,5120,3200,640\n")
    assert cli("export", "w.csv", "--format", "quicktune-csv", "--arch", "h200", "--out", "q.csv").code == 0
    for verb in (
        "workload merge q.csv",
        "workload split q.csv",
        "freeze --out p.json --workload q.csv",
        "verify q.csv",
    ):
        result = cli(*verb.split())
        assert result.code == 3, verb
        assert "column-major" in result.stderr
        assert "wavetune workload import q.csv" in result.stderr
    assert cli("workload", "import", "q.csv", "--out", "back.json").code == 0
    assert Workload.read("back.json").gemm_problems() == Workload.read("w.csv").gemm_problems()


def test_calibrate_and_measure_read_what_import_writes(cli):
    """One reader is behind every verb that takes a workload; problems of other types are left out, and counted."""
    cli("workload", "import", LOG, "--out", "w.json")
    result = cli("calibrate", "--arch", "h200", "--workload", "w.json", "--dry-run")
    assert result.code == 0
    assert "2 shapes of 7 entries are a GEMM of dtype bf16 and layout nk" in result.stderr
    result = cli("calibrate", "--arch", "h200", "--dtype", "int8", "--workload", "w.json", "--dry-run")
    assert result.code == 3
    assert "no GEMM of dtype int8 and layout nk; the file holds" in result.stderr


def test_json_stays_json_for_many_problems(cli):
    """Thousands of problems are printed piece by piece, and are one document."""
    Path("w.csv").write_text("m,n,k\n" + "".join(f"{m},16,32\n" for m in range(1, 9000)))
    document = json.loads(cli("workload", "import", "w.csv", "--json").stdout)
    assert [p["m"] for p in document["problems"]] == list(range(1, 9000))


def test_nothing_is_left_where_a_workload_cannot_be_written(cli):
    """A file in the place of a folder, a folder in the place of a file, no folder: one line, and no trace."""
    Path("w.csv").write_text("m,n,k\n1,64,64\n")
    places = {"w.csv/w.json": "Not a directory", ".": "Is a directory", "none/w.json": "there is no folder none"}
    for place, reason in places.items():
        for verb in ("import", "merge", "dedupe"):
            result = cli("workload", verb, "w.csv", "--out", place)
            assert result.code == 3, (verb, place)
            assert reason in result.stderr.splitlines()[-1]
    assert [path.name for path in Path().iterdir()] == ["w.csv"]


def test_why_there_is_nothing_in_a_file(cli):
    """An empty file, a torn one, and sizes of zero are told apart from a format that nobody knows."""
    Path("empty").write_bytes(b"")
    Path("torn").write_bytes(b"\x1f\x8b torn")
    Path("zero.csv").write_text("m,n,k\n0,64,64\n")
    reasons = {"empty": "the file is empty", "torn": "gzip stream is cut or damaged", "zero.csv": "size of zero"}
    for name, reason in reasons.items():
        result = cli("workload", "show", name)
        assert (result.code, reason in result.stderr) == (3, True), result.stderr


@pytest.mark.parametrize("verb", [("import",), ("dedupe",), ("dedupe", "--exact-lines")])
def test_a_torn_file_is_no_success(cli, verb: tuple[str, ...]):
    """What could be read is written, and an error says what is missing."""
    packed = gzip.compress(LOG.read_bytes() + b"".join(b"line %d of something else\n" % n for n in range(20_000)))
    Path("whole.log.gz").write_bytes(packed)
    Path("torn.log.gz").write_bytes(packed[: len(packed) // 2])
    assert cli("workload", *verb, "whole.log.gz", "--out", "whole").code == 0
    result = cli("workload", *verb, "torn.log.gz", "--out", "torn")
    assert result.code == 3
    assert result.stderr.splitlines()[-1].startswith("error: torn.log.gz: the gzip stream is cut or damaged")
    if "--exact-lines" in verb:
        assert set(Path("torn").read_text().splitlines()) <= set(Path("whole").read_text().splitlines())
    else:
        assert Workload.read("torn").calls == Workload.read("whole").calls == 9
    assert cli("workload", "show", "torn.log.gz").code == 3


def test_an_output_that_is_an_input(cli):
    """No verb destroys what it reads, by whatever name it is called; sums may replace one of their parts."""
    Path("w.csv").write_text("m,n,k\n8,64,64\n")
    Path("link").symlink_to("w.csv")
    commands = {
        "workload import w.csv": "w.csv", "workload dedupe w.csv": "./w.csv", "freeze --workload w.csv": "link",
        "export link --format json": "w.csv", "convert bench-output w.csv": "w.csv",
        "analyze w.csv --measurements x": "w.csv", "analyze x --measurements w.csv": "w.csv",
        "measure --shapes w.csv": "w.csv", "fit --measurements w.csv": "w.csv", "fit --oracle x w.csv": "link",
        "fit --oracle x --facts w.csv": "w.csv", "calibrate --workload w.csv": "w.csv",
        "calibrate --replay x w.csv": "w.csv", "calibrate --kernel attention --workload w.csv": "w.csv",
    }  # fmt: skip
    for command, out in commands.items():
        result = cli(*command.split(), "--out", out)
        assert result.code == 2, command
        assert f"--out {Path(out)} is the input" in result.stderr, command
        assert Path("w.csv").read_text() == "m,n,k\n8,64,64\n"
    assert cli("workload", "merge", "w.csv", "--out", "w.csv").code == 0
    assert cli("workload", "dedupe", "--exact-lines", "w.csv", "--out", "w.csv").code == 0


def test_standard_input_as_output(tmp_path: Path):
    """A redirected file is an input, too."""
    log = tmp_path / "l.log"
    log.write_bytes(LOG.read_bytes())
    command = [sys.executable, "-m", "wavetune", "workload", "import", "-", "--out", str(log)]
    with log.open("rb") as file:
        assert subprocess.run(command, stdin=file, capture_output=True).returncode == 2
    assert log.read_bytes() == LOG.read_bytes()
