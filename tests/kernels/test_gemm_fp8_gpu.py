# ruff: noqa: E402 (what is imported below needs torch and triton)
"""fp8 kernels on a GPU: results, how exact sums are, and timing them as a calibration does."""

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from wavetune.core.arch import find_arch
from wavetune.core.config import GEMM, KernelConfig
from wavetune.core.problem import GemmProblem
from wavetune.kernels.gemm import illegal_reason, launch_gemm
from wavetune.kernels.gemm_operands import GemmOperands, make_gemm_operands
from wavetune.kernels.gemm_scales import SPREAD
from wavetune.kernels.reference import MAX_RELATIVE_ERROR, gemm_reference, relative_error
from wavetune.kernels.registry import find_family


def _has_e4m3() -> bool:
    return torch.cuda.is_available() and torch.cuda.get_device_capability() >= (8, 9)


pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not _has_e4m3(), reason="needs a GPU with e4m3")]

SCHEDULES = {
    "tile-pointer": {"schedule": "tile", "load": "pointer"},
    "tile-tma": {"schedule": "tile", "load": "tma"},
    "tile-tma-halves": {"schedule": "tile", "load": "tma", "epilogue_split": 2},
    "persistent-pointer": {"schedule": "persistent", "load": "pointer"},
    "persistent-tma": {"schedule": "persistent", "load": "tma"},
    "persistent-tma-halves": {"schedule": "persistent", "load": "tma", "epilogue_split": 2},
    "split-pointer": {"schedule": "split_k", "load": "pointer", "split_k": 3},
    "split-tma": {"schedule": "split_k", "load": "tma", "split_k": 3},
}
ROUNDING = 1.9e-3
"""Relative error of rounding to bf16, 1.7e-3, with a margin of a tenth."""


@pytest.fixture(scope="module")
def arch() -> object:
    """Return the GPU that is present."""
    return find_arch(torch.cuda.get_device_name())


def make_config(**fields: object) -> KernelConfig:
    """Complete a configuration."""
    base = {"block_m": 128, "block_n": 128, "block_k": 128, "group_m": 8, "num_warps": 8, "num_stages": 3}
    return GEMM.config({**base, **fields})


def run(operands: GemmOperands, config: KernelConfig, arch: object) -> torch.Tensor:
    """Launch on an output of NaN and return a copy of the result."""
    operands = operands.with_workspace(config)
    operands.out.fill_(float("nan"))
    launch_gemm(operands, config, arch)
    return operands.out.clone()


@pytest.mark.parametrize("tile", [(128, 128, 8), (64, 128, 4), (16, 64, 4)])
@pytest.mark.parametrize(
    ("dtype", "scales"), [("fp8", "tensor"), ("fp8", "row"), ("fp8_fast", "row"), ("fp8_block128", "block")]
)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_right_on_ragged_problems(
    schedule: str, dtype: str, scales: str, tile: tuple[int, int, int], arch: object
) -> None:
    """Aligned and unaligned, one row and many, with bias and activation; twice, through the cache of bound launches."""
    config = make_config(**SCHEDULES[schedule], block_m=tile[0], block_n=tile[1], num_warps=tile[2])
    for dims, alignment in (((301, 712, 1424), 16), ((1, 712, 1424), 16), ((301, 711, 1417), 1)):
        problem = GemmProblem(*dims, dtype=dtype, alignment=alignment)
        if illegal_reason(problem, config, arch):
            continue
        operands = make_gemm_operands(problem, "cuda", 0, has_bias=True, activation="gelu", scales=scales)[0]
        expected = gemm_reference(operands)
        for _ in range(2):
            assert relative_error(run(operands, config, arch), expected) < MAX_RELATIVE_ERROR[dtype]


WIDE = {
    "tile-160": {"schedule": "tile", "block_n": 160},
    "tile-192": {"schedule": "tile", "block_n": 192},
    "persistent-160": {"schedule": "persistent", "block_n": 160},
    "persistent-192": {"schedule": "persistent", "block_n": 192},
    "split-160": {"schedule": "split_k", "block_n": 160, "split_k": 3},
    "tile-64x192": {"schedule": "tile", "block_m": 64, "block_n": 192, "num_warps": 4},
    "split-64x160": {"schedule": "split_k", "block_m": 64, "block_n": 160, "num_warps": 4, "split_k": 2},
    "tile-64x80": {"schedule": "tile", "block_m": 64, "block_n": 80, "num_warps": 4},
    "tile-128x96": {"schedule": "tile", "block_n": 96, "num_warps": 4},
    "tile-256": {"schedule": "tile", "block_n": 256},
    "tile-256-halves": {"schedule": "tile", "block_n": 256, "epilogue_split": 2},
    "persistent-256": {"schedule": "persistent", "block_n": 256, "epilogue_split": 2},
    "split-256": {"schedule": "split_k", "block_n": 256, "split_k": 3},
    "tile-256x128": {"schedule": "tile", "block_m": 256},
    "tile-4-warps": {"schedule": "tile", "num_warps": 4},
    "split-4-warps": {"schedule": "split_k", "num_warps": 4, "split_k": 2},
}
"""Tiles of two parts, and those whose two sums fill the registers."""


@pytest.mark.parametrize(("dtype", "scales"), [("fp8", "tensor"), ("fp8", "row"), ("fp8_fast", "row")])
@pytest.mark.parametrize("tile", WIDE)
def test_wide_tiles_are_right(tile: str, dtype: str, scales: str, arch: object) -> None:
    """Ragged, fewer rows and columns than a tile, more tiles than SMs, and splits that are empty; twice each."""
    config = make_config(load="tma", **WIDE[tile])
    for dims in ((301, 712, 1424), (1, 72, 1424), (2000, 3208, 656), (130, 328, 512)):
        problem = GemmProblem(*dims, dtype=dtype)
        if illegal_reason(problem, config, arch):
            continue
        operands = make_gemm_operands(problem, "cuda", 0, has_bias=True, activation="gelu", scales=scales)[0]
        expected = gemm_reference(operands)
        first, second = (run(operands, config, arch) for _ in range(2))
        assert relative_error(first, expected) < MAX_RELATIVE_ERROR[dtype], dims
        assert torch.equal(first, second), dims


SPECIALISED_TILES = [(128, 128, 1), (64, 256, 1), (64, 128, 1), (128, 64, 1), (128, 256, 1), (128, 160, 1),
                     (128, 192, 1), (64, 160, 1), (64, 192, 1), (128, 96, 1), (128, 256, 2), (128, 320, 2),
                     (128, 160, 2)]  # fmt: skip
FORMATS = [("fp8", "tensor"), ("fp8", "row"), ("fp8_fast", "row"), ("fp8_block128", "block")]


@pytest.mark.parametrize("tile", SPECIALISED_TILES)
@pytest.mark.parametrize(("dtype", "scales"), FORMATS)
def test_warp_specialised_kernels_are_right(dtype: str, scales: str, tile: tuple[int, int, int], arch: object) -> None:
    """Ragged, smaller than a tile, more tiles than SMs, trips that no promotion divides; the bits of other kernels."""
    block_m, block_n, epilogue_split = tile
    config = make_config(
        block_m=block_m, block_n=block_n, schedule="warp_specialized", load="tma", epilogue_split=epilogue_split
    )
    plain = make_config(schedule="persistent", load="tma")
    if dtype != "fp8_fast" and block_m * block_n > 128 * 192:
        pytest.skip("a promoted sum of this size does not fit the registers")
    for dims in ((301, 712, 1424), (1, 72, 1424), (2000, 3208, 656), (130, 328, 512), (5000, 4104, 128)):
        problem = GemmProblem(*dims, dtype=dtype)
        if illegal_reason(problem, config, arch):
            assert dtype == "fp8_block128"
            assert 128 % block_n
            continue
        for activation in ("gelu", "silu", "none"):
            operands = make_gemm_operands(
                problem, "cuda", 0, has_bias=activation != "none", activation=activation, scales=scales
            )[0]
            expected = gemm_reference(operands)
            first, second = (run(operands, config, arch) for _ in range(2))
            assert relative_error(first, expected) < MAX_RELATIVE_ERROR[dtype], (dims, activation)
            assert torch.equal(first, second), (dims, activation)
            assert torch.equal(first, run(operands, plain, arch)), (dims, activation)


@pytest.mark.parametrize("dtype", ["fp8", "fp8_fast"])
@pytest.mark.parametrize("tile", ["tile-160", "tile-192", "persistent-192", "tile-64x192", "tile-64x80", "tile-128x96",
                                  "tile-256-halves", "persistent-256"])  # fmt: skip
def test_the_parts_of_a_tile_are_rounded_alike(tile: str, dtype: str, arch: object) -> None:
    """Scaling and adding the bias round apart in every part: an element that two tiles compute has one value."""
    config = make_config(load="tma", **WIDE[tile])
    problem = GemmProblem(300, 520, 128, dtype=dtype)
    operands = make_gemm_operands(problem, "cuda", 0, has_bias=True, activation="gelu", scales="row")[0]
    operands.a.copy_(torch.zeros(300, 128, device="cuda"))
    operands.a[:, 0] = 1.0
    operands.b.copy_(torch.ones(520, 128, device="cuda"))
    # (1 - 2^-13)(1 + 2^-13) is 1 - 2^-26: 1 if the product is rounded, and -2^-26 is left of 1 only if it is not.
    operands.scale_a.fill_(1.0 - 2.0**-13)
    operands.scale_b.fill_(1.0 + 2.0**-13)
    operands.bias.fill_(-1.0)
    assert run(operands, config, arch).unique().tolist() == [0.0]


def test_candidates_of_every_format(arch: object) -> None:
    """Every tenth candidate of each format gives the right result on a validation problem."""
    family = find_family("gemm")
    for dtype in ("fp8", "fp8_fast", "fp8_block128"):
        problem = family.validation_problems(dtype, "nk")[0]
        operands = family.make_operands(problem, "cuda", 0)[0]
        expected = family.reference(operands)
        for config in family.configs(arch, dtype)[::10]:
            assert illegal_reason(problem, config, arch) is None
            assert relative_error(run(operands, config, arch), expected) < MAX_RELATIVE_ERROR[dtype], config


@pytest.mark.parametrize("scales", ["tensor", "row"])
def test_as_exact_as_torch(scales: str, arch: object) -> None:
    """Beside torch._scaled_mm without fast accumulation, at a long k: both only round the result to bf16."""
    operands = make_gemm_operands(GemmProblem(512, 512, 16384, dtype="fp8"), "cuda", 1, scales=scales)[0]
    expected = gemm_reference(operands)
    of_torch = torch._scaled_mm(
        operands.a, operands.b.t(), operands.scale_a, operands.scale_b.t(), out_dtype=torch.bfloat16,
        use_fast_accum=False,
    )  # fmt: skip
    ours = relative_error(run(operands, make_config(load="tma"), arch), expected)
    assert ours < ROUNDING
    assert ours < 1.1 * relative_error(of_torch, expected)


@pytest.mark.parametrize("dtype", ["fp8", "fp8_block128"])
@pytest.mark.parametrize(
    "fields",
    [
        {}, {"schedule": "persistent"}, {"block_m": 16, "block_n": 64, "num_warps": 4}, {"block_n": 160},
        {"block_n": 192, "schedule": "persistent"}, {"block_n": 256},
        {"block_n": 160, "schedule": "split_k", "split_k": 3},
    ],
)  # fmt: skip
def test_long_sums_of_one_sign_are_promoted(fields: dict[str, object], dtype: str, arch: object) -> None:
    """Cutting bits off always errs towards zero; without promotion the loss would be of percents here."""
    problem, config = GemmProblem(256, 256, 16384, dtype=dtype), make_config(load="tma", **fields)
    if illegal_reason(problem, config, arch):
        pytest.skip("scales in blocks have no tiles wider than a block")
    operands = make_gemm_operands(problem, "cuda", 2)[0]
    for stored in (operands.a, operands.b):
        stored.copy_((stored.float() + SPREAD / 2).to(stored.dtype))
    assert relative_error(run(operands, config, arch), gemm_reference(operands)) < ROUNDING


def test_fast_sums_are_as_exact_as_torch_says(arch: object) -> None:
    """use_fast_accum means the same here and there: within a fifth of each other."""
    # Large enough for torch not to split k, which would shorten its sums.
    operands = make_gemm_operands(GemmProblem(2048, 2048, 16384, dtype="fp8_fast"), "cuda", 3, scales="tensor")[0]
    expected = gemm_reference(operands)
    of_torch = torch._scaled_mm(
        operands.a, operands.b.t(), operands.scale_a, operands.scale_b, out_dtype=torch.bfloat16, use_fast_accum=True
    )
    ours = relative_error(run(operands, make_config(load="tma"), arch), expected)
    assert ours < 1.2 * relative_error(of_torch, expected)


@pytest.mark.parametrize("dtype", ["fp8", "fp8_block128"])
def test_results_do_not_depend_on_stages_or_schedule(dtype: str, arch: object) -> None:
    """The order of summation is that of k: the same bits from every tile, warp count and schedule without a split."""
    operands = make_gemm_operands(GemmProblem(300, 520, 4112, dtype=dtype), "cuda", 4)[0]
    results = [
        run(operands, make_config(**{"load": "tma", **fields}), arch)
        for fields in ({}, {"num_stages": 4}, {"schedule": "persistent"}, {"load": "pointer"}, {"group_m": 1})
    ]
    assert all(torch.equal(results[0], other) for other in results[1:])
    if dtype == "fp8":
        # Where a moved tile overlaps its neighbour, a column is in the left part of one and the right of the other.
        for fields in ({"block_n": 160}, {"block_n": 192}, {"block_n": 160, "schedule": "persistent"}):
            assert torch.equal(results[0], run(operands, make_config(load="tma", **fields), arch))
    split = make_config(load="tma", schedule="split_k", split_k=3)
    assert torch.equal(run(operands, split, arch), run(operands, split, arch))


def test_half_precision_results(arch: object) -> None:
    """An output and a bias of fp16 compile kernels of their own."""
    operands = make_gemm_operands(GemmProblem(300, 520, 1040, dtype="fp8"), "cuda", 5, has_bias=True)[0]
    halves = replace(operands, out=operands.out.half(), bias=operands.bias.half())
    for config in (make_config(load="tma"), make_config(load="tma", schedule="split_k", split_k=2)):
        assert relative_error(run(halves, config, arch), gemm_reference(halves)) < MAX_RELATIVE_ERROR["fp16"]
        assert relative_error(run(operands, config, arch), gemm_reference(operands)) < MAX_RELATIVE_ERROR["fp8"]


def test_captured_in_a_graph(arch: object) -> None:
    """A server captures launches; replays see new data and new scales."""
    config = make_config(load="tma", block_m=16, block_n=64, num_warps=4, schedule="split_k", split_k=2)
    operands = make_gemm_operands(GemmProblem(16, 512, 1024, dtype="fp8"), "cuda", 0)[0].with_workspace(config)
    launch_gemm(operands, config, arch)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch_gemm(operands, config, arch)
    operands.a.copy_(torch.randn(16, 1024, device="cuda").to(torch.float8_e4m3fn))
    operands.scale_a.mul_(3.0)
    operands.out.fill_(float("nan"))
    graph.replay()
    assert relative_error(operands.out, gemm_reference(operands)) < MAX_RELATIVE_ERROR["fp8"]


@pytest.mark.parametrize("dtype", ["fp8", "fp8_block128"])
def test_a_runner_measures_fp8(dtype: str, arch: object) -> None:
    """Compile, validate and time a few candidates as a calibration does."""
    from wavetune.measure.triton_runner import TritonRunner
    from wavetune.store.record import Point, Status

    runner = TritonRunner(arch, "gemm", dtype)
    configs = find_family("gemm").configs(arch, dtype)[::40]
    prepared = runner.prepare(configs)
    assert [entry.config for entry in prepared.compiled] == configs, prepared.failures
    problems = [GemmProblem(m, 4096, 4096, dtype=dtype) for m in (1, 512)]
    points = [Point(problem, entry.config, "test") for problem in problems for entry in prepared.compiled]
    measured = list(runner.measure(points))
    assert all(row.status in (Status.OK, Status.ILLEGAL) for row in measured)
    assert all(1.0 < row.latency_us < 1000.0 for row in measured if row.status is Status.OK)
    assert sum(row.status is Status.OK for row in measured) >= len(problems)
