"""What is exported is what the importer, and the other program, read."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from workload_reading import read

from wavetune.core.arch import ARCHS
from wavetune.core.config import GEMM, KernelConfig
from wavetune.core.workload_entry import WorkloadEntry, WorkloadKey
from wavetune.errors import WorkloadError
from wavetune.workloads.aiter_export import is_aiter_kernel, row_fields, row_name
from wavetune.workloads.quicktune_export import RESULT_COLUMNS, key_cells
from wavetune.workloads.tunableop_export import untuned_row
from wavetune.workloads.tuned_json import TunedFileName
from wavetune.workloads.tuned_json_export import (
    body,
    dense_file_name,
    device_file_name,
    is_block_fp8_kernel,
    nearest_row,
    replay,
    sanitised,
)


def some_keys(seed: int, number: int) -> list[WorkloadKey]:
    """Return keys of all kinds, many of which a format cannot say."""
    draw = random.Random(seed)
    keys: dict[WorkloadKey, None] = {}
    while len(keys) < number:
        values = {
            "dtype": draw.choice(["bf16", "bf16", "fp16", "fp32", "fp8", "int8"]),
            "layout": draw.choice(["nk", "nk", "kn"]),
            "layout_a": draw.choice(["mk", "mk", "km"]),
            "batch": draw.choice([1, 1, 1, 12]),
            "bias": draw.random() < 0.3,
            "scale": draw.choice(["none", "none", "tensor", "row", "block128x128"]),
            "activation": draw.choice(["none", "none", "none", "gelu"]),
            "compute": draw.choice(["", "", "", "tf32"]),
            "dtype_d": draw.choice(["", "", "fp16", "fp32"]),
            "dtype_c": draw.choice(["", "", "", "fp32"]),
            "swizzle": draw.choice(["none", "none", "none", "b"]),
            "alignment": draw.choice([0, 0, 0, 2]),
        }
        m, n, k = (draw.choice([1, 7, 48, 64, 64, 512]) for _ in range(3))
        keys[WorkloadKey(m, n, k, **values)] = None
    return list(keys)


def documents(keys: list[WorkloadKey]) -> list[dict]:
    """Return keys as JSON, sorted."""
    return sorted((WorkloadEntry(key).document() for key in keys), key=str)


def without_extra(problems: list[dict]) -> list[dict]:
    """Return problems without what is no part of the key, sorted."""
    return sorted(({name: value for name, value in p.items() if name != "extra"} for p in problems), key=str)


@pytest.mark.parametrize("seed", [0, 1])
def test_untuned_rows_are_read_back(seed: int, tmp_path: Path):
    """A row says all of its key, or there is no row."""
    lines, said = [], []
    for key in some_keys(seed, 1500):
        try:
            lines.append(untuned_row(key))
            said.append(key)
        except WorkloadError:
            continue
    assert {key.operation for key in said} == {"gemm", "batched_gemm"}
    assert {True, False} == {key.bias for key in said}
    assert {"none", "tensor", "row"} == {key.scale for key in said}
    path = tmp_path / "tunableop_untuned0.csv"
    path.write_text("\n".join(lines) + "\n")
    assert without_extra(read(path, strict=True)) == documents(said)


@pytest.mark.parametrize("seed", [0, 1])
def test_quicktune_rows_are_read_back(seed: int, tmp_path: Path):
    """Layouts are told from leading dimensions on the way back; rows that would tell another one are refused."""
    lines, said = [",".join(RESULT_COLUMNS)], []
    for key in some_keys(seed, 1500):
        try:
            cells = key_cells(key)
        except WorkloadError:
            continue
        lines.append(",".join(str(cells.get(name, "1")) for name in RESULT_COLUMNS))
        said.append(key)
    assert {(key.layout, key.layout_a) for key in said} == {(b, a) for b in ("nk", "kn") for a in ("mk", "km")}
    path = tmp_path / "tuning_result.csv"
    path.write_text("\n".join(lines) + "\n")
    assert without_extra(read(path, strict=True)) == documents(said)


def test_what_a_row_lacks_is_named():
    """The reason names the field."""
    with pytest.raises(WorkloadError, match="activation gelu"):
        untuned_row(WorkloadKey(8, 16, 32, activation="gelu"))
    with pytest.raises(WorkloadError, match="no attention"):
        untuned_row(WorkloadKey(8, 16, 32, "attention"))
    with pytest.raises(WorkloadError, match="bias, activation, scales"):
        key_cells(WorkloadKey(8, 16, 32, bias=True))


@pytest.mark.parametrize("layouts", [("nk", "mk"), ("kn", "mk"), ("nk", "km"), ("kn", "km")])
@pytest.mark.parametrize("batch", [1, 3])
def test_torch_makes_the_same_product(layouts: tuple[str, str], batch: int, monkeypatch: pytest.MonkeyPatch):
    """PyTorch's own reader makes operands of these sizes and layouts out of a row."""
    torch = pytest.importorskip("torch")
    tunable = pytest.importorskip("torch.cuda.tunable")
    made = []
    for name, product in (("_create_matrices", "mm"), ("_create_batch_matrices", "bmm")):
        create = getattr(tunable, name)

        def on_cpu(*arguments: object, create: object = create, **options: object) -> object:
            made.append(create(*("cpu" if value == "cuda:0" else value for value in arguments), **options))
            return made[-1]

        monkeypatch.setattr(tunable, name, on_cpu)
        monkeypatch.setattr(torch, product, lambda a, b: None)
    key = WorkloadKey(48, 80, 32, layout=layouts[0], layout_a=layouts[1], batch=batch)
    tunable._process_single_offline_gemm(untuned_row(key), 0)
    ((a, b),) = made
    assert (a.dtype, b.dtype) == (torch.bfloat16, torch.bfloat16)
    lead = (batch,) if batch > 1 else ()
    assert (tuple(a.shape), tuple(b.shape)) == ((*lead, 48, 32), (*lead, 32, 80))
    if batch == 1:
        assert (a.stride(-1) == 1, b.stride(-1) == 1) == (layouts[1] == "mk", layouts[0] == "kn")


def config(block_m: int, **fields: int | str) -> KernelConfig:
    """Return a plain configuration, but for some fields."""
    plain = {"block_m": block_m, "block_n": 64, "block_k": 128, "group_m": 8, "num_warps": 4, "num_stages": 3}
    return GEMM.config(plain | fields)


def test_file_names_are_those_that_are_looked_for():
    """Consumers spell the list of block sizes differently, and both names read back."""
    device = device_file_name(ARCHS["nvidia-h200"])
    assert device == "NVIDIA_H200"
    name = dense_file_name(4096, 7168, device, "vllm")
    assert name == "N=4096,K=7168,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128,128].json"
    assert dense_file_name(4096, 7168, device, "sglang") == name.replace("[128,128]", "[128, 128]")
    assert TunedFileName.parse(name).scale == "block128x128"
    assert sanitised("AMD Radeon / W7900") == "AMD_Radeon_W7900"
    assert all("/" not in device_file_name(arch) and " " not in device_file_name(arch) for arch in ARCHS.values())


def test_every_key_of_a_dense_file_is_a_number():
    """The dense loaders turn every key into an integer, and nothing else is in it."""
    document = json.loads(body({64: config(64), 1: config(16)}))
    assert [int(key) for key in document] == [1, 64]
    assert document["64"] == {
        "BLOCK_SIZE_M": 64, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 128, "GROUP_SIZE_M": 8, "num_warps": 4,
        "num_stages": 3,
    }  # fmt: skip


def test_only_the_plain_kernel_can_be_said():
    """Their kernel has no TMA, no split, no persistent schedule; a trip must not reach over two scales."""
    assert is_block_fp8_kernel(config(64))
    for fields in (
        {"load": "tma"}, {"schedule": "persistent"}, {"schedule": "split_k", "split_k": 2}, {"epilogue_split": 2},
        {"block_k": 256},
    ):  # fmt: skip
        assert not is_block_fp8_kernel(config(64, **fields)), fields


def test_nearest_row():
    """The nearest wins without a limit on distance; of two, the first in the file."""
    rows = (64, 1, 256)
    assert [nearest_row(rows, m) for m in (1, 32, 33, 160, 161, 99_999)] == [1, 1, 64, 64, 256, 256]


def test_replay_weighs_by_count():
    """The regret of the bucketing is time over the best time; what the kernel cannot do is not part of it."""
    small, large, tma = config(16), config(128), config(128, load="tma")
    predicted = {
        1: {small: 10.0, large: 20.0, tma: 20.0},
        40: {small: 30.0, large: 20.0, tma: 16.0},
        512: {small: 90.0, large: 50.0, tma: 50.0},
    }
    # 40 is nearer to 1 than to 512: it gets the small tile.
    calls = [(m, count, predicted[m]) for m, count in ((1, 3), (40, 2), (512, 1))]
    rows = {1: small, 512: large}
    cost = replay(lambda m: rows[nearest_row(rows, m)], calls)
    assert (cost.calls, cost.worst_m) == (6, 40)
    assert cost.regret == pytest.approx((30 + 60 + 50) / (30 + 40 + 50) - 1)
    assert cost.worst == pytest.approx(0.5)
    assert cost.kernel_cost == pytest.approx((30 + 40 + 50) / (30 + 32 + 50) - 1)
    assert replay(lambda m: small if m == 1 else large, calls).regret == 0.0


def test_aiter_finds_a_row_for_every_size():
    """The smallest bound that reaches the size, of those that AITER looks for; beyond them the last row."""
    assert [row_name(m) for m in (1, 4, 5, 64, 65, 8192, 8193)] == [
        "M_LEQ_4", "M_LEQ_4", "M_LEQ_8", "M_LEQ_64", "M_LEQ_128", "M_LEQ_8192", "any",
    ]  # fmt: skip


def test_what_aiter_can_run():
    """Its kernel splits k, but has no TMA, no persistent schedule, and no sizes besides powers of two."""
    assert is_aiter_kernel(config(64))
    split = config(64, schedule="split_k", split_k=3)
    assert is_aiter_kernel(split)
    assert row_fields(split)["NUM_KSPLIT"] == 3
    assert row_fields(config(64))["NUM_KSPLIT"] == 1
    for fields in ({"load": "tma"}, {"schedule": "persistent"}, {"block_n": 96}, {"epilogue_split": 2}):
        assert not is_aiter_kernel(config(64, **fields)), fields
