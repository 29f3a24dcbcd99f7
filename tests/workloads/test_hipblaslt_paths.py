"""The fast way through a hipBLASLt log gives what reading every word gives."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wavetune.workloads import hipblaslt_log
from wavetune.workloads.importing import import_files

ALL_TYPES = "--a_type f16_r --b_type f16_r --c_type f16_r --d_type f16_r"
TYPES = ("f16_r", "bf16_r", "f8_r", "f32_r", "bf17_r")


@st.composite
def lines(draw: st.DrawFn) -> str:
    """Draw a line that is usual, or nearly."""
    m, n, k = (draw(st.sampled_from([0, 1, 48, 5120, 2**31])) for _ in range(3))
    trans_a, trans_b = draw(st.sampled_from(["T", "N", "X"])), draw(st.sampled_from(["T", "N"]))
    pad = draw(st.sampled_from([0, 0, 0, 8]))
    lda, ldb = (k if trans_a == "T" else m) + pad, n if trans_b == "T" else k
    head = draw(st.sampled_from(["--api_method c ", "--api_method cpp ", "", "--new_flag "]))
    strides = draw(
        st.sampled_from(["", " --stride_a 0 --stride_b 0 --stride_c 0 --stride_d 0 ", " --lde 5 --stride_e 4"])
    )
    middle = draw(
        st.sampled_from(["", "--bias_vector --bias_source d ", "--scaleAlpha_vector ", "--swizzleA ", "--odd 3 "])
    )
    dtype = draw(st.sampled_from(TYPES))
    index = draw(st.sampled_from(["", " --algo_method index --solution_index 0", " --solution_index -5",
                                  " --solution_index 007", " --solution_index x"]))  # fmt: skip
    tail = draw(st.sampled_from(["", " ", " --activation_type relu ", " --activation_type", " --iters 0 \r", " -m 4"]))
    return (
        f"hipblaslt-bench {head}-m {m} -n {n} -k {k} --lda {lda} --ldb {ldb} --ldc {m} --ldd {m}{strides} --alpha 1.0 "
        f"--beta 0.0 --transA {trans_a} --transB {trans_b} --batch_count {draw(st.sampled_from([1, 1, 3, 0]))} {middle}"
        f"--a_type {dtype} --b_type {dtype} --c_type f16_r --d_type f16_r  --compute_type f32_r{index}{tail}"
    )


def outcome(log: Path) -> Any:
    """Return everything an import says about a log."""
    with import_files([log], format="hipblaslt-log") as imported:
        account = imported.files[0].document()
        # Wordings of one mistake may differ between the ways, not where it is.
        account["refused"] = sorted((entry["line"], entry["count"]) for entry in account["refused"])
        return sorted((entry.document() for entry in imported.entries()), key=str), account


@given(st.lists(lines(), min_size=1, max_size=12), st.integers(1, 5), st.sampled_from(["", "\n"]))
def test_every_way_gives_the_same(tmp_path_factory: pytest.TempPathFactory, drawn: list[str], held: int, end: str):
    """Holding lines, not holding them, and reading words only: same problems, counts and bad lines."""
    log = tmp_path_factory.getbasetemp() / "drawn.log"
    good = f"hipblaslt-bench -m 8 -n 4 -k 2 --transA N --transB N {ALL_TYPES} --compute_type f32_r"
    log.write_text("\n".join([good, *drawn, *drawn[:2]]) + end)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hipblaslt_log, "MAX_HELD_LINES", held)
        fast = outcome(log)
        patch.setattr(hipblaslt_log, "_SIZES", hipblaslt_log.re.compile(rb"never matches"))
        assert outcome(log) == fast


def test_a_varied_log_is_not_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Once lines hardly repeat, they are parsed as they come, and still counted right."""
    monkeypatch.setattr(hipblaslt_log, "MAX_HELD_LINES", 50)
    rng = random.Random(1)
    drawn = [(rng.randrange(1, 2000), rng.randrange(1, 50)) for _ in range(3000)]
    log = tmp_path / "l.log"
    log.write_text(
        "".join(
            f"hipblaslt-bench --api_method c -m 64 -n {n} -k {8 * k} --lda {8 * k} --ldb {8 * k} --ldc 64 --ldd 64 "
            f"--alpha 1 --transA T --transB N --batch_count 1 {ALL_TYPES} --compute_type f32_r --solution_index {i} \n"
            for i, (n, k) in enumerate(drawn)
        )
    )
    with import_files([log]) as imported:
        found = {(e.key.m, e.key.k): (e.count, e.extra["solution_index"]) for e in imported.entries()}
    expected: dict[tuple[int, int], tuple[int, int]] = {}
    for i, (n, k) in enumerate(drawn):
        count, first = expected.get((n, 8 * k), (0, i))
        expected[n, 8 * k] = (count + 1, first)
    assert found == expected


def test_a_last_line_without_end(tmp_path: Path):
    """A last line without line end counts if it ends like the others, and is refused if it ends earlier."""
    line = f"hipblaslt-bench -m 8 -n 4 -k 2 --transA N --transB N {ALL_TYPES} --compute_type f32_r --solution_index 12"
    log = tmp_path / "l.log"
    log.write_text(f"{line}\n{line}")
    with import_files([log]) as imported:
        assert [entry.count for entry in imported.entries()] == [2]
    log.write_text(f"{line} --activation_type gelu\n{line} --activation_type ")
    with import_files([log]) as imported:
        assert [entry.count for entry in imported.entries()] == [1]
        assert imported.lines["first_bad"]["line"] == 2
    log.write_text(f"{line} --activation_type gelu\n{line}")
    with import_files([log]) as imported:
        assert imported.lines["bad"] == 1
