# ruff: noqa: E402 (what is imported below needs torch and triton)
"""fp8 grouped GEMM on a GPU: kernels against float64, the operator, graphs, beside torch's own scaled product."""

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from wavetune.core.arch import find_arch
from wavetune.core.config import GROUPED_GEMM, KernelConfig
from wavetune.core.grouped_problem import GroupedGemmProblem
from wavetune.core.routing import UNIFORM, Routing, sample_groups
from wavetune.errors import CaptureError, OperandError
from wavetune.kernels.grouped_gemm_dispatch import illegal_reason, launch_operands
from wavetune.kernels.grouped_gemm_operands import GroupedGemmOperands, grouped_reference, make_grouped_operands
from wavetune.kernels.reference import MAX_RELATIVE_ERROR, relative_error
from wavetune.launch import grouped_launcher
from wavetune.launch.grouped_matmul import grouped_matmul


def _has_e4m3() -> bool:
    return torch.cuda.is_available() and torch.cuda.get_device_capability() >= (8, 9)


pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not _has_e4m3(), reason="needs a GPU with e4m3")]

SCHEDULES = {
    "tile-pointer": {"schedule": "tile", "load": "pointer"},
    "tile-tma": {"schedule": "tile", "load": "tma"},
    "persistent-pointer": {"schedule": "persistent", "load": "pointer"},
    "persistent-tma": {"schedule": "persistent", "load": "tma"},
}
TILES = {(128, 128): 8, (64, 256): 8, (32, 64): 4, (16, 256): 4}
"""Tile and its warps; flat ones compute the transpose, but for a gated one of 64 rows of the weight."""
RAGGED = (0, 300, 1, 0, 129, 16, 0, 700, 64, 0, 17)
SIZES = sample_groups(Routing("zipf", 1.0), 64, 2048, 0)
LIMIT = MAX_RELATIVE_ERROR["fp8"]


@pytest.fixture(scope="module")
def arch() -> object:
    """Return the GPU that is present."""
    return find_arch(torch.cuda.get_device_name())


def make_config(**fields: object) -> KernelConfig:
    """Complete a configuration."""
    base = {"block_m": 128, "block_n": 128, "block_k": 128, "group_m": 8, "num_warps": 8, "num_stages": 3}
    return GROUPED_GEMM.config({**base, **fields})


def make_operands(
    sizes: tuple[int, ...] = SIZES, n: int = 512, k: int = 1024, layout: str = "nk", scales: str = "row"
) -> GroupedGemmOperands:  # fmt: skip
    """Return operands on the GPU."""
    return make_grouped_operands(GroupedGemmProblem(sizes, n, k, "fp8", layout), "cuda", 0, scales=scales)[0]


def check(problem: GroupedGemmProblem, config: KernelConfig, arch: object, **options: object) -> None:
    """Launch for the known histogram, for any, and once more through the kept launch; nothing if it is not legal."""
    if illegal_reason(problem, config, arch):
        return
    operands = make_grouped_operands(problem, "cuda", 0, **options)[0]
    reference = grouped_reference(operands)
    for launched in (operands, operands.for_any_histogram(), operands):
        operands.out.fill_(float("nan"))
        launch_operands(launched, config, arch)
        assert relative_error(operands.out, reference) < LIMIT


@pytest.mark.parametrize("layout", ["nk", "gated"])
@pytest.mark.parametrize("tile", TILES, ids=str)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_right_on_ragged_groups(schedule: str, tile: tuple[int, int], layout: str, arch: object) -> None:
    """Aligned and unaligned, short and long sums, every spread of scales, sizes and offsets."""
    fields = {**SCHEDULES[schedule], "block_m": tile[0], "block_n": tile[1], "num_warps": TILES[tile]}
    config = make_config(**fields)
    check(GroupedGemmProblem(RAGGED, 720, 1424, "fp8", layout), config, arch, scales="row")
    check(GroupedGemmProblem(RAGGED, 1072, 80, "fp8", layout), config, arch, scales="expert")
    longer = make_config(**fields, block_k=256, num_stages=2)
    check(GroupedGemmProblem(RAGGED, 528, 3088, "fp8", layout), longer, arch, scales="tensor", as_offsets=True)
    if config["load"] == "pointer":
        check(GroupedGemmProblem(RAGGED, 714, 1415, "fp8", layout), config, arch, scales="row")


@pytest.mark.parametrize("layout", ["nk", "gated"])
@pytest.mark.parametrize("tile", [(128, 256), (16, 128)], ids=str)
@pytest.mark.parametrize("schedule", ["tile-tma", "persistent-tma"])
def test_right_without_promotion(schedule: str, tile: tuple[int, int], layout: str, arch: object) -> None:
    """Sums that stay in the matrix unit, whose persistent loop overlaps tiles."""
    config = make_config(
        **SCHEDULES[schedule], block_m=tile[0], block_n=tile[1], num_warps=8 if tile[0] == 128 else 4
    )  # fmt: skip
    check(GroupedGemmProblem(RAGGED, 5136, 1424, "fp8_fast", layout), config, arch)


@pytest.mark.parametrize("layout", ["nk", "gated"])
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(
    "sizes",
    [(1,), (*(0,) * 127, 1), (2000, *(0,) * 63), (1,) * 256, (*(0,) * 300, 5, *(0,) * 83, 40)],
    ids=["1 of 1", "1 of 128", "all to one", "256 experts", "385 experts"],
)  # fmt: skip
def test_extreme_histograms(sizes: tuple[int, ...], schedule: str, layout: str, arch: object) -> None:
    """One token, one expert with everything, as many experts as a kernel has room for, and more."""
    operands = make_operands(sizes, 272, 528, layout)
    reference = grouped_reference(operands)
    for tile in ((16, 128), (64, 128)):
        config = make_config(**SCHEDULES[schedule], block_m=tile[0], block_n=tile[1], num_warps=4)
        for launched in (operands, operands.for_any_histogram()):
            operands.out.fill_(float("nan"))
            launch_operands(launched, config, arch)
            assert relative_error(operands.out, reference) < LIMIT


@pytest.mark.parametrize("layout", ["nk", "gated"])
def test_long_sums_keep_their_precision(layout: str, arch: object) -> None:
    """Promoted, a sum of 16384 products of one sign is right to bf16; left to Hopper's matrix unit it is less exact."""
    problem = GroupedGemmProblem((64, 0, 300), 256, 16384, "fp8", layout)
    operands = make_grouped_operands(problem, "cuda", 0)[0]
    # What is cut off adds up instead of averaging out. Sums of about 2 leave silu its curve.
    operands.x.copy_(operands.x.float().abs())
    operands.w.copy_(operands.w.float().abs() * (1 if layout == "nk" else 0.02))
    reference = grouped_reference(operands)
    errors = {}
    for dtype in ("fp8", "fp8_fast"):
        launched = replace(operands, problem=replace(problem, dtype=dtype))
        for tile in ((128, 128, 8), (16, 128, 4)):
            config = make_config(block_m=tile[0], block_n=tile[1], num_warps=tile[2], load="tma")
            operands.out.fill_(float("nan"))
            launch_operands(launched, config, arch)
            errors[dtype, tile] = relative_error(operands.out, reference)
    promoted = [error for (dtype, _), error in errors.items() if dtype == "fp8"]
    # What is cut off is of one sign. Of silu(x) y it moves x y / silu(x) dsilu/dx + 1 = 2.2 times as much, at x = 2.
    assert max(promoted) < LIMIT * (1.0 if layout == "nk" else 2.2), errors
    if arch.target == "sm_90":
        assert min(error for (dtype, _), error in errors.items() if dtype == "fp8_fast") > max(promoted), errors


@pytest.mark.parametrize("layout", ["nk", "gated"])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_one_graph_serves_every_routing(schedule: str, layout: str, arch: object) -> None:
    """Captured once for a number of tokens; replays follow the sizes and the scales in device memory."""
    config = make_config(**SCHEDULES[schedule], block_m=64, num_warps=4)
    tokens, experts = 1024, 128
    operands = make_operands((8,) * experts, 256, 512, layout)
    launched = operands.for_any_histogram()
    launch_operands(launched, config, arch)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch_operands(launched, config, arch)
    for seed, routing in enumerate((Routing("zipf", 0.0), Routing("zipf", 1.2), Routing("dirichlet", 0.1))):
        sizes = sample_groups(routing, experts, tokens, seed)
        operands.groups.copy_(torch.tensor(sizes))
        operands.scale_x.mul_(1.25)
        operands.scale_w.mul_(0.75)
        operands.out.fill_(float("nan"))
        graph.replay()
        known = replace(operands, problem=replace(operands.problem, group_sizes=sizes))
        assert relative_error(operands.out, grouped_reference(known)) < LIMIT


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_offsets_beyond_32_bits(schedule: str, arch: object) -> None:
    """The weights of all experts have 2**32 elements and more; the last expert is right, and so is its scale."""
    operands = make_operands((*(0,) * 510, 100, 300), 528, 16384)
    launch_operands(operands, make_config(**SCHEDULES[schedule]), arch)
    for rows, expert in ((slice(0, 100), 510), (slice(100, 400), 511)):
        x = operands.x[rows].double() * operands.scale_x[rows, None]
        expected = x @ (operands.w[expert].double() * operands.scale_w[expert, :, None]).T
        assert relative_error(operands.out[rows], expected) < LIMIT


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_wrong_sizes_on_the_device_write_nowhere_else(schedule: str, arch: object) -> None:
    """Negative sizes count as none, and sizes beyond the tokens end with them: nothing behind the result is touched."""
    operands = make_operands((200, 200), 272, 272)
    store = torch.zeros(4000, 272, dtype=torch.bfloat16, device="cuda")
    groups = torch.tensor([-50, 2**30], dtype=torch.int32, device="cuda")
    wrong = replace(operands, out=store[:400], groups=groups).for_any_histogram()
    launch_operands(wrong, make_config(**SCHEDULES[schedule]), arch)
    known = replace(operands, problem=replace(operands.problem, group_sizes=(0, 400)))
    assert relative_error(store[:400], grouped_reference(known)) < LIMIT
    assert not store[400:].any()


@pytest.mark.parametrize("scales", ["tensor", "expert", "row"])
@pytest.mark.parametrize("layout", ["nk", "gated"])
@pytest.mark.parametrize("tokens", [1, 8, 200, 2048, 20000])
def test_the_operator_for_sizes_on_either_side(tokens: int, layout: str, scales: str) -> None:
    """Sizes on the host and on the GPU; decode to prefill; both ways of summing; a result in fp16."""
    activation = "silu_and_mul" if layout == "gated" else None
    for routing in (UNIFORM, Routing("dirichlet", 0.1)):
        sizes = sample_groups(routing, 64, tokens, 0)
        operands = make_operands(sizes, layout=layout, scales=scales)
        reference = grouped_reference(operands)
        for given in (sizes, torch.tensor(sizes, dtype=torch.int32, device="cuda")):
            for options in ({}, {"use_fast_accum": True}, {"out_dtype": torch.float16}):
                result = grouped_matmul(
                    operands.x, operands.w, given, activation=activation, scale_x=operands.scale_x,
                    scale_w=operands.scale_w, **options,
                )  # fmt: skip
                assert result.dtype == options.get("out_dtype", torch.bfloat16)
                assert relative_error(result, reference) < LIMIT


@pytest.mark.parametrize("use_fast_accum", [False, True])
@pytest.mark.parametrize("tokens", [16, 2048])
def test_beside_torch(tokens: int, use_fast_accum: bool) -> None:
    """Both are within rounding of float64 where this torch has the product: scales of tokens and of rows."""
    function = getattr(torch, "_scaled_grouped_mm", None)
    if function is None:
        pytest.skip("this torch has no scaled grouped product")
    operands = make_operands(sample_groups(UNIFORM, 16, tokens, 0))
    x, w, scale_x, scale_w = operands.x, operands.w, operands.scale_x, operands.scale_w
    ends = operands.groups.cumsum(0).int()
    try:
        theirs = function(
            x, w.transpose(-2, -1), scale_x, scale_w, offs=ends, out_dtype=torch.bfloat16, use_fast_accum=use_fast_accum
        )
    except RuntimeError as error:
        pytest.skip(f"torch cannot: {str(error)[:200]}")
    ours = grouped_matmul(x, w, operands.groups, scale_x=scale_x, scale_w=scale_w, use_fast_accum=use_fast_accum)
    reference = grouped_reference(operands)
    assert relative_error(ours, reference) < 1.2 * relative_error(theirs, reference) + 1e-4


def test_the_operator_in_a_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """Captured once, it follows sizes on the GPU; sizes on the host are refused, and a kernel that is not loaded."""
    operands = make_operands()
    groups = operands.groups.clone()
    scales = {"scale_x": operands.scale_x, "scale_w": operands.scale_w}
    grouped_matmul(operands.x, operands.w, groups, **scales)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = grouped_matmul(operands.x, operands.w, groups, **scales)
    for seed, routing in enumerate((UNIFORM, Routing("zipf", 2.0))):
        sizes = sample_groups(routing, 64, 2048, seed)
        groups.copy_(torch.tensor(sizes))
        graph.replay()
        known = replace(operands, problem=replace(operands.problem, group_sizes=sizes))
        assert relative_error(out, grouped_reference(known)) < LIMIT
    monkeypatch.setattr(grouped_launcher, "is_loaded", lambda *args: False)
    for given, words in ((SIZES, "on the GPU"), (groups, "not loaded")):
        failing = torch.cuda.CUDAGraph()
        with pytest.raises(CaptureError, match=words), torch.cuda.graph(failing):
            grouped_matmul(operands.x, operands.w, given, **scales)
        torch.cuda.synchronize()


def test_compiled_without_a_break() -> None:
    """torch.compile keeps the operator, and chooses again for every token count."""
    layer = torch.compile(
        lambda x, w, groups, scale_x, scale_w: torch.relu(
            grouped_matmul(x, w, groups, scale_x=scale_x, scale_w=scale_w)
        ),
        dynamic=True,
    )  # fmt: skip
    for tokens in (64, 700):
        operands = make_operands(sample_groups(UNIFORM, 64, tokens, 0))
        out = layer(operands.x, operands.w, operands.groups, operands.scale_x, operands.scale_w)
        assert relative_error(out, grouped_reference(operands).relu()) < LIMIT


def test_nothing_is_copied_to_the_host_and_nothing_is_allocated(arch: object) -> None:
    """Sizes and scales on the GPU never make the host wait; a kept launch holds no memory."""
    operands = make_operands()
    scales = {"scale_x": operands.scale_x, "scale_w": operands.scale_w}
    grouped_matmul(operands.x, operands.w, operands.groups, **scales)
    torch.cuda.set_sync_debug_mode("error")
    try:
        grouped_matmul(operands.x, operands.w, operands.groups, **scales)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    config = make_config(load="tma")
    launch_operands(operands, config, arch)
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    launch_operands(operands, config, arch)
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == before


def test_scales_elsewhere_are_refused() -> None:
    """The error names both devices."""
    operands = make_operands()
    with pytest.raises(OperandError, match="scale_w is on cpu but x is on cuda"):
        grouped_matmul(
            operands.x, operands.w, SIZES, scale_x=operands.scale_x, scale_w=operands.scale_w.cpu()
        )  # fmt: skip
