"""What the host decides about fp8 grouped GEMM: legality, grids, the space, data, digests, and what is compiled."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest

pytest.importorskip("triton")

from wavetune.core.arch import find_arch
from wavetune.core.config import GROUPED_GEMM, KernelConfig
from wavetune.core.grouped_problem import GroupedGemmProblem
from wavetune.errors import ConfigError
from wavetune.kernels.attention_placeholder import IndexPlaceholder
from wavetune.kernels.gemm_scaled import PROMOTED_ELEMENTS
from wavetune.kernels.gemm_scales import SPREAD
from wavetune.kernels.grouped_gemm_dispatch import describe_call, illegal_reason
from wavetune.kernels.grouped_gemm_operands import GroupedGemmOperands, grouped_reference, make_grouped_operands
from wavetune.kernels.grouped_gemm_scales import grouped_scale_shapes, grouped_scale_strides
from wavetune.kernels.grouped_gemm_space import grouped_space
from wavetune.kernels.placeholder import Placeholder
from wavetune.kernels.registry import find_family
from wavetune.mapping.grouped_gemm import map_grouped_gemm
from wavetune.measure.compile import Rejected, compile_configs

H200, A100, MI300X = (find_arch(name) for name in ("h200", "a100", "mi300x"))
FORMATS = ("fp8", "fp8_fast")
FAMILY = find_family("grouped_gemm")


def make_config(**fields: object) -> KernelConfig:
    """Complete a configuration."""
    base = {"block_m": 128, "block_n": 128, "block_k": 128, "group_m": 8, "num_warps": 8, "num_stages": 3}
    return GROUPED_GEMM.config({**base, "load": "tma", **fields})


def placeholders(problem: GroupedGemmProblem, scales: str = "row") -> GroupedGemmOperands:
    """Return stand-ins for contiguous tensors."""
    return GroupedGemmOperands(
        problem,
        Placeholder(problem.dtype, (problem.tokens, problem.k)),
        Placeholder(problem.dtype, (problem.experts, problem.n, problem.k)),
        Placeholder("bf16", (problem.tokens, problem.out_columns)),
        IndexPlaceholder((problem.experts,)),
        *(Placeholder("fp32", shape) for shape in grouped_scale_shapes(problem, scales)),
    )


@pytest.mark.parametrize(
    ("problem", "fields", "word"),
    [
        ({"dtype": "fp8_block128"}, {}, "not those of fp8_block128"),
        ({}, {"block_k": 16, "load": "pointer"}, "block_k of at least 32"),
        ({}, {"block_n": 160}, "power of two"),
        ({}, {"block_m": 96}, "power of two"),
        ({}, {"block_m": 8}, "at least 16"),
        ({"layout": "gated"}, {"block_n": 16}, "at least 16"),
        ({}, {"block_k": 512, "num_stages": 1}, "TMA box"),
        ({"k": 1000, "alignment": 8}, {}, "alignment"),
        ({}, {"num_stages": 8}, "8 stages of 32768 B exceed the shared memory"),
        ({"group_sizes": (1,) * 5000}, {}, "4096 experts"),
    ],
)
def test_illegal_configurations_are_explained(problem: dict, fields: dict, word: str) -> None:
    """Each rule has its reason, and what it asks for is legal."""
    sizes = {"group_sizes": (256, 0, 3), "n": 256, "k": 1024, "dtype": "fp8"}
    assert word in str(illegal_reason(GroupedGemmProblem(**{**sizes, **problem}), make_config(**fields), H200))
    for dtype in FORMATS:
        for layout in ("nk", "gated"):
            legal = GroupedGemmProblem(**{**sizes, "dtype": dtype}, layout=layout)
            assert illegal_reason(legal, make_config(num_stages=7), H200) is None
            assert illegal_reason(legal, make_config(block_k=256), H200) is None


@pytest.mark.parametrize("arch", [A100, MI300X])
def test_not_every_gpu_has_e4m3(arch: object) -> None:
    """Without it there is no space, a reason, and no fallback."""
    problem = GroupedGemmProblem((64,), 64, 128, "fp8")
    config = make_config(load="pointer", num_stages=2)
    assert "no matrix instruction for e4m3" in str(illegal_reason(problem, config, arch))
    assert FAMILY.configs(arch, "fp8") == []
    with pytest.raises(ConfigError, match="fp8"):
        FAMILY.fallback_config(problem, arch)


@pytest.mark.parametrize("dtype", FORMATS)
def test_the_space(dtype: str) -> None:
    """Both schedules and ways of loading, no repeats; trips of 128 and 256; unaligned operands have somewhere to go."""
    space = grouped_space(H200, dtype)
    assert len(set(space)) == len(space) >= 90
    assert {config["schedule"] for config in space} == {"tile", "persistent"}
    assert {config["block_k"] for config in space} == {128, 256}
    assert {16, 32, 64, 128} <= {config["block_m"] for config in space}
    for layout in ("nk", "gated"):
        unaligned = GroupedGemmProblem((300, 0, 7), 1000, 1001, dtype, layout)
        assert any(illegal_reason(unaligned, config, H200) is None for config in space)
        assert grouped_space(H200, dtype, layout) == space


def test_sums_that_are_promoted_have_smaller_tiles() -> None:
    """Two sums of at most 64 elements a thread; those that are not promoted have more."""
    most = {
        dtype: max(
            int(config["block_m"]) * int(config["block_n"]) // (32 * int(config["num_warps"]))
            for config in grouped_space(H200, dtype)
        )
        for dtype in FORMATS
    }
    assert most == {"fp8": 64, "fp8_fast": 128}


@pytest.mark.parametrize("layout", ["nk", "gated"])
@pytest.mark.parametrize("dtype", FORMATS)
def test_grids_are_those_of_the_mapping(dtype: str, layout: str) -> None:
    """Model and launch cannot disagree, for every candidate; a launch for any histogram has the mapping's bound."""
    problem = GroupedGemmProblem((0, 700, 3, 0, 64), 1000, 1024, dtype, layout)
    operands = placeholders(problem)
    for config in grouped_space(H200, dtype):
        assert illegal_reason(problem, config, H200) is None
        mapping = map_grouped_gemm(problem, config, H200)
        call = describe_call(operands, config, H200)
        assert call.grid_size == mapping.grid_size
        assert call.variant.is_persistent == (config["schedule"] == "persistent")
        assert call.variant.constants["PROMOTE"] * config["block_k"] == (PROMOTED_ELEMENTS if dtype == "fp8" else 0)
        assert describe_call(operands.for_any_histogram(), config, H200).grid_size == mapping.launched_ctas


def test_bytes_are_those_of_the_elements() -> None:
    """Inputs of one byte, a result of two."""
    problem = GroupedGemmProblem((30, 0, 10), 256, 512, "fp8", "gated")
    mapping = map_grouped_gemm(problem, make_config(), H200)
    assert mapping.compulsory_bytes == 40 * 512 + 2 * 256 * 512 + 40 * 128 * 2


@pytest.mark.parametrize("layout", ["nk", "gated"])
def test_boxes_of_a_weight_stay_in_their_half(layout: str) -> None:
    """A gated weight is two matrices an expert: boxes take rows of both, or of one where the tile is transposed."""
    problem = GroupedGemmProblem((40, 0), 256, 512, "fp8", layout)
    gated = layout == "gated"
    for block_m, box in (
        (128, [1, 2, 64, 128] if gated else [1, 1, 128, 128]),
        (16, [1, 1, 64 if gated else 128, 128]),
    ):
        weight = describe_call(placeholders(problem), make_config(block_m=block_m), H200).args[1]
        assert weight.block_shape == box
        assert weight.shape == ([2, 2, 128, 512] if gated else [2, 1, 256, 512])
        assert weight.strides[0] == 256 * 512
        assert weight.strides[1:] == [(128 if gated else 256) * 512, 512, 1]


@pytest.mark.parametrize("arch", [H200, find_arch("rtx-4090")])
@pytest.mark.parametrize("dtype", FORMATS)
def test_fallbacks_exist_for_every_size(dtype: str, arch: object) -> None:
    """Without a model there is a legal answer, aligned or not, down to one token, with bytes a row as of bf16."""
    for sizes in ((1,), (0, 40), (90, 2), (3000, 2), (128,) * 64):
        for k in (4096, 99):
            problem = GroupedGemmProblem(sizes, 78, k, dtype)
            config = FAMILY.fallback_config(problem, arch)
            assert illegal_reason(problem, config, arch) is None
            twin = FAMILY.fallback_config(replace(problem, dtype="bf16", alignment=0), arch)
            assert config == twin.replace(block_k=2 * int(twin["block_k"]))


def test_what_is_compiled_ahead_is_what_is_launched() -> None:
    """Stand-ins and tensors, whatever their scales, share variants; results of another dtype have their own."""
    torch = pytest.importorskip("torch")
    problem = GroupedGemmProblem((40, 0, 8), 256, 1024, "fp8")
    for fields in ({}, {"schedule": "persistent"}, {"load": "pointer"}):
        config = make_config(**fields)
        ahead = FAMILY.offline_calls(config, H200, "fp8", "nk")[0].variant
        for scales in ("row", "expert", "tensor"):
            operands = make_grouped_operands(problem, "cpu", 0, scales=scales)[0]
            assert describe_call(operands, config, H200).variant is ahead
        halves = replace(operands, out=operands.out.to(torch.float16))
        assert describe_call(halves, config, H200).variant is not ahead


def test_operands() -> None:
    """Rows are padded to the alignment, elements fill the range, scales have their shapes, and results are near 1."""
    torch = pytest.importorskip("torch")
    problem = GroupedGemmProblem((200, 0, 100), 72, 397, "fp8", alignment=16)
    for mode, shapes in (("row", ((300,), (3, 72))), ("expert", ((300,), (3, 1))), ("tensor", ((1,), (1, 1)))):
        operands = make_grouped_operands(problem, "cpu", 0, scales=mode)[0]
        assert operands.x.dtype == operands.w.dtype == torch.float8_e4m3fn
        assert operands.out.dtype == torch.bfloat16
        assert (operands.x.stride(0), operands.w.stride()) == (400, (28800, 400, 1))
        assert (tuple(operands.scale_x.shape), tuple(operands.scale_w.shape)) == shapes
        assert grouped_scale_strides(operands.scale_x, operands.scale_w) == {
            "row": (1, 72, 1), "expert": (1, 1, 0), "tensor": (0, 0, 0),
        }[mode]  # fmt: skip
        assert operands.w.float().std().item() == pytest.approx(SPREAD, rel=0.02)
        assert 0.5 < grouped_reference(operands).std().item() < 2.0


def test_the_reference_by_hand() -> None:
    """Every element times the scale of its token, and of its expert and row; the gate before the up rows."""
    torch = pytest.importorskip("torch")

    def e4m3(values: list) -> object:
        return torch.tensor(values).to(torch.float8_e4m3fn)

    problem = GroupedGemmProblem((1, 2), 2, 1, "fp8", "gated")
    operands = GroupedGemmOperands(
        problem, e4m3([[1.0], [2.0], [4.0]]), e4m3([[[1.0], [2.0]], [[-1.0], [0.5]]]), torch.zeros(3, 1),
        torch.tensor([1, 2]), torch.tensor([1.0, 0.5, 2.0]), torch.tensor([[1.0, 3.0], [2.0, 4.0]]),
    )  # fmt: skip
    gate, up = torch.tensor([1.0, -2.0, -16.0]).double(), torch.tensor([6.0, 2.0, 16.0]).double()
    assert grouped_reference(operands)[:, 0].tolist() == pytest.approx((gate * gate.sigmoid() * up).tolist())


def test_windows() -> None:
    """Operands and their scales come from pools, elsewhere each time."""
    pytest.importorskip("torch")
    from wavetune.kernels.windows import DataWindows

    windows = DataWindows("fp8", "cpu", pool_bytes=1 << 18)
    problem = GroupedGemmProblem((10, 0, 20), 40, 512, "fp8")
    first, second = (FAMILY.carve_operands(problem, make_config(), windows) for _ in range(2))
    assert (tuple(first.scale_x.shape), tuple(first.scale_w.shape)) == ((30,), (3, 40))
    assert bool((first.scale_x > 0).all())
    assert bool((first.scale_w > 0).all())
    places = {t.data_ptr() for o in (first, second) for t in (o.x, o.w, o.out, o.scale_x, o.scale_w)}
    assert len(places) == 10


def test_validation_reaches_what_is_measured() -> None:
    """Every configuration may run every validation problem that is aligned, and sums there are promoted."""
    for dtype in FORMATS:
        for layout in ("nk", "gated"):
            for problem in FAMILY.validation_problems(dtype, layout):
                assert problem.k > 3 * PROMOTED_ELEMENTS
                assert not any(illegal_reason(problem, config, H200) for config in grouped_space(H200, dtype))


def test_digests_tell_dtypes_apart() -> None:
    """The kernels of fp8 are others than those of bf16 and fp16, which share theirs."""
    assert FAMILY.source_hash() == FAMILY.source_hash("bf16") == FAMILY.source_hash("fp16")
    assert FAMILY.source_hash("fp8") == FAMILY.source_hash("fp8_fast") != FAMILY.source_hash("bf16")
    assert FAMILY.space_hash(H200, "fp8") != FAMILY.space_hash(H200, "fp8_fast")


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["nk", "gated"])
@pytest.mark.parametrize("dtype", FORMATS)
def test_the_whole_space_compiles_for_hopper(dtype: str, layout: str) -> None:
    """Every configuration compiles for sm_90, and spills a few registers at most."""
    results = compile_configs("grouped_gemm", grouped_space(H200, dtype), H200, dtype=dtype, layout=layout)
    assert [result for result in results if isinstance(result, Rejected) or result.num_spills > 16] == []


COMPILE = """
import json, re, subprocess, sys
from pathlib import Path
import triton
from wavetune.core.arch import find_arch
from wavetune.core.config import GROUPED_GEMM
from wavetune.kernels.call import compile_call, compile_offline
from wavetune.kernels.registry import find_family
from wavetune.measure.compile import read_resources

arch = find_arch("h200")
compile_offline(arch)
tools = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
for line in sys.stdin:
    dtype, layout, fields = json.loads(line)
    config = GROUPED_GEMM.config(fields)
    compiled = compile_call(find_family("grouped_gemm").offline_calls(config, arch, dtype, layout)[0])
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


def test_the_matrix_unit_gets_e4m3(tmp_path: object) -> None:
    """Large and flat tiles, both schedules, loads and layouts: wgmma of e4m3, asynchronous, without spills."""
    kinds = (
        {}, {"schedule": "persistent", "block_m": 64, "num_warps": 4}, {"load": "pointer"},
        {"block_m": 16, "num_warps": 4}, {"block_m": 16, "num_warps": 4, "schedule": "persistent"},
    )  # fmt: skip
    jobs = [("fp8", layout, dict(make_config(**fields))) for layout in ("nk", "gated") for fields in kinds]
    jobs += [
        ("fp8_fast", "gated", dict(make_config(schedule="persistent", **fields)))
        for fields in ({"block_n": 256}, {"block_m": 16, "num_warps": 4})
    ]
    command = [sys.executable, "-c", COMPILE, str(tmp_path / "kernel.ptx")]
    run = subprocess.run(command, input="\n".join(map(json.dumps, jobs)), capture_output=True, text=True, timeout=280)
    assert run.returncode == 0, run.stderr[-3000:]
    for job, line in zip(jobs, run.stdout.splitlines(), strict=True):
        result = json.loads(line)
        assert result["wgmma"], job
        assert all(name.endswith("k32.f32.e4m3.e4m3") for name in result["wgmma"]), job
        assert result["assembled"], job
        assert (result["mma"], result["spills"], result["is_serialized"]) == (0, 0, False), job
