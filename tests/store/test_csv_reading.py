"""Measurement files: what is read, merged, skipped and refused."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wavetune.core.arch import find_arch
from wavetune.core.config import GEMM
from wavetune.errors import MeasurementError
from wavetune.store.csv_io import ReadResult, read_measurements

H200 = find_arch("h200")
HEADER = "m,n,k,block_m,block_n,block_k,group_m,num_warps,num_stages,num_regs,num_spills,smem_bytes,latency_us"
SMALL = "64,64,64,8,4,3,69,0,49152"
LARGE = "128,128,64,8,8,3,114,0,98304"
ROWS = (
    f"128,4096,4096,{SMALL},21.5",
    f"128,4096,4096,{LARGE},25.25",
    f"256,4096,4096,{SMALL},31",
    f"256,4096,4096,{LARGE},28.125",
)


def text_of(*rows: str, header: str = HEADER) -> str:
    """Return the text of a file."""
    return "\n".join((header, *rows)) + "\n"


def read(path: Path, content: str | bytes, on_bad_row: str = "error") -> ReadResult:
    """Write a file and read it."""
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return read_measurements(path, GEMM, "bf16", H200, exhaustive=True, on_bad_row=on_bad_row)


def test_rows_keep_their_order_and_values(tmp_path: Path) -> None:
    """Rows keep their order and values."""
    result = read(tmp_path / "a.csv", text_of(*ROWS))
    table = result.table
    assert table.dims.tolist() == [[128, 4096, 4096], [128, 4096, 4096], [256, 4096, 4096], [256, 4096, 4096]]
    assert table.latency_us.tolist() == [21.5, 25.25, 31.0, 28.125]
    assert [table.configs[index].config.block_m for index in table.config_index] == [64, 128, 64, 128]
    assert [table.configs[index].smem_bytes for index in table.config_index] == [49152, 98304, 49152, 98304]
    assert table.exhaustive.all()
    assert (table.dtype, table.layout, table.spec) == ("bf16", "nk", GEMM)


def test_left_out_fields_take_their_defaults_and_given_ones_do_not(tmp_path: Path) -> None:
    """Left out fields take their defaults and given ones do not."""
    config = read(tmp_path / "a.csv", text_of(*ROWS)).table.configs[0].config
    assert (config.split_k, config.schedule, config.load, config.epilogue_split) == (1, "tile", "pointer", 1)
    header = f"{HEADER},split_k,schedule,load,epilogue_split,note"
    config = read(tmp_path / "b.csv", text_of(f"{ROWS[0]},4,split_k,tma,2,x", header=header)).table.configs[0].config
    assert (config.split_k, config.schedule, config.load, config.epilogue_split) == (4, "split_k", "tma", 2)


@pytest.mark.parametrize("said", ["gemm,bf16,nk", ",,", "gemm,torch.bfloat16, nk", ",bf16,"])
def test_a_file_may_say_what_it_is_of(tmp_path: Path, said: str) -> None:
    """In any spelling of the dtype; an empty cell says nothing."""
    header = f"{HEADER},kernel,dtype,layout"
    assert len(read(tmp_path / "a.csv", text_of(*(f"{row},{said}" for row in ROWS), header=header)).table) == 4


@pytest.mark.parametrize("on_bad_row", ["error", "skip"])
@pytest.mark.parametrize(
    ("said", "message"),
    [
        ("attention,bf16,nk", "kernel is attention, asked for was gemm"),
        ("gemm,float16,nk", "dtype is fp16, asked for was bf16"),
        ("gemm,x,nk", "dtype is x, asked for was bf16"),
        ("gemm,bf16,d64", "layout is d64, asked for was nk"),
    ],
)
def test_a_file_of_something_else_is_refused(tmp_path: Path, said: str, message: str, on_bad_row: str) -> None:
    """The first row that says so is named, also where bad rows are skipped: none of them can be meant."""
    rows = [f"{row},{said if place else 'gemm,bf16,nk'}" for place, row in enumerate(ROWS)]
    with pytest.raises(MeasurementError, match=f"a.csv:3: {message}"):
        read(tmp_path / "a.csv", text_of(*rows, header=f"{HEADER},kernel,dtype,layout"), on_bad_row)


def test_columns_are_found_by_name_in_any_order(tmp_path: Path) -> None:
    """Columns are found by name in any order."""
    records = list(csv.DictReader(io.StringIO(text_of(*ROWS))))
    names = sorted(records[0], reverse=True)
    shuffled = text_of(*(",".join(row[name] for name in names) for row in records), header=",".join(names))
    table = read(tmp_path / "a.csv", shuffled).table
    expected = read(tmp_path / "b.csv", text_of(*ROWS)).table
    assert table.configs == expected.configs
    assert np.array_equal(table.dims, expected.dims)
    assert np.array_equal(table.latency_us, expected.latency_us)


@pytest.mark.parametrize(
    "disguise",
    [
        lambda text: text.replace("\n", "\r\n").encode(),
        lambda text: b"\xef\xbb\xbf" + text.encode(),
        lambda text: text.rstrip("\n").encode(),
        lambda text: text.replace("\n", "\n\n").encode(),
        lambda text: text.replace(",", " , ").encode(),
        lambda text: "\n".join(",".join(f'"{c}"' for c in line.split(",")) for line in text.split()).encode(),
        lambda text: gzip.compress(text.encode()),
    ],
    ids=["crlf", "byte-order-mark", "no-last-newline", "blank-lines", "spaces", "quotes", "gzip-without-gz"],
)
def test_spellings_of_the_same_file_read_the_same(tmp_path: Path, disguise: Callable[[str], bytes]) -> None:
    """Spellings of the same file read the same."""
    table = read(tmp_path / "a.csv", disguise(text_of(*ROWS))).table
    assert table.latency_us.tolist() == [21.5, 25.25, 31.0, 28.125]


def test_the_report_accounts_for_the_file(tmp_path: Path) -> None:
    """The report accounts for the file."""
    content = text_of(*ROWS).encode()
    (entry,) = read(tmp_path / "a.csv", content).report.files
    assert entry.sha256 == hashlib.sha256(content).hexdigest()
    assert (entry.rows_read, entry.rows_kept, entry.rows_merged, entry.skipped) == (4, 4, 0, ())
    assert entry.lines() == [f"{tmp_path / 'a.csv'}: 4 of 4 rows, 0 skipped"]


BAD_CELLS = [
    ("latency_us", "nan"), ("latency_us", "inf"), ("latency_us", "-3"), ("latency_us", "0"), ("latency_us", ""),
    ("latency_us", "fast"), ("latency_us", "1_0.5"), ("latency_us", "1e999"),
    ("m", "0"), ("n", "-4096"), ("k", "4096.0"), ("m", "2147483648"), ("m", ""), ("m", "True"), ("n", "4_096"),
    ("k", "٤"),
    ("block_m", "0"), ("block_n", "-64"), ("block_k", "64.5"), ("num_warps", "four"), ("num_regs", "-1"),
    ("smem_bytes", "300000"), ("num_spills", ""), ("num_regs", "nan"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), BAD_CELLS)
def test_an_impossible_cell_names_file_line_and_column(tmp_path: Path, name: str, value: str) -> None:
    """An impossible cell names file line and column."""
    cells = ROWS[1].split(",")
    cells[HEADER.split(",").index(name)] = value
    content = text_of(ROWS[0], ",".join(cells), *ROWS[2:])
    word = "shared memory" if name == "smem_bytes" else name
    with pytest.raises(MeasurementError, match=rf"a\.csv:3: .*{word}"):
        read(tmp_path / "a.csv", content)
    result = read(tmp_path / "a.csv", content, on_bad_row="skip")
    (skipped,) = result.report.files[0].skipped
    assert word in skipped.reason
    assert (skipped.rows, skipped.first_line) == (1, 3)
    assert result.table.latency_us.tolist() == [21.5, 31.0, 28.125]


@pytest.mark.parametrize(
    ("field", "value"), [("schedule", "tiles"), ("load", "TMA"), ("split_k", "0"), ("schedule", "")]
)
def test_unknown_words_are_refused(tmp_path: Path, field: str, value: str) -> None:
    """Unknown words are refused."""
    content = text_of(f"{ROWS[0]},{value}", header=f"{HEADER},{field}")
    with pytest.raises(MeasurementError, match=rf"a\.csv:2: config field {field}"):
        read(tmp_path / "a.csv", content)


@pytest.mark.parametrize("row", [ROWS[0] + ",7", ROWS[0].rsplit(",", 1)[0], "x"])
def test_a_row_with_another_number_of_cells_is_refused(tmp_path: Path, row: str) -> None:
    """A row with another number of cells is refused."""
    with pytest.raises(MeasurementError, match=r"a\.csv:6: \d+ cells where the header has 13"):
        read(tmp_path / "a.csv", text_of(*ROWS, row))


@pytest.mark.parametrize("name", HEADER.split(","))
def test_a_missing_column_is_named(tmp_path: Path, name: str) -> None:
    """A missing column is named."""
    with pytest.raises(MeasurementError, match=rf"a\.csv:1: missing column {name}"):
        read(tmp_path / "a.csv", text_of(*ROWS, header=HEADER.replace(name, "other")))


def test_a_column_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    """A column that is there twice is refused."""
    with pytest.raises(MeasurementError, match="column latency_us appears twice"):
        read(tmp_path / "a.csv", text_of(f"{ROWS[0]},99", header=f"{HEADER},latency_us"))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", b"", "empty"),
        ("a.csv", b"\n\n", "empty"),
        ("a.csv", text_of().encode(), "no rows"),
        ("a.csv.gz", text_of(*ROWS).encode(), "not a gzip file"),
        ("a.csv.gz", b"\x1f\x8bnonsense", "gzip"),
        ("a.csv", text_of(*ROWS).encode("utf-16"), "UTF-8"),
        ("a.csv", text_of(*ROWS).encode() + b"\xff\xfe", r"csv:6: not UTF-8"),
        ("a.csv", b'm,n\n"1', "not a CSV|missing column"),
    ],
)
def test_a_file_that_is_no_measurement_file_is_refused(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    """A file that is no measurement file is refused."""
    with pytest.raises(MeasurementError, match=message) as caught:
        read(tmp_path / name, content, on_bad_row="skip")
    assert str(tmp_path / name) in str(caught.value)


def test_gzip_cut_at_any_byte_is_refused(tmp_path: Path) -> None:
    """Gzip cut at any byte is refused."""
    whole = gzip.compress(text_of(*ROWS).encode())
    for length in range(len(whole)):
        with pytest.raises(MeasurementError):
            read(tmp_path / "a.csv.gz", whole[:length], on_bad_row="skip")


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    """A missing file and a folder are refused."""
    for path in (tmp_path / "none.csv", tmp_path):
        with pytest.raises(MeasurementError, match="cannot read"):
            read_measurements(path, GEMM, "bf16", H200, exhaustive=True)
    with pytest.raises(MeasurementError, match="no measurement file"):
        read_measurements([], GEMM, "bf16", H200, exhaustive=True)


def test_one_configuration_with_two_kernels_is_refused(tmp_path: Path) -> None:
    """One configuration with two kernels is refused."""
    other = ROWS[2].replace(",69,0,", ",92,0,")
    with pytest.raises(MeasurementError, match=r"a\.csv:4: num_regs is 92 here and 69"):
        read(tmp_path / "a.csv", text_of(*ROWS[:2], other), on_bad_row="skip")
    (tmp_path / "b.csv").write_text(text_of(other))
    (tmp_path / "c.csv").write_text(text_of(*ROWS[:2]))
    with pytest.raises(MeasurementError, match=r"b\.csv.*c\.csv.*num_regs"):
        read_measurements([tmp_path / "b.csv", tmp_path / "c.csv"], GEMM, "bf16", H200, exhaustive=True)


def test_the_same_file_twice_is_refused(tmp_path: Path) -> None:
    """The same file twice is refused."""
    for name in ("a.csv", "copy.csv"):
        (tmp_path / name).write_text(text_of(*ROWS))
    with pytest.raises(MeasurementError, match=r"copy\.csv: the same file as .*a\.csv"):
        read_measurements([tmp_path / "a.csv", tmp_path / "copy.csv"], GEMM, "bf16", H200, exhaustive=True)


def test_files_are_joined_and_reported_each(tmp_path: Path) -> None:
    """Files are joined and reported each."""
    (tmp_path / "a.csv").write_text(text_of(*ROWS[:1]))
    (tmp_path / "b.csv").write_text(text_of(*ROWS[1:]))
    paths = [tmp_path / "a.csv", tmp_path / "b.csv"]
    result = read_measurements(paths, GEMM, "bf16", H200, exhaustive=False)
    assert result.table.latency_us.tolist() == [21.5, 25.25, 31.0, 28.125]
    assert [entry.rows_kept for entry in result.report.files] == [1, 3]
    assert list(result.report.digests) == [str(path) for path in paths]


def test_files_written_one_behind_the_other_are_one_file(tmp_path: Path) -> None:
    """The same header again is no row; another header is, and a bad one."""
    result = read(tmp_path / "a.csv", text_of(*ROWS[:2], HEADER, *ROWS[2:]))
    assert result.table.latency_us.tolist() == [21.5, 25.25, 31.0, 28.125]
    assert (result.report.files[0].rows_read, result.report.files[0].rows_skipped) == (4, 0)
    with pytest.raises(MeasurementError, match=r"b\.csv:4: m must be an integer"):
        read(tmp_path / "b.csv", text_of(*ROWS[:2], HEADER.replace("m,n,k", "m,k,n"), *ROWS[2:]))


@pytest.mark.parametrize(
    ("sizes", "load", "reason"),
    [("4096,5,4096", "tma", "TMA needs 16-byte alignment"), ("4096,4096,65", "pointer", "split_k=2 exceeds")],
)
def test_a_configuration_that_cannot_compute_its_problem_is_refused_or_skipped(
    tmp_path: Path, sizes: str, load: str, reason: str
) -> None:
    """Sizes that the configuration is illegal for are a mistake of the row, such as swapped columns."""
    header, split = f"{HEADER},load,split_k,schedule", "2,split_k" if load == "pointer" else "1,tile"
    good = f"{ROWS[0]},{load},{split}"
    bad = good.replace("128,4096,4096", sizes).replace("64,64,64", "64,64,128")
    if load == "tma":
        bad = bad.replace("64,64,128", "64,64,64")
    with pytest.raises(MeasurementError, match=rf"a\.csv:3: .*{sizes.replace(',', ' x ')}.*{reason}"):
        read(tmp_path / "a.csv", text_of(good, bad, header=header))
    report = read(tmp_path / "a.csv", text_of(good, bad, header=header), "skip").report.files[0]
    assert (report.rows_kept, report.rows_skipped, report.skipped[0].first_line) == (1, 1, 3)


def test_repeats_within_noise_become_their_median(tmp_path: Path) -> None:
    """Repeats within noise become their median."""
    repeats = [ROWS[0].replace("21.5", latency) for latency in ("22.5", "24.0")]
    result = read(tmp_path / "a.csv", text_of(*ROWS, *repeats))
    assert result.table.latency_us.tolist() == [22.5, 25.25, 31.0, 28.125]
    assert (result.report.files[0].rows_read, result.report.files[0].rows_merged) == (6, 2)


def test_repeats_that_disagree_are_refused_or_all_skipped(tmp_path: Path) -> None:
    """Repeats that disagree are refused or all skipped."""
    content = text_of(*ROWS, ROWS[0].replace("21.5", "43"))
    with pytest.raises(MeasurementError, match=r"a\.csv:6: disagrees with line 2 .*factor 2;"):
        read(tmp_path / "a.csv", content)
    result = read(tmp_path / "a.csv", content, on_bad_row="skip")
    assert result.table.latency_us.tolist() == [25.25, 31.0, 28.125]
    assert [(entry.rows, entry.first_line) for entry in result.report.files[0].skipped] == [(2, 2)]


def sweep(n_problems: int) -> list[str]:
    """Return rows of one configuration over many problems."""
    return [f"{m},4096,4096,{SMALL},{20 + m / 100}" for m in range(1, n_problems + 1)]


def test_a_rare_stalled_repeat_in_a_large_file_is_left_out_and_reported(tmp_path: Path) -> None:
    """A rare stalled repeat in a large file is left out and reported."""
    rows = sweep(300)
    stalled = f"100,4096,4096,{SMALL},63"
    result = read(tmp_path / "a.csv", text_of(stalled, *rows))
    (skipped,) = result.report.files[0].skipped
    assert (skipped.rows, skipped.first_line) == (1, 2)
    assert "stall" in skipped.reason
    assert sorted(result.table.latency_us.tolist()) == [20 + m / 100 for m in range(1, 301)]


@pytest.mark.parametrize("factor", [9, 0.1])
def test_no_stall_explains_a_factor_of_nine(tmp_path: Path, factor: float) -> None:
    """No stall explains a factor of nine."""
    with pytest.raises(MeasurementError, match="disagrees"):
        read(tmp_path / "a.csv", text_of(*sweep(300), f"1,4096,4096,{SMALL},{20 * factor}"))


def test_many_stalled_repeats_are_a_broken_file(tmp_path: Path) -> None:
    """Many stalled repeats are a broken file."""
    rows = sweep(300)
    with pytest.raises(MeasurementError, match="disagrees"):
        read(tmp_path / "a.csv", text_of(*rows, *(row.rsplit(",", 1)[0] + ",70" for row in rows[:5])))


@pytest.mark.parametrize(("scale", "unit"), [(1e-3, "milliseconds"), (1e-6, "seconds"), (1e3, "nanoseconds")])
@pytest.mark.parametrize("on_bad_row", ["error", "skip"])
def test_another_unit_is_recognised_and_named(tmp_path: Path, scale: float, unit: str, on_bad_row: str) -> None:
    """Another unit is recognised and named."""
    rows = [f"{row.rsplit(',', 1)[0]},{float(row.rsplit(',', 1)[1]) * scale:.12f}" for row in ROWS]
    with pytest.raises(MeasurementError, match=rf"a\.csv: .*looks like {unit}"):
        read(tmp_path / "a.csv", text_of(*rows), on_bad_row)


@pytest.mark.parametrize(
    "row",
    [f"8192,8192,8192,{LARGE},900", f"1,57344,8192,{SMALL},150", f"16,4096,4096,{SMALL},0.6"],
    ids=["matrix-rate", "dram", "cache-ports"],
)
def test_a_row_faster_than_the_gpu_is_refused_or_skipped(tmp_path: Path, row: str) -> None:
    """A row faster than the GPU is refused or skipped."""
    content = text_of(*ROWS, row)
    with pytest.raises(MeasurementError, match=r"a\.csv:6: .*below the .* us that nvidia-h200 needs"):
        read(tmp_path / "a.csv", content)
    result = read(tmp_path / "a.csv", content, on_bad_row="skip")
    assert [(entry.rows, entry.first_line) for entry in result.report.files[0].skipped] == [(1, 6)]
    assert len(result.table) == 4


def test_operands_in_the_cache_may_be_faster_than_dram(tmp_path: Path) -> None:
    """Operands in the cache may be faster than DRAM."""
    dram_us = (16 * 4096 + 4096 * 4096 + 16 * 4096) * 2 / 4.8e6
    assert len(read(tmp_path / "a.csv", text_of(*ROWS, f"16,4096,4096,{SMALL},{0.8 * dram_us}")).table) == 5


def test_nothing_usable_is_an_error_even_when_skipping(tmp_path: Path) -> None:
    """Nothing usable is an error even when skipping."""
    with pytest.raises(MeasurementError, match="no usable row is left; first reason: m must"):
        read(tmp_path / "a.csv", text_of(f"0,4096,4096,{SMALL},20"), on_bad_row="skip")


def test_only_the_two_policies_exist(tmp_path: Path) -> None:
    """Only the two policies exist."""
    with pytest.raises(MeasurementError, match="on_bad_row"):
        read(tmp_path / "a.csv", text_of(*ROWS), on_bad_row="ignore")


cells = st.sampled_from(
    ["", "0", "-1", "nan", "inf", "1e400", "7", "64", "20.5", "x", "²", "\x00", '"', "1_0", "9" * 30]
)


@settings(max_examples=150, deadline=None)
@given(edits=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 12), cells), max_size=4), skips=st.booleans())
def test_edited_cells_are_read_or_refused_and_always_accounted_for(
    tmp_path_factory: pytest.TempPathFactory, edits: Sequence[tuple[int, int, str]], skips: bool
) -> None:
    """Edited cells are read or refused and always accounted for."""
    rows = [row.split(",") for row in ROWS]
    for row, column, text in edits:
        rows[row][column] = text
    content = text_of(*(",".join(row) for row in rows))
    path = tmp_path_factory.getbasetemp() / "edited.csv"
    try:
        result = read(path, content, "skip" if skips else "error")
    except MeasurementError as error:
        named = str(path) in str(error)
        assert named
        return
    (entry,) = result.report.files
    assert entry.rows_read == entry.rows_kept + entry.rows_merged + entry.rows_skipped
    assert entry.rows_kept == len(result.table)
    assert skips or entry.rows_skipped == 0
    assert np.isfinite(result.table.latency_us).all()
    assert (result.table.latency_us > 0).all()
    assert (result.table.dims > 0).all()


@settings(max_examples=200, deadline=None)
@given(data=st.binary(max_size=300), start=st.sampled_from([b"", (HEADER + "\n").encode(), b"\x1f\x8b\x08"]))
def test_arbitrary_bytes_are_refused_with_the_files_name(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, start: bytes
) -> None:
    """Arbitrary bytes are refused with the file's name."""
    path = tmp_path_factory.getbasetemp() / "bytes.csv"
    with pytest.raises(MeasurementError, match=r"bytes\.csv"):
        read(path, start + data, on_bad_row="skip")
