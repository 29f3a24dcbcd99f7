"""Override files from bench output: the importer reads back what the bench measured, and nothing is made up."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from workload_reading import DATA, read

from wavetune.errors import WorkloadError
from wavetune.workloads.hipblaslt_override import OverrideFile, override_file
from wavetune.workloads.source import LineSource

BENCH = DATA / "hipblaslt-bench.txt"

COLUMNS = (
    "transA,transB,grouped_gemm,batch_count,m,n,k,alpha,lda,stride_a,beta,ldb,stride_b,ldc,stride_c,ldd,stride_d,"
    "a_type,b_type,c_type,d_type,compute_type,scaleA,scaleB,scaleC,scaleD,amaxD,swizzle_a,swizzle_b,activation_type,"
    "bias_vector,bias_type,aux_type,rotating_buffer,flush,use_gpu_timer,hipblaslt-Gflops,hipblaslt-GB/s,us"
)
FACTS = """hipBLASLt git version: abc123
Query device success: there are 2 devices. (Target device ID is 1)
Device ID 0 : AMD Radeon Pro gfx1100
Device ID 1 : AMD Instinct MI300X gfx942:sramecc+:xnack-
"""


def convert(text: str, tmp_path: Path, **options: Any) -> OverrideFile:
    """Convert an output."""
    path = tmp_path / "bench.txt"
    path.write_text(text)
    with LineSource(path) as source:
        return override_file(source, **options)


def candidate(
    us: float, index: int | None, *, m: int = 64, behind: dict[str, object] | None = None, **cells: object
) -> str:
    """Return the block of a candidate; ``behind`` are columns behind the latency."""
    values: dict[str, object] = dict.fromkeys(COLUMNS.split(","), 0)
    values |= {
        "transA": "T", "transB": "N", "batch_count": 1, "m": m, "n": 8, "k": 32, "alpha": 1, "lda": 32, "ldb": 32,
        "ldc": m, "ldd": m, "compute_type": "f32_r", "activation_type": "none", "bias_type": "bf16_r",
        "aux_type": "bf16_r", "us": us, **{f"{name}_type": "bf16_r" for name in "abcd"}, **cells, **(behind or {}),
    }  # fmt: skip
    info = "" if index is None else f"    --Solution index: {index}\n    --kernel name:    Cijk_{index}\n"
    return f"[0]:{','.join(values)}\n    {','.join(map(str, values.values()))}\n{info}"


def rows_of(override: OverrideFile) -> list[dict[str, str]]:
    """Return the rows by column."""
    lines = [line.strip().split(",") for line in override.text.splitlines()[1:]]
    return [dict(zip(header, row, strict=True)) for header, row in zip(lines[::2], lines[1::2], strict=True)]


def test_the_importer_reads_back_what_was_measured(tmp_path: Path) -> None:
    """Problems, fastest latencies and solution indices are those of the output, index 0 among them."""
    with LineSource(BENCH) as source:
        override = override_file(source, strict=True)
    path = tmp_path / "tuning.txt"
    path.write_text(override.text)
    back, bench = (
        {(p["m"], p["n"], p["k"]): (p["extra"]["latency_us"], p["extra"]["solution_index"]) for p in problems}
        for problems in (read(path, strict=True), read(BENCH))
    )
    assert back == bench
    assert (1, 1024, 4096) in back
    assert back[1, 1024, 4096][1] == 0
    assert override.text.startswith("Git Version: de5c1aebb6\n    transA,")
    assert (override.gpu, override.compute_units) == ("gfx942:sramecc+:xnack-", 304)


def test_the_fastest_of_a_problem_wins(tmp_path: Path) -> None:
    """However the candidates are ordered, and with the index of the winner's own line or of what follows it."""
    text = FACTS + candidate(9.0, 1) + candidate(7.0, 2) + candidate(8.0, 3) + candidate(5.0, 4, m=128)
    text += "Winner: \n" + candidate(5.0, None, m=128, behind={"soulution_index": 4})
    rows = rows_of(convert(text, tmp_path))
    assert [(row["m"], row["us"]) for row in rows] == [("64", "7.0"), ("128", "5.0")]
    assert rows[0]["solution_index"] == "2"
    # As the build spells it.
    assert rows[1]["soulution_index"] == "4"
    # The GPU that ran, not the first one of the machine.
    assert {row["gcnArchName"] for row in rows} == {"gfx942:sramecc+:xnack-"}


def test_names_of_kernels_stay_where_the_build_knows_them(tmp_path: Path) -> None:
    """Behind the GPU, as newer builds write it; older builds do not know the column."""
    text = FACTS + candidate(9.0, None, behind={"solution_index": 1, "kernel_name": "Cijk_1"})
    new, old = rows_of(convert(text + candidate(9.0, 2, m=128), tmp_path))
    assert list(new)[-4:] == ["solution_index", "gcnArchName", "CUs", "kernel_name"]
    assert new["kernel_name"] == "Cijk_1"
    assert list(old)[-1] == "CUs"


def test_what_the_lookup_would_misuse_is_left_out(tmp_path: Path) -> None:
    """Shuffled operands and grouped products are not in its key, and of two epilogues it knows one."""
    text = FACTS + candidate(9.0, 1) + candidate(5.0, 2, activation_type="gelu") + candidate(4.0, 3, swizzle_a=1)
    text += candidate(3.0, 4, grouped_gemm=1) + candidate(3.0, None, m=256)
    override = convert(text, tmp_path)
    assert [row["solution_index"] for row in rows_of(override)] == ["1"]
    assert sum(override.left_out.values()) == 4
    reasons = " ".join(override.left_out)
    for word in ("does not tell it from", "shuffled", "grouped", "--print_kernel_info"):
        assert word in reasons


@pytest.mark.parametrize(
    ("removed", "options", "said"),
    [
        ("hipBLASLt git version.*\n", {}, "--git-version"),
        ("Device ID.*\n", {"compute_units": 304}, "--gpu-target"),
        ("AMD Instinct MI300X", {}, "--compute-units"),
        ("nothing", {"build": "def"}, "abc123, not def"),
        ("hipBLASLt git version.*\n", {}, "wavetune convert bench-output .*bench.txt --git-version"),
        ("hipBLASLt git version.*\n", {"build": "a\nb"}, "--git-version must be one word"),
        ("Device ID.*\n", {"gpu": "gfx942,gfx950", "compute_units": 304}, "--gpu-target must be one word"),
    ],
)
def test_what_is_not_known_must_be_said(removed: str, options: dict[str, Any], said: str, tmp_path: Path) -> None:
    """Build, GPU and its size: a guess could be applied to the wrong library."""
    text = re.sub(removed, "", FACTS + candidate(9.0, 1))
    with pytest.raises(WorkloadError, match=said):
        convert(text, tmp_path, **options)
    given = {"build": "abc123", "gpu": "gfx942:sramecc+:xnack-", "compute_units": 304}
    assert rows_of(convert(text, tmp_path, **given))[0]["CUs"] == "304"


def test_outputs_of_two_builds_are_refused(tmp_path: Path) -> None:
    """Indices of one mean nothing to the other."""
    text = FACTS + candidate(9.0, 1) + FACTS.replace("abc123", "fff999") + candidate(8.0, 2, m=128)
    with pytest.raises(WorkloadError, match="abc123, fff999"):
        convert(text, tmp_path)


def test_cut_outputs_are_accounted_for(tmp_path: Path) -> None:
    """A torn row is a bad line, an error if strict; what was whole is kept."""
    whole, torn = candidate(9.0, 1), candidate(8.0, 2, m=128).splitlines()
    text = FACTS + whole + torn[0] + "\n" + torn[1][:60] + "\n"
    override = convert(text, tmp_path)
    assert (override.rows, override.account.bad) == (1, 1)
    assert override.account.read == override.account.recognised + override.account.skipped
    with pytest.raises(WorkloadError, match=r"bench.txt:\d+: \d+ cells"):
        convert(text, tmp_path, strict=True)
    # Names at the very end.
    assert convert(FACTS + whole + torn[0], tmp_path).account.bad == 1


def test_only_bench_output_will_do(tmp_path: Path) -> None:
    """A log of calls has no measurements, whatever solution indices it names."""
    with LineSource(DATA / "hipblaslt-mask32.log") as source, pytest.raises(WorkloadError, match="only its bench"):
        override_file(source)
