"""What the host decides about fp8: legality, grids, the space, data, and that the matrix unit gets e4m3."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest

pytest.importorskip("triton")

from wavetune.core.arch import find_arch
from wavetune.core.config import GEMM, WALKING_SCHEDULES, KernelConfig
from wavetune.core.problem import GemmProblem
from wavetune.kernels.gemm import gemm_calls, illegal_reason
from wavetune.kernels.gemm_operands import make_gemm_operands
from wavetune.kernels.gemm_scaled import PROMOTED_ELEMENTS
from wavetune.kernels.gemm_scales import SPREAD, dequantise, scale_strides
from wavetune.kernels.placeholder import Placeholder, placeholder_operands
from wavetune.kernels.registry import find_family
from wavetune.mapping.gemm import map_gemm

H200, A100, MI300X = (find_arch(name) for name in ("h200", "a100", "mi300x"))
FORMATS = ("fp8", "fp8_fast", "fp8_block128")


def make_config(**fields: object) -> KernelConfig:
    """Complete a configuration."""
    base = {"block_m": 128, "block_n": 128, "block_k": 128, "group_m": 8, "num_warps": 8, "num_stages": 3}
    return GEMM.config({**base, "load": "tma", **fields})


@pytest.mark.parametrize(
    ("problem", "fields", "word"),
    [
        ({"layout": "kn"}, {}, "layout nk"),
        ({}, {"block_k": 16, "load": "pointer"}, "block_k of at least 32"),
        ({}, {"block_n": 160, "load": "pointer"}, "needs load=tma"),
        ({}, {"block_n": 160, "epilogue_split": 2}, "two parts"),
        ({}, {"block_n": 112}, "power of two"),
        ({"dtype": "fp8_block128"}, {"block_n": 96}, "more than one scale of B"),
        ({"dtype": "fp8_block128"}, {"block_k": 64}, "one block of 128 scaled elements"),
        ({"dtype": "fp8_block128"}, {"block_n": 256, "num_stages": 2}, "more than one scale of B"),
        ({"k": 1000, "alignment": 8}, {}, "alignment"),
        ({}, {"num_stages": 9}, "shared memory"),
        ({}, {"schedule": "warp_specialized", "num_warps": 4}, "num_warps=8"),
        ({}, {"schedule": "warp_specialized", "load": "pointer"}, "load=tma"),
        ({}, {"schedule": "warp_specialized", "epilogue_split": 4}, "epilogue_split must be 1 or 2"),
        ({}, {"schedule": "warp_specialized", "block_k": 64}, "block_k of 128 B"),
        ({}, {"schedule": "warp_specialized", "num_stages": 1}, "num_stages of at least 2"),
        ({}, {"schedule": "warp_specialized", "block_m": 256}, "two parts of 64 rows"),
        ({}, {"schedule": "warp_specialized", "block_m": 64, "block_n": 80}, "64 columns or more"),
        ({"dtype": "fp8_block128"}, {"schedule": "warp_specialized", "block_n": 160}, "block_n must divide 128"),
        ({}, {"schedule": "warp_specialized", "block_m": 64, "block_n": 64}, "64 columns or more"),
        ({"dtype": "fp32"}, {"schedule": "warp_specialized", "block_k": 32}, "bf16, fp16 and fp8 in layout nk"),
        ({"dtype": "bf16", "layout": "kn"}, {"schedule": "warp_specialized", "block_k": 64}, "not bf16 in kn"),
    ],
)
def test_illegal_configurations_are_explained(problem: dict, fields: dict, word: str) -> None:
    """Each rule of fp8 has its reason, and what it asks for is legal."""
    sizes = {"m": 256, "n": 256, "k": 1024, "dtype": "fp8"}
    assert word in str(illegal_reason(GemmProblem(**{**sizes, **problem}), make_config(**fields), H200))
    assert illegal_reason(GemmProblem(**sizes), make_config(), H200) is None


@pytest.mark.parametrize("arch", [A100, MI300X])
def test_not_every_gpu_has_e4m3(arch: object) -> None:
    """Without it there is no space and a reason."""
    config = make_config(load="pointer", num_stages=2)
    assert "no matrix instruction for e4m3" in str(illegal_reason(GemmProblem(64, 64, 128, dtype="fp8"), config, arch))
    assert find_family("gemm").configs(arch, "fp8") == []


@pytest.mark.parametrize("dtype", FORMATS)
def test_the_space(dtype: str) -> None:
    """Every schedule and way of loading, no repeats; unaligned operands have somewhere to go."""
    space = find_family("gemm").configs(H200, dtype)
    assert len(set(space)) == len(space) >= 100
    assert {config["schedule"] for config in space} == {"tile", "persistent", "split_k", "warp_specialized"}
    unaligned = GemmProblem(1000, 1000, 1000, dtype=dtype, alignment=1)
    assert any(illegal_reason(unaligned, config, H200) is None for config in space)
    block_ks = {config["block_k"] for config in space}
    assert block_ks == ({128} if dtype == "fp8_block128" else {128, 256})
    widths = {config["block_n"] for config in space}
    of_each = {"fp8": {80, 96, 160, 192, 256}, "fp8_fast": {80, 96, 160, 192, 256, 320}, "fp8_block128": set()}
    assert widths == {64, 128} | of_each[dtype]


@pytest.mark.parametrize("dtype", FORMATS)
def test_grids_are_those_of_the_mapping(dtype: str) -> None:
    """Model and launch cannot disagree, for every candidate."""
    problem = GemmProblem(300, 1000, 3088, dtype=dtype)
    operands = placeholder_operands(problem)
    for config in find_family("gemm").configs(H200, dtype):
        if illegal_reason(problem, config, H200) is None:
            main, *rest = gemm_calls(operands, config, H200)
            assert main.grid_size == map_gemm(problem, config, H200).grid_size
            assert main.variant.is_persistent == (config["schedule"] in WALKING_SCHEDULES)
            assert len(rest) == (config["schedule"] == "split_k")


def test_promotion_is_counted_in_elements() -> None:
    """Whatever the trip, sums move to fp32 after as many elements; fast sums never, scaled blocks by themselves."""
    for dtype in FORMATS:
        for block_k in (64, 128, 256):
            config = make_config(block_k=block_k, num_stages=2)
            problem = GemmProblem(2**10, 2**10, 2**10, dtype=dtype)
            if illegal_reason(problem, config, H200) is None:
                constants = gemm_calls(placeholder_operands(problem), config, H200)[0].variant.constants
                assert constants["PROMOTE"] * block_k == (PROMOTED_ELEMENTS if dtype == "fp8" else 0)


def test_fallbacks_exist_for_every_size() -> None:
    """Without a model there is a legal answer, aligned or not."""
    family = find_family("gemm")
    for dtype in FORMATS:
        for m in (1, 20, 60, 200, 5000):
            for alignment in (0, 1):
                problem = GemmProblem(m, 4096, 4096, dtype=dtype, alignment=alignment)
                assert illegal_reason(problem, family.fallback_config(problem, H200), H200) is None


@pytest.mark.parametrize("dtype", FORMATS)
def test_what_is_compiled_ahead_is_what_is_launched(dtype: str) -> None:
    """Stand-ins and tensors, whatever their scales, share variants; results of another dtype have their own."""
    torch = pytest.importorskip("torch")
    problem = GemmProblem(48, 256, 1024, dtype=dtype)
    for fields in (
        {}, {"schedule": "split_k", "split_k": 2}, {"load": "pointer"}, {"block_n": 160},
        {"block_n": 192, "schedule": "split_k", "split_k": 2},
    ):  # fmt: skip
        if dtype == "fp8_block128" and "block_n" in fields:
            continue
        config = make_config(**fields)
        ahead = [call.variant for call in gemm_calls(placeholder_operands(problem), config, H200)]
        for scales in ("row", "tensor"):
            operands = make_gemm_operands(problem, "cpu", 0, scales=scales)[0].with_workspace(config)
            assert [call.variant for call in gemm_calls(operands, config, H200)] == ahead
        halves = replace(operands, out=operands.out.to(torch.float16))
        assert gemm_calls(halves, config, H200)[0].variant is not ahead[0]


def test_placeholders_of_a_dtype_share_it() -> None:
    """Triton remembers dtypes by address: freed ones would be taken for each other."""
    first = Placeholder("fp8", (1, 1)).dtype
    assert Placeholder("fp8", (2, 2)).dtype is first
    assert str(first) == "torch.float8_e4m3fn"


def test_operands() -> None:
    """Rows are padded to the alignment of each dtype, elements fill the range, scales have the format's shape."""
    torch = pytest.importorskip("torch")
    problem = GemmProblem(200, 72, 400, dtype="fp8")
    operands = make_gemm_operands(problem, "cpu", 0, has_bias=True)[0]
    assert operands.a.dtype == torch.float8_e4m3fn
    assert operands.out.dtype == operands.bias.dtype == torch.bfloat16
    assert operands.a.float().std().item() == pytest.approx(SPREAD, rel=0.02)
    assert (operands.scale_a.shape, operands.scale_b.shape) == ((200, 1), (72, 1))
    assert scale_strides(make_gemm_operands(problem, "cpu", 0, scales="tensor")[0].scale_b) == (0, 1)
    ragged = make_gemm_operands(GemmProblem(5, 200, 397, dtype="fp8_block128", alignment=16), "cpu", 0)[0]
    assert (ragged.a.stride(0), ragged.out.stride(0)) == (400, 200)
    assert (ragged.scale_a.shape, ragged.scale_b.shape) == ((5, 4), (2, 4))
    assert not torch.equal(ragged.a.float(), torch.zeros(5, 397))


def test_dequantised_by_hand() -> None:
    """A scale for all, for each row, for blocks along k, and for blocks of rows as well."""
    torch = pytest.importorskip("torch")
    stored = torch.ones(3, 5).to(torch.float8_e4m3fn)
    assert dequantise(stored, torch.tensor([[2.0]]), 0).tolist() == [[2.0] * 5] * 3
    assert dequantise(stored, torch.tensor([[1.0], [2.0], [3.0]]), 0)[:, 0].tolist() == [1.0, 2.0, 3.0]
    along_k = dequantise(stored, torch.arange(9.0).view(3, 3), 2)
    assert along_k[1].tolist() == [3.0, 3.0, 4.0, 4.0, 5.0]
    both = dequantise(stored, torch.arange(6.0).view(2, 3), 2)
    assert both[:, 4].tolist() == [2.0, 2.0, 5.0]


def test_windows_of_fp8() -> None:
    """Inputs, outputs and scales come from pools of their own; the whole input pool can be read in pairs of bytes."""
    torch = pytest.importorskip("torch")
    from wavetune.kernels.windows import DataWindows

    windows = DataWindows("fp8_block128", "cpu", pool_bytes=1 << 17)
    problem = GemmProblem(30, 40, 512, dtype="fp8_block128")
    first, second = (find_family("gemm").carve_operands(problem, make_config(), windows) for _ in range(2))
    assert (first.a.dtype, first.out.dtype, first.scale_a.dtype) == (torch.float8_e4m3fn, torch.bfloat16, torch.float32)
    assert (first.scale_a.shape, first.scale_b.shape) == ((30, 4), (1, 4))
    assert first.a.float().std().item() == pytest.approx(SPREAD, rel=0.05)
    assert bool((first.scale_a > 0).all())
    places = {t.data_ptr() for o in (first, second) for t in (o.a, o.b, o.out, o.scale_a, o.scale_b)}
    assert len(places) == 10
    assert windows.inputs.numel() * windows.inputs.element_size() == 1 << 17
    torch.amax(windows.inputs, dim=0)


COMPILE = """
import json, re, subprocess, sys
from pathlib import Path
import triton
from wavetune.core.arch import find_arch
from wavetune.core.config import GEMM
from wavetune.kernels.call import compile_call, compile_offline
from wavetune.kernels.registry import find_family
from wavetune.measure.compile import read_resources

arch = find_arch("h200")
compile_offline(arch)
tools = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
for line in sys.stdin:
    dtype, fields = json.loads(line)
    compiled = compile_call(find_family("gemm").offline_calls(GEMM.config(fields), arch, dtype, "nk")[0])
    ptx = Path(sys.argv[1])
    ptx.write_text(compiled.asm["ptx"])
    # Which of the assemblers Triton uses depends on its release: the first that reads the file.
    for tool in ("ptxas", "ptxas-blackwell"):
        command = [tools / tool, "-v", "--gpu-name=sm_90a", ptx, "-o", ptx.with_suffix(".cubin")]
        run = subprocess.run(command, capture_output=True, text=True)
        if run.returncode == 0:
            break
    print(json.dumps({
        "wgmma": sorted(set(re.findall(r"wgmma\\.mma_async\\.sync\\.aligned\\.(\\S+)", compiled.asm["ptx"]))),
        "mma": compiled.asm["ptx"].count("mma.sync"),
        "is_serialized": "wgmma.mma_async instructions are serialized" in run.stderr + run.stdout,
        "assembled": run.returncode == 0,
        "spills": read_resources(compiled)[1],
    }), flush=True)
"""


def compiled(jobs: list[tuple[str, dict]], tmp_path: object) -> list[dict]:
    """Compile (dtype, fields) for sm_90 in a process of its own, and return what became of each."""
    command = [sys.executable, "-c", COMPILE, str(tmp_path / "kernel.ptx")]
    run = subprocess.run(command, input="\n".join(map(json.dumps, jobs)), capture_output=True, text=True, timeout=280)
    assert run.returncode == 0, run.stderr[-3000:]
    return [json.loads(line) for line in run.stdout.splitlines()]


def test_the_matrix_unit_gets_e4m3(tmp_path: object) -> None:
    """Large and narrow tiles, every schedule, both loads: wgmma of e4m3, asynchronous, without spills."""
    kinds = (
        {}, {"schedule": "persistent"}, {"block_m": 64, "num_warps": 4, "schedule": "split_k", "split_k": 2},
        {"block_m": 16, "block_n": 64, "num_warps": 4}, {"load": "pointer"},
    )  # fmt: skip
    jobs = [(dtype, dict(make_config(**fields))) for dtype in FORMATS for fields in kinds]
    jobs.append(("fp8_fast", dict(make_config(block_n=256, schedule="persistent", epilogue_split=2))))
    for job, result in zip(jobs, compiled(jobs, tmp_path), strict=True):
        assert result["wgmma"], job
        assert all(name.endswith("k32.f32.e4m3.e4m3") for name in result["wgmma"]), job
        assert result["assembled"], job
        assert (result["mma"], result["spills"], result["is_serialized"]) == (0, 0, False), job


def test_the_widest_tiles_spill_little(tmp_path: object) -> None:
    """Both sums of 128 x 256 or 128 x 192 fill the registers; what is spilled is less than half of one of them."""
    schedules = ({}, {"schedule": "persistent"}, {"schedule": "split_k", "split_k": 2})
    kinds = [{"block_n": block_n, **fields} for block_n in (160, 192) for fields in schedules]
    kinds += [{"block_n": 256}, {"block_n": 256, "schedule": "persistent", "epilogue_split": 2}, {"num_warps": 4}]
    jobs = [("fp8", dict(make_config(**fields))) for fields in kinds]
    jobs.append(("fp8_fast", dict(make_config(block_n=160))))
    for job, result in zip(jobs, compiled(jobs, tmp_path), strict=True):
        assert result["spills"] < 48, job
        assert (result["mma"], result["is_serialized"], result["assembled"]) == (0, False, True), job
