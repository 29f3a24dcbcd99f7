"""Workload files: what is written is read again, and mistakes are named with their place."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wavetune.core.dtype import DTYPES
from wavetune.core.element import ELEMENTS, find_element
from wavetune.core.family_workload import problem_of_key
from wavetune.core.problem import GemmProblem
from wavetune.core.workload import Workload, write_problems
from wavetune.core.workload_entry import OPERATIONS, WorkloadEntry, WorkloadKey
from wavetune.errors import ProblemError, WorkloadError

SIZES = st.integers(1, 2**31 - 1)
WORDS = st.sampled_from(["none", "relu", "gelu+use_e", "tensor/row"])
PROBLEMS = st.builds(
    GemmProblem, SIZES, SIZES, SIZES, st.sampled_from(list(DTYPES)), st.sampled_from(["nk", "kn"]),
    st.sampled_from([0, 1, 8, 16]),
)  # fmt: skip


@st.composite
def keys(draw: st.DrawFn) -> WorkloadKey:
    """Draw a key of any operation."""
    operation = draw(st.sampled_from(OPERATIONS))
    groups: tuple[tuple[int, int, int], ...] = ()
    m, n, k = draw(SIZES), draw(SIZES), draw(SIZES)
    batch = 1 if operation == "gemm" else draw(st.integers(1, 300))
    if operation == "grouped_gemm" and draw(st.booleans()):
        row = st.integers(0, 1000)
        shape = st.tuples(row, st.just(n), st.just(k)) if draw(st.booleans()) else st.tuples(row, SIZES, SIZES)
        groups = (*draw(st.lists(shape, max_size=4)), (1, n, k))
        m, n, k = sum(g[0] for g in groups), max(g[1] for g in groups), max(g[2] for g in groups)
    element = st.sampled_from(["", *ELEMENTS])
    dtype = draw(st.sampled_from(ELEMENTS))
    # The dtype of a kernel says these itself.
    compute = "" if dtype == "fp8_fast" else draw(element)
    scale = "none" if dtype == "fp8_block128" else draw(WORDS)
    return WorkloadKey(
        m, n, k, operation, dtype, draw(st.sampled_from(["nk", "kn"])),
        draw(st.sampled_from(["mk", "km"])), draw(element), draw(element), draw(element), compute, batch, groups,
        draw(st.booleans()), draw(WORDS), scale, draw(st.sampled_from(["none", "a", "ab"])),
        draw(st.integers(0, 64)), draw(st.integers(0, 8)), draw(st.booleans()), draw(st.sampled_from([0, 1, 16])),
    )  # fmt: skip


ENTRIES = st.builds(
    WorkloadEntry, keys(), st.integers(1, 10**9), st.dictionaries(st.text(max_size=5), st.integers(1, 99), max_size=2),
    st.dictionaries(st.text(max_size=5), st.one_of(st.integers(), st.text(max_size=5), st.none()), max_size=2),
)  # fmt: skip


@given(st.lists(ENTRIES, min_size=1, max_size=5), st.sampled_from(["w.json", "w.json.gz"]))
def test_round_trip(tmp_path_factory: pytest.TempPathFactory, entries: list[WorkloadEntry], name: str):
    """Every workload comes back from its file as it was."""
    workload = Workload(tuple(entries))
    path = tmp_path_factory.getbasetemp() / name
    workload.write(path)
    assert Workload.read(path) == workload
    assert Workload.read(path, dtype="fp16", layout="kn") == workload
    assert sum(e.count for e in entries) == workload.calls


@given(st.lists(st.tuples(PROBLEMS, st.integers(1, 1000)), max_size=8))
def test_problems_come_back(problems: list[tuple[GemmProblem, int]]):
    """GEMMs and their counts survive being a workload; repeated ones are added up, in order."""
    expected: dict[GemmProblem, int] = {}
    for problem, count in problems:
        expected[problem] = expected.get(problem, 0) + count
    assert Workload.from_problems(problems).gemm_problems() == list(expected.items())


def test_what_is_no_plain_gemm_is_left_out():
    """Batches, groups, attention, transposed A and types that no kernel computes have no `GemmProblem`."""
    plain = WorkloadEntry(WorkloadKey(4, 8, 16), 3)
    others = [
        WorkloadKey(4, 8, 16, batch=2), WorkloadKey(4, 8, 16, "grouped_gemm", batch=2),
        WorkloadKey(4, 8, 16, "attention"), WorkloadKey(4, 8, 16, layout_a="km"),
        WorkloadKey(4, 8, 16, dtype="fp64"), WorkloadKey(4, 8, 16, dtype_b="int4"), WorkloadKey(4, 8, 16, swizzle="b"),
    ]  # fmt: skip
    with_bias = WorkloadEntry(WorkloadKey(4, 8, 16, bias=True, activation="gelu"), 2)
    workload = Workload((plain, *map(WorkloadEntry, others), with_bias))
    assert workload.gemm_problems() == [(GemmProblem(4, 8, 16), 5)]
    assert len(workload.entries) == 9


def test_equal_keys_become_one_entry():
    """Counts and sources are added; beside the key, what both say alike is kept."""
    first = WorkloadEntry(WorkloadKey(4, 8, 16, dtype="bfloat16"), 3, {"a": 3}, {"gpu": "x", "index": 1})
    second = WorkloadEntry(WorkloadKey(4, 8, 16, dtype_d="bf16"), 2, {"a": 1, "b": 1}, {"gpu": "x", "index": 2})
    (entry,) = Workload((first, second)).entries
    assert (entry.count, entry.sources, entry.extra) == (5, {"a": 4, "b": 1}, {"gpu": "x"})


def test_types_that_follow_from_others_are_filled_in():
    """What a format does not say is what its input types imply, so that formats agree."""
    assert WorkloadKey(1, 1, 1, dtype="fp8") == WorkloadKey(1, 1, 1, dtype="fp8", dtype_d="bf16", compute="fp32")
    assert WorkloadKey(1, 1, 1, dtype="int8").dtype_d == "int32"
    assert WorkloadKey(1, 1, 1, dtype="fp32", compute="tf32") != WorkloadKey(1, 1, 1, dtype="fp32")
    assert find_element("torch.float8_e5m2") == "fp8_e5m2"


@pytest.mark.parametrize(
    ("dtype", "spelled_out"),
    [("fp8_block128", {"scale": "block128x128"}), ("fp8_fast", {"compute": "fp32_fast_fp8"})],
)
def test_one_call_has_one_spelling(dtype: str, spelled_out: dict[str, str]):
    """The dtype of a kernel, and element type with scale or accumulation, are one key, for the same kernels."""
    short, long = WorkloadKey(4, 128, 256, dtype=dtype), WorkloadKey(4, 128, 256, dtype="fp8", **spelled_out)
    assert short == long
    assert long.kernel_dtype == dtype
    assert WorkloadKey(4, 128, 256, dtype="fp8", dtype_b=dtype, **spelled_out) == long
    (entry,) = Workload((WorkloadEntry(short, 2), WorkloadEntry(long, 3))).entries
    assert entry.count == 5
    assert entry.key.gemm_problem() == GemmProblem(4, 128, 256, dtype)
    grouped = WorkloadKey(4, 128, 256, "grouped_gemm", dtype, batch=2)
    assert problem_of_key(grouped).dtype == dtype
    (name, _), *_ = spelled_out.items()
    with pytest.raises(ProblemError, match=f"dtype {dtype} says {name}"):
        WorkloadKey(4, 128, 256, dtype=dtype, **{name: "fp16"})


@pytest.mark.parametrize(
    "key",
    [
        WorkloadKey(64, 128, 80, "attention", heads=8, batch=2),
        WorkloadKey(64, 128, 256, "grouped_gemm", batch=4, layout_a="km"),
        WorkloadKey(64, 128, 256, "grouped_gemm", batch=4, layout="kn"),
        WorkloadKey(64, 128, 256, "grouped_gemm", batch=4, swizzle="b"),
        WorkloadKey(64, 128, 256, "grouped_gemm", "fp4", batch=4, scale="block32"),
        WorkloadKey(64, 128, 256),
    ],
)
def test_what_no_family_computes_is_no_problem_of_one(key: WorkloadKey):
    """Other head dimensions, transposed, shuffled or otherwise scaled operands are left out."""
    assert problem_of_key(key) is None


@pytest.mark.parametrize(
    ("m", "expected"),
    [(1, "decode"), (64, "decode"), (65, "small"), (256, "small"), (257, "prefill"), (8192, "prefill")],
)
def test_size_classes(m: int, expected: str):
    """Rows decide whether a call is decode, small or prefill; in groups, the mean group does."""
    assert WorkloadKey(m, 64, 64).size_class == expected
    assert WorkloadKey(8 * m, 64, 64, "grouped_gemm", batch=8).size_class == expected


def test_flops():
    """Work is counted per call: batches, groups and both products of an attention."""
    assert WorkloadKey(2, 3, 5).flops == 60
    assert WorkloadKey(2, 3, 5, batch=7).flops == 420
    assert WorkloadKey(3, 4, 5, groups=((1, 2, 3), (2, 4, 5))).flops == 2 * (6 + 40)
    assert WorkloadKey(2, 3, 5, "attention", batch=2, heads=4).flops == 2 * 4 * 2 * 60


def test_csv(tmp_path: Path):
    """CSV needs m, n and k; other known columns are read, unknown ones ignored; blanks, capitals and gzip do not."""
    path = tmp_path / "w.csv"
    text = 'm, N, K, why, count, bias, groups\n8,16,32,x,5,true,\n\n8,16,32,y,,,\n8,16,32,z,2,,"[3, 5]"\n'
    path.write_bytes(gzip.compress(b"\xef\xbb\xbf" + text.encode()))
    workload = Workload.read(path, dtype="fp16", layout="kn")
    assert [(e.key.operation, e.key.bias, e.count) for e in workload.entries] == [
        ("gemm", True, 5), ("gemm", False, 1), ("grouped_gemm", False, 2),
    ]  # fmt: skip
    assert {(e.key.dtype, e.key.layout) for e in workload.entries} == {("fp16", "kn")}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("m,n\n1,2\n", ":1: no column 'k'"),
        ("hipblaslt-bench -m 8, -n 8\n", ":1: no column 'm'; the first line must name the columns m,n,k. Logs: `wave"),
        ("[cublasLt][1][Trace]\n", ":1: no JSON: Expecting value. Logs: `wavetune workload import`"),
        ("m,n,k,m\n1,2,3,4\n", ":1: the column 'm' stands twice"),
        ("m,n,k,K\n1,2,3,4\n", ":1: the column 'k' stands twice"),
        ("m,n,k\n1,2\n", ":2: m,n,k must be integers"),
        ("m,n,k\n1,2,3\n1,2,-3\n", ":3: k must not be negative"),
        ("m,n,k\n0,2,3\n", ":2: m is zero"),
        ("m,n,k\n", "no shapes"),
        ("", "the file is empty"),
        ("\n \n", "the file is empty"),
        ("m,n,k,count\n1,2,3,0\n", ":2: count must be a positive integer"),
        ("m,n,k,count\n1,2,3,x\n", ":2: count must be integers"),
        ("m,n,k,dtype\n1,2,3,bf17\n", ":2: unknown dtype 'bf17'"),
        ("m,n,k,layout\n1,2,3,nn\n", ":2: unknown layout 'nn'"),
        ("m,n,k,bias\n1,2,3,perhaps\n", ":2: bias must be true or false"),
        ("m,n,k,groups\n3,2,3,1;2\n", ":2: groups must be a JSON list"),
        ("m,n,k,groups\n4,2,3,\"[1,2]\"\n", ":2: the groups have 3 rows together, but m = 4"),
        ("m,n,k,batch,operation\n4,2,3,2,gemm\n", ":2: a gemm has no batch"),
        ("m,n,k\n1,2,9999999999\n", ":2: k must be at most"),
        ('{"problems": [{"m": 1, "n": 2, "k": 3}, {"m": 1, "n": 2}]}', "problem 2: no 'k'"),
        ('{"problems": [{"m": 1, "n": 2, "k": 3, "cuont": 4}]}', "problem 1: unknown field 'cuont'"),
        ('{"problems": [{"m": 1, "n": 2, "k": true}]}', "problem 1: k must be an integer, got the boolean"),
        ('{"problems": [{"m": 1, "n": 2, "k": 3, "dtype": 16}]}', "problem 1: dtype must be text"),
        ('{"problems": [{"m": 1, "n": 2, "k": 3, "sources": ["a"]}]}', "problem 1: sources must map"),
        ('{"problems": [{"m": 1, "n": 2, "k": 3, "groups": 5}]}', "problem 1: groups must be a list"),
        ('{"problems": [{"m": 1, "n": 2, "k": 3, "groups": [[1, 2]]}]}', "problem 1: a group is its rows, or"),
        ('{"problems": [{"m": 1, "n": 2, "k": 3, "operation": "conv"}]}', "problem 1: unknown operation 'conv'"),
        ('{"problems": [7]}', "problem 1: must be an object"),
        ('{"problems": []}', "no shapes"),
        ('{"problems": {}}', "no workload"),
        ('{"m": 1}', "no workload"),
        ("[1]", "no workload"),
        ('{"problems": [\n{]}', ":2: no JSON"),
        ('{"problems": [{"m": 1, "n": 2, "k": 3, "count": NaN}]}', "NaN is no number of JSON"),
        ('{"problems": [], "problems": []}', "stands twice"),
        ('{"schema_version": 2, "problems": [{"m": 1, "n": 2, "k": 3}]}', "newer wavetune"),
        ("[" * 100_000, "nested too deeply"),
    ],
)  # fmt: skip
def test_mistakes_are_named(tmp_path: Path, content: str, message: str):
    """What is wrong is said with file, and with line or problem."""
    path = tmp_path / "w"
    path.write_text(content)
    with pytest.raises(WorkloadError) as caught:
        Workload.read(path)
    assert str(path) in str(caught.value)
    assert message in str(caught.value)


def test_files_that_cannot_be_read_or_written(tmp_path: Path):
    """Missing files, torn archives and folders are errors; a failed write leaves nothing behind."""
    with pytest.raises(WorkloadError, match="cannot read"):
        Workload.read(tmp_path / "missing")
    (tmp_path / "torn.gz").write_bytes(gzip.compress(b"m,n,k\n1,2,3\n" * 1000)[:40])
    with pytest.raises(WorkloadError, match="cannot read"):
        Workload.read(tmp_path / "torn.gz")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(WorkloadError, match="cannot read"):
        Workload.read(tmp_path / "bytes")
    with pytest.raises(WorkloadError, match="cannot write"):
        Workload((WorkloadEntry(WorkloadKey(1, 2, 3)),)).write(tmp_path / "no" / "w.json")
    target = tmp_path / "w.json"
    target.write_text("before")
    with pytest.raises(ZeroDivisionError):
        write_problems(target, (json.dumps({"m": 1 // zero}) for zero in (1, 0)))
    assert target.read_text() == "before"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bytes", "torn.gz", "w.json"]


def test_a_key_says_what_it_cannot_be():
    """Contradictions inside a key are refused when it is made."""
    for fields, message in (
        ({"groups": (1, 1), "operation": "gemm"}, "no batch"),
        ({"groups": (1, 1), "operation": "attention"}, "groups belong to"),
        ({"groups": ((2, 9, 3),)}, "largest n and k"),
        ({"batch": 0}, "batch is zero"),
        ({"alignment": 32}, "alignment must be one of"),
        ({"activation": ""}, "activation must be a word"),
    ):
        with pytest.raises((ProblemError, TypeError), match=message):
            WorkloadKey(2, 2, 3, **fields)
