# ruff: noqa: E402 (what is imported below needs torch and triton)
"""GEMM kernels on a GPU: bf16, host descriptors, programmatic launch, what the interpreter cannot show."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from wavetune.core.arch import find_arch
from wavetune.core.config import GEMM, KernelConfig
from wavetune.core.problem import GemmProblem
from wavetune.kernels.gemm import illegal_reason, launch_gemm
from wavetune.kernels.gemm_operands import make_gemm_operands
from wavetune.kernels.reference import MAX_RELATIVE_ERROR, gemm_reference, relative_error

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]

SCHEDULES = {
    "tile-pointer": {"schedule": "tile", "load": "pointer"},
    "tile-tma": {"schedule": "tile", "load": "tma"},
    "persistent-pointer": {"schedule": "persistent", "load": "pointer"},
    "persistent-halves": {"schedule": "persistent", "load": "tma", "epilogue_split": 2},
    "split-pointer": {"schedule": "split_k", "load": "pointer", "split_k": 3},
    "split-tma": {"schedule": "split_k", "load": "tma", "split_k": 3},
    "specialised": {"schedule": "warp_specialized", "load": "tma", "num_warps": 8},
}


@pytest.fixture(scope="module")
def arch() -> object:
    """Return the GPU that is present."""
    return find_arch(torch.cuda.get_device_name())


def make_config(**fields: object) -> KernelConfig:
    """Complete a configuration."""
    base = {"block_m": 128, "block_n": 128, "block_k": 64, "group_m": 8, "num_warps": 4, "num_stages": 3}
    return GEMM.config({**base, **fields})


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize("layout", ["nk", "kn"])
@pytest.mark.parametrize("tile", [(128, 128), (16, 64), (128, 160)])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_right_on_ragged_problems(schedule: str, tile: tuple[int, int], layout: str, dtype: str, arch: object) -> None:
    """Aligned and unaligned, with bias and activation; launched twice through the cache of bound launches."""
    config = make_config(**SCHEDULES[schedule], block_m=tile[0], block_n=tile[1])
    for dims, alignment in (((301, 712, 1416), 16), ((1, 712, 1416), 16), ((301, 711, 1417), 2)):
        problem = GemmProblem(*dims, dtype=dtype, layout=layout, alignment=alignment)
        if illegal_reason(problem, config, arch):
            continue
        operands = make_gemm_operands(problem, "cuda", 0, has_bias=True, activation="gelu")[0].with_workspace(config)
        for _ in range(2):
            operands.out.fill_(float("nan"))
            launch_gemm(operands, config, arch)
            assert relative_error(operands.out, gemm_reference(operands)) < MAX_RELATIVE_ERROR[dtype]


SPECIALISED_TILES = [(128, 128, 1), (128, 256, 1), (64, 256, 1), (64, 128, 1), (128, 64, 1), (128, 160, 1),
                     (128, 192, 1), (64, 160, 1), (64, 192, 1), (128, 80, 1), (128, 256, 2), (128, 320, 2),
                     (64, 320, 2)]  # fmt: skip


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize("tile", SPECIALISED_TILES)
def test_warp_specialised_kernels_sum_as_others_do(tile: tuple[int, int, int], dtype: str, arch: object) -> None:
    """Smaller than a tile, more tiles than SMs, one trip and many: right, and the bits of a plain persistent kernel."""
    block_m, block_n, epilogue_split = tile
    config = make_config(**SCHEDULES["specialised"], block_m=block_m, block_n=block_n, epilogue_split=epilogue_split)
    plain = make_config(schedule="persistent", load="tma", num_warps=8, block_n=128)
    for dims in ((301, 712, 1416), (1, 72, 1416), (2000, 3208, 656), (5000, 4104, 64)):
        for activation in ("none", "gelu", "silu"):
            problem = GemmProblem(*dims, dtype=dtype)
            operands = make_gemm_operands(problem, "cuda", 0, has_bias=activation != "none", activation=activation)[0]
            results = []
            for which in (config, config, plain):
                operands.out.fill_(float("nan"))
                launch_gemm(operands, which, arch)
                results.append(operands.out.clone())
            assert relative_error(results[0], gemm_reference(operands)) < MAX_RELATIVE_ERROR[dtype], dims
            assert torch.equal(results[0], results[1]), dims
            assert torch.equal(results[0], results[2]), dims


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_launching_allocates_nothing(schedule: str, arch: object) -> None:
    """Neither torch's allocator nor a kept launch holds memory afterwards."""
    config = make_config(**SCHEDULES[schedule])
    operands = make_gemm_operands(GemmProblem(256, 512, 1024), "cuda", 0)[0].with_workspace(config)
    launch_gemm(operands, config, arch)
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    launch_gemm(operands, config, arch)
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == before


def test_offsets_beyond_32_bits(arch: object) -> None:
    """A has 2**31 + elements; its last rows are right."""
    k, m = 16384, 2**17 + 128
    for load in ("pointer", "tma"):
        config = make_config(load=load)
        operands = make_gemm_operands(GemmProblem(m, 128, k), "cuda", 0)[0]
        launch_gemm(operands, config, arch)
        tail = operands.a[-200:].double() @ operands.b.double().T
        assert relative_error(operands.out[-200:], tail) < MAX_RELATIVE_ERROR["bf16"]
        del operands


def test_captured_in_a_graph(arch: object) -> None:
    """A server captures launches; replays see new data."""
    config = make_config(**SCHEDULES["split-tma"])
    operands = make_gemm_operands(GemmProblem(16, 512, 1024), "cuda", 0)[0].with_workspace(config)
    launch_gemm(operands, config, arch)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch_gemm(operands, config, arch)
    operands.a.normal_()
    operands.out.fill_(float("nan"))
    graph.replay()
    assert relative_error(operands.out, gemm_reference(operands)) < MAX_RELATIVE_ERROR["bf16"]
