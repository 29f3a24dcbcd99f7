"""What the host decides about a GEMM: legality, grid, variants, the configuration space."""

from pathlib import Path

import pytest

pytest.importorskip("triton")

from wavetune.core.arch import ARCHS, find_arch
from wavetune.core.config import GEMM, WALKING_SCHEDULES, KernelConfig
from wavetune.core.problem import GemmProblem
from wavetune.errors import ConfigError, ProblemError
from wavetune.kernels import registry
from wavetune.kernels.gemm import gemm_calls, gemm_variants, illegal_reason
from wavetune.kernels.gemm_operands import GemmOperands, operand_problem
from wavetune.kernels.gemm_space import gemm_space
from wavetune.kernels.placeholder import Placeholder
from wavetune.kernels.registry import find_family
from wavetune.mapping.gemm import map_gemm

H200, A100 = find_arch("h200"), find_arch("a100")


def make_config(**fields: object) -> KernelConfig:
    """Complete a configuration."""
    base = {"block_m": 128, "block_n": 128, "block_k": 64, "group_m": 8, "num_warps": 4, "num_stages": 3}
    return GEMM.config({**base, "load": "tma", **fields})


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"block_m": 96}, "power of two"),
        ({"block_n": 224}, "power of two"),
        ({"block_m": 8}, "at least 16"),
        ({"schedule": "tile", "split_k": 2}, "does not go with"),
        ({"schedule": "split_k"}, "does not go with"),
        ({"load": "pointer", "epilogue_split": 2}, "needs load=tma"),
        ({"load": "pointer", "block_n": 160}, "needs load=tma"),
        ({"epilogue_split": 3}, "1 or 2"),
        ({"block_n": 160, "epilogue_split": 2}, "applies neither"),
        ({"block_n": 160, "block_m": 32}, "block_m of at least 64"),
        ({"block_m": 512}, "TMA box"),
        ({"num_stages": 12}, "shared memory"),
        ({"schedule": "split_k", "split_k": 16, "block_k": 128}, "exceeds the 8 loop trips"),
    ],
)
def test_illegal_configurations_are_explained(fields: dict[str, object], word: str) -> None:
    """Each rule has its reason."""
    reason = illegal_reason(GemmProblem(256, 256, 1000), make_config(**fields), H200)
    assert reason is not None
    assert word in reason


def test_tma_needs_alignment_and_hardware() -> None:
    """Pointer loads take over where TMA cannot."""
    unaligned = GemmProblem(64, 64, 64, alignment=2)
    assert "alignment" in str(illegal_reason(unaligned, make_config(), H200))
    assert illegal_reason(unaligned, make_config(load="pointer"), H200) is None
    assert "no TMA" in str(illegal_reason(GemmProblem(64, 64, 64), make_config(), A100))


def test_other_dtypes_are_refused() -> None:
    """The kernels of this family do not take int8."""
    assert "not int8" in str(illegal_reason(GemmProblem(64, 64, 64, dtype="int8"), make_config(), H200))


def test_a_grid_beyond_31_bits_is_illegal() -> None:
    """CUDA's first grid axis has 2**31 - 1 CTAs at most."""
    config = make_config(block_m=16, block_n=64, schedule="split_k", split_k=16)
    assert "2**31" in str(illegal_reason(GemmProblem(2**21, 2**21, 4096), config, H200))


@pytest.mark.parametrize("dims", [(1, 4096, 4096), (300, 1000, 3000), (2101, 2056, 4104)])
@pytest.mark.parametrize("layout", ["nk", "kn"])
def test_grids_are_those_of_the_mapping(dims: tuple[int, int, int], layout: str) -> None:
    """Model and launch cannot disagree: the main kernel's grid is the mapping's, for every candidate."""
    problem = GemmProblem(*dims, layout=layout)
    m, n, k = dims
    b_shape = (n, k) if layout == "nk" else (k, n)
    operands = GemmOperands(
        problem, Placeholder("bf16", (m, k)), Placeholder("bf16", b_shape), Placeholder("bf16", (m, n)),
        partials=Placeholder("fp32", (2**40,)),
    )  # fmt: skip
    for config in gemm_space(H200):
        if illegal_reason(problem, config, H200) is None:
            main, *rest = gemm_calls(operands, config, H200)
            assert main.grid_size == map_gemm(problem, config, H200).grid_size
            assert main.variant.is_persistent == (config["schedule"] in WALKING_SCHEDULES)
            assert len(rest) == (config["schedule"] == "split_k")


def test_one_variant_serves_all_sizes() -> None:
    """What is compiled does not depend on sizes, only on whether 16-byte units fit."""
    args = (make_config(), H200, "bf16", "nk", 8, False, "none")
    assert gemm_variants(*args)[0] is gemm_variants(*args)[0]
    assert gemm_variants(make_config(load="pointer"), *args[1:])[0].constants["UNIT"] == 8


def test_the_h200_space_is_rich_and_legal() -> None:
    """At least 300 configurations, no repeats, every schedule, pointer loads as a fallback."""
    space = gemm_space(H200)
    assert len(space) >= 300
    assert len(set(space)) == len(space)
    assert {config["schedule"] for config in space} == {"tile", "persistent", "split_k", "warp_specialized"}
    assert {config["load"] for config in space} == {"tma", "pointer"}
    assert {1, 4, 8, 16} <= {config["group_m"] for config in space}


@pytest.mark.parametrize("name", ARCHS)
def test_every_architecture_has_a_space(name: str) -> None:
    """Without TMA all load by pointers, and nothing exceeds the shared memory."""
    arch = ARCHS[name]
    space = gemm_space(arch)
    assert len(space) >= 30
    assert all(illegal_reason(GemmProblem(2**14, 2**14, 2**14), config, arch) is None for config in space)
    assert arch.has_tma or {config["load"] for config in space} == {"pointer"}


def test_registry_hashes_and_unknown_names() -> None:
    """Hashes are stable digests; an unknown family is named."""
    family = find_family("gemm")
    assert family.source_hash() == family.source_hash()
    assert family.space_hash(H200, "bf16") != family.space_hash(A100, "bf16")
    with pytest.raises(ConfigError, match="'conv'"):
        find_family("conv")


def test_the_hash_covers_every_device_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was measured with other device code is told apart, also that which is imported late."""
    read: set[str] = set()
    read_bytes = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: read.add(path.name) or read_bytes(path))
    find_family("gemm").source_hash()
    kernels = Path(registry.__file__).parent
    assert {path.name for path in kernels.glob("gemm*_device.py")} <= read


def test_operands_are_described() -> None:
    """The alignment class is the largest power of two that divides bases and strides, 16 at most."""
    torch = pytest.importorskip("torch")
    a, b, out = (torch.zeros(shape, dtype=torch.bfloat16) for shape in ((4, 32), (8, 32), (4, 8)))
    assert operand_problem(a, b, out, "nk") == GemmProblem(4, 8, 32)
    assert operand_problem(a[:, 1:], b[:, :31], out, "nk").alignment == 2
    assert operand_problem(a, b.T.contiguous(), out, "kn") == GemmProblem(4, 8, 32, layout="kn")
    with pytest.raises(ProblemError, match="do not match"):
        operand_problem(a, b[:, :16], out, "nk")
    with pytest.raises(ProblemError, match="unit stride"):
        operand_problem(a.T.contiguous().T, b, out, "nk")


def test_windows_move_over_the_pool() -> None:
    """Consecutive windows do not overlap, start aligned, and wrap around at the end."""
    pytest.importorskip("torch")
    from wavetune.errors import RunnerError
    from wavetune.kernels.windows import DataWindows

    windows = DataWindows("bf16", "cpu", pool_bytes=8192)
    first, second, third = (windows.take("bf16", 30, 50) for _ in range(3))
    assert second.data_ptr() - first.data_ptr() == 3072
    assert third.data_ptr() == first.data_ptr()
    assert windows.take("bf16", 3, 4, is_output=True).data_ptr() != first.data_ptr()
    with pytest.raises(RunnerError, match="exceeds the data pool"):
        windows.take("bf16", 100, 100)
