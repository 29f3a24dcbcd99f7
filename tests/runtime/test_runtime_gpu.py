# ruff: noqa: E402 (what is imported below needs torch and triton)
"""What only a GPU can show: the device is found without a context, and one order of summing is one result."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

import wavetune
from wavetune.core.arch import find_arch
from wavetune.core.config import KernelConfig
from wavetune.core.problem import GemmProblem
from wavetune.errors import ArchError
from wavetune.kernels.gemm import launch_gemm
from wavetune.kernels.gemm_operands import GemmOperands, make_gemm_operands
from wavetune.mapping.numerics import ReductionOrder, reduction_order
from wavetune.runtime.device import cuda_device, resolve_device

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]

DIMS = (200, 712, 4104)


@pytest.fixture(scope="module")
def name() -> str:
    """Return the GPU that is present; skip where wavetune does not know it or has no model of it."""
    try:
        found = find_arch(torch.cuda.get_device_name()).name
        wavetune.rank_configs(GemmProblem(*DIMS), arch=found)
    except wavetune.WavetuneError as error:
        pytest.skip(str(error))
    return found


def test_the_device_is_found_without_torch_and_a_fork_survives(name: str, tmp_path: Path) -> None:
    """The driver names the GPU that torch names later; a child forked in between may start CUDA."""
    program = (
        "import os, sys, wavetune\n"
        "from wavetune.runtime.device import resolve_device\n"
        "config = wavetune.choose_config(512, 4096, 4096)\n"
        "before = resolve_device()\n"
        "assert 'torch' not in sys.modules\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    import torch\n"
        "    os._exit(0 if float(torch.ones(8, device='cuda').sum()) == 8.0 else 1)\n"
        "assert os.waitpid(child, 0)[1] == 0, 'CUDA does not start after a fork'\n"
        "import torch\n"
        "assert resolve_device() is before, 'torch alone changes nothing'\n"
        "torch.zeros(1, device='cuda')\n"
        "after = resolve_device()\n"
        "assert (after.arch, after.num_sms, after.index) == (before.arch, before.num_sms, 0), (before, after)\n"
        "assert wavetune.choose_config(512, 4096, 4096) == config\n"
        "print(before.arch.name)\n"
    )
    environment = {key: value for key, value in os.environ.items() if not key.startswith("WAVETUNE_")}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=250,
        env={**environment, "WAVETUNE_CACHE_DIR": str(tmp_path), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.strip() == name


def test_torch_and_the_name_agree(name: str) -> None:
    """The current device of torch is the GPU by its name, with all of its SMs unless it is a slice."""
    torch.zeros(1, device="cuda")
    device = resolve_device()
    assert device is cuda_device(torch.cuda.current_device())
    assert device.arch.name == name
    assert device.num_sms == torch.cuda.get_device_properties(0).multi_processor_count
    with pytest.raises(ArchError):
        resolve_device(None, device.arch.num_sms + 1)


def rows_of(operands: GemmOperands, n_rows: int, config: KernelConfig, arch: object) -> object:
    """Compute the first rows alone."""
    _, n, k = operands.problem.dims
    problem = GemmProblem(n_rows, n, k, operands.problem.dtype, operands.problem.layout, operands.problem.alignment)
    part = GemmOperands(problem, operands.a[:n_rows], operands.b, torch.full_like(operands.out[:n_rows], float("nan")))
    launch_gemm(part, config, arch)
    return part.out


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize("alignment", [16, 2])
def test_one_order_of_summing_is_one_result_bit_by_bit(name: str, dtype: str, alignment: int) -> None:
    """Every configuration of an order gives the bits of every other one, for many rows and for few."""
    arch = find_arch(name)
    problem = GemmProblem(*DIMS, dtype=dtype, alignment=alignment)
    operands = make_gemm_operands(problem, "cuda", 0)[0]
    classes: dict[ReductionOrder, list[KernelConfig]] = {}
    for entry in wavetune.rank_configs(problem, arch=name):
        order = reduction_order(entry.config, arch)
        if order is not None:
            classes.setdefault(order, []).append(entry.config)
    assert classes
    for order, configs in classes.items():
        launch_gemm(operands, configs[0], arch)
        expected = operands.out.clone()
        for config in configs:
            operands.out.fill_(float("nan"))
            launch_gemm(operands, config, arch)
            assert torch.equal(operands.out, expected), (order, config)
            for n_rows in (1, 17, 129):
                assert torch.equal(rows_of(operands, n_rows, config, arch), expected[:n_rows]), (order, config, n_rows)


@pytest.mark.parametrize(("n", "k"), [(4096, 4096), (1024, 8192), (712, 4104)])
def test_a_row_does_not_depend_on_how_many_there_are(name: str, n: int, k: int) -> None:
    """What `choose_config` gives in the class computes a row to the same bits for every m."""
    arch = find_arch(name)
    operands = make_gemm_operands(GemmProblem(2048, n, k), "cuda", 1)[0]
    results = [
        rows_of(operands, m, wavetune.choose_config(m, n, k, arch=name, numerics="batch_invariant"), arch)
        for m in (1, 2, 16, 17, 64, 65, 200, 1024, 2048)
    ]
    for result in results:
        assert torch.equal(result[0], results[-1][0])
        assert torch.equal(result, results[-1][: len(result)])
