"""No input makes an import fail in another way than it says, nor lose a line."""

from __future__ import annotations

import random
import string
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from workload_reading import DATA, read_all

from wavetune.errors import WorkloadError
from wavetune.workloads.detect import READERS

FUSED = "E=64,N=768,device_name=NVIDIA_H200.json"
FILES = {
    "hipblaslt-log": ["hipblaslt-mask32.log", "hipblaslt-broken.log"],
    "hipblaslt-profile": ["hipblaslt-mask64.log", "hipblaslt-mask128.log"],
    "hipblaslt-bench": ["hipblaslt-bench.txt"],
    "hipblaslt-tuning": ["hipblaslt-tuning.txt"],
    "cublaslt-log": ["cublaslt.log", "cublaslt-broken.log"],
    "tunableop": ["tunableop_results0.csv", "tunableop_untuned0.csv"],
    "aiter": ["bf16_untuned_gemm.csv", "bf16_tuned_gemm.csv", "a8w8_blockscale_tuned_gemm.csv"],
    "vllm": [FUSED],
    "sglang": ["N=4096,K=7168,device_name=NVIDIA_H20-3e,dtype=fp8_w8a8,block_shape=[128, 128].json"],
    "quicktune": ["tuning_result.csv", "analysis.csv"],
    "csv": ["plain.csv"],
    "jsonl": ["plain.jsonl"],
    "workload": ["workload.json"],
}
PIECES = [
    b"", b"-1", b"0", b"99999999999999999999", b"nan", b"1e999", b"\x00", b"\xff\xfe", b"\n", b'"', b",", b"{", b"[]",
    b"null", b"true", b"\xd9\xa3", b"-m", b"--", b"=", b"_", b" ", b"T", b"bf16_r",
]  # fmt: skip


def damaged(data: bytes, rng: random.Random) -> bytes:
    """Cut, double, exchange or overwrite parts of a file."""
    for _ in range(rng.randrange(1, 5)):
        if not data:
            break
        a, b = sorted(rng.randrange(len(data) + 1) for _ in range(2))
        b = min(b, a + rng.choice([1, 5, 60, 1000]))
        kind = rng.randrange(5)
        if kind == 0:
            data = data[:a] + data[b:]
        elif kind == 1:
            data = data[:b] + data[a:]
        elif kind == 2:
            data = data[:a] + rng.choice(PIECES) + data[b:]
        elif kind == 3:
            data = data[:a]
        else:
            lines = data.split(b"\n")
            rng.shuffle(lines)
            data = b"\n".join(lines)
    return data


def check(path: Path, **options: object) -> None:
    """Read a file whose account adds up, or is refused by name."""
    try:
        read_all(path, **options)
        message = ""
    except WorkloadError as error:
        message = str(error)
    assert not message or str(path) in message


@pytest.mark.parametrize("format", READERS)
@settings(max_examples=60)
@given(seed=st.integers(0, 2**32))
def test_damaged_files(tmp_path_factory: pytest.TempPathFactory, format: str, seed: int):
    """A damaged file is read with an account that adds up, or refused with a WorkloadError."""
    rng = random.Random(seed)
    name = rng.choice(FILES[format])
    path = tmp_path_factory.getbasetemp() / name
    path.write_bytes(damaged((DATA / name).read_bytes(), rng))
    check(path, format=format, hidden_size=rng.choice([0, 2048]), experts_per_token=8)


@pytest.mark.parametrize("format", READERS)
@settings(max_examples=30)
@given(data=st.one_of(st.binary(max_size=200), st.text(string.printable, max_size=200).map(str.encode)))
def test_anything_at_all(tmp_path_factory: pytest.TempPathFactory, format: str, data: bytes):
    """Bytes of no format are refused, or hold nothing."""
    path = tmp_path_factory.getbasetemp() / FUSED
    path.write_bytes(data)
    for name in (format, "auto"):
        check(path, format=name)


def test_every_format_is_fuzzed():
    """A new format needs a file to damage."""
    assert FILES.keys() == READERS.keys()
    assert all((DATA / name).is_file() for names in FILES.values() for name in names)


def test_a_line_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A line beyond any sense is refused instead of read into memory."""
    monkeypatch.setattr("wavetune.workloads.source.MAX_LINE_BYTES", 1 << 20)
    (tmp_path / "big").write_bytes(b"x" * (5 << 20))
    with pytest.raises(WorkloadError, match="no text file"):
        read_all(tmp_path / "big", format="hipblaslt-log")
    (tmp_path / "big.json").write_bytes(b'{"8": [' + b"1,\n" * (1 << 20))
    with pytest.raises(WorkloadError, match="more than"):
        read_all(tmp_path / "big.json", format="workload")
