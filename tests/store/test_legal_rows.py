"""Rows of family files that nobody can have measured are refused by line, or left out and counted."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from wavetune.core.arch import find_arch
from wavetune.core.config import ATTENTION, ATTENTION_DECODE, GROUPED_GEMM, KernelSpec, find_kernel_spec
from wavetune.errors import MeasurementError
from wavetune.store.csv_io import ReadResult, read_measurements

H200 = find_arch("h200")
COMPILED = "num_regs,num_spills,smem_bytes,latency_us"
DECODE = (f"{','.join(ATTENTION_DECODE.dims)},block_n,splits,num_warps,num_stages,{COMPILED}",
          "2,100,0,8,8,16,0,64,2,4,3,80,0,49152,21.5")  # fmt: skip
PREFILL = (f"{','.join(ATTENTION.dims)},block_m,block_n,order,masking,num_warps,num_stages,{COMPILED}",
           "2,100,100,50,8,2,1,0,64,64,in_order,edges,4,2,120,0,49152,21.5")  # fmt: skip
GROUPED = (f"{','.join(GROUPED_GEMM.dims)},block_m,block_n,block_k,num_warps,num_stages,load,{COMPILED}",
           "4,10,3,7,512,64,64,128,64,4,3,tma,120,0,49152,21.5")  # fmt: skip
FILES = {"attention_decode": (DECODE, "d128"), "attention": (PREFILL, "d128"), "grouped_gemm": (GROUPED, "nk")}


def read(folder: Path, kernel: str, rows: list[str], on_bad_row: str = "error") -> ReadResult:
    """Write a file of a family and read it."""
    (header, _), layout = FILES[kernel]
    path = folder / "a.csv"
    path.write_text("\n".join([header, *rows]) + "\n")
    return read_measurements(
        path, find_kernel_spec(kernel), "bf16", H200, exhaustive=True, layout=layout, on_bad_row=on_bad_row
    )


def changed(kernel: str, **cells: int | str) -> str:
    """Return the good row of a family with some cells changed."""
    (header, row), _ = FILES[kernel]
    values = dict(zip(header.split(","), row.split(","), strict=True))
    assert cells.keys() <= values.keys()
    return ",".join(map(str, (values | cells).values()))


BAD = [
    ("attention_decode", {"splits": 3}, "cannot compute", "kv_len=100 .*splits=3 exceeds the 2 loop trips"),
    ("attention_decode", {"kv_heads": 3}, "no problem of these sizes", "kv_heads must divide heads, got 8 heads and 3"),
    ("attention_decode", {"batch": 1, "spread": 40}, "no problem of these sizes", "the nearest is batch=1 .*spread=0"),
    ("attention", {"kv_heads": 16}, "no problem of these sizes", "kv_heads must divide heads"),
    ("attention", {"is_causal": 2}, "no problem of these sizes", "the nearest is .*is_causal=1"),
    ("attention", {"spread": 101}, "no problem of these sizes", r"spread must be in \[0, 100\]"),
    ("attention", {"q_len": 2**30, "heads": 2**10}, "cannot compute", "grid exceeds"),
    ("grouped_gemm", {"k": 65}, "cannot compute", "k=65 .*TMA needs 16-byte alignment"),
    ("grouped_gemm", {"active": 5}, "no problem of these sizes", "active must be at most experts"),
    ("grouped_gemm", {"tokens": 22}, "no problem of these sizes", "hold 9 to 21 tokens, not 22"),
]


@pytest.mark.parametrize(("kernel", "cells", "brief", "why"), BAD)
def test_an_illegal_row_is_refused_or_skipped(
    tmp_path: Path, kernel: str, cells: dict[str, int], brief: str, why: str
) -> None:
    """The message has file, line, sizes and the reason; skipped rows are counted by the kind of mistake."""
    good = FILES[kernel][0][1]
    rows = [good, changed(kernel, **cells, latency_us=30.25), changed(kernel, num_warps=8)]
    with pytest.raises(MeasurementError, match=rf"a\.csv:3: .*{brief}.*{why}.*check the columns of the sizes"):
        read(tmp_path, kernel, rows)
    result = read(tmp_path, kernel, rows, "skip")
    report = result.report.files[0]
    assert (report.rows_kept, report.rows_skipped, report.skipped[0].first_line) == (2, 1, 3)
    assert brief in report.skipped[0].reason
    assert result.table.latency_us.tolist() == [21.5, 21.5]


def test_the_first_bad_line_is_named_whatever_its_sizes(tmp_path: Path) -> None:
    """Rows are judged key by key and reported in the order of the file."""
    rows = [changed("attention_decode", kv_len=length, splits=splits)
            for length, splits in ((5000, 2), (4000, 64), (100, 9), (100, 2), (3000, 60))]  # fmt: skip
    with pytest.raises(MeasurementError, match=r"a\.csv:3: .*kv_len=4000"):
        read(tmp_path, "attention_decode", rows)
    report = read(tmp_path, "attention_decode", rows, "skip").report.files[0]
    assert (report.rows_kept, report.rows_skipped, report.skipped[0].first_line) == (2, 3, 3)


@pytest.mark.parametrize("kernel", FILES)
def test_legal_rows_are_kept_as_they_are(tmp_path: Path, kernel: str) -> None:
    """In their order."""
    rows = [changed(kernel, num_warps=warps, latency_us=warps + 0.5) for warps in (8, 4)]
    table = read(tmp_path, kernel, rows).table
    assert table.latency_us.tolist() == [8.5, 4.5]
    assert len(np.unique(table.dims, axis=0)) == 1


def test_of_a_users_kernel_nothing_is_known(tmp_path: Path) -> None:
    """Also if it has the name of one that is known."""
    spec = KernelSpec("attention", ("kv_heads", "heads"), ("BLOCK", "num_warps"), ())
    path = tmp_path / "own.csv"
    path.write_text(f"kv_heads,heads,BLOCK,num_warps,{COMPILED}\n3,7,64,4,80,0,1024,21.5\n")
    table = read_measurements(path, spec, "bf16", H200, exhaustive=True, layout="x").table
    assert table.dims.tolist() == [[3, 7]]
