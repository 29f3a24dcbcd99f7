"""What the host decides about a grouped GEMM: legality, grid, variants, the configuration space."""

import re

import pytest

pytest.importorskip("triton")

from wavetune.core.arch import ARCHS, find_arch
from wavetune.core.config import GROUPED_GEMM, KernelConfig
from wavetune.core.grouped_problem import GroupedGemmProblem
from wavetune.errors import ConfigError
from wavetune.kernels.attention_placeholder import IndexPlaceholder
from wavetune.kernels.grouped_gemm import grouped_call, grouped_illegal_reason
from wavetune.kernels.grouped_gemm_operands import GroupedGemmOperands
from wavetune.kernels.grouped_gemm_space import grouped_space
from wavetune.kernels.placeholder import Placeholder
from wavetune.kernels.registry import find_family
from wavetune.mapping.grouped_gemm import map_grouped_gemm
from wavetune.measure.compile import Rejected, compile_configs

H200, A100 = find_arch("h200"), find_arch("a100")


def make_config(**fields: object) -> KernelConfig:
    """Complete a configuration."""
    base = {"block_m": 128, "block_n": 128, "block_k": 64, "group_m": 8, "num_warps": 4, "num_stages": 3}
    return GROUPED_GEMM.config({**base, **fields})


def placeholders(problem: GroupedGemmProblem, *, n_groups: int) -> GroupedGemmOperands:
    """Return stand-ins for contiguous tensors."""
    return GroupedGemmOperands(
        problem,
        Placeholder(problem.dtype, (problem.tokens, problem.k)),
        Placeholder(problem.dtype, (problem.experts, problem.n, problem.k)),
        Placeholder(problem.dtype, (problem.tokens, problem.out_columns)),
        IndexPlaceholder((n_groups,)),
    )


@pytest.mark.parametrize(
    ("fields", "layout", "word"),
    [
        ({"block_m": 96}, "nk", "power of two"),
        ({"block_n": 160}, "nk", "power of two"),
        ({"block_m": 8}, "nk", "at least 16"),
        ({"block_n": 16}, "gated", "at least 16"),
        ({"block_m": 512}, "nk", "TMA box"),
        ({"num_stages": 8}, "nk", "shared memory"),
    ],
)
def test_illegal_configurations_are_explained(fields: dict[str, object], layout: str, word: str) -> None:
    """Each rule has its reason."""
    problem = GroupedGemmProblem((256, 0, 3), 256, 1000, layout=layout)
    assert word in str(grouped_illegal_reason(problem, make_config(**fields), H200))


def test_rules_of_problems() -> None:
    """Alignment, hardware, dtype and the number of experts can rule TMA or the family out."""
    unaligned = GroupedGemmProblem((64,), 64, 65)
    assert "alignment" in str(grouped_illegal_reason(unaligned, make_config(), H200))
    assert grouped_illegal_reason(unaligned, make_config(load="pointer"), H200) is None
    assert "no TMA" in str(grouped_illegal_reason(GroupedGemmProblem((64,), 64, 64), make_config(), A100))
    assert "not int8" in str(grouped_illegal_reason(GroupedGemmProblem((64,), 64, 64, "int8"), make_config(), H200))
    crowd = GroupedGemmProblem((1,) * 5000, 64, 64)
    assert "4096 experts" in str(grouped_illegal_reason(crowd, make_config(), H200))
    wide = GroupedGemmProblem((2**24,) * 127, 2**20, 64)
    assert "2**31" in str(grouped_illegal_reason(wide, make_config(block_m=16, block_n=64), H200))


@pytest.mark.parametrize("layout", ["nk", "gated"])
@pytest.mark.parametrize("sizes", [(1, 0, 300), (0,) * 100 + (7, 2000), (5,) * 256], ids=["few", "skewed", "even"])
def test_grids_are_those_of_the_mapping(sizes: tuple[int, ...], layout: str) -> None:
    """Model and launch cannot disagree, for every candidate; a launch for any histogram has the mapping's bound."""
    problem = GroupedGemmProblem(sizes, 1000, 1024, layout=layout)
    operands = placeholders(problem, n_groups=len(sizes))
    for config in grouped_space(H200):
        if grouped_illegal_reason(problem, config, H200) is None:
            mapping = map_grouped_gemm(problem, config, H200)
            call = grouped_call(operands, config, H200)
            assert call.grid_size == mapping.grid_size
            assert call.variant.is_persistent == (config["schedule"] == "persistent")
            assert grouped_call(operands.for_any_histogram(), config, H200).grid_size == mapping.launched_ctas


def test_one_variant_serves_all_histograms() -> None:
    """What is compiled depends on neither sizes nor experts, up to 256, only on how groups are given."""
    config = make_config()

    def variant(sizes: tuple[int, ...], n_groups: int) -> object:
        problem = GroupedGemmProblem(sizes, 256, 512)
        return grouped_call(placeholders(problem, n_groups=n_groups), config, H200).variant

    assert variant((1, 2), 2) is variant((0,) * 255 + (9,), 256)
    assert variant((1, 2), 2) is not variant((1, 2), 3)
    assert variant((1,) * 257, 257) is not variant((1, 2), 2)


@pytest.mark.parametrize("name", ARCHS)
def test_every_architecture_has_a_space(name: str) -> None:
    """No repeats; without TMA all load by pointers, and nothing exceeds the shared memory."""
    arch = ARCHS[name]
    space = grouped_space(arch)
    assert len(space) == len(set(space)) >= 25
    assert {config["schedule"] for config in space} == {"tile", "persistent"}
    assert {config["load"] for config in space} == ({"tma", "pointer"} if arch.has_tma else {"pointer"})


@pytest.mark.parametrize("name", ARCHS)
@pytest.mark.parametrize("sizes", [(1,), (0, 40), (3000, 2), (128,) * 64], ids=["1", "40", "3000", "128 each"])
def test_a_fallback_for_every_gpu(sizes: tuple[int, ...], name: str) -> None:
    """A legal configuration exists for unaligned operands on every GPU."""
    problem = GroupedGemmProblem(sizes, 77, 99)
    config = find_family("grouped_gemm").fallback_config(problem, ARCHS[name])
    assert grouped_illegal_reason(problem, config, ARCHS[name]) is None


def test_problems_that_no_kernel_takes_have_no_fallback() -> None:
    """The error names the problem."""
    with pytest.raises(ConfigError, match="int8"):
        find_family("grouped_gemm").fallback_config(GroupedGemmProblem((4,), 64, 64, "int8"), H200)


@pytest.mark.parametrize("layout", ["nk", "gated"])
def test_representative_configurations_compile_for_hopper(layout: str) -> None:
    """Without a GPU: no registers are spilled, and what the compiler needs fits on an SM."""
    wanted = [
        make_config(load="tma"),
        make_config(load="tma", schedule="persistent", block_n=256, num_warps=8),
        make_config(load="tma", block_m=16, block_k=128),
        make_config(load="pointer", block_m=64),
    ]
    results = compile_configs("grouped_gemm", wanted, H200, dtype="bf16", layout=layout, n_workers=2)
    for result in results:
        assert not isinstance(result, Rejected), result
        assert result.num_spills == 0
        assert result.num_regs <= 255


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["nk", "gated"])
def test_the_whole_space_compiles_for_hopper(layout: str) -> None:
    """Every configuration compiles for sm_90 without spilling."""
    results = compile_configs("grouped_gemm", grouped_space(H200), H200, dtype="bf16", layout=layout)
    assert [result for result in results if isinstance(result, Rejected) or result.num_spills] == []


def test_tiles_run_on_the_matrix_unit() -> None:
    """Tiles of 64 rows, and transposed ones, compile to wgmma, and loads to TMA; a fresh process plays the GPU."""
    import subprocess
    import sys

    program = (
        "from wavetune.core.arch import find_arch\n"
        "from wavetune.core.config import GROUPED_GEMM\n"
        "from wavetune.kernels.call import compile_call, compile_offline\n"
        "from wavetune.kernels.registry import find_family\n"
        "arch = find_arch('h200'); compile_offline(arch)\n"
        "for block_m in (16, 64):\n"
        "    config = GROUPED_GEMM.config({'block_m': block_m, 'block_n': 128, 'block_k': 64, 'num_warps': 4,"
        " 'num_stages': 3})\n"
        "    for layout in ('nk', 'gated'):\n"
        "        call, = find_family('grouped_gemm').offline_calls(config, arch, 'bf16', layout)\n"
        "        ptx = compile_call(call).asm['ptx']\n"
        "        print(ptx.count('wgmma.mma_async'), ptx.count('mma.sync'), ptx.count('cp.async.bulk.tensor'))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    counts = re.findall(r"(\d+) (\d+) (\d+)", done.stdout)
    assert len(counts) == 4
    assert all(int(wgmma) > 0 and int(mma) == 0 and int(tma) > 0 for wgmma, mma, tma in counts)
