"""Every format: what a small file of each means."""

from __future__ import annotations

import gzip
import io
import shutil
import sys
from pathlib import Path

import pytest
from workload_reading import DATA, read, read_all, short

from wavetune.errors import WorkloadError
from wavetune.workloads.detect import READERS, detect_format
from wavetune.workloads.source import LineSource

VLLM_DENSE = "N=4096,K=7168,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128,128].json"
SGLANG_DENSE = "N=4096,K=7168,device_name=NVIDIA_H20-3e,dtype=fp8_w8a8,block_shape=[128, 128].json"
FUSED = "E=64,N=768,device_name=NVIDIA_H200.json"

FORMAT_OF = {
    "hipblaslt-mask32.log": "hipblaslt-log",
    "hipblaslt-mask64.log": "hipblaslt-profile",
    "hipblaslt-mask128.log": "hipblaslt-profile",
    "hipblaslt-bench.txt": "hipblaslt-bench",
    "hipblaslt-tuning.txt": "hipblaslt-tuning",
    "cublaslt.log": "cublaslt-log",
    "tunableop_results0.csv": "tunableop",
    "tunableop_untuned0.csv": "tunableop",
    "bf16_untuned_gemm.csv": "aiter",
    "bf16_tuned_gemm.csv": "aiter",
    "a8w8_blockscale_tuned_gemm.csv": "aiter",
    VLLM_DENSE: "vllm",
    SGLANG_DENSE: "vllm",
    FUSED: "vllm",
    "tuning_result.csv": "quicktune",
    "analysis.csv": "quicktune",
    "plain.csv": "csv",
    "plain.jsonl": "jsonl",
}
LAYER = {"operation": "gemm", "m": 48, "n": 5120, "k": 3200, "dtype": "bf16", "layout": "nk"}


def one(problems: list[dict], **fields: object) -> dict:
    """Return the one problem with these fields."""
    found = [problem for problem in problems if all(problem.get(name) == value for name, value in fields.items())]
    assert len(found) == 1, problems
    return found[0]


@pytest.mark.parametrize(("name", "format"), FORMAT_OF.items())
def test_formats_are_told_by_content(name: str, format: str):
    """Every format is recognised, and every one of them has a file here."""
    with LineSource(DATA / name) as source:
        assert detect_format(source) == format
    assert {*FORMAT_OF.values(), "sglang", "workload"} == set(READERS)


@pytest.mark.parametrize("name", [name for name in FORMAT_OF if name != FUSED])
def test_whole_files_have_no_bad_line(name: str):
    """What real programs write is read without complaint, also if that is an error."""
    _, (account,) = read_all(DATA / name, strict=True)
    assert account.bad == 0


@pytest.mark.parametrize("name", ["hipblaslt-mask32.log", "cublaslt.log", "plain.jsonl", "tuning_result.csv"])
def test_gzip_line_ends_and_marks_make_no_difference(name: str, tmp_path: Path):
    """Gzip in two members, Windows line ends and a byte-order mark change nothing."""
    data = (DATA / name).read_bytes()
    cut = data.index(b"\n") + 1
    (tmp_path / name).write_bytes(gzip.compress(data[:cut]) + gzip.compress(data[cut:]))
    (tmp_path / "dos").write_bytes(data.replace(b"\n", b"\r\n"))
    (tmp_path / "mark").write_bytes(b"\xef\xbb\xbf" + data)
    expected = read(DATA / name)
    assert read(tmp_path / name) == expected
    assert read(tmp_path / "dos") == expected
    assert read(tmp_path / "mark") == expected


def test_standard_input(monkeypatch: pytest.MonkeyPatch):
    """A dash is standard input, gzip too."""
    data = gzip.compress((DATA / "plain.csv").read_bytes())
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
    assert read("-") == read(DATA / "plain.csv")


def test_hipblaslt_log():
    """Column-major sizes are exchanged, indices and noise make no difference, groups and batches are kept."""
    problems, (account,) = read_all(DATA / "hipblaslt-mask32.log")
    assert (account.read, account.recognised, account.skipped, account.empty) == (12, 10, 2, 1)
    assert "exchanged" in account.notes[0]
    assert one(problems, m=48) == {**LAYER, "count": 3, "extra": {"solution_index": 90210}}
    # Of BLAS, A is the weight: its scale comes second here.
    assert one(problems, dtype="fp8")["scale"] == "row/tensor"
    gelu = one(problems, m=33)
    assert (gelu["layout"], gelu["bias"], gelu["activation"]) == ("kn", True, "gelu")
    batched = one(problems, operation="batched_gemm")
    assert (batched["m"], batched["n"], batched["k"], batched["batch"]) == (128, 64, 96, 12)
    assert batched["layout_a"] == "km"
    uniform, mixed = (p for p in problems if p["operation"] == "grouped_gemm")
    assert (uniform["m"], uniform["n"], uniform["k"], uniform["groups"]) == (128, 256, 512, [96, 0, 32])
    assert (mixed["m"], mixed["groups"]) == (128, [[96, 256, 512], [32, 128, 1024]])
    # Padding that changes no alignment is no other problem.
    assert "alignment" not in one(problems, m=40)


def test_hipblaslt_profile():
    """Items count as often as they say, once if they do not."""
    problems = read(DATA / "hipblaslt-mask64.log")
    assert {(48, 5120, 3200, "bf16", 640), (1, 5120, 3200, "bf16", 1)} <= short(problems)
    # A doubled colon, as some builds print it, and quotes.
    assert (8, 512, 256, "bf16", 3) in short(problems)
    grouped = one(problems, operation="grouped_gemm")
    assert (grouped["groups"], grouped["count"]) == ([96, 32], 5)
    (extended,) = read(DATA / "hipblaslt-mask128.log")
    assert extended["extra"]["solution_index"] == 90377
    assert extended["extra"]["kernel_name"] == extended["extra"]["solution_name"] == "Cijk_made_up_MT64"


def test_the_same_calls_in_both_hipblaslt_logs():
    """A line of mask 32 and an item of mask 64 are one key."""
    line = one(read(DATA / "hipblaslt-mask32.log"), m=48)
    item = one(read(DATA / "hipblaslt-mask64.log"), m=48)
    assert {**line, "count": 0, "extra": 0} == {**item, "count": 0, "extra": 0}


def test_bench_output():
    """Candidates of one problem are one problem, with the fastest; index 0 is an index."""
    problems, (account,) = read_all(DATA / "hipblaslt-bench.txt")
    assert short(problems) == {(48, 5120, 3200, "bf16", 1), (1, 1024, 4096, "bf16", 1)}
    best = one(problems, m=48)["extra"]
    assert (best["latency_us"], best["solution_index"]) == (15.55, 90377)
    assert one(problems, m=1)["extra"]["solution_index"] == 0
    assert account.provenance == {"GPU": "gfx942", "library build": "de5c1aebb6"}
    assert any("no solution" in note for note in account.notes)


def test_tuning_file():
    """Rows of two generations, one with a misspelled column, and what they chose."""
    problems = read(DATA / "hipblaslt-tuning.txt")
    assert [p["extra"]["solution_index"] for p in problems] == [0, 12, 90377]
    assert one(problems, m=2)["extra"]["kernel_name"] == "Cijk_made_up_12"


def test_cublaslt_log():
    """Launches are counted by shape, not by pointer or time; other lines are not launches."""
    problems, (account,) = read_all(DATA / "cublaslt.log")
    assert (account.read, account.recognised, account.bad) == (9, 7, 0)
    layer = one(problems, m=48, n=5120)
    assert layer["count"] == 2
    assert layer["extra"]["algo"]["tile"] == "MATMUL_TILE_64x64"
    fp8 = one(problems, dtype="fp8")
    assert (fp8["count"], fp8["scale"]) == (2, "tensor")
    fused = one(problems, m=33)
    assert (fused["bias"], fused["activation"], fused["layout"]) == (True, "gelu", "kn")
    batched = one(problems, operation="batched_gemm")
    assert (batched["m"], batched["n"], batched["k"], batched["batch"]) == (128, 64, 96, 12)
    assert batched["extra"]["algo"]["newKey"] == "3"
    # hipBLASLt's trace spells the transpositions with a capital.
    hip = one(problems, k=1024)
    assert (hip["m"], hip["n"], hip["layout_a"]) == (176, 48, "km")


def test_tunableop_results():
    """Result rows give the choice, and its time in microseconds."""
    problems, (account,) = read_all(DATA / "tunableop_results0.csv")
    assert one(problems, m=48) == {
        **LAYER, "count": 1, "extra": {"latency_us": 15.55, "solution": "Gemm_Hipblaslt_90377"},
    }  # fmt: skip
    assert one(problems, bias=True)["m"] == 1024
    assert one(problems, batch=96)["operation"] == "batched_gemm"
    assert one(problems, m=12288)["scale"] == "row"
    # An old row without leading dimensions.
    assert one(problems, m=17)["layout_a"] == "km"
    assert account.provenance["PT_VERSION"] == "2.11.0"


def test_tunableop_untuned():
    """Untuned rows have no counts: repeated ones count once."""
    problems, (account,) = read_all(DATA / "tunableop_untuned0.csv")
    assert {p["count"] for p in problems} == {1}
    assert account.repeated == 1
    assert any("no call counts" in note for note in account.notes)


def test_aiter():
    """M counts tokens already; types, bias, scaling and shuffling are taken over."""
    untuned = read(DATA / "bf16_untuned_gemm.csv")
    assert one(untuned, m=48) == {**LAYER, "count": 1}
    assert (one(untuned, m=1)["bias"], one(untuned, m=1)["dtype_d"]) == (True, "fp32")
    tuned = read(DATA / "bf16_tuned_gemm.csv")
    assert one(tuned, m=48)["extra"]["latency_us"] == 15.55
    assert one(tuned, m=1)["swizzle"] == "b"
    assert one(tuned, m=1)["extra"]["kernel_name"] == "a kernel, with a comma"
    (blocks,) = read(DATA / "a8w8_blockscale_tuned_gemm.csv")
    assert (blocks["dtype"], blocks["scale"]) == ("fp8_e4m3fnuz", "block128x128")


def test_vllm_and_sglang_dense():
    """Keys are tokens, the name says the layer, the configuration is kept."""
    problems = read(DATA / VLLM_DENSE)
    assert [p["m"] for p in problems] == [1, 64, 4096]
    assert {(p["n"], p["k"], p["dtype"], p["scale"]) for p in problems} == {(4096, 7168, "fp8", "block128x128")}
    assert problems[1]["extra"]["config"]["BLOCK_SIZE_M"] == 64
    assert [p["m"] for p in read(DATA / SGLANG_DENSE, format="sglang")] == [8]


def test_fused_experts(tmp_path: Path):
    """The name gives the intermediate size only: with what is missing, gate and up are one product, down another."""
    with pytest.raises(WorkloadError, match="--hidden-size"):
        read(DATA / FUSED)
    problems = read(DATA / FUSED, hidden_size=2048, experts_per_token=8)
    assert {(p["m"], p["n"], p["k"]) for p in problems} == {
        (8, 1536, 2048), (512, 1536, 2048), (8, 2048, 768), (512, 2048, 768),
    }  # fmt: skip
    assert {(p["operation"], p["batch"]) for p in problems} == {("grouped_gemm", 64)}
    # SGLang has a second file for the down projection.
    for name in (FUSED, FUSED.replace(".json", "_down.json")):
        shutil.copy(DATA / FUSED, tmp_path / name)
    up = read(tmp_path / FUSED, hidden_size=2048, experts_per_token=8)
    assert {p["n"] for p in up} == {1536}
    down = read(tmp_path / FUSED.replace(".json", "_down.json"), hidden_size=2048, experts_per_token=8)
    assert {p["n"] for p in down} == {2048}


@pytest.mark.parametrize(
    "name",
    [
        "N=64,K=128,device_name=AMD Radeon RX 7900/7950 XT.json",
        "N=64,K=128,device_name=NVIDIA_H200_(SXM, 141GB).json",
        "N=64,K=128,device_name=NVIDIA H200,dtype=int8_w8a8.json",
    ],
)
def test_device_names_with_slashes_and_blanks(name: str, tmp_path: Path):
    """A device's name is what stands between known parts, whatever is in it."""
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text('{"16": {"BLOCK_SIZE_M": 16}}')
    problems, (account,) = read_all(path)
    assert (problems[0]["m"], problems[0]["n"], problems[0]["k"]) == (16, 64, 128)
    expected = name.partition("device_name=")[2].removesuffix(".json").partition(",dtype=")[0].replace(" ", "_")
    assert account.provenance["GPU"] == expected


def test_quicktune():
    """Counts are calls; transpositions follow from the leading dimensions; rows of one meaning are one problem."""
    problems, (account,) = read_all(DATA / "tuning_result.csv")
    assert short(problems) == {
        (48, 5120, 3200, "bf16", 643), (1, 1024, 4096, "bf16", 12), (33, 640, 96, "fp16", 2),
    }  # fmt: skip
    assert one(problems, m=33)["layout"] == "kn"
    assert one(problems, m=1)["extra"]["tuned_solution_index"] == "NO_SOLUTION"
    assert any("earlier row" in note for note in account.notes)
    (analysed,) = read(DATA / "analysis.csv")
    assert analysed["count"] == 640


def test_plain_lists():
    """Repeated rows are calls; other columns are kept beside the problem."""
    problems = read(DATA / "plain.csv")
    assert short(problems) == {(48, 5120, 3200, "bf16", 642), (1, 1024, 4096, "fp8", 1)}
    assert one(problems, m=48)["extra"] == {"why": "prefill"}
    lines = read(DATA / "plain.jsonl")
    assert one(lines, operation="grouped_gemm")["groups"] == [96, 32]
    assert one(lines, operation="attention")["kv_heads"] == 2
    assert {p["dtype"] for p in read(DATA / "plain.jsonl", dtype="fp16") if p["m"] != 128} == {"fp16"}


def test_one_layer_is_one_problem_in_every_format():
    """The same linear layer, from eight formats, is one key: 48 tokens, 5120 out, 3200 in."""
    names = (
        "hipblaslt-mask32.log", "hipblaslt-mask64.log", "hipblaslt-bench.txt", "cublaslt.log", "tunableop_untuned0.csv",
        "bf16_untuned_gemm.csv", "tuning_result.csv", "plain.csv",
    )  # fmt: skip
    problems = read(*(DATA / name for name in names))
    layer = one(problems, m=48, n=5120, k=3200)
    assert layer["count"] == 3 + 640 + 1 + 2 + 1 + 1 + 643 + 642
