"""The first line of a table says whose it is: only lists of row-major problems are read as such, by every verb."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from wavetune.core.workload import Workload
from wavetune.core.workload_table import AITER, COLUMN_MAJOR, FUSED_EXPERTS, PLAIN, QUICKTUNE, table_kind
from wavetune.errors import WorkloadError
from wavetune.pipeline.tune_files import TUNED_COLUMNS
from wavetune.workloads.quicktune_export import RESULT_COLUMNS

DATA = Path(__file__).parents[1] / "workloads" / "data"
TYPES = "a_type,b_type,c_type,d_type"


@pytest.mark.parametrize(
    ("header", "path", "kind"),
    [
        ("m,n,k", "", PLAIN),
        ("M,N,K", "shapes.csv", PLAIN),
        ("M,N,K,count", "a8w8_mine.csv", PLAIN),
        ("M, N, K, bias, dtype", "", PLAIN),
        ("m,n,k,count,kernelName,us", "", PLAIN),
        (",".join(TUNED_COLUMNS), "", PLAIN),
        ("M,N,K", "a8w8_blockscale_untuned_gemm.csv", AITER),
        ("M,N,K", "configs/a8w8_gemm_model_config/Llama.csv", AITER),
        ("M,N,K", "bf16_untuned_gemm.csv", AITER),
        ("M,N,K,q_dtype_w", "", AITER),
        ("cu_num,B,M,N,K,kernelId,splitK,us", "", AITER),
        ("m,n,k,count,scaleab", "", AITER),
        (",".join(RESULT_COLUMNS), "", QUICKTUNE),
        ("m,n,k,count,baseline_latency(us)", "", QUICKTUNE),
        (f"M,N,K,lda,ldb,ldc,ldd,{TYPES}", "", QUICKTUNE),
        (f"m,n,k,lda,ldb,ldd,{TYPES},transA,transB", "", COLUMN_MAJOR),
        (f"m,n,k,lda,ldb,ldd,{TYPES},batch_count", "", COLUMN_MAJOR),
        ("m,n,k,lda", "", COLUMN_MAJOR),
        ("m,n,k,a_type", "", COLUMN_MAJOR),
        ("transA,transB,m,n,k", "", COLUMN_MAJOR),
        ("cu_num,token,model_dim,inter_dim,expert,topk", "", FUSED_EXPERTS),
        ("m,n", "", ""),
        ("name,calls", "", ""),
    ],
)
def test_whose_table_it_is(header: str, path: str, kind: str):
    """Distinctive columns decide; M, N and K alone are AITER's where the name says so."""
    assert table_kind(header.split(","), path) == kind


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("m,n,k,transA\n1,2,3,T\n", "column-major, as its column transA says"),
        ("m,n,k,lda\n1,2,3,4\n", "column-major"),
        ("M,N,K,outdtype\n1,2,3,torch.bfloat16\n", "a table of AITER"),
        ("cu_num,token,model_dim,inter_dim\n80,4,64,64\n", "fused experts"),
        ("g,m,n,k\n4,1,2,3\n", "'g' counts the groups"),
        ("B,b,m,n,k\n4,4,1,2,3\n", "'batch' stands twice"),
    ],
)
def test_other_tables_are_refused(text: str, message: str, tmp_path: Path):
    """What a list of problems would lose or exchange is an error with its place, never a guess."""
    path = tmp_path / "w.csv"
    path.write_text(text)
    with pytest.raises(WorkloadError, match=rf"w\.csv:1: .*{message}"):
        Workload.read(path)


@pytest.mark.parametrize("name", ["tuning_result.csv", "analysis.csv", "bf16_tuned_gemm.csv"])
def test_tables_that_import_reads_say_so(name: str, tmp_path: Path):
    """The error names the command that reads the file."""
    shutil.copy(DATA / name, tmp_path / name)
    with pytest.raises(WorkloadError) as caught:
        Workload.read(tmp_path / name)
    assert str(caught.value).endswith(f"Read it with `wavetune workload import {tmp_path / name}`")


def test_a_column_of_batches_is_a_batch(tmp_path: Path):
    """A batch is not lost, however its column is called."""
    path = tmp_path / "w.csv"
    for name in ("b", "B", "batch", "batch_count"):
        path.write_text(f"{name},m,n,k\n4,8,16,32\n1,8,16,32\n")
        batched, plain = Workload.read(path).entries
        assert (batched.key.operation, batched.key.batch, plain.key.operation) == ("batched_gemm", 4, "gemm")
