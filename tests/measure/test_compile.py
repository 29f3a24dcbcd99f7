"""Compiling for sm_90 without a GPU."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

from wavetune.core.arch import find_arch
from wavetune.core.config import GEMM, KernelConfig
from wavetune.measure.compile import Rejected, compile_configs
from wavetune.store.record import CompiledConfig, Status

H200 = find_arch("h200")

# Compiles the same launches from real tensors, as the timing process does, and prints the number of cache files.
SECOND_PROCESS = """
import sys
from pathlib import Path
import torch
from wavetune.core.arch import find_arch
from wavetune.core.problem import GemmProblem
from wavetune.kernels.call import compile_call, compile_offline
from wavetune.kernels.gemm import gemm_calls
from wavetune.kernels.gemm_operands import make_gemm_operands
sys.path.insert(0, sys.argv[2])
from test_compile import CONFIGS
arch = find_arch("h200")
compile_offline(arch)
for dims in ((1, 640, 4096), (300, 1000, 3000)):
    for config in CONFIGS:
        operands = make_gemm_operands(GemmProblem(*dims), "cpu", 0)[0].with_workspace(config)
        for call in gemm_calls(operands, config, arch):
            compile_call(call)
print(sum(path.is_file() for path in Path(sys.argv[1]).rglob("*")))
"""


def make_config(**fields: object) -> KernelConfig:
    """Complete a configuration."""
    base = {"block_m": 64, "block_n": 64, "block_k": 64, "group_m": 8, "num_warps": 4, "num_stages": 3}
    return GEMM.config({**base, "load": "tma", **fields})


CONFIGS = (
    make_config(),
    make_config(load="pointer"),
    make_config(schedule="persistent", epilogue_split=2),
    make_config(schedule="split_k", split_k=2),
    make_config(block_n=160),
    make_config(block_m=16),
)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Point Triton to an empty cache."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_resources_are_read_and_the_cache_is_warm(cache: Path) -> None:
    """Registers and shared memory are plausible, and the timing process finds every kernel in the cache."""
    results = compile_configs("gemm", CONFIGS, H200, dtype="bf16", layout="nk", n_workers=2)
    assert all(isinstance(result, CompiledConfig) for result in results), results
    assert [result.config for result in results] == list(CONFIGS)
    for result in results:
        assert isinstance(result, CompiledConfig)
        assert 24 <= result.num_regs <= 255
        assert result.num_spills == 0
        stage_bytes = (result.config["block_m"] + result.config["block_n"]) * 64 * 2
        assert 3 * stage_bytes <= result.smem_bytes <= 3 * stage_bytes + 64 * 1024
    pytest.importorskip("torch")
    n_files = sum(path.is_file() for path in cache.rglob("*"))
    again = subprocess.run(
        [sys.executable, "-c", SECOND_PROCESS, str(cache), str(Path(__file__).parent)],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    assert int(again.stdout) == n_files


def test_what_does_not_fit_is_rejected(cache: Path) -> None:
    """Exact shared memory decides, after the estimate of the rules."""
    too_large = make_config(block_m=128, block_n=256, schedule="persistent", num_warps=8, num_stages=4)
    (result,) = compile_configs("gemm", [too_large], H200, dtype="bf16", layout="nk", n_workers=1)
    assert isinstance(result, Rejected)
    assert result.status is Status.OUT_OF_RESOURCES
    assert "262176 B of shared memory" in result.reason


def test_failures_are_statuses(cache: Path) -> None:
    """A compiler error and a time limit are results, each with its reason."""
    impossible = make_config(num_warps=1, block_m=16, block_n=16, block_k=16).replace(block_n=24, load="pointer")
    (result,) = compile_configs("gemm", [impossible], H200, dtype="bf16", layout="nk", n_workers=1)
    assert isinstance(result, Rejected)
    assert result.status is Status.COMPILE_ERROR
    assert "power of 2" in result.reason
    (result,) = compile_configs("gemm", CONFIGS[:1], H200, dtype="bf16", layout="kn", n_workers=1, time_limit_s=0.01)
    assert isinstance(result, Rejected)
    assert result.status is Status.COMPILE_TIMEOUT


def test_other_targets_compile_too(cache: Path) -> None:
    """The same kernels build for an A100 and an MI300X."""
    config = make_config(load="pointer", num_stages=2)
    for name in ("a100", "mi300x"):
        (result,) = compile_configs("gemm", [config], find_arch(name), dtype="fp16", layout="kn", n_workers=1)
        assert isinstance(result, CompiledConfig), result
