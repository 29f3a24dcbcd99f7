"""A family of one kernel without problems of its own: what the base brings, and how little is left to write."""

from pathlib import Path

import pytest

pytest.importorskip("triton")

import wavetune.kernels.nvfp4_scales as family_module
import wavetune.kernels.nvfp4_scales_device as device_module
import wavetune.mapping.nvfp4_scales as mapping_module
from wavetune.core.arch import find_arch
from wavetune.core.config import NVFP4_SCALES
from wavetune.errors import ConfigError
from wavetune.kernels.placeholder import Placeholder
from wavetune.kernels.registry import find_family
from wavetune.mapping.kernel_mapping import KernelProblem, LaunchShape
from wavetune.mapping.source_digest import mapping_digest
from wavetune.measure.compile import Rejected, compile_configs
from wavetune.store.record import make_problem

H200 = find_arch("h200")
FAMILY = find_family("nvfp4_scales")


def test_a_family_is_short() -> None:
    """Mapping, device code and family together stay under 150 lines."""
    files = [Path(str(module.__file__)) for module in (family_module, device_module, mapping_module)]
    assert sum(len(path.read_text().splitlines()) for path in files) < 150


@pytest.mark.parametrize("blocks", [1, 16, 17, 20011])
def test_the_grid_is_the_mapping(blocks: int) -> None:
    """Model and launch cannot disagree; bytes are the blocks and their amaxes."""
    problem = make_problem("nvfp4_scales", (blocks,), "bf16", "")
    assert problem == KernelProblem("nvfp4_scales", (blocks,), "bf16")

    def take(dtype: str, rows: int, columns: int, *, is_output: bool = False) -> Placeholder:
        return Placeholder(dtype, (rows, columns))

    for config in FAMILY.configs(H200, "bf16"):
        size = int(config["blocks_per_cta"])
        grid = -(-blocks // size)
        assert FAMILY.shape(problem, config) == LaunchShape(grid, 1, grid, 36 * blocks)
        call = FAMILY.call(FAMILY.lay_out(problem, take), config, H200)
        assert call.grid_size == grid
        assert call.variant.constants == {"BLOCKS_PER_CTA": size}
        assert call.variant is FAMILY.call(FAMILY.lay_out(problem, take), config, H200).variant


def test_micro_fields_never_change_the_grid() -> None:
    """Warps and stages are nothing to the mapping."""
    config = FAMILY.configs(H200, "bf16")[0]
    problem = KernelProblem("nvfp4_scales", (1000,), "bf16")
    for name in NVFP4_SCALES.micro:
        assert FAMILY.shape(problem, config.replace(**{name: 8})) == FAMILY.shape(problem, config)


def test_what_the_base_brings() -> None:
    """Legality, fallback, costs and digests."""
    problem = KernelProblem("nvfp4_scales", (1000,), "bf16")
    assert FAMILY.legal(problem, FAMILY.fallback_config(problem, H200), H200) is None
    wrong = KernelProblem("nvfp4_scales", (1000,), "fp8")
    assert "not fp8" in FAMILY.legal(wrong, FAMILY.configs(H200, "bf16")[0], H200)
    with pytest.raises(ConfigError, match="not fp8"):
        FAMILY.fallback_config(wrong, H200)
    assert FAMILY.cost(problem) == (126 * 20 * 16 * 1000, 36 * 1000)
    assert [p.dims for p in FAMILY.validation_problems("bf16", "")] == [(20011,), (1,)]
    assert len(FAMILY.source_hash()) == len(FAMILY.space_hash(H200, "bf16")) == 16
    assert mapping_digest(FAMILY.mapping).startswith("sha256:")


def test_every_configuration_compiles_for_hopper() -> None:
    """Without a GPU, without spilling."""
    results = compile_configs("nvfp4_scales", FAMILY.configs(H200, "bf16"), H200, dtype="bf16", layout="", n_workers=2)
    assert [result for result in results if isinstance(result, Rejected) or result.num_spills] == []


def test_operands_come_from_windows() -> None:
    """Inputs move over the pool, results share a workspace."""
    pytest.importorskip("torch")
    from wavetune.kernels.windows import DataWindows

    windows = DataWindows("bf16", "cpu", pool_bytes=1 << 16)
    problem = KernelProblem("nvfp4_scales", (40,), "bf16")
    first, second = (FAMILY.carve_operands(problem, FAMILY.configs(H200, "bf16")[0], windows) for _ in range(2))
    assert tuple(first.x.shape) == (40, 16)
    assert tuple(first.out.shape) == (40, 1)
    assert first.x.data_ptr() != second.x.data_ptr()
    assert first.out.data_ptr() == second.out.data_ptr()


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_equals_the_plain_loop_on_a_gpu(dtype: str) -> None:
    """Every configuration on ragged blocks; a near tie may fall the other way in one block of a thousand."""
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    arch = find_arch(torch.cuda.get_device_name())
    for problem in FAMILY.validation_problems(dtype, ""):
        operands = FAMILY.make_operands(problem, "cuda", 0)[0]
        reference = FAMILY.reference(operands)
        for config in FAMILY.configs(arch, dtype):
            operands.out.fill_(torch.nan)
            FAMILY.launch(operands, config, arch)
            differs = (operands.out.double() / reference - 1.0).abs() > 1e-5
            assert differs.float().mean() < 1e-3
