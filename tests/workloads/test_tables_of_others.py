"""Tables of other tools: the batch, the type and the scaling that they mean, and the GPU that is asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from workload_reading import DATA, read, read_all, short

from wavetune.core.workload import Workload
from wavetune.errors import WorkloadError

BATCHED = (
    "cu_num,B,M,N,K,kernelId,splitK,us,kernelName\n80,16,1,1280,8192,29,0,70.2,x\n304,16,1,1280,8192,30,0,50.1,y\n"
)


@pytest.fixture
def write(tmp_path: Path) -> Any:
    """Return what writes a file below a folder."""

    def write_file(name: str, text: str) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    return write_file


def test_counts_are_kept_whatever_the_capitals(write: Any):
    """Import and the other verbs read one list alike: capitals make no difference, and no call is lost."""
    for header in ("M,N,K,count,dtype", "m,n,k,Count,DType"):
        path = write("w.csv", f"{header}\n48,5120,3200,640,fp16\n48,5120,3200,2,fp16\n")
        assert short(read(path)) == {(48, 5120, 3200, "fp16", 642)}
        assert {(e.key.dtype, e.count) for e in Workload.read(path).entries} == {("fp16", 642)}
    path = write(
        "w.jsonl", '{"M": 48, "N": 5120, "K": 3200, "Count": 3, "why": "x"}\n{"M": 1, "N": 2, "K": 3, "m": 4}\n'
    )
    problems, (account,) = read_all(path)
    assert short(problems) == {(48, 5120, 3200, "bf16", 3)}
    assert problems[0]["extra"] == {"why": "x"}
    assert "'m' stands twice" in account.reasons()[0].reason
    path = write("counted.csv", "M,N,K,count,q_dtype_w\n48,5120,3200,640,torch.int8\n")
    assert short(read(path)) == {(48, 5120, 3200, "int8", 640)}


def test_sizes_alone(write: Any):
    """M, N and K alone are a list, where rows are calls, and a note says so; with AITER's name they are AITER's."""
    path = write("w.csv", "M,N,K\n48,5120,3200\n48,5120,3200\n")
    problems, (account,) = read_all(path)
    assert (account.format, problems[0]["count"]) == ("csv", 2)
    assert any("--format aiter" in note for note in account.notes)
    assert read(path, format="aiter")[0]["count"] == 1
    _, (account,) = read_all(write("bf16_untuned_gemm.csv", path.read_text()))
    assert (account.format, account.repeated) == ("aiter", 1)


def test_batched_products_of_aiter(write: Any):
    """The column B is the batch."""
    (problem,) = read(write("bf16_tuned_batched_gemm.csv", BATCHED), device="80")
    assert (problem["operation"], problem["batch"], problem["m"], problem["dtype"]) == ("batched_gemm", 16, 1, "bf16")
    text = "gfx,case,tp,ep,G,K,N,M,use_hip\ngfx950,g,1,1,128,6144,6144,16,0\n"
    with pytest.raises(WorkloadError, match=r"grouped.csv:1: the column 'g' counts the groups"):
        read(write("grouped.csv", text))


@pytest.mark.parametrize(
    ("name", "wanted", "dtype", "scale"),
    [
        ("a8w8_untuned_gemm.csv", "bf16", "fp8", "row"),
        ("a8w8_blockscale_untuned_gemm.csv", "bf16", "fp8", "block128x128"),
        ("a8w8_blockscale_untuned_gemm.csv", "fp8", "fp8", "block128x128"),
        ("a8w8_blockscale_untuned_gemm.csv", "fp8_e4m3fnuz", "fp8_e4m3fnuz", "block128x128"),
        ("a8w8_untuned_gemm.csv", "int8", "int8", "row"),
        ("a8w8_gemm_model_config/Llama-TP1.csv", "bf16", "fp8", "row"),
        ("a4w4_blockscale_untuned_gemm.csv", "bf16", "fp4", "block32"),
        ("bf16_untuned_gemm.csv", "bf16", "bf16", "none"),
        ("bf16_untuned_gemm.csv", "fp8", "fp8", "row"),
    ],
)
def test_types_that_the_name_says(write: Any, name: str, wanted: str, dtype: str, scale: str):
    """Without a column of types the name counts; --dtype chooses among types of its width, and keeps the scaling."""
    path = write(name, "M,N,K\n16, 1536, 7168\n")
    problems, (account,) = read_all(path, dtype=wanted)
    assert [(p["dtype"], p.get("scale", "none")) for p in problems] == [(dtype, scale)]
    assert any(note.startswith(f"no column dtype: {dtype}") for note in account.notes)
    assert any("may be int8" in note for note in account.notes) == ("a8w8" in name)
    with pytest.raises(WorkloadError, match="wavetune workload import"):
        Workload.read(path, dtype=wanted)


def test_two_types_and_shuffled_weights_in_a_name(write: Any):
    """A and B of different widths, 128 x 128 scales and pre-shuffled weights."""
    (mixed,) = read(write("a6w4_asm_tuned_gemm.csv", "gfx,cu_num,M,N,K,kernelId,us\ngfx950,256,1,2,3,0,nan\n"))
    assert (mixed["dtype"], mixed["dtype_b"], mixed["scale"]) == ("fp6", "fp4", "block32")
    assert mixed["extra"] == {"solution_index": 0}
    text = "M,N,K,q_dtype_w\n16,1536,7168,torch.float8_e4m3fn\n"
    (shuffled,) = read(write("a8w8_blockscale_bpreshuffle_untuned_gemm.csv", text))
    assert (shuffled["scale"], shuffled["swizzle"]) == ("block128x128", "b")


def test_gpus_by_their_number_of_compute_units(write: Any):
    """Rows that name no GPU are told apart by compute units, and what there is to choose from is said."""
    path = write("bf16_tuned_batched_gemm.csv", BATCHED)
    _, (account,) = read_all(path)
    assert "take one with --device 304" in account.reasons()[0].reason
    assert any("several GPUs (80, 304)" in note for note in account.notes)
    for units, index in (("80", 29), ("304", 30)):
        problems, (account,) = read_all(path, device=units, strict=True)
        assert [p["extra"]["solution_index"] for p in problems] == [index]
        assert account.elsewhere == 1
    with pytest.raises(WorkloadError, match="of other GPUs: 304, 80"):
        read(path, device="gfx942")


def test_fused_experts_of_aiter(write: Any):
    """A table of fused layers is known, and refused with the reason."""
    path = write("tuned_fmoe.csv", "cu_num,token,model_dim,inter_dim,expert,topk\n80,4,2304,1536,8,2\n")
    with pytest.raises(WorkloadError, match=r"tuned_fmoe.csv: this is AITER's table of fused experts"):
        read(path)


@pytest.mark.parametrize("columns", ["lda,transA", "a_type", "lda,ldb,ldc,ldd"])
def test_column_major_tables_are_never_row_major(write: Any, columns: str):
    """A header that BLAS's arguments stand in is read as what it is, or not at all."""
    path = write("w.csv", f"m,n,k,{columns}\n1,2,3,{','.join('4' for _ in columns.split(','))}\n")
    for format in ("auto", "csv", "aiter", "quicktune"):
        with pytest.raises(WorkloadError, match="column-major"):
            read(path, format=format)


@pytest.mark.parametrize(
    ("start", "end"),
    [("[rank0]: ", ""), ("\x1b[32m", "\x1b[0m"), ("2026-01-01 12:00:01,123 host ", ""), ("[1,0]<stdout>:", "")],
)
def test_bench_output_behind_prefixes(write: Any, start: str, end: str):
    """Ranks, times, hosts and colours change nothing, neither results nor facts."""
    text = (DATA / "hipblaslt-bench.txt").read_text()
    path = write("bench.txt", "".join(f"{start}{line}{end}\n" for line in text.splitlines()))
    problems, (account,) = read_all(path, strict=True)
    _, (expected,) = read_all(DATA / "hipblaslt-bench.txt")
    assert problems == read(DATA / "hipblaslt-bench.txt")
    assert {**account.document(), "file": ""} == {**expected.document(), "file": ""}


def test_coloured_logs(write: Any):
    """A colour directly before a record does not hide it."""
    text = (DATA / "hipblaslt-mask32.log").read_text().replace("hipblaslt-bench", "\x1b[1;31mhipblaslt-bench")
    assert read(write("l.log", text)) == read(DATA / "hipblaslt-mask32.log")


def test_rows_that_quicktune_did_not_match(write: Any):
    """A row of no call is left out as what it is; a count of zero elsewhere is a mistake."""
    lines = (DATA / "tuning_result.csv").read_text().splitlines()
    row = "64,8,64,64,64,64,64,bf16_r,bf16_r,bf16_r,bf16_r,0,no_match,-,no_match,-,-,SUCCESS"
    problems, (account,) = read_all(write("w.csv", "\n".join([*lines, row])), strict=True)
    assert problems == read(DATA / "tuning_result.csv")
    assert any("no_match" in note for note in account.notes)
    _, (account,) = read_all(write("w.csv", "\n".join([*lines, row.replace("no_match", "5")])))
    assert "count must be from 1" in account.reasons()[0].reason


def test_analyses_say_their_types(write: Any):
    """An analysis of this project has type and layout where QuickTune's columns cannot say the key."""
    header = "m,n,k,count,baseline_latency(us),operation,dtype,layout"
    path = write("a.csv", f"{header}\n64,8,32,5,1.5,gemm,fp8,kn\n64,8,32,5,1.5,grouped_gemm,fp8,nk\n")
    problems, (account,) = read_all(path, strict=True)
    assert [(p["m"], p["n"], p["operation"], p["dtype"], p["layout"]) for p in problems] == [
        (8, 64, "gemm", "fp8", "kn"), (8, 64, "grouped_gemm", "fp8", "nk"),
    ]  # fmt: skip
    assert "rows of a grouped_gemm: the format says neither batch nor groups" in account.notes


def test_types_with_blanks_in_tunableop_files(write: Any):
    """int8 is called "signed char" there."""
    (problem,) = read(write("t.csv", "GemmTunableOp_signed char_TN,tn_64_8_32_ld_32_32_64\n"))
    assert (problem["m"], problem["n"], problem["dtype"]) == (8, 64, "int8")
