"""What is wrong with a file is reported by line, and never merged silently."""

from __future__ import annotations

import bz2
import gzip
import lzma
from pathlib import Path

import pytest
from workload_reading import DATA, read, read_all, short

from wavetune.core.workload import Workload
from wavetune.errors import WorkloadError
from wavetune.workloads.account import MAX_REASONS, FileAccount
from wavetune.workloads.exact_lines import ExactLines

UNTUNED = "GemmTunableOp_BFloat16_TN,tn_5120_48_3200_ld_3200_3200_5120"


def refused(*paths: Path | str, **options: object) -> dict[int, str]:
    """Return the reason for every refused line of the last file."""
    _, accounts = read_all(*paths, **options)
    return {entry.first_line: entry.reason for entry in accounts[-1].reasons()}


def test_broken_hipblaslt_lines():
    """Cut, garbled, exchanged and double lines are refused, each with its reason; whole ones count."""
    problems, (account,) = read_all(DATA / "hipblaslt-broken.log")
    assert short(problems) == {(48, 5120, 3200, "bf16", 1), (49, 5120, 3200, "bf16", 1)}
    reasons = refused(DATA / "hipblaslt-broken.log")
    expected = {
        2: "transB: the line is cut", 3: "unknown a_type 'bf17_r'", 4: "row-major order", 5: "written over each other",
        6: "from 1 to 2147483647", 7: "whole number, got 'x'", 9: "ends inside this line",
    }  # fmt: skip
    assert reasons.keys() == expected.keys()
    for line, text in expected.items():
        assert text in reasons[line]
    # An old build's line is good, but its shorter end is said.
    assert any("lines end differently" in note and "line 8" in note for note in account.notes)
    assert account.first_bad is not None
    assert account.first_bad.first_line == 2
    with pytest.raises(WorkloadError, match=r"hipblaslt-broken.log:2: no option transB"):
        read(DATA / "hipblaslt-broken.log", strict=True)


def test_broken_cublaslt_lines():
    """Lines without a part, with unknown types, or whose matrices do not fit are refused."""
    problems, (account,) = read_all(DATA / "cublaslt-broken.log")
    assert (len(problems), account.recognised, account.bad) == (1, 1, 6)
    expected = {
        2: "computeDesc is missing", 3: "unknown Adesc type 'R_17BF'", 4: "should be 3200 x 5120", 5: "transa 'OP_X'",
        6: "Bdesc has no rows", 7: "Ddesc is missing",
    }  # fmt: skip
    reasons = refused(DATA / "cublaslt-broken.log")
    for line, text in expected.items():
        assert text in reasons[line]


@pytest.mark.parametrize(
    ("name", "old", "new", "line", "reason"),
    [
        ("hipblaslt-mask64.log", "call_count: 640 }", "call_count: 640", 2, "no closing brace"),
        ("hipblaslt-mask64.log", "call_count: 640", "call_count: many", 2, "call_count must be a whole number"),
        ("hipblaslt-mask64.log", "a_type: bf16_r", "a_type: bf16", 2, "unknown a_type 'bf16'"),
        ("hipblaslt-bench.txt", ",19.2\n", "\n", 10, "cells under a header"),
        ("hipblaslt-tuning.txt", ",90377,gfx942:sramecc+:xnack-,304", "", 3, "cells under a header"),
        ("hipblaslt-tuning.txt", "T,N,0,1,5120", "T,N,1,1,5120", 3, "does not list its groups"),
        ("tunableop_results0.csv", ",0.01555", ",fast", 6, "a latency must be a positive number"),
        (
            "tunableop_results0.csv",
            "GemmTunableOp_BFloat16_TN,tn_5120",
            "GemmTunableOp_BFloat16_TN,nn_5120",
            6,
            "disagree",
        ),
        ("tunableop_results0.csv", "BFloat16_TN,tn_5120", "BFloat17_TN,tn_5120", 6, "unknown operation or type"),
        ("tunableop_results0.csv", "tn_5120_48_3200_ld", "tn_5120_48_ld", 6, "parameters must be like"),
        ("tunableop_results0.csv", "ld_3200_3200_5120", "ld_3200_3200_50", 6, "too small"),
        ("tunableop_results0.csv", "_B_96_", "_", 9, "lacks a batch"),
        ("tunableop_results0.csv", "Validator,ROCM_VERSION,7.2.0.0-11-aaaa", "Validator,ROCM_VERSION", 2, "cut"),
        ("bf16_tuned_gemm.csv", ",101.15,2010.42", "", 2, "cells under a header"),
        ("bf16_tuned_gemm.csv", "False,torch.bfloat16", "maybe,torch.bfloat16", 2, "bias must be True or False"),
        ("bf16_tuned_gemm.csv", "torch.bfloat16,torch", "torch.bfloat17,torch", 2, "unknown dtype 'torch.bfloat17'"),
        ("tuning_result.csv", "5120,48,3200,3200", "5120,48,3200,32", 2, "too small"),
        ("tuning_result.csv", ",640,19.2", ",0,19.2", 2, "count must be from 1"),
        ("plain.csv", "1,1024,4096,,fp8", "1,1024,-4096,,fp8", 3, "k must not be negative"),
        ("plain.csv", "1,1024,4096,,fp8", "1,1024,4096,,fp9", 3, "unknown dtype 'fp9'"),
        ("plain.csv", "1,1024,4096,,fp8", "1,1024", 3, "cells under a header"),
        ("plain.jsonl", '"groups": [96, 32]', '"groups": [96, 33]', 2, "129 rows together, but m = 128"),
        ("plain.jsonl", '"count": 640', '"count": 640.5', 1, "count must be a positive integer"),
        ("plain.jsonl", '"count": 640', '"count": 99999999999999999999', 1, "count must be a positive integer up to"),
        ("plain.jsonl", '"m": 128,', '"m": 128', 2, "no JSON"),
        ("plain.jsonl", '"m": 128,', '"m": 128, "x": NaN,', 2, "NaN is no number of JSON"),
        ("plain.jsonl", '"m": 128,', '"m": 128, "m": 1,', 2, "stands twice"),
    ],
)
def test_one_bad_line(name: str, old: str, new: str, line: int, reason: str, tmp_path: Path):
    """The first line with a mistake is refused with its number and reason; the rest of the file is read."""
    text = (DATA / name).read_text()
    assert old in text
    (tmp_path / name).write_text(text.replace(old, new, 1))
    reasons = refused(tmp_path / name)
    assert reason in reasons[line]
    assert len(reasons) == 1
    # The other lines mean what they meant.
    kept, whole = short(read(tmp_path / name)), short(read(DATA / name))
    assert {problem[:4] for problem in kept} <= {problem[:4] for problem in whole}
    assert len(kept) >= len(whole) - 1


def test_values_without_names(tmp_path: Path):
    """Rows without a header are refused: their order depends on the build."""
    for name in ("hipblaslt-tuning.txt", "tuning_result.csv", "plain.csv", "bf16_tuned_gemm.csv"):
        lines = (DATA / name).read_text().splitlines(keepends=True)
        formats = {"hip": "hipblaslt-tuning", "tun": "quicktune", "pla": "csv", "bf1": "aiter"}
        values = [line for line in lines if not any(c in line for c in ("transA", "Git", "count", "cu_num"))]
        (tmp_path / name).write_text("".join(values))
        with pytest.raises(WorkloadError, match="values without their names"):
            read(tmp_path / name, format=formats[name[:3]])


def test_names_without_values(tmp_path: Path):
    """A header whose values were never written is a cut."""
    text = (DATA / "hipblaslt-tuning.txt").read_text()
    (tmp_path / "t").write_text(text[: text.rindex("    T,N")])
    assert "names without their values" in refused(tmp_path / "t")[6]
    text = (DATA / "hipblaslt-bench.txt").read_text()
    (tmp_path / "b").write_text(text[: text.rindex("    T,N")])
    assert "names without their values" in refused(tmp_path / "b")[26]


def test_mixed_versions_in_tunableop_files(tmp_path: Path):
    """Results of another library version are refused, and both places are named."""
    first, second = tmp_path / "a0.csv", tmp_path / "b0.csv"
    first.write_text(f"Validator,PT_VERSION,2.11.0\n{UNTUNED},Default,0.01\n")
    second.write_text(f"Validator,PT_VERSION,2.10.0\n{UNTUNED.replace('_48_', '_49_')},Default,0.01\n")
    reasons = refused(first, second)
    assert "PT_VERSION is '2.10.0' here and '2.11.0' at" in reasons[2]
    assert f"{first}:1" in reasons[2]
    assert len(read(first, second)) == 1


def test_rows_that_disagree(tmp_path: Path):
    """Two choices for one problem in one file are not merged: the first is kept; another rank's are repeats."""
    path, other = tmp_path / "a0.csv", tmp_path / "b0.csv"
    path.write_text(f"{UNTUNED},Default,0.01\n{UNTUNED},Gemm_Hipblaslt_1,0.009\n{UNTUNED},Default,0.01\n")
    problems, (account,) = read_all(path)
    assert problems[0]["count"] == 1
    assert problems[0]["extra"]["solution"] == "Default"
    assert (account.bad, account.repeated) == (1, 1)
    assert "a0.csv:1" in account.reasons()[0].reason
    other.write_text(f"{UNTUNED},Default,0.02\n")
    problems, (_, account) = read_all(path, other)
    assert (account.bad, account.repeated, account.recognised) == (0, 1, 1)
    assert [(p["count"], p["extra"]["latency_us"]) for p in problems] == [(1, 10.0)]


def test_rows_of_another_gpu(tmp_path: Path):
    """Rows of a second GPU are refused, unless one is asked for."""
    text = (DATA / "bf16_tuned_gemm.csv").read_text()
    (tmp_path / "t.csv").write_text(text.replace("gfx942,304,1,", "gfx950,256,1,"))
    assert "GPU is 'gfx950' here and 'gfx942' at" in refused(tmp_path / "t.csv")[3]
    problems, (account,) = read_all(tmp_path / "t.csv", strict=True, device="gfx950")
    assert [p["m"] for p in problems] == [1]
    assert account.elsewhere == 1
    for name in ("tunableop_results0.csv", "hipblaslt-tuning.txt", "hipblaslt-bench.txt"):
        assert read(DATA / name, device="gfx942") == read(DATA / name)
        with pytest.raises(WorkloadError, match="no problem found"):
            read(DATA / name, device="gfx950")
    tuning = (DATA / "hipblaslt-tuning.txt").read_text()
    (tmp_path / "t.txt").write_text(tuning.replace("0,gfx942", "0,gfx90a"))
    assert "gfx90a" in refused(tmp_path / "t.txt")[5]
    assert "gfx90a" in refused(DATA / "bf16_tuned_gemm.csv", tmp_path / "t.txt")[5]


def test_unnamed_rows_of_another_build(tmp_path: Path):
    """Solution indices hold for one build: rows without a kernel's name are refused after another one."""
    text = (DATA / "hipblaslt-tuning.txt").read_text()
    (tmp_path / "t.txt").write_text(text.replace("1a2b3c4d", "5e6f7a8b").replace(",5120,48,", ",5120,47,"))
    reasons = refused(DATA / "hipblaslt-tuning.txt", tmp_path / "t.txt")
    assert "library build is '5e6f7a8b' here" in reasons[3]
    # The named row says the same as before, and repeats it.
    assert 7 not in reasons


def test_tuned_files_of_another_gpu_or_compiler(tmp_path: Path):
    """Configurations of another GPU or Triton version are refused as a whole."""
    name = "N=64,K=128,device_name={}.json"
    for device in ("NVIDIA_H200", "NVIDIA_H100"):
        (tmp_path / name.format(device)).write_text('{"triton_version": "3.6.0", "8": {"BLOCK_SIZE_M": 16}}')
    paths = [tmp_path / name.format(device) for device in ("NVIDIA_H200", "NVIDIA_H100")]
    assert "GPU is 'NVIDIA_H100' here and 'NVIDIA_H200'" in refused(*paths)[2]
    problems, accounts = read_all(*paths, strict=True, device="NVIDIA H100")
    assert [(account.elsewhere, account.recognised) for account in accounts] == [(2, 0), (0, 2)]
    assert len(problems) == 1
    other = tmp_path / name.format("NVIDIA_H200").replace("N=64", "N=96")
    other.write_text('{"triton_version": "3.5.0", "8": {"BLOCK_SIZE_M": 16}}')
    assert "triton_version is '3.5.0' here" in refused(paths[0], other)[2]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("N=64,K=128,device_name=X,dtype=fp9.json", '{"8": {}}', "unknown dtype 'fp9' in the name"),
        ("tuned.json", '{"8": {"BLOCK_SIZE_M": 16}}', "the name must say the layer"),
        ("E=8,N=64,K=128,device_name=X.json", '{"8": {}}', "the name must say the layer"),
        ("N=64,K=128,device_name=X.json", '{"8": {}', "no JSON"),
        ("N=64,K=128,device_name=X.json", '{"8": {}, "8": {}}', "stands twice"),
        ("N=64,K=128,device_name=X.json", '{"8": 3}', "must be an object"),
        ("N=64,K=128,device_name=X.json", '{"eight": {"BLOCK_SIZE_M": 16}}', "whole number, got 'eight'"),
        ("gfx942-GEMM-A16W16.json", '{"M_LEQ_16": {"BLOCK_SIZE_M": 16}, "any": {}}', "ranges of M"),
    ],
)
def test_tuned_files_that_say_nothing(name: str, text: str, message: str, tmp_path: Path):
    """Names and contents that are none of vLLM's or SGLang's."""
    (tmp_path / name).write_text(text)
    with pytest.raises(WorkloadError, match=message):
        read(tmp_path / name)


def test_damaged_gzip_keeps_what_was_read(tmp_path: Path):
    """A torn archive gives its whole lines, and says that it is torn."""
    data = (DATA / "plain.csv").read_bytes()
    rows = b"".join(b"%d,64,64,1,bf16,x\n" % m for m in range(1, 20_000))
    packed = gzip.compress(data + rows)
    (tmp_path / "torn.csv.gz").write_bytes(packed[: len(packed) // 2])
    problems, (account,) = read_all(tmp_path / "torn.csv.gz")
    assert 1000 < len(problems) < 20_000
    assert "gzip stream is cut" in account.reasons()[-1].reason
    assert "gzip stream is cut" in account.damage


@pytest.mark.parametrize("content", [b"nothing here\n", b"\x00\xff\xfe" * 100, b"m;n;k\n1;2;3\n"])
def test_files_of_no_format(content: bytes, tmp_path: Path):
    """What is none of the formats is refused with the list of formats."""
    (tmp_path / "what").write_bytes(content)
    with pytest.raises(WorkloadError, match="name the format with --format"):
        read(tmp_path / "what")


def test_files_that_cannot_be_read(tmp_path: Path):
    """A missing file, a folder, and a file named twice are errors."""
    with pytest.raises(WorkloadError, match="cannot read"):
        read(tmp_path / "missing")
    with pytest.raises(WorkloadError, match="cannot read"):
        read(tmp_path)
    with pytest.raises(WorkloadError, match="named twice"):
        read(DATA / "plain.csv", DATA / "plain.csv")
    (tmp_path / "link.csv").symlink_to(DATA / "plain.csv")
    for other in (DATA / "../data/plain.csv", tmp_path / "link.csv"):
        with pytest.raises(WorkloadError, match="named twice"):
            read(DATA / "plain.csv", other)
        with pytest.raises(WorkloadError, match="named twice"):
            ExactLines([DATA / "plain.csv", other])
    with pytest.raises(WorkloadError, match="unknown format"):
        read(DATA / "plain.csv", format="parquet")


@pytest.mark.parametrize(
    ("data", "what"),
    [
        ("m,n,k\n1,2,3\n".encode("utf-16"), "text in UTF-16; convert it: iconv -f UTF-16"),
        (bz2.compress(b"m,n,k\n1,2,3\n"), "packed by bzip2; convert it: bunzip2"),
        (lzma.compress(b"m,n,k\n1,2,3\n"), "packed by xz; convert it: unxz"),
        (b"PK\x03\x04 and so on", "a zip archive or a spreadsheet"),
    ],
)
def test_what_is_no_plain_text_is_named(data: bytes, what: str, tmp_path: Path):
    """Other encodings and packers are said by name, with what to do, by every reader of workloads."""
    (tmp_path / "f").write_bytes(data)
    for reader in (read, Workload.read):
        with pytest.raises(WorkloadError, match=what):
            reader(tmp_path / "f")


def test_noise_alone_is_no_workload(tmp_path: Path):
    """A log without a record is an error, and says what was refused."""
    (tmp_path / "log").write_text("hipblaslt-bench --api_method c -m 5120 -n 48 -k 32\n")
    with pytest.raises(WorkloadError, match=r"no problem found in .*log:1: no option transA"):
        read(tmp_path / "log")


def test_reasons_are_bounded():
    """A million different mistakes keep the first fifty, and all of the count."""
    account = FileAccount("f", "csv")
    for line in range(1000, 0, -1):
        account.refuse(line, f"reason {line}")
    assert account.bad == 1000
    assert [entry.first_line for entry in account.reasons()] == list(range(1, MAX_REASONS + 1))
    assert account.first_bad is not None
    assert account.first_bad.first_line == 1


def test_a_column_that_stands_twice(tmp_path: Path):
    """Which of two values counts, nobody knows: header and rows are refused, until another header comes."""
    (tmp_path / "w.csv").write_text("m,n,k,\n1,2,3,\nm,n,k,m\n4,5,6,7\nm,n,k\n8,9,10\n")
    problems, (account,) = read_all(tmp_path / "w.csv")
    assert [problem["m"] for problem in problems] == [1, 8]
    assert [(entry.first_line, entry.reason[:27]) for entry in account.reasons()] == [
        (3, "the column 'm' stands twice"), (4, "values without their names:"),
    ]  # fmt: skip


def test_more_experts_than_there_are(tmp_path: Path):
    """No token goes to an expert twice."""
    name = "E=8,N=64,device_name=X.json"
    (tmp_path / name).write_text('{"4": {"BLOCK_SIZE_M": 16}}')
    assert len(read(tmp_path / name, hidden_size=128, experts_per_token=8)) == 2
    with pytest.raises(WorkloadError, match="--experts-per-token 9 is more than the 8 experts"):
        read(tmp_path / name, hidden_size=128, experts_per_token=9)
