# ruff: noqa: E402 (what is imported below needs torch and triton)
"""Grouped GEMM kernels on a GPU: bf16, host descriptors, graphs, offsets beyond 32 bits."""

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from wavetune.core.arch import find_arch
from wavetune.core.config import GROUPED_GEMM, KernelConfig
from wavetune.core.grouped_problem import GroupedGemmProblem
from wavetune.core.routing import Routing, sample_groups
from wavetune.kernels.grouped_gemm import grouped_illegal_reason, launch_grouped
from wavetune.kernels.grouped_gemm_operands import grouped_reference, make_grouped_operands
from wavetune.kernels.reference import MAX_RELATIVE_ERROR, relative_error

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]

SCHEDULES = {
    "tile-pointer": {"schedule": "tile", "load": "pointer"},
    "tile-tma": {"schedule": "tile", "load": "tma"},
    "persistent-pointer": {"schedule": "persistent", "load": "pointer"},
    "persistent-tma": {"schedule": "persistent", "load": "tma"},
}
RAGGED = (0, 300, 1, 0, 129, 16, 0, 700, 64, 0, 17)


@pytest.fixture(scope="module")
def arch() -> object:
    """Return the GPU that is present."""
    return find_arch(torch.cuda.get_device_name())


def make_config(**fields: object) -> KernelConfig:
    """Complete a configuration."""
    base = {"block_m": 128, "block_n": 128, "block_k": 64, "group_m": 8, "num_warps": 4, "num_stages": 3}
    return GROUPED_GEMM.config({**base, **fields})


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize("layout", ["nk", "gated"])
@pytest.mark.parametrize("tile", [(128, 128), (64, 64), (16, 128), (16, 32)])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_right_on_ragged_groups(schedule: str, tile: tuple[int, int], layout: str, dtype: str, arch: object) -> None:
    """Aligned and unaligned; for the known histogram and for any; sizes and offsets; twice, through the kept launch."""
    config = make_config(**SCHEDULES[schedule], block_m=tile[0], block_n=tile[1])
    for n, k, as_offsets in ((712, 1416, False), (1080, 72, True), (714, 1415, True)):
        problem = GroupedGemmProblem(RAGGED, n, k, dtype, layout)
        if grouped_illegal_reason(problem, config, arch):
            continue
        operands = make_grouped_operands(problem, "cuda", 0, as_offsets=as_offsets)[0]
        reference = grouped_reference(operands)
        for launched in (operands, operands.for_any_histogram(), operands):
            operands.out.fill_(float("nan"))
            launch_grouped(launched, config, arch)
            assert relative_error(operands.out, reference) < MAX_RELATIVE_ERROR[dtype]


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(
    "sizes",
    [(1,), (*(0,) * 127, 1), (2000, *(0,) * 63), (1,) * 256, (*(0,) * 300, 5, *(0,) * 83, 40), (3,) * 1000],
    ids=["1 of 1", "1 of 128", "all to one", "256 experts", "385 experts", "1000 experts"],
)  # fmt: skip
def test_extreme_histograms(sizes: tuple[int, ...], schedule: str, arch: object) -> None:
    """One token, one expert with everything, as many experts as a kernel has room for, and more."""
    problem = GroupedGemmProblem(sizes, 264, 520)
    operands = make_grouped_operands(problem, "cuda", 0)[0]
    for tile in ((16, 64), (64, 128)):
        config = make_config(**SCHEDULES[schedule], block_m=tile[0], block_n=tile[1])
        for launched in (operands, operands.for_any_histogram()):
            operands.out.fill_(float("nan"))
            launch_grouped(launched, config, arch)
            assert relative_error(operands.out, grouped_reference(operands)) < MAX_RELATIVE_ERROR["bf16"]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_one_graph_serves_every_routing(schedule: str, arch: object) -> None:
    """Captured once for a number of tokens; replays follow the sizes in device memory, without a copy to the host."""
    config = make_config(**SCHEDULES[schedule], block_m=64)
    tokens, experts = 1024, 128
    problem = GroupedGemmProblem((8,) * experts, 256, 512)
    operands = make_grouped_operands(problem, "cuda", 0)[0]
    launched = operands.for_any_histogram()
    launch_grouped(launched, config, arch)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch_grouped(launched, config, arch)
    for seed, routing in enumerate((Routing("zipf", 0.0), Routing("zipf", 1.2), Routing("dirichlet", 0.1))):
        sizes = sample_groups(routing, experts, tokens, seed)
        operands.groups.copy_(torch.tensor(sizes))
        operands.out.fill_(float("nan"))
        graph.replay()
        known = replace(operands, problem=replace(problem, group_sizes=sizes))
        assert relative_error(operands.out, grouped_reference(known)) < MAX_RELATIVE_ERROR["bf16"]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_launching_allocates_nothing(schedule: str, arch: object) -> None:
    """Neither torch's allocator nor a kept launch holds memory afterwards."""
    operands = make_grouped_operands(GroupedGemmProblem(RAGGED, 256, 512), "cuda", 0)[0]
    config = make_config(**SCHEDULES[schedule])
    launch_grouped(operands, config, arch)
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    launch_grouped(operands, config, arch)
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == before


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_offsets_beyond_32_bits(schedule: str, arch: object) -> None:
    """The weights of all experts have 2**31 + elements, and so have the tokens; the last experts are right."""
    config = make_config(**SCHEDULES[schedule])
    sizes = (0,) * 510 + (1000, 2**17 + 128)
    problem = GroupedGemmProblem(sizes, 264, 16384)
    operands = make_grouped_operands(problem, "cuda", 0)[0]
    launch_grouped(operands, config, arch)
    for rows, expert in ((slice(0, 1000), 510), (slice(-300, None), 511)):
        expected = operands.x[rows].double() @ operands.w[expert].double().T
        assert relative_error(operands.out[rows], expected) < MAX_RELATIVE_ERROR["bf16"]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_wrong_sizes_on_the_device_write_nowhere_else(schedule: str, arch: object) -> None:
    """Negative sizes count as none, and sizes beyond the tokens end with them: nothing behind the result is touched."""
    operands = make_grouped_operands(GroupedGemmProblem((200, 200), 264, 264), "cuda", 0)[0]
    store = torch.zeros(4000, 264, dtype=torch.bfloat16, device="cuda")
    groups = torch.tensor([-50, 2**30], dtype=torch.int32, device="cuda")
    wrong = replace(operands, out=store[:400], groups=groups).for_any_histogram()
    launch_grouped(wrong, make_config(**SCHEDULES[schedule]), arch)
    expected = operands.x.double() @ operands.w[1].double().T
    assert relative_error(store[:400], expected) < MAX_RELATIVE_ERROR["bf16"]
    assert not store[400:].any()


@pytest.mark.parametrize("layout", ["nk", "gated"])
def test_values_at_the_ends_of_the_range(layout: str, arch: object) -> None:
    """Large tokens of one expert are as exact as others, also through silu; NaN of another stays with it."""
    problem = GroupedGemmProblem((50, 30, 200), 256, 512, "bf16", layout)
    operands = make_grouped_operands(problem, "cuda", 0)[0]
    operands.x[:50] *= 1e15
    operands.x[50:80] = float("nan")
    for schedule in SCHEDULES.values():
        operands.out.fill_(0.0)
        launch_grouped(operands, make_config(**schedule), arch)
        reference = grouped_reference(operands)
        for rows in (slice(0, 50), slice(80, 280)):
            assert relative_error(operands.out[rows], reference[rows]) < MAX_RELATIVE_ERROR["bf16"]
        assert operands.out[50:80].isnan().all()
