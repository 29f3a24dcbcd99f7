"""``wavetune export``: answers for a workload, as files of other programs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from command_shell import Result, Runner
from made_up_gpu import HEADER

from wavetune import clear_caches
from wavetune.core.workload import Workload

Cli = Callable[..., Result]

ENTRIES = [
    {"m": 1, "n": 4096, "k": 4096, "count": 1000},
    {"m": 37, "n": 4096, "k": 4096, "count": 500},
    {"m": 512, "n": 4096, "k": 4096, "bias": True, "count": 7},
    {"m": 128, "n": 64, "k": 96, "batch": 12, "operation": "batched_gemm"},
    {"m": 16, "n": 64, "k": 96, "dtype": "fp8", "scale": "row", "count": 3},
]
BLOCKS = [
    {"m": m, "n": n, "k": 4096, "dtype": "fp8", "scale": "block128x128", "count": 10 * m}
    for m, n in ((3, 6144), (200, 4096), (4, 6144))
]


@pytest.fixture(scope="session")
def block_models(points: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a models folder with a model of fp8 in blocks."""
    folder = tmp_path_factory.mktemp("block-models")
    header, *rows = points.read_text().splitlines()
    in_blocks = [row for row in rows if row.split(",")[HEADER.index("block_k")] == "128"]
    (folder / "blocks.csv").write_text("\n".join([header, *in_blocks]))
    result = Runner().run(
        "calibrate", "--replay", folder / "blocks.csv", "--no-holdout", "--arch", "h200", "--dtype", "fp8_block128",
        "--out", folder / "nvidia-h200" / "gemm-fp8_block128.json",
    )  # fmt: skip
    assert result.code == 0, result.stderr
    return folder


@pytest.fixture(scope="session")
def amd_models(points: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a models folder with a model of a GPU of AMD's: the made-up one under another name."""
    folder = tmp_path_factory.mktemp("amd-models")
    header, *rows = (line.split(",") for line in points.read_text().splitlines())
    smem = header.index("smem_bytes")
    # An SM of AMD's has less shared memory.
    fitting = [",".join([*row[:smem], "16384", *row[smem + 1 :]]) for row in rows]
    (folder / "amd.csv").write_text("\n".join([",".join(header), *fitting]))
    result = Runner().run(
        "calibrate", "--replay", folder / "amd.csv", "--no-holdout", "--arch", "mi300x", "--dtype", "bf16",
        "--out", folder / "amd-mi300x" / "gemm-bf16.json",
    )  # fmt: skip
    assert result.code == 0, result.stderr
    return folder


@pytest.fixture
def workload(cli: Cli) -> Path:
    """Return a workload file of several kinds of products."""
    path = Path("w.json")
    path.write_text(json.dumps({"schema_version": 1, "problems": ENTRIES}))
    return path


def export(cli: Cli, *arguments: object) -> Result:
    """Run the verb for an H200."""
    return cli("export", *arguments, "--arch", "h200")


def keys_of(cli: Cli, *files: object) -> set:
    """Import files and return their keys."""
    assert cli("workload", "import", *files, "--strict", "--out", "back.json").code == 0
    return {entry.key for entry in Workload.read("back.json").entries}


@pytest.mark.parametrize(("format", "kept"), [("json", 4), ("quicktune-csv", 2), ("tunableop-untuned", 5)])
def test_export_then_import(cli: Cli, workload: Path, format: str, kept: int):
    """What is exported imports as the same keys; what is left out is counted, with its reason."""
    result = export(cli, workload, "--format", format, "--out", "out.file", "--json")
    document = result.json
    assert (document["rows"], document["files"]) == (kept, ["out.file"])
    assert sum(document["left_out"].values()) == len(ENTRIES) - kept
    whole = {entry.key for entry in Workload.read(workload).entries}
    back = keys_of(cli, "out.file")
    assert back <= whole
    assert len(back) == kept


def test_json_holds_the_answers(cli: Cli, workload: Path):
    """The answer of each entry is the runtime's, with its source, beside the default."""
    export(cli, workload, "--format", "json", "--out", "out.json", "--margin", 0)
    for entry in Workload.read("out.json").entries:
        key = entry.key
        answer = cli("choose", key.m, key.n, key.k, "--dtype", key.dtype, "--arch", "h200", "--json").json
        assert entry.extra["config"] == answer["config"]
        assert entry.extra["source"] == answer["source"]
        assert entry.extra["latency_us"] == pytest.approx(answer["latency_us"])


def test_choices_that_hardly_pay_become_the_default(cli: Cli, workload: Path):
    """With a margin that nothing reaches, all predicted rows hold the default; measured ones stay."""
    result = export(cli, workload, "--format", "json", "--out", "out.json", "--margin", 1)
    for entry in Workload.read("out.json").entries:
        if entry.extra["source"] != "exact":
            assert entry.extra["config"] == entry.extra["default_config"]
    assert {entry.extra["source"] for entry in Workload.read("out.json").entries} > {"exact"}
    assert result.code == 0


def test_triton_takes_the_configurations(cli: Cli, workload: Path):
    """Every element makes a ``triton.Config``."""
    triton = pytest.importorskip("triton")
    document = export(cli, workload, "--format", "triton-configs", "--out", "configs.json", "--json").json
    # All configurations of the small model are of the plain kernel; only the margin may cost something.
    assert 0 <= document["kernel_cost"] <= 0.02
    configs = [triton.Config(**entry) for entry in json.loads(Path("configs.json").read_text())]
    assert 1 <= len(configs) <= len(ENTRIES)
    assert {"BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "GROUP_SIZE_M"} == set(configs[0].kwargs)


@pytest.mark.parametrize("consumer", ["vllm", "sglang"])
def test_dense_files(cli: Cli, block_models: Path, consumer: str, monkeypatch: pytest.MonkeyPatch):
    """A file for each layer, a row for each capture size, and the regret of the nearest row."""
    monkeypatch.setenv("WAVETUNE_MODELS", str(block_models))
    clear_caches()
    Path("w.json").write_text(json.dumps({"schema_version": 1, "problems": ENTRIES + BLOCKS}))
    arguments = ("w.json", "--format", consumer, "--out", "configs")
    document = export(cli, *arguments, "--json").json
    assert len(document["files"]) == 2
    assert document["rows"] == 2 * 18
    assert {(layer["n"], layer["calls"]) for layer in document["layers"]} == {(6144, 70), (4096, 2000)}
    assert all(layer["regret"] >= 0 for layer in document["layers"])
    for path in document["files"]:
        rows = {int(key): value for key, value in json.loads(Path(path).read_text()).items()}
        assert len(rows) == 18
    # With a row for each size of the workload nothing is lost, and the import is the workload.
    for path in document["files"]:
        Path(path).unlink()
    exact = export(cli, *arguments, "--capture-sizes", "workload", "--margin", 0, "--json").json
    assert [layer["regret"] for layer in exact["layers"]] == [0, 0]
    wanted = {entry.key for entry in Workload.read("w.json").entries if entry.key.scale == "block128x128"}
    assert keys_of(cli, *exact["files"]) == wanted
    text = export(cli, *arguments)
    assert "the row that is taken costs" in text.stderr
    assert sorted(text.stdout.split("\n")[:-1]) == sorted(document["files"])
    clear_caches()


def test_aiter_files(cli: Cli, amd_models: Path, workload: Path, monkeypatch: pytest.MonkeyPatch):
    """A file for each layer under AITER's name, with a row for every size; the regret of its ranges is printed."""
    monkeypatch.setenv("WAVETUNE_MODELS", str(amd_models))
    clear_caches()
    arguments = ("export", workload, "--format", "aiter-triton", "--out", "configs", "--arch", "mi300x")
    result = cli(*arguments, "--json")
    assert result.code == 0, result.stderr
    assert result.json["files"] == ["configs/gfx942-GEMM-A16W16-N=4096-K=4096.json"]
    rows = json.loads(Path(result.json["files"][0]).read_text())
    assert list(rows) == [*(f"M_LEQ_{2**i}" for i in range(2, 14)), "any"]
    fields = {
        "BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "GROUP_SIZE_M", "NUM_KSPLIT", "num_warps", "num_stages",
        "waves_per_eu", "matrix_instr_nonkdim", "kpack", "cache_modifier",
    }  # fmt: skip
    assert all(set(row) == fields for row in rows.values())
    assert rows["M_LEQ_4"]["BLOCK_SIZE_M"] < rows["any"]["BLOCK_SIZE_M"]
    layer = result.json["layers"][0]
    assert (layer["calls"], result.json["rows"]) == (1507, 13)
    # Every call has a range of its own here, so only the margin costs anything.
    assert 0 <= layer["regret"] <= 0.02
    assert "waves_per_eu" in result.stderr
    assert "AMD" in export(cli, workload, "--format", "aiter-triton", "--out", "o").stderr
    clear_caches()


def test_override_of_bench_output(cli: Cli):
    """Export and convert write the same file; its text is checked where it is made."""
    bench = Path(__file__).parents[1] / "workloads" / "data" / "hipblaslt-bench.txt"
    assert cli("export", bench, "--format", "hipblaslt-override", "--out", "a.txt").code == 0
    result = cli("convert", "bench-output", bench, "--out", "b.txt", "--json")
    assert (result.json["rows"], result.json["build"], result.json["compute_units"]) == (2, "de5c1aebb6", 304)
    assert Path("a.txt").read_text() == Path("b.txt").read_text()
    assert cli("convert", "bench-output", bench, "--out", "no/such/folder").code == 3


def test_shapes_alone_need_no_gpu(cli: Cli, workload: Path, monkeypatch: pytest.MonkeyPatch):
    """Untuned operations hold no answers: no architecture and no model is asked for."""
    monkeypatch.setenv("WAVETUNE_MODELS", "nothing")
    result = cli("export", workload, "--format", "tunableop-untuned", "--out", "untuned.csv")
    assert result.code == 0, result.stderr
    assert len(Path("untuned.csv").read_text().splitlines()) == len(ENTRIES)


def test_the_model_that_is_missed_most_is_named(cli: Cli):
    """Not that of the few fp32 products which every log holds."""
    problems = [{"m": 1, "n": 64, "k": 64, "dtype": "fp32"}, *({"m": m, "n": 64, "k": 64} for m in (1, 2))]
    Path("w.json").write_text(json.dumps({"schema_version": 1, "problems": problems}))
    result = cli("export", "w.json", "--format", "triton-configs", "--out", "out.json", "--arch", "a100")
    assert result.code == 4
    assert "no model nvidia-a100/gemm-bf16.json" in result.stderr


def test_pinned_answers_without_a_model(cli: Cli, monkeypatch: pytest.MonkeyPatch):
    """Where no model predicts the default, QuickTune's columns say that the baseline failed."""
    Path("w.json").write_text(json.dumps({"schema_version": 1, "problems": ENTRIES[:2]}))
    assert cli("freeze", "--workload", "w.json", "--out", "pinned.json", "--arch", "h200").code == 0
    monkeypatch.setenv("WAVETUNE_PINNED", "pinned.json")
    monkeypatch.setattr("wavetune.runtime.tables.find_model", lambda *key: (None, ()))
    clear_caches()
    assert export(cli, "w.json", "--format", "quicktune-csv", "--out", "out.csv").code == 0
    header, *rows = (line.split(",") for line in Path("out.csv").read_text().splitlines())
    for row in rows:
        cells = dict(zip(header, row, strict=True))
        assert (cells["baseline_latency(us)"], cells["status"]) == ("-1", "BASELINE_FAILED")
        assert float(cells["tuned_latency(us)"]) > 0
    clear_caches()


def test_mistakes(cli: Cli, workload: Path):
    """Formats that our answers do not fit say why; so do workloads without anything to write."""
    result = export(cli, workload, "--format", "hipblaslt-override", "--out", "o")
    assert result.code == 3
    assert "solution indices" in result.stderr
    assert export(cli, workload, "--format", "nonsense", "--out", "o").code == 3
    result = export(cli, workload, "--format", "vllm", "--out", "o")
    assert result.code == 3
    assert "other dense layers run on cuBLAS there" in result.stderr
    assert not Path("o").exists()
    assert export(cli, workload, "--format", "json", "--out", "no/such/folder").code == 3
    assert export(cli, workload, "--format", "vllm", "--out", "o", "--capture-sizes", "8,x").code == 2
    for format, option in (("json", "--capture-sizes"), ("aiter-triton", "--device-name")):
        result = export(cli, workload, "--format", format, "--out", "o", option, "8")
        assert result.code == 2
        assert f"{option} is for vllm and sglang" in result.stderr
    assert not Path("o").exists()
    Path("only.csv").write_text("m,n,k,dtype\n8,64,64,int8\n")
    assert export(cli, "only.csv", "--format", "json", "--out", "o").code == 4


def test_a_file_is_written_whole_or_not_at_all(cli: Cli, workload: Path, monkeypatch: pytest.MonkeyPatch):
    """Where the disk is full, what was there stays; a folder that is not there is named."""
    Path("out.json").write_text("old")

    def full(path: Path, *_: object, **__: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", full)
        result = export(cli, workload, "--format", "json", "--out", "out.json")
    assert (result.code, "out.json: cannot write (No space left on device)" in result.stderr) == (3, True)
    assert Path("out.json").read_text() == "old"
    result = export(cli, workload, "--format", "json", "--out", "none/out.json")
    assert (result.code, "there is no folder none" in result.stderr) == (3, True)
